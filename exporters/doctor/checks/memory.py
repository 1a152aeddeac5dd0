"""Memory of the system: swap, overcommitment hints that cost an engine its latency, huge pages, /dev/shm.

Reads: Documentation/admin-guide/sysctl/vm.rst, mm/transhuge.rst and mm/hugetlbpage.rst of the kernel. Workers of
one replica hand tensors over in /dev/shm, so a container's default of 64 MiB ends them with SIGBUS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from exporters.doctor.check import Finding, Node, register
from exporters.doctor.files import number, size, text


def memory(node: Node) -> Iterator[Finding]:
    info = parse_meminfo(text(node.procfs / "meminfo") or "")
    yield from _amounts(info)
    yield from _swap(node, info)
    yield _thp(node)
    yield _reclaim(node)
    yield _hugepages(info)


def parse_meminfo(raw: str) -> dict[str, int]:
    """Bytes by name (counts for ``HugePages_…``) of /proc/meminfo."""
    found: dict[str, int] = {}
    for name, value, unit in re.findall(r"^([\w()]+):\s+(\d+)( kB)?$", raw, re.MULTILINE):
        found[name] = int(value) * (1024 if unit else 1)
    return found


def _amounts(info: dict[str, int]) -> Iterator[Finding]:
    total, available = info.get("MemTotal"), info.get("MemAvailable")
    if not total or available is None:
        yield Finding("available", "can't be read", "unknown")
        return
    value = f"{size(available)} of {size(total)}"
    if available >= total * 0.1:
        yield Finding("available", value, "ok", "at least 10 %")
    else:
        yield Finding("available", value, "warn", "at least 10 %", "ps -eo pid,rss,args --sort -rss | head")


def _swap(node: Node, info: dict[str, int]) -> Iterator[Finding]:
    total = info.get("SwapTotal")
    if total is None:
        yield Finding("swap", "can't be read", "unknown")
        return
    if total == 0:
        yield Finding("swap", "off", "ok", "off, or swappiness at most 10")
        return
    used = total - info.get("SwapFree", total)
    swappiness = number(node.procfs / "sys/vm/swappiness")
    value = f"{size(used)} of {size(total)} used, swappiness {swappiness if swappiness is not None else '?'}"
    fine = used < total * 0.1 and swappiness is not None and swappiness <= 10
    cure = "" if fine else "sysctl vm.swappiness=1, or swapoff -a: a swapped KV cache costs seconds a token"
    yield Finding("swap", value, "ok" if fine else "warn", "off, or swappiness at most 10", cure)


def _thp(node: Node) -> Finding:
    raw = text(node.sysfs / "kernel/mm/transparent_hugepage/enabled")
    if raw is None:
        return Finding("transparent huge pages", "the kernel has none", "not here")
    chosen = _bracketed(raw)
    defrag = _bracketed(text(node.sysfs / "kernel/mm/transparent_hugepage/defrag") or "")
    value = f"{chosen or '?'}, defrag {defrag or '?'}"
    if defrag == "always":
        cure = "echo madvise > /sys/kernel/mm/transparent_hugepage/defrag"
        return Finding(
            "transparent huge pages", value, "warn", "defrag madvise (no stalls)", cure, compare="warn"
        )
    return Finding("transparent huge pages", value, "ok", "defrag not always (no stalls)", compare="warn")


def _bracketed(raw: str) -> str:
    found = re.search(r"\[([\w+]+)\]", raw)
    return found[1] if found else ""


def _reclaim(node: Node) -> Finding:
    mode = number(node.procfs / "sys/vm/zone_reclaim_mode")
    if mode is None:
        return Finding("zone_reclaim_mode", "the kernel has no NUMA", "not here")
    if mode == 0:
        return Finding("zone_reclaim_mode", "0", "ok", "0", compare="warn")
    cure = "sysctl vm.zone_reclaim_mode=0: a full node takes memory of the other before it evicts weights"
    return Finding("zone_reclaim_mode", str(mode), "warn", "0", cure, compare="warn")


def _hugepages(info: dict[str, int]) -> Finding:
    total = info.get("HugePages_Total")
    if not total:
        return Finding("huge pages", "none reserved", "not here")
    free, each = info.get("HugePages_Free", 0), info.get("Hugepagesize", 0)
    value = f"{total} of {size(each)}, {free} free"
    share = total * each / max(1, info.get("MemTotal", 0))
    if share > 0.25 and free == total:
        cure = "sysctl vm.nr_hugepages=0: vLLM uses none, and nothing else can have this memory"
        return Finding("huge pages", value, "warn", "none that nobody uses", cure, compare="warn")
    return Finding("huge pages", value, "ok", "none that nobody uses", compare="warn")


register("memory", "memory, swap, transparent huge pages, zone reclaim, huge pages", memory)
