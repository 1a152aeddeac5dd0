"""GPU collector: every NVIDIA GPU of the node, each in a thread of its own.

A GPU that is lost, hangs or vanished has ``exaserve_gpu_up`` 0, says why, and has no other series but its Xids;
the other GPUs keep theirs. One that hangs is left alone until it comes back. The driver may be missing at the start
(that is no failure where the PCI bus has no GPU either) and come later: it is looked for at every scrape. NVML is
initialised again when the driver says that it must, and once a minute while a GPU is lost, since that is how one
that was reset comes back; not while any call still hangs in it. A driver that was replaced by another version
needs a restart of the exporter.

What is read is in ``_gpu_readings.py``, ``_gpu_links.py``, ``_gpu_mig.py`` and ``_xid.py``; names in
``exporters/catalog/gpu.py``. Growth of memory is a rule (``dashboards/rules/leak.py``).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from exporters import processes
from exporters.collectors import _gpu_links, _gpu_mig, _gpu_readings
from exporters.collectors._nvml import Device, DeviceGone, Driver, DriverGone, NoDriver, Reading
from exporters.collectors._task import Hung, Task
from exporters.collectors._xid import Watch, Xids
from exporters.proctable import read
from exporters.registry import NoData, Sample, register
from exporters.settings import Settings

log = logging.getLogger("exaserve.exporter")

#: Seconds for which a GPU that was there is told as missing: its alert must not end before somebody came.
MISSING_SECONDS = 24 * 3600.0
#: Seconds between two tries with a GPU that is lost or whose Xids can't be watched.
RETRY_SECONDS = 60.0
#: Seconds for the threads that wait for Xids to end before NVML is given back.
_END_SECONDS = 2.0

_PARTS = (
    _gpu_readings.identity,
    _gpu_readings.memory,
    _gpu_readings.load,
    _gpu_readings.clocks,
    _gpu_readings.errors,
    _gpu_readings.batch,
    _gpu_links.pcie,
    _gpu_links.nvlink,
    _gpu_mig.mig,
)


class _Read(NamedTuple):
    """One GPU at one scrape. users: GPU memory by pid."""

    uuid: str
    handle: Any
    readings: list[Reading]
    failed: int
    users: dict[int, int | None] | None


class _Known:
    """A GPU that was there. index: its last one; seen: when it last answered, time.monotonic()."""

    def __init__(self) -> None:
        self.index, self.seen = 0, 0.0
        self.xids = Xids()
        self.watch: Watch | None = None


class GpuCollector:
    def __init__(self, settings: Settings, driver: Driver | None = None) -> None:
        self._settings = settings
        self._driver = driver or Driver()
        self._opener: Task[tuple[int, tuple[str, str, str]]] = Task("gpu-driver")
        self._tasks: dict[int, Task[_Read]] = {}
        self._uuids: dict[int, str] = {}
        self._known: dict[str, _Known] = {}
        self._began = 0.0
        self._reopen = False
        self._lost_at: float | None = None
        self._said: dict[tuple[str, str], str] = {}

    def collect(self, deadline: float) -> list[Sample]:
        self._began = time.monotonic()
        self._opener.start(self._open)
        try:
            count, versions = self._opener.result(deadline)
        except Hung:
            if not self._known:
                raise RuntimeError("the NVIDIA driver does not answer") from None
            return self._finish(self._all_down("hung"))
        except NoDriver as error:
            self._reopen = True
            return self._without_driver(error)
        nvml = self._driver.nvml
        for index in range(count):
            task = self._tasks.setdefault(index, Task(f"gpu-{index}"))
            task.start(lambda index=index: self._read(nvml, index))  # type: ignore[misc]
        names = self._replicas() if count else {}
        samples = [Sample("exaserve_gpu_driver_info", versions, 1)]
        for index in range(count):
            samples += self._gpu(nvml, index, names, deadline)
        return self._finish(samples)

    def _open(self) -> tuple[int, tuple[str, str, str]]:
        lost = self._lost_at is not None and time.monotonic() - self._lost_at >= RETRY_SECONDS
        if (self._reopen or lost) and self._ended():
            self._driver.close()
            self._tasks.clear()
            self._uuids.clear()
            self._reopen, self._lost_at = False, None
        return self._driver.open(), self._driver.versions()

    def _ended(self) -> bool:
        """Whether no thread is in NVML any more; those that wait for Xids are told to leave."""
        watches = [k.watch for k in self._known.values() if k.watch is not None]
        for watch in watches:
            watch.stop()
        end = time.monotonic() + _END_SECONDS
        left = [watch.join(max(0.0, end - time.monotonic())) for watch in watches]
        return all(left) and not any(task.at_work for task in self._tasks.values())

    def _read(self, nvml: Any, index: int) -> _Read:
        handle = Device(nvml, index, self._settings.sysfs, self._settings.procfs).ask(
            "nvmlDeviceGetHandleByIndex"
        )
        if handle is None:
            raise DeviceGone("error")
        device = Device(nvml, handle, self._settings.sysfs, self._settings.procfs)
        uuid = device.ask("nvmlDeviceGetUUID")
        # Kept for when the GPU is lost and can't say it any more.
        uuid = self._uuids[index] = str(uuid) if uuid else self._uuids.get(index, "")
        readings: list[Reading] = []
        for part in _PARTS:
            readings += _guarded(device, part(device))
        users = _gpu_mig.processes(device)
        if device.tally.answered <= 1:
            raise DeviceGone("error")
        return _Read(uuid, handle, readings, device.tally.failed, users)

    def _gpu(self, nvml: Any, index: int, names: dict[int, str], deadline: float) -> Iterable[Sample]:
        try:
            found = self._tasks[index].result(deadline)
        except Hung:
            return self._down(index, "hung")
        except DeviceGone as error:
            if str(error) != "error":
                self._lost_at = self._lost_at or time.monotonic()
            return self._down(index, str(error))
        except DriverGone:
            self._reopen = True
            return self._down(index, "driver")
        except Exception as error:
            log.debug("gpu %d", index, exc_info=error)
            return self._down(index, "error")
        gpu = (str(index), found.uuid)
        self._say(gpu, "")
        self._meet(nvml, index, found)
        samples: dict[tuple[str, tuple[str, ...]], float] = {("up", gpu): 1.0}
        samples["failed_reads", gpu] = float(found.failed)
        for name, value, labels in [*found.readings, *_users(found.users, names)]:
            if math.isfinite(value):
                samples[name, (*gpu, *labels)] = float(value)
        return [Sample(f"exaserve_gpu_{name}", labels, value) for (name, labels), value in samples.items()]

    def _meet(self, nvml: Any, index: int, found: _Read) -> None:
        """Remember a GPU that answers, and watch for its Xids."""
        if not found.uuid:
            return
        known = self._known.setdefault(found.uuid, _Known())
        known.index, known.seen = index, time.monotonic()
        watch = known.watch
        if watch is None or (not watch.alive and (watch.stopped or watch.age >= RETRY_SECONDS)):
            known.watch = Watch(nvml, found.handle, known.xids)

    def _down(self, index: int, reason: str) -> list[Sample]:
        uuid = self._uuids.get(index, "")
        if not uuid:  # it has not answered since NVML was initialised again
            silent = [u for u, k in self._known.items() if k.index == index and k.seen < self._began]
            uuid = silent[0] if silent else ""
        return self._is_down((str(index), uuid), reason)

    def _is_down(self, gpu: tuple[str, str], reason: str) -> list[Sample]:
        self._say(gpu, reason)
        return [
            Sample("exaserve_gpu_up", gpu, 0),
            Sample("exaserve_gpu_down_reason", (*gpu, reason), 1),
        ]

    def _all_down(self, reason: str) -> list[Sample]:
        return [
            s for uuid, known in self._known.items() for s in self._is_down((str(known.index), uuid), reason)
        ]

    def _without_driver(self, error: NoDriver) -> list[Sample]:
        samples = self._finish(self._all_down("driver"))
        if samples:
            return samples
        if error.installed and self._on_the_bus():
            raise RuntimeError(str(error))
        raise NoData

    def _finish(self, samples: list[Sample]) -> list[Sample]:
        """With the GPUs that were there and are not any more, and the Xids of all."""
        now = time.monotonic()
        for uuid, known in list(self._known.items()):
            if now - known.seen > MISSING_SECONDS:
                if known.watch is not None:
                    known.watch.stop()
                del self._known[uuid]
        told = {s.labels[1] for s in samples if s.name == "exaserve_gpu_up"}
        for uuid, known in self._known.items():
            gpu = (str(known.index), uuid)
            if uuid not in told:
                samples += self._is_down(gpu, "missing")
            samples.append(
                Sample("exaserve_gpu_xid_watched", gpu, float(bool(known.watch and known.watch.active)))
            )
            for code, (count, last) in known.xids.seen().items():
                samples.append(Sample("exaserve_gpu_xid_errors_total", (*gpu, code), count))
                samples.append(Sample("exaserve_gpu_xid_last_timestamp_seconds", (*gpu, code), last))
        gpus = {s.labels for s in samples if s.name == "exaserve_gpu_up"}
        self._said = {gpu: said for gpu, said in self._said.items() if gpu in gpus}
        return samples

    def _replicas(self) -> dict[int, str]:
        return {pid: replica.name for replica in processes.find(self._settings) for pid in replica.pids}

    def _on_the_bus(self) -> bool:
        """Whether the PCI bus has an NVIDIA GPU (vendor 10de, class 0300 or 0302)."""
        try:
            devices = list(islice((self._settings.sysfs / "bus/pci/devices").iterdir(), 4096))
        except OSError:
            return False
        return any(
            (read(d / "vendor", 64) or "").strip() == "0x10de"
            and (read(d / "class", 64) or "").startswith(("0x0300", "0x0302"))
            for d in devices
        )

    def _say(self, gpu: tuple[str, str], problem: str) -> None:
        """One log line per change, not one per scrape."""
        if self._said.get(gpu, "") != problem:
            log.warning("GPU %s (%s): %s", *gpu, problem or "is read again")
        self._said[gpu] = problem


def _guarded(device: Device, readings: Iterator[Reading]) -> list[Reading]:
    """The readings up to the first that can't be understood, which counts as failed."""
    found: list[Reading] = []
    try:
        for reading in readings:
            found.append(reading._replace(value=float(reading.value)))
    except (DriverGone, DeviceGone):
        raise
    except Exception:
        device.tally.failed += 1
    return found


def _users(users: dict[int, int | None] | None, names: dict[int, str]) -> Iterator[Reading]:
    """GPU memory by replica; of all others together, since a label for each pid would never end."""
    if users is None:
        return
    yield Reading("processes", len(users))
    held: dict[str | None, list[int | None]] = {None: []}
    for pid, size in users.items():
        held.setdefault(names.get(pid), []).append(size)
    for name, sizes in held.items():
        # A sum without one of its parts would be wrong.
        total = math.nan if None in sizes else float(sum(s for s in sizes if s is not None))
        if name is None:
            yield Reading("other_memory_bytes", total)
        else:
            yield Reading("replica_memory_bytes", total, (name,))


register("gpu", GpuCollector)
