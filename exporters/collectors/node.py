"""Node collector: versions of kernel, Python, engine and driver, MTU of interfaces, limits. For comparing nodes.

The engine's environment may lie on a file system that hangs, so it is read by a thread of its own, at most every
five minutes; until it has been read, and while it hangs, its components are absent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from exporters.collectors._task import Hung, Task
from exporters.doctor import config, fabric, versions
from exporters.doctor.files import text
from exporters.doctor.probes import engine
from exporters.registry import Sample, register
from exporters.settings import Settings

#: Seconds between two looks at the engine's environments.
INTERVAL = 300.0
#: Seconds that a scrape waits for such a look; it takes a few milliseconds.
WAIT = 1.0
_LIMITS = {
    "Max open files": "exaserve_node_open_files_limit",
    "Max locked memory": "exaserve_node_locked_memory_limit_bytes",
}
_MAX_VERSION = 100


class NodeCollector:
    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._engines = str(config.home(os.environ) / "engines")
        self._task: Task[dict[str, list[str]]] = Task("engine versions")
        self._read_at: float | None = None
        self._found: dict[str, list[str]] = {}

    def collect(self, deadline: float) -> Iterator[Sample]:
        procfs = self._settings.procfs
        simple = {
            "kernel": versions.kernel(procfs),
            "python": versions.python(),
            "exaserve": versions.exaserve(),
            "nvidia_driver": versions.nvidia_driver(procfs),
        }
        found = {name: [release] for name, release in simple.items() if release} | self._engine(deadline)
        for name, releases in found.items():
            for release in releases:
                yield Sample("exaserve_node_software_info", (name, release[:_MAX_VERSION]), 1)
        for interface in fabric.interfaces(self._settings.sysfs):
            if interface.up and interface.physical and interface.mtu is not None:
                yield Sample("exaserve_node_interface_mtu_bytes", (interface.name,), interface.mtu)
        raw = text(procfs / "self/limits") or ""
        for line, name in _LIMITS.items():
            limit = versions.limit(raw, line)
            if limit is not None and limit[0] != float("inf"):
                yield Sample(name, (), limit[0])

    def _engine(self, deadline: float) -> dict[str, list[str]]:
        now = self._clock()
        if self._read_at is None or now - self._read_at >= INTERVAL:
            self._found = {}
            self._task.start(self._look)
            try:
                self._found = self._task.result(min(deadline, time.monotonic() + WAIT))
                self._read_at = now
            except Hung:
                return {}
        return self._found

    def _look(self) -> dict[str, list[str]]:
        return versions.of_engines(engine.look([self._engines, "-"]))


register("node", NodeCollector)
