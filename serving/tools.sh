#!/usr/bin/env bash
# Installs Debian's prometheus and prometheus-alertmanager where they are missing and root or
# password-less sudo allows it; with the argument `lab` also what `exaserve lab` and faults use (ip, nft,
# fusermount3, stress-ng, gdb, libfaketime); with `tests` that and prometheus-node-exporter, which only the tests compare ours
# with, and chromium, in which they look at pages. Never fails where it can't: it says what is missing and how to get it.
# Debian's own services are neither started nor left enabled: ExaServe runs these programs itself.
set -euo pipefail

missing=()
browser=()
command -v prometheus >/dev/null && command -v promtool >/dev/null || missing+=(prometheus)
{ command -v prometheus-alertmanager || command -v alertmanager; } >/dev/null && command -v amtool >/dev/null \
  || missing+=(prometheus-alertmanager)
programs="prometheus, promtool, alertmanager, amtool"
if [ "${1:-}" = lab ] || [ "${1:-}" = tests ]; then
  programs+=", ip, nft, fusermount3, stress-ng, gdb"
  # nft and its like are in sbin, which the PATH of a user who is not root may lack.
  PATH=$PATH:/usr/sbin:/sbin
  command -v ip >/dev/null || missing+=(iproute2)
  command -v nft >/dev/null || missing+=(nftables)
  command -v fusermount3 >/dev/null || missing+=(fuse3)
  command -v stress-ng >/dev/null || missing+=(stress-ng)
  command -v gdb >/dev/null || missing+=(gdb)
  ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || missing+=(libfaketime)
fi
if [ "${1:-}" = tests ]; then
  programs+=", node_exporter"
  command -v prometheus-node-exporter >/dev/null || command -v node_exporter >/dev/null \
    || missing+=(prometheus-node-exporter)
  # By itself: not every Debian-like system has it as a package, and the others must come all the same.
  command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
    || browser=(chromium)
fi
wanted=("${missing[@]}" "${browser[@]}")
[ ${#wanted[@]} -eq 0 ] && exit 0

give_up() {
  echo "tools: ${wanted[*]} missing ($1). ExaServe goes on without. To get them:"
  echo "  sudo apt-get install --no-install-recommends ${wanted[*]}"
  echo "or put $programs on the PATH."
  exit 0
}

command -v apt-get >/dev/null || give_up "no apt-get on this machine"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  sudo -n true 2>/dev/null || give_up "neither root nor password-less sudo"
  as_root=(sudo -n)
fi

echo "tools: installing ${wanted[*]}"
log=$(mktemp)
policy=/usr/sbin/policy-rc.d
made_policy=no
clean_up() {
  if [ "$made_policy" = yes ]; then "${as_root[@]}" rm -f "$policy"; fi
  rm -f "$log"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# 101 tells Debian's maintainer scripts not to start services. One that is there already stays as it is.
if ! [ -e "$policy" ] && ! [ -L "$policy" ]; then
  made_policy=yes
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
fi

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=180 "$@" </dev/null >>"$log" 2>&1
}
# Most often, where the first try fails, the package lists are empty or old.
get() { apt install -y --no-install-recommends "$@" || { apt update && apt install -y --no-install-recommends "$@"; }; }
if [ ${#missing[@]} -gt 0 ]; then
  get "${missing[@]}" || {
    tail -n 5 "$log"
    give_up "apt-get failed, its last lines are above"
  }
fi
if [ ${#browser[@]} -gt 0 ] && ! get "${browser[@]}"; then
  echo "tools: no ${browser[*]} from apt-get; what needs a browser is skipped"
  wanted=("${missing[@]}")
fi
if command -v systemctl >/dev/null && [ -d /run/systemd/system ] && [ ${#missing[@]} -gt 0 ]; then
  "${as_root[@]}" systemctl disable --now "${missing[@]}" >/dev/null 2>&1 || true
fi
[ ${#wanted[@]} -eq 0 ] || echo "tools: ${wanted[*]} installed"
