"""Process 1 of a node: makes the node's namespaces, starts the node's stack, collects what has ended.

    python -m chaos.lab.init

It takes one line of JSON on its input, sent once the node has its network: ``hostname``, ``cpus`` (empty: all),
``argv`` and ``env`` of the stack, ``log``, and ``scratch`` (an empty folder). Before that it prints its pid, as
its caller counts. If the input ends without a line it ends. With it the kernel ends every process of the node
and takes its interface and its mounts away. A stack that ends is started again, as a service manager would.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from chaos.lab import mounts

# linux/sched.h
_NEWNS, _NEWUTS, _NEWPID, _NEWNET = 0x0002_0000, 0x0400_0000, 0x2000_0000, 0x4000_0000
#: Seconds until a stack that ended is started again.
_PAUSE = 1.0


def main() -> None:
    os.setsid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWNS | _NEWUTS | _NEWPID | _NEWNET):
        print(f"namespaces can't be made: {os.strerror(ctypes.get_errno())}", flush=True)
        sys.exit(1)
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        os._exit(0)
    try:
        _be_init()
    except BaseException as error:
        print(f"process 1 ended: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _be_init() -> None:
    # The cgroup hierarchies hang below the machine's sysfs; ours shows the node's interfaces, so they move.
    mounts.mount("", "/", flags=mounts.REC | mounts.SLAVE)
    line = sys.stdin.readline()
    if not line:
        os._exit(1)  # whoever builds the lab has died
    told: dict[str, Any] = json.loads(line)
    plain = mounts.NOSUID | mounts.NODEV | mounts.NOEXEC
    mounts.mount("proc", "/proc", "proc", plain)
    mounts.mount("sysfs", told["scratch"], "sysfs", plain)
    if Path("/sys/fs/cgroup").is_dir():
        mounts.mount("/sys/fs/cgroup", f"{told['scratch']}/fs/cgroup", flags=mounts.BIND | mounts.REC)
    mounts.mount(told["scratch"], "/sys", flags=mounts.MOVE)
    name = told["hostname"].encode()
    ctypes.CDLL(None).sethostname(name, len(name))
    if told["cpus"]:
        os.sched_setaffinity(0, told["cpus"])
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(told["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        stack = os.posix_spawn(
            told["argv"][0],
            told["argv"],
            told["env"],
            setsid=True,
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
        )
        while os.wait()[0] != stack:
            pass  # an orphan, collected
        print("the node's stack ended; starting it again", flush=True)
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main()
