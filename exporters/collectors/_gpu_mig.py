"""MIG devices of one GPU, and the processes that compute on it.

NVML keeps giving MIG devices that were deleted after it was initialised (NVIDIA/libcudacxx#224), so each one is
looked for in ``proc/driver/nvidia/capabilities`` too, where the driver makes a folder for each that there is.
NVML has no utilisation for MIG devices.
"""

from __future__ import annotations

from collections.abc import Iterator

from exporters.collectors._nvml import Device, Reading

#: Devices that are looked for; an H200 has at most 7.
_MAX_MIG = 32
#: Processes of one GPU that are looked at.
_MAX_PROCESSES = 4096


def devices(d: Device) -> list[Device]:
    """The MIG devices; none where MIG is off or unknown."""
    mode = d.ask("nvmlDeviceGetMigMode")
    if mode is None or not mode[0]:
        return []
    count = d.ask("nvmlDeviceGetMaxMigDeviceCount") or 0
    handles = [d.ask("nvmlDeviceGetMigDeviceHandleByIndex", i) for i in range(min(count, _MAX_MIG))]
    return [d.part(handle) for handle in handles if handle is not None]


def mig(d: Device) -> Iterator[Reading]:
    """Whether the GPU is divided, its MIG devices, and the memory of each GPU instance."""
    mode = d.ask("nvmlDeviceGetMigMode")
    if mode is None:
        return
    yield Reading("mig_enabled", float(bool(mode[0])))
    minor = d.ask("nvmlDeviceGetMinorNumber")
    told = set()
    for part in devices(d):
        instance, compute = part.ask("nvmlDeviceGetGpuInstanceId"), part.ask("nvmlDeviceGetComputeInstanceId")
        if instance is None or compute is None or not _there(d, minor, instance, compute):
            continue
        uuid, name = part.ask("nvmlDeviceGetUUID"), part.ask("nvmlDeviceGetName")
        yield Reading("mig_info", 1, (str(instance), str(compute), str(uuid or ""), str(name or "")))
        if instance not in told and (memory := part.ask("nvmlDeviceGetMemoryInfo")) is not None:
            told.add(instance)
            for field in ("total", "used", "free"):
                yield Reading(f"mig_memory_{field}_bytes", getattr(memory, field), (str(instance),))


def processes(d: Device) -> dict[int, int | None] | None:
    """GPU memory in bytes by pid (of the driver's pid namespace), None where it isn't told; None without support.

    With MIG, the GPU itself knows its processes only for root; its parts know theirs.
    """
    found: dict[int, int | None] = {}
    known = False
    for asked in devices(d) or [d]:
        told = asked.ask("nvmlDeviceGetComputeRunningProcesses")
        known = known or told is not None
        for process in (told or [])[:_MAX_PROCESSES]:
            before, now = found.get(process.pid), process.usedGpuMemory
            found[process.pid] = (before or 0) + now if now is not None else before
    return found if known else None


def _there(d: Device, minor: int | None, instance: int, compute: int) -> bool:
    """Whether the driver still has that MIG device; true where it can't be told."""
    folder = d.procfs / f"driver/nvidia/capabilities/gpu{minor}/mig"
    return minor is None or not folder.is_dir() or (folder / f"gi{instance}/ci{compute}").is_dir()
