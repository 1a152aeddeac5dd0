"""Runs the infiniband collector for its tests, with files that fail or hang on demand."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter as Tally
from contextlib import suppress
from pathlib import Path

from exporters.catalog import CATALOG
from exporters.collectors._infiniband_files import File, Files
from exporters.collectors.infiniband import InfinibandCollector
from exporters.settings import Settings

PORT = "exaserve_infiniband_port_"
HW = "exaserve_infiniband_port_hw_total"
SATURATED = "exaserve_infiniband_port_saturated"
UNREADABLE = "exaserve_infiniband_device_unreadable_files"
UP = "exaserve_infiniband_device_up"

#: (metric, label values) -> value
Found = dict[tuple[str, tuple[str, ...]], float]


class Faulty(Files):
    """Files of which some fail with an error number, and some hang until ``go_on`` is set. Both by path's end."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, int] = {}
        self.hanging: tuple[str, ...] = ()
        self.go_on = threading.Event()
        self.reads = Tally[str]()

    def file(self, path: str) -> File:
        return _FaultyFile(self, path)


class _FaultyFile(File):
    def __init__(self, files: Faulty, path: str) -> None:
        super().__init__(files, path)
        self._faults = files

    def read(self) -> bytes:
        self._faults.reads[self.path] += 1
        for end, number in self._faults.errors.items():
            if self.path.endswith(end):
                raise OSError(number, os.strerror(number))
        if self._faults.hanging and self.path.endswith(self._faults.hanging):
            assert self._faults.go_on.wait(120)
        return super().read()


def open_files(below: Path) -> int:
    """How many files there this process has open. What threads of other tests open and close meanwhile is elsewhere."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            found += os.readlink(f"/proc/self/fd/{fd}").startswith(f"{below}/")
    return found


def collector(sysfs: Path, files: Files | None = None) -> InfinibandCollector:
    return InfinibandCollector(Settings(sysfs=sysfs), files)


def scrape(c: InfinibandCollector, seconds: float = 60.0) -> Found:
    samples = list(c.collect(time.monotonic() + seconds))
    for s in samples:
        assert len(CATALOG[s.name].labels) == len(s.labels), s
    found = {(s.name, s.labels): s.value for s in samples}
    assert len(found) == len(samples), "a series is there twice"
    return found


def read(sysfs: Path) -> Found:
    return scrape(collector(sysfs))


def counters(found: Found, name: str, *at: str) -> dict[str, float]:
    """Last label -> value of one metric of one device or port."""
    return {labels[-1]: v for (n, labels), v in found.items() if n == name and labels[: len(at)] == at}
