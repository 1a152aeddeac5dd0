"""NVML: the driver's library loaded, initialised, and initialised again when the driver went away; one GPU asked.

Everything is called through one plain object that has the functions of ``pynvml`` (nvidia-ml-py) under their own
names; tests put another in its place. Which readings there are is in ``_gpu_readings.py``, ``_gpu_links.py`` and
``_gpu_mig.py``; threads and time limits are ``gpu.py``'s. Error numbers are those of nvml.h (nvmlReturn_t), which
never change.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

#: Not supported, no permission, not found, no data, function not in this driver, argument that it doesn't know
#: yet (also structure versions and features that it dropped): such a reading is absent.
ABSENT = {2, 3, 4, 6, 13, 21, 22, 25, 26, 27, 29}
#: Uninitialised, driver not loaded, library not found, driver and library of two versions: all GPUs are gone.
DRIVER_GONE = {1, 9, 12, 18}
LIBRARY_NOT_FOUND, WRONG_VERSION = 12, 18
#: GPU is lost, GPU must be reset, GPU not found: this one is gone.
DEVICE_GONE = {15: "lost", 16: "reset_required", 28: "lost"}
TIMEOUT = 10

#: A driver that says more GPUs than this is not believed.
MAX_GPUS = 64


class NoDriver(Exception):
    """There is no NVIDIA driver, or it can't be used. ``installed``: its library is there at least."""

    def __init__(self, why: str, installed: bool) -> None:
        super().__init__(why)
        self.installed = installed


class DriverGone(Exception):
    """NVML must be initialised again."""


class DeviceGone(Exception):
    """The GPU can't be read any more. Its text is one of the values of DEVICE_GONE."""


class Reading(NamedTuple):
    """name: metric without ``exaserve_gpu_``. labels: values after gpu and uuid."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


def load() -> Any:
    """The pynvml module. Raises NoDriver where the driver's library is missing: 50 µs, then it is not imported.

    ``$EXASERVE_NVML`` names another module with its functions, for experiments (``chaos.nvml``): a GPU that is lost on
    demand. Raises NoDriver too where that can't be had.
    """
    if other := os.environ.get("EXASERVE_NVML"):
        try:
            return importlib.import_module(other)
        except (ImportError, OSError) as error:
            raise NoDriver(f"EXASERVE_NVML={other}: {error}", installed=True) from None
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise NoDriver(str(error), installed=False) from None
    return importlib.import_module("pynvml")


class Driver:
    """The initialised library. All of it may hang, so it is called in a thread that may."""

    def __init__(self, loader: Callable[[], Any] = load) -> None:
        self._load = loader
        self.nvml: Any = None

    def open(self) -> int:
        """The number of GPUs, NVML being initialised if it isn't. Raises NoDriver."""
        if self.nvml is None:
            nvml = self._load()
            self._try(nvml, "nvmlInit")
            self.nvml = nvml
        return min(int(self._try(self.nvml, "nvmlDeviceGetCount")), MAX_GPUS)

    def close(self) -> None:
        """Give NVML back; the next ``open`` initialises it."""
        nvml, self.nvml = self.nvml, None
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):  # it may be down already
                nvml.nvmlShutdown()

    def versions(self) -> tuple[str, str, str]:
        """Driver, newest CUDA that it runs, NVML; "" for what it doesn't say."""
        cuda = self._say("nvmlSystemGetCudaDriverVersion")
        cuda = f"{int(cuda) // 1000}.{int(cuda) % 1000 // 10}" if cuda else ""
        return self._say("nvmlSystemGetDriverVersion"), cuda, self._say("nvmlSystemGetNVMLVersion")

    def _say(self, function: str) -> str:
        try:
            return str(getattr(self.nvml, function)())
        except Exception:
            return ""

    def _try(self, nvml: Any, function: str) -> Any:
        try:
            return getattr(nvml, function)()
        except nvml.NVMLError as error:
            why = f"{function}: {error}"
            if error.value == WRONG_VERSION:
                why += "; the driver was replaced while the exporter ran: restart the exporter"
            raise NoDriver(why, installed=error.value != LIBRARY_NOT_FOUND) from None


class Tally:
    """How the reading of one GPU goes. failed: not for being unsupported."""

    answered = failed = 0


class Device:
    """One GPU, or a MIG device of one, that is asked. ``tally`` is the GPU's."""

    def __init__(self, nvml: Any, handle: Any, sysfs: Path, procfs: Path, tally: Tally | None = None) -> None:
        self.nvml, self.handle, self.sysfs, self.procfs = nvml, handle, sysfs, procfs
        self.tally = tally or Tally()

    def part(self, handle: Any) -> Device:
        """A MIG device of this GPU."""
        return Device(self.nvml, handle, self.sysfs, self.procfs, self.tally)

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer; None if the GPU doesn't support it or the reading failed. Raises DriverGone, DeviceGone."""
        call = getattr(self.nvml, function, None)
        if call is None:
            return None
        try:
            answer = call(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            if error.value in DRIVER_GONE:
                raise DriverGone(str(error)) from None
            if error.value in DEVICE_GONE:
                raise DeviceGone(DEVICE_GONE[error.value]) from None
            self.tally.failed += error.value not in ABSENT
            return None
        except (ValueError, TypeError, AttributeError, OSError):
            self.tally.failed += 1  # a name that is no UTF-8, a structure that this library doesn't know
            return None
        self.tally.answered += 1
        return answer

    def fields(self, names: Iterable[str], scope: int = 0) -> dict[str, float]:
        """Field values (NVML_FI_DEV_ before each name) that the GPU has. scope: a link, or 0."""
        known = [(n, i) for n in names if (i := getattr(self.nvml, f"NVML_FI_DEV_{n}", None)) is not None]
        answer = self.ask("nvmlDeviceGetFieldValues", [(i, scope) for _, i in known])
        if answer is None:
            return {}
        return {
            name: float(getattr(got.value, _UNION[got.valueType]))
            for (name, _), got in zip(known, answer, strict=True)
            if got.nvmlReturn == 0 and got.valueType in _UNION
        }


#: Member of nvmlValue_t by nvmlValueType_t.
_UNION = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
