"""NVML as an exporter under experiment sees it: the driver's own, with GPUs that are lost on demand.

An exporter that was started with ``EXASERVE_NVML=chaos.nvml`` asks this module instead of ``pynvml`` (nvidia-ml-py), and
every function is passed on to that. ``EXASERVE_NVML_CONTROL`` names a file, ``{"lost": [index…], "until": unix seconds}``:
a GPU named there answers as one that fell off the bus does, NVML_ERROR_GPU_IS_LOST (15, nvml.h), until the file or its
time has gone. ``EXASERVE_NVML_GPUS=2``: no driver is asked, and two GPUs are told that do not exist, each named so; for
labs on machines without GPU. Loaded by name only; imports nothing of ExaServe.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

#: NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_GPU_IS_LOST (nvml.h)
_NOT_SUPPORTED, _LOST = 3, 15
_GIB = 2**30
NVMLError = pynvml.NVMLError

_NOT_REAL: dict[str, Any] = {
    "nvmlInit": lambda: None,
    "nvmlShutdown": lambda: None,
    "nvmlDeviceGetCount": lambda: int(os.environ["EXASERVE_NVML_GPUS"]),
    "nvmlSystemGetDriverVersion": lambda: "none",
    "nvmlSystemGetCudaDriverVersion": lambda: 0,
    "nvmlSystemGetNVMLVersion": lambda: "none",
    "nvmlDeviceGetHandleByIndex": lambda index: index,
    "nvmlDeviceGetUUID": lambda gpu: f"GPU-not-real-{gpu}",
    "nvmlDeviceGetName": lambda gpu: "no GPU (EXASERVE_NVML_GPUS)",
    "nvmlDeviceGetMemoryInfo": lambda gpu, version=None: SimpleNamespace(
        total=80 * _GIB, reserved=0, free=79 * _GIB, used=_GIB
    ),
    "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=0, memory=0),
    "nvmlDeviceGetTemperature": lambda gpu, sensor: 30,
    "nvmlDeviceGetPowerUsage": lambda gpu: 60_000,
}


def lost() -> set[int]:
    """Indices of the GPUs that are to be lost now; none if the file is missing, broken or out of date."""
    try:
        told = json.loads(Path(os.environ["EXASERVE_NVML_CONTROL"]).read_text())
        return {int(i) for i in told["lost"]} if float(told["until"]) > time.time() else set()
    except (OSError, KeyError, ValueError, TypeError):
        return set()


def _not_supported(*_: Any) -> Any:
    raise NVMLError(_NOT_SUPPORTED)


def __getattr__(name: str) -> Any:
    if not name.startswith("nvml"):
        return getattr(pynvml, name)  # constants and types
    if "EXASERVE_NVML_GPUS" in os.environ:
        function = _NOT_REAL.get(name, _not_supported)
    else:
        function = getattr(pynvml, name)
    if name != "nvmlDeviceGetHandleByIndex":
        return function

    def handle_by_index(index: Any) -> Any:
        if int(index) in lost():
            raise NVMLError(_LOST)
        return function(index)

    return handle_by_index
