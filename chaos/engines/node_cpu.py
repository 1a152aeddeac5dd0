"""A node's processors taken away: by a quota for all that runs on it, or by others that compute.

Whether it is in is measured by a fixed calculation on the node, in seconds, before and after.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from chaos import identity, steps
from chaos.engines import cgroups
from chaos.fault import Engine, Plan, Proof, Refused, Target
from chaos.place import Place

_PERIOD = 100_000  # microseconds; the kernel's usual cfs_period_us
# Prints seconds of wall time for a calculation of some 50 ms of CPU; the shortest of three is what the node can do.
_WORK = """
import time
def once():
    begin = time.perf_counter(); n = 0
    for i in range(600000): n += i
    return time.perf_counter() - begin
print(min(once() for _ in range(3)))
"""


def seconds(target: Target, group: str = "") -> float:
    """Of the calculation. group: a control group to run it in. Raises Refused."""
    node = target.node
    assert node is not None
    python = "python3" if node.remote else sys.executable
    argv = [python, "-I", "-c", _WORK]
    if group:
        argv = ["sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', group, *argv]
    done = node.read(argv, timeout=20)
    try:
        return float(done.stdout)
    except ValueError:
        raise Refused(f"{target.name} can't be measured: {done.stderr.strip()[-200:]}") from None


class Quota(Engine):
    """Parameter ``busy``: share (0-1) of one processor that is taken away from the node."""

    name = "cgroup"
    how = "a cgroup quota holds all processes of the lab's node to what is left"
    prove_within = 30.0

    def missing(self, place: Place) -> str | None:
        if os.geteuid() != 0:
            return "only root may set quotas (run it with sudo)"
        if not Path(cgroups.ROOT, "cpu", "cpu.cfs_quota_us").parent.exists():
            return "cgroup v1's controller cpu is not mounted below /sys/fs/cgroup"
        return None

    def refusal(self, target: Target, p: Any) -> str | None:
        node = target.node
        assert node is not None
        if node.remote or node.init is None:
            return f"{node.name} is no node of a lab, whose processes can be told from all others"
        return None

    def before(self, target: Target, p: Any) -> float:
        return seconds(target)

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        node = target.node
        assert node is not None
        assert node.init is not None
        group = f"{cgroups.ROOT}/cpu/{cgroups.name(target, 'cpu')}"
        pids = [who["pid"] for who in identity.tree(node.init["pid"])]
        homes = {pid: home for pid in pids if (home := cgroups.group_of(pid, "cpu"))}
        if not homes:
            raise Refused(f"no process of {node.name} is in a group of the controller cpu")
        quota = max(1000, round((1 - p.busy) * _PERIOD))  # of one processor
        return Plan(
            [
                steps.mkdir(group),
                steps.put(f"{group}/cpu.cfs_period_us", f"{_PERIOD}\n"),
                steps.put(f"{group}/cpu.cfs_quota_us", f"{quota}\n"),
                cgroups.move(group, list(homes)),
            ],
            [cgroups.back(group, homes)],
            claims=(f"cpu:{node.name}",),
        )

    def prove(self, target: Target, p: Any, before: float) -> Proof:
        return slower(before, seconds(target, f"{cgroups.ROOT}/cpu/{cgroups.name(target, 'cpu')}"))


class StressCpu(Engine):
    """stress-ng on every processor; parameter ``busy``: share of the time that each computes."""

    name = "stress-ng"
    how = "stress-ng computes on every processor of the node"
    prove_within = 30.0

    def missing(self, place: Place) -> str | None:
        if any(n.remote for n in place.nodes()) or shutil.which("stress-ng"):
            return None
        return "stress-ng is missing; on Debian: sudo apt-get install stress-ng"

    def refusal(self, target: Target, p: Any) -> str | None:
        assert target.node is not None
        if not target.remote:
            return "on this machine all nodes and the controller share the processors: a quota on the node is what works"
        if target.node.read(["stress-ng", "--version"]).returncode:
            return f"stress-ng is missing on {target.node.name}; on Debian: sudo apt-get install stress-ng"
        return None

    def before(self, target: Target, p: Any) -> float:
        return seconds(target)

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        # Two for each processor, so that those that serve get a third at most; ends by itself a second later.
        load = str(round(p.busy * 100))
        argv = ["sh", "-c", 'exec stress-ng --cpu $(($(nproc) * 2)) --cpu-load "$0" --timeout "$1"']
        return Plan(
            [steps.spawn("stress", [*argv, load, str(int(duration) + 1)], target.node)],
            [steps.stop("stress")],
            claims=(f"cpu:{target.name}",),
        )

    def prove(self, target: Target, p: Any, before: float) -> Proof:
        return slower(before, seconds(target))


def slower(before: float, now: float) -> Proof:
    """A fixed calculation takes at least 1.3 times as long."""
    told = f"a fixed calculation takes {now * 1000:.0f} ms, {before * 1000:.0f} ms before"
    return Proof(now >= 1.3 * before, told, now / before)
