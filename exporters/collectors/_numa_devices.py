"""Which GPUs and RDMA devices a process has open, and the NUMA node of each.

An open GPU is not yet a used one: CUDA opens all that the process may see. What NVML says is exact, so it comes
first (``exporters/gpu_processes.py``, from the gpu collector's last reading).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exporters.proctable import read

#: Open files of one process that are looked at; a server with many connections has thousands.
MAX_FILES = 8192
MAX_GPUS = 256

_MINOR = re.compile(r"Device Minor:\s*(\d+)")
_NVIDIA = re.compile(r"/dev/nvidia(\d+)")
_RENDER = re.compile(r"/dev/dri/(renderD\d+)")
_VERBS = re.compile(r"/dev/infiniband/(uverbs\d+)")


@dataclass(frozen=True, slots=True)
class Device:
    """name: PCI address of a GPU, or the RDMA device's name. node: None where the machine does not tell."""

    name: str
    node: int | None


@dataclass(frozen=True, slots=True)
class Opened:
    """What a process has open. gpus: all that it may use; unnamed: it uses a GPU that can't be named."""

    gpus: frozenset[Device] = frozenset()
    nics: frozenset[Device] = frozenset()
    unnamed: bool = False


def pci_address(text: str) -> str:
    """``00000000:17:00.0`` (NVML) as sysfs writes it: ``0000:17:00.0``, lower case."""
    domain, colon, rest = text.strip().lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}" if colon else text
    except ValueError:
        return text


def node_of(folder: Path | str) -> int | None:
    """The node of a device by its sysfs folder; None for -1, which says that the firmware does not tell."""
    text = (read(f"{folder}/numa_node", 64) or "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def gpu(sysfs: Path, address: str) -> Device:
    """The GPU at a PCI address, as NVML or the kernel spells it."""
    address = pci_address(address)
    return Device(address, node_of(f"{sysfs}/bus/pci/devices/{address}"))


def nvidia_gpus(procfs: Path) -> dict[int, str]:
    """PCI address by the number of its device file, for each GPU of NVIDIA's driver; empty without it."""
    folder = procfs / "driver/nvidia/gpus"
    try:
        addresses = sorted(entry.name for entry in os.scandir(folder))[:MAX_GPUS]
    except OSError:
        return {}
    found = {}
    for address in addresses:
        if minor := _MINOR.search(read(f"{folder}/{address}/information", 4096) or ""):
            found[int(minor[1])] = pci_address(address)
    return found


def nics(sysfs: Path) -> frozenset[Device]:
    """Every RDMA device of the machine."""
    folder = sysfs / "class/infiniband"
    try:
        names = sorted(entry.name for entry in os.scandir(folder))[:MAX_GPUS]
    except OSError:
        return frozenset()
    return frozenset(Device(name, node_of(f"{folder}/{name}/device")) for name in names)


def opened(procfs: Path, sysfs: Path, pid: int) -> Opened | None:
    """What the process has open; None if we may not see it, or it is gone."""
    paths = set()
    try:
        with os.scandir(f"{procfs}/{pid}/fd") as entries:
            for count, entry in enumerate(entries):
                if count >= MAX_FILES:
                    break
                try:
                    path = os.readlink(entry.path)
                except OSError:
                    continue  # closed meanwhile
                if path.startswith("/dev/"):
                    paths.add(path)
    except OSError:
        return None
    by_minor: Mapping[int, str] | None = None
    gpus, rdma, unnamed = set(), set(), "/dev/kfd" in paths
    for path in paths:
        if match := _NVIDIA.fullmatch(path):
            by_minor = nvidia_gpus(procfs) if by_minor is None else by_minor
            address = by_minor.get(int(match[1]))
            unnamed |= address is None
            if address is not None:
                gpus.add(gpu(sysfs, address))
        elif match := _RENDER.fullmatch(path):
            folder = f"{sysfs}/class/drm/{match[1]}/device"
            gpus.add(Device(os.path.basename(os.path.realpath(folder)), node_of(folder)))
        elif match := _VERBS.fullmatch(path):
            folder = f"{sysfs}/class/infiniband_verbs/{match[1]}"
            name = (read(f"{folder}/ibdev", 256) or match[1]).strip()
            rdma.add(Device(name, node_of(f"{folder}/device")))
    return Opened(frozenset(gpus), frozenset(rdma), unnamed and not gpus)
