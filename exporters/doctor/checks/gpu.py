"""NVIDIA GPUs: how many, which, their driver and CUDA. What they do from moment to moment is the gpu collector's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from exporters.doctor import apart, places, versions
from exporters.doctor.check import Finding, Node, register
from exporters.doctor.files import names, number, size, text

SECONDS = 10.0
_SAME = "the same on every node"


def gpu(node: Node) -> Iterator[Finding]:
    seen = on_the_bus(node)
    version = versions.nvidia_driver(node.procfs)
    try:
        asked = apart.probe("gpu", [], SECONDS - 2, node.environ)
    except apart.ProbeError as error:
        if not seen and not version:
            yield Finding("GPUs", f"no NVIDIA GPU found ({error})", "not here", compare="fail")
            return
        cure = "nvidia-smi hangs too? dmesg | grep -i -e xid -e nvrm; a lost GPU needs a reset or a reboot"
        yield Finding(
            "GPUs", f"{seen} on the bus; NVML: {error}", "fail", "NVML answers", cure, compare="fail"
        )
        asked = {}
    if asked.get("absent") and not seen and not version:
        yield Finding("GPUs", "no NVIDIA GPU", "not here", compare="fail")
        return
    if "gpus" in asked:
        yield from _gpus(node, asked, seen)
    elif asked:
        why = asked.get("error") or asked.get("absent")
        cure = "nvidia-smi; dkms status; dmesg | grep -i nvrm: the driver and its library belong together"
        yield Finding(
            "GPUs", f"{seen} on the bus; {why}", "fail", "a driver that answers", cure, compare="fail"
        )
    driver = asked.get("driver") or version
    yield _told("driver", driver)
    yield _told("CUDA of the driver", asked.get("cuda"))


def on_the_bus(node: Node) -> int:
    """GPUs of NVIDIA that PCI shows, whether a driver has them or not."""
    root = node.sysfs / "bus/pci/devices"
    found = 0
    for address in names(root)[:4096]:
        display = (number(root / address / "class") or 0) >> 8 in (0x0300, 0x0302)
        found += display and text(root / address / "vendor") == "0x10de"
    return found


def _gpus(node: Node, asked: dict[str, Any], seen: int) -> Iterator[Finding]:
    gpus = asked["gpus"]
    lost = [g for g in gpus if g.get("error")]
    found = Counter(
        f"{g.get('name')}, {size(g['memory']) if g.get('memory') else '?'}" for g in gpus if g not in lost
    )
    value = "; ".join(f"{count} × {kind}" for kind, count in found.most_common()) or "none"
    need = places.workers(node)
    expected = f"at least {need} (replicas_per_node × tensor × pipeline), {_SAME}"
    if lost:
        cure = "dmesg | grep -i xid; nvidia-smi -r, or reboot"
        value = f"{value}; {len(lost)} lost: {lost[0]['error']}"
        yield Finding("GPUs", value, "fail", expected, cure, compare="fail")
    elif seen > len(gpus):
        cure = "dmesg | grep -i -e xid -e nvrm: the driver left some out"
        yield Finding("GPUs", f"{value}; {seen} on the bus", "fail", expected, cure, compare="fail")
    elif sum(found.values()) < need:
        cure = "fewer fleet.replicas_per_node, or smaller parallel sizes"
        yield Finding("GPUs", value, "warn", expected, cure, compare="fail")
    else:
        yield Finding("GPUs", value, "ok", expected, compare="fail")
    off = [str(g.get("index")) for g in gpus if g.get("persistence") == 0]
    if off:
        value = f"off on {len(off)} of {len(gpus)}"
        yield Finding(
            "persistence mode",
            value,
            "warn",
            "on",
            "systemctl enable --now nvidia-persistenced",
            compare="warn",
        )
    elif any(g.get("persistence") == 1 for g in gpus):
        yield Finding("persistence mode", "on", "ok", "on", compare="warn")
    mig = Counter({1: "on", 0: "off"}.get(g.get("mig"), "none") for g in gpus)
    if len(mig) == 1:
        yield Finding("MIG", next(iter(mig)), "ok", _SAME, compare="warn")
    elif mig:
        value = ", ".join(f"{kind} on {count}" for kind, count in mig.most_common())
        yield Finding("MIG", value, "warn", "the same on every GPU", "nvidia-smi -mig 0", compare="warn")


def _told(what: str, value: str | None) -> Finding:
    if value:
        return Finding(what, value, "ok", _SAME, compare="fail")
    return Finding(what, "can't be read", "unknown", _SAME, "pip install nvidia-ml-py", compare="fail")


register("gpu", "NVIDIA GPUs, their driver and CUDA", gpu, SECONDS)
