"""A replica's memory: read from /proc, and grown from outside by a debugger that maps pages into the process.

gdb (Debian package gdb) calls mmap(2) in the process, which is safe wherever the process stands, and munmap at the end.
It is never killed while it is attached: the process would be left in the middle of the call.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from chaos import steps
from chaos.engines.signals import Signals, processes
from chaos.fault import Plan, Proof, Refused, Target
from chaos.place import Place

_MIB = 2**20
#: Where pages are mapped: far from heap, stacks and libraries (47 bits of user space on x86-64, 48 on arm64).
_BASE = 0x6E00_0000_0000
#: MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_FIXED_NOREPLACE (mman.h)
_FLAGS = 0x2 | 0x20 | 0x8000 | 0x100000
_GDB = ["gdb", "-nx", "-batch", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off"]
# Symbols of libc alone: those of a large engine would take seconds, in which it stands still.
_GDB += ["-iex", "set auto-solib-add off", "-ex", "sharedlibrary libc"]
_LEAKER = """
import json, os, signal, subprocess, sys, time
pid, ticks, base, flags, step, limit = map(int, sys.argv[1:7])
gdb, ending = json.loads(sys.argv[7]), []
signal.signal(signal.SIGTERM, lambda *_: ending.append(1))
env = {k: v for k, v in os.environ.items() if k != "EXASERVE_CHAOS_RECORD"}
taken = 0
while taken < limit and not ending:
    began = time.monotonic()
    size = min(step, limit - taken)
    if int(open("/proc/%d/stat" % pid).read().rpartition(")")[2].split()[19]) != ticks:
        sys.exit("the process is gone")
    call = "print (long)mmap((void*)%d, %d, 3, %d, -1, 0)" % (base + taken, size, flags)
    said = subprocess.run([*gdb, "-p", str(pid), "-ex", call], capture_output=True, text=True, env=env,
                          stdin=subprocess.DEVNULL, start_new_session=True)
    if "$1 = %d" % (base + taken) not in said.stdout:
        sys.exit("gdb: " + (said.stderr.strip().splitlines() or said.stdout.strip().splitlines() or ["nothing"])[-1])
    if not taken:
        print("ready", flush=True)
    taken += size
    while time.monotonic() - began < 1 and not ending:
        time.sleep(0.02)
while not ending:
    time.sleep(0.1)
"""


def resident(target: Target) -> int:
    """Bytes of resident memory of the replica's processes together (proc(5), statm). Raises Refused."""
    pids = [who["pid"] for who in processes(target)]
    paths = [f"/proc/{pid}/statm" for pid in pids]
    if target.remote and target.node is not None:
        texts = target.node.read(["cat", *paths]).stdout.splitlines()
    else:
        texts = [Path(p).read_text() for p in paths if Path(p).exists()]
    pages = [int(t.split()[1]) for t in texts if t.strip()]
    if not pages:
        raise Refused(f"the memory of {target.name} can't be read")
    return sum(pages) * 4096


def grown(target: Target, p: Any, before: int) -> Proof:
    """Whether it has grown by what half a second of the leak takes (4 MiB at least)."""
    more = (resident(target) - before) / _MIB
    return Proof(
        more >= max(4.0, min(p.mib_per_second, p.limit_mib) / 2),
        f"resident memory has grown by {more:.0f} MiB, from {before / _MIB:.0f} MiB",
        more,
    )


class MapByDebugger(Signals):
    """Pages mapped into the listening process, ``mib_per_second`` each second up to ``limit_mib``."""

    name = "gdb"
    how = "maps pages into its process with gdb, once a second, and unmaps them"
    prove_within = 20.0

    def missing(self, place: Place) -> str | None:
        if shutil.which("gdb") is None:
            return "gdb is not installed (Debian package gdb)"
        return None

    def refusal(self, target: Target, p: Any) -> str | None:
        if target.remote:
            return "gdb is used on this machine only, not on a node of a cluster"
        return super().refusal(target, p)

    def before(self, target: Target, p: Any) -> int:
        return resident(target)

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        import json

        who = processes(target)[0]
        limit, step = int(p.limit_mib) * _MIB, int(p.mib_per_second) * _MIB
        numbers = [str(n) for n in (who["pid"], who["ticks"], _BASE, _FLAGS, step, limit)]
        spawn = steps.spawn(
            "leak",
            [sys.executable, "-I", "-c", _LEAKER, *numbers, json.dumps(_GDB)],
            ready="ready",
            timeout=20.0,
        )
        call = f"print (int)munmap((void*){_BASE}, {limit})"
        unmap = steps.run([*_GDB, "-p", str(who["pid"]), "-ex", call], timeout=15.0) | {"inside": who}
        return Plan([spawn], [steps.stop("leak"), unmap], claims=(f"memory:{who['pid']}",))

    def prove(self, target: Target, p: Any, before: int) -> Proof:
        return grown(target, p, before)
