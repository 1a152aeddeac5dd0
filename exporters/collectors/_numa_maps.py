"""On which nodes the memory of processes is: ``/proc/PID/numa_maps``, read rarely and in a thread of its own.

The kernel walks the process's page tables for it (9-20 ms per resident GiB) under the process's memory-map lock, so
that the process may stall that long. Hence: at most one reading of a process in ``interval`` seconds, none above
``limit`` bytes, none in the first seconds of a process (it maps and loads then), one process after another.
What the numbers mean for a replica is ``_numa_memory.py``.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exporters.patience import Job
from exporters.processes import Process, is_same
from exporters.proctable import read

#: Seconds at one process after which its reading counts as stuck, and the next process has its turn.
PATIENCE = 30.0
#: Readings that may hang; with so many, no further one is begun.
MAX_STUCK = 4
#: Age in seconds from which on a process is read.
SETTLED = 30.0

#: 65,530 mappings (the usual limit of a process) make some 8 MiB.
_FILE_BYTES = 32 * 2**20
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGES = re.compile(r" N(\d+)=(\d+)")
_FIELD = re.compile(r" (file|kernelpagesize_kB|anon)=(\S+)")
_MEMORY_FILES = ("/dev/shm/", "/memfd:", "/dev/zero", "/SYSV", "/dev/hugepages/", "/anon_hugepage")  # noqa: S108
_RESIDENT = re.compile(r"^VmRSS:\s*(\d+) kB", re.MULTILINE)

#: What tells a file mapped by several processes: (device, inode), or its path where that is not known.
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """Memory of one process. at: monotonic seconds. seconds: what the reading took.

    private: bytes by (node, kind); shared: for each file (node, kind) likewise. kind is ``own`` (anonymous and
    shared memory) or ``file`` (pages of a file). Both empty and ``why`` set where it could not be measured.
    """

    at: float
    seconds: float = 0.0
    private: Mapping[tuple[int, str], int] = field(default_factory=dict)
    shared: Mapping[Key, Mapping[tuple[int, str], int]] = field(default_factory=dict)
    why: str = ""


class MemoryReader:
    """The last reading of each process. ``update`` never blocks; call it from one thread at a time."""

    def __init__(self, procfs: Path, limit: int, interval: float) -> None:
        self._procfs, self._limit, self._interval = procfs, limit, interval
        self._readings: dict[Process, Reading] = {}
        self._stuck: dict[Process, threading.Thread] = {}
        self._job: Job[Process, Reading] | None = None

    def update(self, processes: Iterable[Process]) -> Mapping[Process, Reading]:
        """Readings of these processes as far as there are any; begins those that are due."""
        wanted = set(processes)
        self._stuck = {p: thread for p, thread in self._stuck.items() if thread.is_alive()}
        if self._job is not None:
            self._readings |= dict(self._job.found)
            stuck = self._job.stuck(PATIENCE)
            if stuck is not None:
                self._stuck[stuck] = self._job.thread
                self._job.give_up()
            if stuck is not None or self._job.done():
                self._job = None
        self._readings = {p: r for p, r in self._readings.items() if p in wanted}
        if self._job is None and len(self._stuck) < MAX_STUCK:
            due = [p for p in wanted if p not in self._stuck and self._is_due(p)]
            if due:
                self._job = Job("numa-maps", sorted(due, key=lambda p: p.pid), self._read)
        return self._readings

    def _is_due(self, process: Process) -> bool:
        reading = self._readings.get(process)
        if reading is not None:
            return time.monotonic() - reading.at >= self._interval
        up = (read(self._procfs / "uptime", 256) or "").partition(" ")[0]
        try:
            age = float(up) - process.ticks / _TICKS
        except ValueError:
            return True
        return not 0 <= age < SETTLED

    def _read(self, process: Process) -> Reading | None:
        folder = f"{self._procfs}/{process.pid}"
        began = time.monotonic()
        resident = _RESIDENT.search(read(f"{folder}/status", 65_536) or "")
        if resident is None:
            return None
        if int(resident[1]) * 1024 > self._limit:
            return Reading(began, why="too large")
        maps = read(f"{folder}/maps", _FILE_BYTES) or ""
        # Reading is all that the process can feel; taking it apart is not.
        text = read(f"{folder}/numa_maps", _FILE_BYTES)
        took = time.monotonic() - began
        if not is_same(self._procfs, process):
            return None
        if not text or len(text) >= _FILE_BYTES:
            return Reading(began, took, why="not allowed" if not text else "too many mappings")
        private, shared = parse(text, maps)
        return Reading(began, took, private, shared)


def parse(
    numa_maps: str, maps: str = ""
) -> tuple[dict[tuple[int, str], int], dict[Key, dict[tuple[int, str], int]]]:
    """Bytes by (node, kind): of the process's own pages, and of the pages of each file that others map too.

    numa_maps, maps: proc(5). numa_maps names files by path only; ``maps`` has the inode, which tells two memfds of
    one name apart. Lines that are neither are passed over. Pages of a file that the process has written to are
    its own copies.
    """
    files = _files(maps)
    private: dict[tuple[int, str], int] = {}
    shared: dict[Key, dict[tuple[int, str], int]] = {}
    for line in numa_maps.splitlines():
        pages = _PAGES.findall(line)
        if not pages:
            continue
        fields = dict(_FIELD.findall(line))
        size = fields.get("kernelpagesize_kB", "4")
        unit = int(size) * 1024 if size.isascii() and size.isdigit() else 4096
        path = fields.get("file")
        key, is_memory = files.get(line.partition(" ")[0]) or (
            (path or "",),
            bool(path and path.startswith(_MEMORY_FILES)),
        )
        if path is None or ("anon" in fields and not is_memory):
            into, kind = private, "own"
        else:
            into, kind = shared.setdefault(key, {}), "own" if is_memory else "file"
        for node, count in pages:
            at = (int(node), kind)
            into[at] = into.get(at, 0) + int(count) * unit
    return private, shared


def _files(maps: str) -> dict[str, tuple[Key, bool]]:
    """For each mapping of a file, by its first address: what tells the file, and whether it is shared memory."""
    found: dict[str, tuple[Key, bool]] = {}
    for line in maps.splitlines():
        parts = line.split(None, 5)
        if len(parts) < 5 or parts[4] == "0":
            continue
        access = parts[1]
        # Written to by several: memory that happens to have a name (an offload pool), wherever the file is.
        found[parts[0].partition("-")[0]] = ((parts[3], parts[4]), access.endswith("s") and "w" in access)
    return found
