"""A driver without GPUs: an object with pynvml's functions, whose GPUs fail, hang and vanish on demand."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pynvml

GIB = 2**30

#: Field values of a GPU, by number: memory temperature, retired pages (two kinds, pending), links, PCIe bytes
#: sent and received, recovery action, nanoseconds slowed down by power, NVLink KiB sent and received.
FIELDS = {82: 45, 29: 0, 30: 1, 31: 0, 91: 2, 197: 1000, 198: 2000, 230: 0, 74: 2_500_000_000, 138: 4, 139: 8}
#: By link: replay, recovery, CRC.
LINK_FIELDS = {161: 7, 162: 0, 163: 3}


class FakeGpu:
    """fails: error by function. hangs: functions that wait for ``gate``. Everything else is what it answers."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.uuid = f"GPU-{index}"
        self.fails: dict[str, int] = {}
        self.fails_all: int | None = None
        self.hangs: set[str] = set()
        self.gate = threading.Event()
        self.memory = SimpleNamespace(total=140 * GIB, reserved=GIB, free=39 * GIB, used=100 * GIB)
        self.fields: dict[int, float] = dict(FIELDS)
        self.reasons = 0x4
        self.processes = [
            SimpleNamespace(pid=10, usedGpuMemory=60 * GIB),
            SimpleNamespace(pid=99, usedGpuMemory=GIB),
        ]
        self.migs: list[FakeMig] = []
        self.xids: list[int] = []
        self.old = False

    def field(self, number: int, scope: int) -> Any:
        value = LINK_FIELDS.get(number) if number in LINK_FIELDS and not self.old else self.fields.get(number)
        return SimpleNamespace(
            nvmlReturn=3 if value is None else 0, valueType=3, value=SimpleNamespace(ullVal=value)
        )


class FakeMig:
    def __init__(self, instance: int, compute: int) -> None:
        self.instance, self.compute = instance, compute
        self.memory = SimpleNamespace(total=20 * GIB, free=5 * GIB, used=15 * GIB)
        self.processes = [SimpleNamespace(pid=11, usedGpuMemory=2 * GIB)]


def _not_supported(*_: Any) -> Any:
    raise pynvml.NVMLError(3)


def _memory(gpu: FakeGpu | FakeMig, version: int | None = None) -> Any:
    return _not_supported() if version and getattr(gpu, "old", True) else gpu.memory


def _mig(gpu: FakeGpu, index: int) -> FakeMig:
    if index >= len(gpu.migs):
        raise pynvml.NVMLError(6)
    return gpu.migs[index]


#: What a GPU answers to each function that the collector uses.
ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlDeviceGetUUID": lambda g: g.uuid if isinstance(g, FakeGpu) else f"MIG-{g.instance}-{g.compute}",
    "nvmlDeviceGetName": lambda g: "NVIDIA H200" if isinstance(g, FakeGpu) else "NVIDIA H200 MIG 1g.18gb",
    "nvmlDeviceGetPciInfo": lambda g: SimpleNamespace(
        domain=0, bus=0x3B + g.index, device=0, busId=f"00000000:{0x3B + g.index:02X}:00.0".encode()
    ),
    "nvmlDeviceGetPersistenceMode": lambda g: 1,
    "nvmlDeviceGetPerformanceState": lambda g: 0,
    "nvmlDeviceGetComputeMode": lambda g: 3,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetUtilizationRates": lambda g: (
        _not_supported() if g.migs else SimpleNamespace(gpu=87, memory=30)
    ),
    "nvmlDeviceGetTemperature": lambda g, sensor: 61,
    "nvmlDeviceGetTemperatureThreshold": lambda g, which: {1: 87, 0: 92}[which],
    "nvmlDeviceGetPowerUsage": lambda g: 412_345,
    "nvmlDeviceGetEnforcedPowerLimit": lambda g: 700_000,
    "nvmlDeviceGetTotalEnergyConsumption": lambda g: 1_234_567,
    "nvmlDeviceGetClockInfo": lambda g, clock: 1980,
    "nvmlDeviceGetMaxClockInfo": lambda g, clock: 1980,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda g: _not_supported() if g.old else g.reasons,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda g: g.reasons,
    "nvmlDeviceGetEccMode": lambda g: [1, 1],
    "nvmlDeviceGetTotalEccErrors": lambda g, kind, counter: 10 * kind + counter,
    "nvmlDeviceGetRemappedRows": lambda g: (2, 1, 1, 0),
    "nvmlDeviceGetFieldValues": lambda g, ids: [g.field(*i) for i in ids],
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda g: 5,
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda g: 5,
    "nvmlDeviceGetCurrPcieLinkWidth": lambda g: 16,
    "nvmlDeviceGetMaxPcieLinkWidth": lambda g: 16,
    "nvmlDeviceGetPcieReplayCounter": lambda g: 4,
    "nvmlDeviceGetPcieThroughput": lambda g, counter: 3 + counter,
    "nvmlDeviceGetNvLinkState": lambda g, link: int(link == 0),
    "nvmlDeviceGetNvLinkErrorCounter": lambda g, link, counter: 20 + counter,
    "nvmlDeviceGetMigMode": lambda g: [int(bool(g.migs)), int(bool(g.migs))],
    "nvmlDeviceGetMaxMigDeviceCount": lambda g: 7,
    "nvmlDeviceGetMinorNumber": lambda g: g.index,
    "nvmlDeviceGetMigDeviceHandleByIndex": _mig,
    "nvmlDeviceGetGpuInstanceId": lambda g: g.instance,
    "nvmlDeviceGetComputeInstanceId": lambda g: g.compute,
    "nvmlDeviceGetComputeRunningProcesses": lambda g: g.processes,
}
#: Those that need no GPU's handle.
DRIVER_CALLS = (
    "nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlEventSetCreate", "nvmlEventSetFree",
    "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2",
)  # fmt: skip


