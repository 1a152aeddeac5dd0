"""Asks NVML (nvidia-ml-py), or ``nvidia-smi`` where that is missing, what GPUs there are.

Prints {"from", "driver", "cuda", "gpus": [{"name", "uuid", "pci", "memory", "persistence", "mig"}]}; a value that
NVML refuses is left out. {"absent": why} without a driver, {"error": why} where the driver doesn't answer.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_COLUMNS = (
    "index",
    "name",
    "uuid",
    "pci.bus_id",
    "memory.total",
    "persistence_mode",
    "mig.mode.current",
    "driver_version",
)


def by_nvml() -> dict[str, Any]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        kinds = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return {"absent" if error.value in kinds else "error": str(error)}

    def ask(call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            value = call(*arguments)
        except pynvml.NVMLError:
            return None
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    cuda = ask(pynvml.nvmlSystemGetCudaDriverVersion)
    found: dict[str, Any] = {
        "from": "NVML",
        "driver": ask(pynvml.nvmlSystemGetDriverVersion),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        "gpus": [],
    }
    for i in range(ask(pynvml.nvmlDeviceGetCount) or 0):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(i)
        except pynvml.NVMLError as error:
            found["gpus"].append({"index": i, "error": str(error)})
            continue
        pci, memory = ask(pynvml.nvmlDeviceGetPciInfo, handle), ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        mig = ask(pynvml.nvmlDeviceGetMigMode, handle)
        bus = pci.busId if pci else None
        found["gpus"].append(
            {
                "index": i,
                "name": ask(pynvml.nvmlDeviceGetName, handle),
                "uuid": ask(pynvml.nvmlDeviceGetUUID, handle),
                "pci": bus.decode() if isinstance(bus, bytes) else bus,
                "memory": memory.total if memory else None,
                "persistence": ask(pynvml.nvmlDeviceGetPersistenceMode, handle),
                "mig": mig[0] if mig else None,
            }
        )
    return found


def by_smi() -> dict[str, Any]:
    argv = ["nvidia-smi", f"--query-gpu={','.join(_COLUMNS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError:
        return {"absent": "neither nvidia-ml-py nor nvidia-smi is here"}
    if done.returncode:
        return {
            "error": (done.stdout + done.stderr).strip()[:200] or f"nvidia-smi ended with {done.returncode}"
        }
    found: dict[str, Any] = {"from": "nvidia-smi", "driver": None, "cuda": None, "gpus": []}
    for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True):
        if len(row) != len(_COLUMNS):
            continue
        index, name, uuid, pci, memory, persistence, mig, found["driver"] = row
        found["gpus"].append(
            {
                "index": int(index) if index.isdecimal() else None,
                "name": name,
                "uuid": uuid,
                "pci": pci,
                "memory": int(memory) << 20 if memory.isdecimal() else None,
                "persistence": {"Enabled": 1, "Disabled": 0}.get(persistence),
                "mig": {"Enabled": 1, "Disabled": 0}.get(mig),
            }
        )
    return found


if __name__ == "__main__":
    try:
        answer = by_nvml()
    except ImportError:
        answer = by_smi()
    json.dump(answer, sys.stdout)
