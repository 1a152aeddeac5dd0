"""PCI: lanes of GPUs and NICs, IOMMU, ACS, and the module that lets a NIC read GPU memory. Hints, seldom failures.

NVIDIA's GPUDirect documentation: peer-to-peer traffic goes through the root complex where the IOMMU translates or
where ACS redirects it, which halves the bandwidth between a GPU and its NIC.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from exporters.doctor.check import Finding, Node, register
from exporters.doctor.fabric import Pci, gpus_and_nics
from exporters.doctor.files import names, text

_ACS_EXTENDED = 0x000D
_REDIRECT = 0x0004 | 0x0008  # ACS P2P Request Redirect, P2P Completion Redirect (PCI Express 6.0, 7.7.11.3)


def pci(node: Node) -> Iterator[Finding]:
    devices = gpus_and_nics(node.sysfs)
    if not devices:
        yield Finding("devices", "no NVIDIA GPU and no InfiniBand NIC", "not here")
        return
    for device in devices:
        yield _lanes(device)
    yield _iommu(node)
    if any(d.kind == "GPU" for d in devices) and any(d.kind != "GPU" for d in devices):
        yield _peer_memory(node)
        yield _acs(node)


def _lanes(device: Pci) -> Finding:
    item = f"{device.kind} {device.address}" if device.kind == "GPU" else device.kind
    if not device.width or not device.max_width:
        return Finding("lanes", "can't be read", "unknown", item=item)
    # A GPU that has nothing to do lowers its link's speed by itself; a NIC does not.
    slow = device.kind != "GPU" and (device.speed or 0) < (device.max_speed or 0)
    value = f"x{device.width}" + (
        f" at {device.speed:g} GT/s" if device.speed and device.kind != "GPU" else ""
    )
    expected = f"x{device.max_width}" + (f" at {device.max_speed:g} GT/s" if slow else "")
    if device.width >= device.max_width and not slow:
        return Finding("lanes", value, "ok", expected, item=item, compare="warn")
    cure = f"another slot, riser or cable; lspci -vv -s {device.address} | grep LnkSta"
    return Finding("lanes", value, "warn", expected, cure, item, "warn")


def _iommu(node: Node) -> Finding:
    groups = len(names(node.sysfs / "kernel/iommu_groups"))
    arguments = (text(node.procfs / "cmdline") or "").split()
    passes = "iommu=pt" in arguments or "iommu.passthrough=1" in arguments
    if not groups:
        return Finding("IOMMU", "off", "ok", "off or passthrough", compare="warn")
    if passes:
        return Finding("IOMMU", "passthrough", "ok", "off or passthrough", compare="warn")
    cure = "iommu=pt on the kernel's command line (bare metal; in a virtual machine leave it)"
    return Finding("IOMMU", "translates", "warn", "off or passthrough", cure, compare="warn")


def _peer_memory(node: Node) -> Finding:
    loaded = [n for n in ("nvidia_peermem", "nv_peer_mem") if (node.sysfs / "module" / n).exists()]
    if loaded:
        return Finding("GPUDirect RDMA", f"{loaded[0]} is loaded", "ok", "nvidia_peermem", compare="warn")
    cure = "modprobe nvidia_peermem (not needed where NCCL uses dma-buf: kernel 5.12 and open GPU modules)"
    return Finding(
        "GPUDirect RDMA", "nvidia_peermem is not loaded", "warn", "nvidia_peermem", cure, compare="warn"
    )


def _acs(node: Node) -> Finding:
    """Without root the kernel shows 64 bytes of configuration space, and ACS lies beyond 256."""
    root = node.sysfs / "bus/pci/devices"
    redirecting, read = [], 0
    for address in names(root)[:4096]:
        if (text(root / address / "class") or "")[:6] != "0x0604":
            continue
        control = acs_control(_configuration(f"{root}/{address}/config"))
        read += control is not None
        if control is not None and control & _REDIRECT:
            redirecting.append(address)
    if not read:
        return Finding(
            "ACS", "can't be read without root", "unknown", "no redirect on bridges", "run as root"
        )
    if redirecting:
        cure = f"setpci -s {redirecting[0]} ECAP_ACS+6.w=0000 for each, or off in the BIOS (bare metal only)"
        value = f"{len(redirecting)} of {read} bridges redirect"
        return Finding("ACS", value, "warn", "no redirect on bridges", cure, compare="warn")
    return Finding("ACS", f"off on {read} bridges", "ok", "no redirect on bridges")


def _configuration(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as f:
            return os.read(f.fileno(), 4096)
    except OSError:
        return b""


def acs_control(space: bytes) -> int | None:
    """The ACS control register, 0 where there is none; None where the space ends before it could be seen."""
    at = 0x100
    if len(space) <= at:
        return None
    for _ in range(64):
        if at < 0x100 or at + 8 > len(space):
            break
        header = int.from_bytes(space[at : at + 4], "little")
        if header & 0xFFFF == _ACS_EXTENDED:
            return int.from_bytes(space[at + 6 : at + 8], "little")
        at = header >> 20
    return 0


register("pci", "lanes of GPUs and NICs, IOMMU, ACS, GPUDirect RDMA", pci)
