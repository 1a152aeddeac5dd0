"""InfiniBand and RoCE ports, network interfaces and PCI devices below a sysfs tree, as the checks need them.

Sources: Documentation/ABI/stable/sysfs-class-infiniband, sysfs-class-net and sysfs-bus-pci of the kernel. Counters
of ports are the infiniband collector's.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from exporters.doctor.files import names, natural, number, text

#: Ports that are looked at.
MAX_PORTS = 256


@dataclass(frozen=True, slots=True)
class Port:
    """One port; None and "" where the kernel does not tell.

    state: ``ACTIVE``, ``DOWN``, … physical: ``LinkUp``, ``Polling``, ``Disabled``, … rate: bits per second.
    shown_rate: as the kernel writes it. interface: the net device of its first GID. numa: -1 is unknown.
    """

    device: str
    port: str
    state: str
    physical: str
    rate: float | None
    shown_rate: str
    link_layer: str
    sm_lid: int | None
    interface: str
    numa: int | None

    @property
    def name(self) -> str:
        return f"{self.device}/{self.port}"


def ib_ports(sysfs: Path) -> list[Port]:
    """Every port of every device, in the order people count."""
    found = []
    devices = sysfs / "class/infiniband"
    for device in names(devices):
        numa = number(devices / device / "device/numa_node")
        for port in names(devices / device / "ports"):
            found.append(_port(devices / device / "ports" / port, device, port, numa))
            if len(found) == MAX_PORTS:
                return found
    return found


def _port(folder: Path, device: str, port: str, numa: int | None) -> Port:
    shown = text(folder / "rate") or ""
    rate = re.match(r"(\d+(?:\.\d+)?)\s*Gb/sec", shown)
    return Port(
        device,
        port,
        (text(folder / "state") or "").rpartition(":")[2].strip(),
        (text(folder / "phys_state") or "").rpartition(":")[2].strip(),
        float(rate[1]) * 1e9 if rate else None,
        shown.replace("Gb/sec", "Gb/s"),
        text(folder / "link_layer") or "",
        number(folder / "sm_lid"),
        text(folder / "gid_attrs/ndevs/0") or "",
        numa,
    )


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface. state: its operstate; up where that is ``up``, or ``unknown`` with a carrier.

    physical: whether a device carries it, so that it is no bridge, tunnel or pair into a container.
    """

    name: str
    state: str
    up: bool
    mtu: int | None
    physical: bool
    numa: int | None


def interfaces(sysfs: Path) -> list[Interface]:
    found = []
    for name in names(sysfs / "class/net")[:1024]:
        folder = sysfs / "class/net" / name
        if not (folder / "mtu").exists():
            continue
        state = text(folder / "operstate") or "unknown"
        up = state == "up" or (state == "unknown" and number(folder / "carrier") == 1)
        physical = (folder / "device").exists()
        numa = number(folder / "device/numa_node") if physical else None
        found.append(Interface(name, state, up, number(folder / "mtu"), physical, numa))
    return found


@dataclass(frozen=True, slots=True)
class Pci:
    """A PCI device. address: ``0000:17:00.0``. widths: lanes now and at most; speeds: GT/s now and at most."""

    address: str
    kind: str
    numa: int | None
    width: int | None
    max_width: int | None
    speed: float | None
    max_speed: float | None


def gpus_and_nics(sysfs: Path) -> list[Pci]:
    """NVIDIA's GPUs, and the devices behind InfiniBand and RoCE ports."""
    found = {}
    root = sysfs / "bus/pci/devices"
    for address in names(root)[:4096]:
        kind = text(root / address / "class") or ""
        if text(root / address / "vendor") == "0x10de" and kind[:6] in ("0x0300", "0x0302"):
            found[address] = _pci(root / address, address, "GPU")
    for device in names(sysfs / "class/infiniband")[:MAX_PORTS]:
        folder = sysfs / "class/infiniband" / device / "device"
        if folder.exists():
            address = os.path.basename(os.path.realpath(folder))
            found[address] = _pci(folder, address, device)
    return [found[a] for a in sorted(found, key=natural)]


def _pci(folder: Path, address: str, kind: str) -> Pci:
    return Pci(
        address,
        kind,
        number(folder / "numa_node"),
        number(folder / "current_link_width"),
        number(folder / "max_link_width"),
        _speed(folder / "current_link_speed"),
        _speed(folder / "max_link_speed"),
    )


def _speed(path: Path) -> float | None:
    """``16.0 GT/s PCIe`` -> 16.0."""
    found = re.match(r"\d+(\.\d+)?", text(path) or "")
    return float(found[0]) if found else None
