"""InfiniBand collector: every port and device of every RDMA driver, from ``/sys/class/infiniband``.

InfiniBand (mlx4, mlx5, OmniPath's hfi1), RoCE (mlx5, bnxt_re, irdma, hns, rxe) and EFA. Which file is which metric
is ``_infiniband_counters.py``, finding out what a device has ``_infiniband_plan.py``, reading it
``_infiniband_device.py``. Rates and ratios are recording rules (``dashboards/rules/fabric.py``): a rate needs two
scrapes, and a second Prometheus must not change the first one's.

A counter of a device whose firmware does not answer blocks its reader in the kernel, on mlx5 for a minute. Devices
are therefore read by a thread of their own, one after the other; when one takes too long, another thread goes on
with the rest, and the slow one is not read again before it has come back.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque

from exporters.collectors._infiniband_device import Device
from exporters.collectors._infiniband_files import Files
from exporters.registry import NoData, Sample, register
from exporters.settings import Settings

log = logging.getLogger("exaserve.exporter")

#: Devices that are read, virtual functions among them.
MAX_DEVICES = 1024
#: Seconds on one device after which another thread goes on with the rest.
PATIENCE = 0.3
#: Threads at one time. With that many devices hanging, the rest waits for them.
MAX_THREADS = 32
#: The kernel's names have at most 63 characters.
_LONGEST_NAME = 64

_UP = "exaserve_infiniband_device_up"


class InfinibandCollector:
    """``files`` is how files are read; the tests put in some that fail or hang."""

    def __init__(self, settings: Settings, files: Files | None = None) -> None:
        self._folder = str(settings.sysfs / "class" / "infiniband")
        self._node_names = settings.node_exporter_names
        self._files = files or Files()
        self._devices: dict[str, Device] = {}
        self._said: dict[str, str] = {}
        self._threads = 0
        self._lock = threading.Lock()

    def collect(self, deadline: float) -> list[Sample]:
        """Raises NoData without any RDMA device, OSError if the folder of the devices can't be read."""
        self._list()
        run = _Run([d for d in self._devices.values() if not d.busy])
        self._work_on(run, deadline)
        return self._samples(run)

    def _list(self) -> None:
        try:
            found = os.listdir(self._folder)
        except (FileNotFoundError, NotADirectoryError):
            found = []
        names = sorted(n for n in found if len(n) <= _LONGEST_NAME and not n.startswith("."))
        self._say("devices", f"{len(names)}, more than {MAX_DEVICES}" if len(names) > MAX_DEVICES else "")
        names = names[:MAX_DEVICES]
        for gone in self._devices.keys() - set(names):
            self._devices.pop(gone).forget()
            self._said.pop(gone, None)
        for name in names:
            if name not in self._devices:
                path = f"{self._folder}/{name}"
                self._devices[name] = Device(name, path, self._files, self._node_names)
        if not names:
            raise NoData

    def _work_on(self, run: _Run, deadline: float) -> None:
        """Reads the devices of ``run`` until the deadline; those that hang are left to their threads."""
        while not run.done():
            waiting = run.left()
            if waiting and self._may_start():
                threading.Thread(
                    target=self._work, args=(run,), name="infiniband-devices", daemon=True
                ).start()
            # Looks after PATIENCE whether anything has moved; a slow device that comes back in time still counts.
            while not run.done():
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return
                before = run.left()
                run.finished.wait(min(PATIENCE, remaining))
                if before and run.left() == before and not run.done():
                    break

    def _may_start(self) -> bool:
        with self._lock:
            if self._threads >= MAX_THREADS:
                return False
            self._threads += 1
            return True

    def _work(self, run: _Run) -> None:
        try:
            while (device := run.next()) is not None:
                try:
                    run.finish(device, device.read())
                except (FileNotFoundError, NotADirectoryError):
                    run.finish(device, [])  # it went away after it was listed
                except Exception as error:
                    run.finish(device, f"{type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._threads -= 1

    def _samples(self, run: _Run) -> list[Sample]:
        samples: list[Sample] = []
        for name in self._devices:
            result = run.results.get(name, "its files don't answer")
            problem = result if isinstance(result, str) else ""
            self._say(name, problem)
            if problem or result:
                samples.append(Sample(_UP, (name,), float(not problem)))
            if not isinstance(result, str):
                samples += result
        return samples

    def _say(self, who: str, problem: str) -> None:
        """One log line per change, not one per scrape."""
        if self._said.get(who, "") != problem:
            log.warning("infiniband %s: %s", who, problem or "is read again")
        self._said[who] = problem


class _Run:
    """One scrape: devices that wait to be read, and what was read. ``results``: samples, or why there are none."""

    def __init__(self, devices: list[Device]) -> None:
        self.results: dict[str, list[Sample] | str] = {}
        self.finished = threading.Event()
        self._waiting = deque(devices)
        self._open = len(devices)
        self._lock = threading.Lock()

    def next(self) -> Device | None:
        with self._lock:
            if not self._waiting:
                return None
            device = self._waiting.popleft()
            device.busy = True
            return device

    def finish(self, device: Device, result: list[Sample] | str) -> None:
        with self._lock:
            device.busy = False
            self.results[device.name] = result
            self._open -= 1
        if self.done():
            self.finished.set()

    def left(self) -> int:
        """Devices that nobody has begun."""
        return len(self._waiting)

    def done(self) -> bool:
        return self._open == 0


register("infiniband", InfinibandCollector)
