"""A node's memory taken by a process that holds on to it; the kernel's OOM killer takes that process first.

Never more than half of what the machine has available: in a lab all nodes share one memory with the controller.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from chaos import steps
from chaos.fault import Engine, Plan, Proof, Target

_MIB = 1 << 20
# Every page is written, or the kernel would not give it. It asks to be killed first.
_HOG = """
# exaserve-memory-hog
import sys, time
with open("/proc/self/oom_score_adj", "w") as f: f.write("1000")
block = bytearray(int(sys.argv[1]) << 20)
for i in range(0, len(block), 4096): block[i] = 1
print("ready", flush=True)
while True: time.sleep(60)
"""


# Its own pages are what is measured: what is available on the machine moves with everything else that runs there.
_RESIDENT = (
    'for p in /proc/[0-9]*; do tr "\\0" " " < $p/cmdline 2>/dev/null | grep -q "exaserve-memory-ho[g]" &&'
    " grep VmRSS $p/status; done"
)


def held(target: Target) -> int:
    """MiB of memory that hogs of ours hold on the node (proc(5), VmRSS); 0 without one."""
    assert target.node is not None
    said = target.node.read(["sh", "-c", _RESIDENT]).stdout
    return sum(int(kib) for kib in re.findall(r"VmRSS:\s+(\d+) kB", said)) // 1024


def available(target: Target) -> int:
    """MiB that the node's kernel says are available (proc(5), MemAvailable); 0 if that can't be read."""
    assert target.node is not None
    found = re.search(r"MemAvailable:\s+(\d+) kB", target.node.read(["cat", "/proc/meminfo"]).stdout)
    return int(found[1]) // 1024 if found else 0


class Hog(Engine):
    """Parameter ``mib``."""

    name = "hog"
    how = "a process takes the memory and keeps it"
    prove_within = 20.0

    def refusal(self, target: Target, p: Any) -> str | None:
        there = available(target)
        if p.mib > there // 2:
            return f"{p.mib} MiB are more than half of what {target.name} has available ({there} MiB); less: -p mib=…"
        return None

    def before(self, target: Target, p: Any) -> int:
        return available(target)

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        python = "python3" if target.remote else sys.executable
        argv = [python, "-I", "-c", _HOG, str(p.mib)]
        return Plan(
            [steps.spawn("hog", argv, target.node, ready="ready", timeout=60)],
            [steps.stop("hog")],
            claims=(f"memory:{target.name}",),
        )

    def prove(self, target: Target, p: Any, before: int) -> Proof:
        taken = held(target)
        told = f"{taken} MiB are held, {available(target)} MiB are available, {before} MiB before"
        return Proof(taken >= p.mib * 0.95, told, float(taken))
