"""Leak collector: memory, threads and file descriptors of each replica, as sums over its processes.

It measures only; whether something grows is for rules to say (``dashboards/rules/leak.py``): they see hours of
samples, outlive a restart of the exporter, and need no state here. GPU memory by replica is the gpu collector's.
RSS is what ``status`` says: PSS would be fairer to shared pages, but the kernel walks every page for it.

A process that ends while it is read costs the replica that process only. What can't be read for want of rights
(file descriptors of another user's processes) is absent, since a sum without one of its parts would be wrong.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from exporters import processes
from exporters.processes import Process
from exporters.proctable import read
from exporters.registry import NoData, Sample, register
from exporters.settings import Settings

#: File descriptors of one process that are counted.
MAX_FDS = 1_048_576
_LIMIT = re.compile(r"^Max open files\s+(\d+)", re.M)
_BTIME = re.compile(r"^btime (\d+)", re.M)
_STATUS_FIELDS = {"VmRSS", "RssAnon", "VmSwap", "Threads"}


class Use(NamedTuple):
    """What one process uses. Memory in bytes. None for what can't be read."""

    resident: int | None
    anonymous: int | None
    swap: int | None
    threads: int | None
    fds: int | None
    fd_limit: int | None


def use(procfs: Path, pid: int) -> Use | None:
    """What the process uses now; None if it is gone. Sources: proc(5), status, fd, limits."""
    text = read(f"{procfs}/{pid}/status", 16_384)
    if not text:
        return None
    found: dict[str, int] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if key in _STATUS_FIELDS and words and words[0].isdigit():
            found[key] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    limit = _LIMIT.search(read(f"{procfs}/{pid}/limits", 8_192) or "")
    return Use(
        found.get("VmRSS"),
        found.get("RssAnon"),
        found.get("VmSwap"),
        found.get("Threads"),
        _count(f"{procfs}/{pid}/fd"),
        int(limit[1]) if limit else None,
    )


class LeakCollector:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def collect(self, deadline: float) -> list[Sample]:
        replicas = processes.find(self._settings)
        if not replicas:
            raise NoData
        booted = _BTIME.search(read(self._settings.procfs / "stat", 2**20) or "")
        samples: list[Sample] = []
        for replica in replicas:
            read_ = [
                (p, u) for p in replica.processes if (u := use(self._settings.procfs, p.pid)) is not None
            ]
            if read_:
                samples += _sum(replica.name, read_, int(booted[1]) if booted else None)
        return samples


def _sum(replica: str, found: list[tuple[Process, Use]], booted: int | None) -> Iterable[Sample]:
    uses = [u for _, u in found]
    values: dict[str, float | None] = {
        "group_size": len(uses),
        "resident_memory_bytes": _total(u.resident for u in uses),
        "private_memory_bytes": _total(x for u in uses for x in (u.anonymous, u.swap)),
        "swap_bytes": _total(u.swap for u in uses),
        "threads": _total(u.threads for u in uses),
        "open_fds": _total(u.fds for u in uses),
    }
    if booted is not None:
        # The server is the first of them.
        values["start_time_seconds"] = booted + found[0][0].ticks / os.sysconf("SC_CLK_TCK")
    ratios = [u.fds / u.fd_limit for u in uses if u.fds is not None and u.fd_limit]
    if len(ratios) == len(uses):
        values["open_fds_ratio"] = max(ratios)
    return [Sample(f"exaserve_process_{n}", (replica,), v) for n, v in values.items() if v is not None]


def _total(parts: Iterable[int | None]) -> int | None:
    known = list(parts)
    return None if None in known else sum(p for p in known if p is not None)


def _count(folder: str) -> int | None:
    try:
        with os.scandir(folder) as entries:
            return sum(1 for _ in islice(entries, MAX_FDS))
    except OSError:
        return None


register("leak", LeakCollector)