class FakeNvml:
    """``gpus`` are those that the driver lists. fails: error by function of the driver itself."""

    NVMLError = pynvml.NVMLError

    def __init__(self, gpus: int = 2) -> None:
        self.gpus = [FakeGpu(i) for i in range(gpus)]
        self.fails: dict[str, int] = {}
        self.hangs: set[str] = set()
        self.gate = threading.Event()
        self.up = False
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in ANSWERS:
            return partial(self._ask, name)
        if name.startswith("nvml"):
            raise AttributeError(name)
        return getattr(pynvml, name)

    def end(self) -> None:
        """Let everything go that waits."""
        self.fails["nvmlEventSetWait_v2"] = 1
        self.gate.set()
        for gpu in self.gpus:
            gpu.gate.set()

    def nvmlInit(self) -> None:
        self._driver("nvmlInit")
        self.up = True

    def nvmlShutdown(self) -> None:
        self._driver("nvmlShutdown")
        self.up = False

    def nvmlDeviceGetCount(self) -> int:
        self._driver("nvmlDeviceGetCount", 1)
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self._ask("nvmlDeviceGetHandleByIndex", self.gpus[index])

    def nvmlSystemGetDriverVersion(self) -> str:
        return self._driver("nvmlSystemGetDriverVersion") or "580.95.05"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return self._driver("nvmlSystemGetCudaDriverVersion") or 13_010

    def nvmlSystemGetNVMLVersion(self) -> str:
        return self._driver("nvmlSystemGetNVMLVersion") or "13.580.95.05"

    def nvmlEventSetCreate(self) -> list[Any]:
        self._driver("nvmlEventSetCreate")
        return []

    def nvmlEventSetFree(self, events: list[Any]) -> None: ...

    def nvmlDeviceRegisterEvents(self, gpu: FakeGpu, kinds: int, events: list[Any]) -> None:
        self._ask("nvmlDeviceRegisterEvents", gpu)
        events.append(gpu)

    def nvmlEventSetWait_v2(self, events: list[Any], milliseconds: int) -> Any:
        self._driver("nvmlEventSetWait_v2")
        if not events[0].xids:
            threading.Event().wait(0.01)
            raise pynvml.NVMLError(10)
        return SimpleNamespace(eventType=8, eventData=ctypes.c_ulonglong(events[0].xids.pop(0)).value)

    def _driver(self, name: str, otherwise: int | None = None) -> Any:
        self.calls.append(name)
        if name in self.hangs:
            self.gate.wait(120)
        if (error := self.fails.get(name)) is not None:
            raise pynvml.NVMLError(error)
        if otherwise is not None and not self.up:
            raise pynvml.NVMLError(otherwise)
        return None

    def _ask(self, name: str, gpu: Any, *arguments: Any) -> Any:
        owner = gpu if isinstance(gpu, FakeGpu) else next(g for g in self.gpus if gpu in g.migs)
        if name in owner.hangs:
            owner.gate.wait(120)
        error = owner.fails_all or owner.fails.get(name) or (None if self.up else 1)
        if error is not None:
            raise pynvml.NVMLError(error)
        return ANSWERS[name](gpu, *arguments) if name in ANSWERS else gpu
