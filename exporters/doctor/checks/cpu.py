"""CPUs: how many this process may use, the frequency governor, the container's CPU quota."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from exporters.doctor.check import Finding, Node, register
from exporters.doctor.files import expand, names, text


def cpu(node: Node) -> Iterator[Finding]:
    online = expand(text(node.sysfs / "devices/system/cpu/online") or "")
    allowed = len(os.sched_getaffinity(0))
    if online:
        value = f"{len(online)} online, {allowed} allowed here"
        short = allowed < len(online)
        cure = "the rest is taken by taskset, a cpuset or the job's allocation" if short else ""
        yield Finding("CPUs", value, "ok", "", cure, compare="warn")
    else:
        yield Finding("CPUs", f"{allowed} allowed here", "ok", compare="warn")
    yield _governor(node)
    yield _quota(node)


def _governor(node: Node) -> Finding:
    cpus = node.sysfs / "devices/system/cpu"
    found = Counter(
        governor
        for name in names(cpus)
        if name[:3] == "cpu" and name[3:].isdecimal()
        if (governor := text(cpus / name / "cpufreq/scaling_governor"))
    )
    if not found:
        return Finding("governor", "no frequency scaling", "not here")
    value = ", ".join(f"{governor} ({count} CPUs)" for governor, count in found.most_common())
    if set(found) == {"performance"}:
        return Finding("governor", value, "ok", "performance", compare="warn")
    cure = "cpupower frequency-set -g performance"
    return Finding("governor", value, "warn", "performance", cure, compare="warn")


def _quota(node: Node) -> Finding:
    """cgroup v2's cpu.max of this process's own group (Documentation/admin-guide/cgroup-v2.rst)."""
    for line in (text(node.procfs / "self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            raw = (text(node.sysfs / "fs/cgroup" / line[3:].lstrip("/") / "cpu.max") or "").split()
            if len(raw) == 2 and raw[0].isdecimal() and raw[1].isdecimal() and int(raw[1]):
                value = f"{int(raw[0]) / int(raw[1]):.3g} CPUs"
                cure = "a larger CPU limit of the pod or CPUQuota= of the unit: throttling stops tokens for 100 ms"
                return Finding("quota", value, "warn", "none", cure)
            if raw:
                return Finding("quota", "none", "ok", "none")
    return Finding("quota", "no limit set by a cgroup", "not here")


register("cpu", "CPUs, their governor and quota", cpu)
