"""The NUMA map: nodes with CPUs, memory and distances; on which one each GPU and each NIC is.

Where replicas really run is the numa collector's. Reads of sysfs are shared with it (``collectors/_numa_nodes.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from exporters.collectors._numa_nodes import nodes
from exporters.doctor.check import Finding, Node, register
from exporters.doctor.fabric import Pci, gpus_and_nics
from exporters.doctor.files import listed, number, size


def numa_map(node: Node) -> dict[str, Any]:
    """JSON: {"nodes": {"0": {"cpus": [..], "memory_bytes", "free_bytes", "distances": {"0": 10}}},
    "gpus": {PCI address: node}, "nics": {device: node}}; null is a node that the machine does not tell."""
    devices = gpus_and_nics(node.sysfs)
    return {
        "nodes": {
            str(n): {
                "cpus": sorted(found.cpus) if found.cpus is not None else None,
                "memory_bytes": found.total,
                "free_bytes": found.free,
                "distances": {str(other): distance for other, distance in found.distances.items()},
            }
            for n, found in nodes(node.sysfs).items()
        },
        "gpus": {d.address: _known(d) for d in devices if d.kind == "GPU"},
        "nics": {d.kind: _known(d) for d in devices if d.kind != "GPU"},
    }


def _known(device: Pci) -> int | None:
    return device.numa if device.numa is not None and device.numa >= 0 else None


def numa(node: Node) -> Iterator[Finding]:
    found = nodes(node.sysfs)
    if not found:
        yield Finding("nodes", "the kernel tells of no NUMA node", "not here", compare="warn")
        return
    shown = [
        f"node {n}: {len(x.cpus or ())} CPUs, {size(x.total) if x.total else 'no memory'}"
        for n, x in found.items()
    ]
    yield Finding("nodes", listed(shown, 8), "ok")
    yield Finding("count", str(len(found)), "ok", "the same on every node", compare="warn")
    bare = [str(n) for n, x in found.items() if x.cpus and not x.total]
    if bare:
        cure = "memory modules missing or disabled? dmidecode -t memory"
        yield Finding("memory", f"none on node {listed(bare)}", "warn", "memory where there are CPUs", cure)
    yield _balancing(node, len(found))
    yield from _near(gpus_and_nics(node.sysfs), len(found))


def _balancing(node: Node, count: int) -> Finding:
    on = number(node.procfs / "sys/kernel/numa_balancing")
    if on is None:
        return Finding("balancing", "the kernel has none", "not here")
    if on and count > 1:
        cure = "sysctl kernel.numa_balancing=0: pages that are bound right only cost faults"
        return Finding(
            "balancing", f"on ({on})", "warn", "off where replicas are bound", cure, compare="warn"
        )
    return Finding(
        "balancing", f"on ({on})" if on else "off", "ok", "off where replicas are bound", compare="warn"
    )


def _near(devices: list[Pci], count: int) -> Iterator[Finding]:
    gpus = [d for d in devices if d.kind == "GPU"]
    nics = [d for d in devices if d.kind != "GPU"]
    if not gpus:
        yield Finding("GPU and NIC", "no GPU", "not here")
        return
    homes = {_known(nic) for nic in nics} - {None}
    for gpu in gpus:
        home = _known(gpu)
        item = f"GPU {gpu.address}"
        if count == 1 or (home is None and not nics):
            continue
        if home is None:
            cure = "BIOS: NUMA on; in a virtual machine its definition has to pass NUMA nodes on"
            yield Finding("GPU and NIC", "its node is not told", "unknown", "the same node", cure, item)
        elif not nics:
            yield Finding("GPU and NIC", f"GPU on node {home}, no NIC", "ok", item=item, compare="warn")
        elif home in homes:
            beside = listed(n.kind for n in nics if _known(n) == home)
            yield Finding(
                "GPU and NIC",
                f"both on node {home} ({beside})",
                "ok",
                "the same node",
                item=item,
                compare="warn",
            )
        else:
            there = listed(sorted({f"node {_known(n)}" for n in nics if _known(n) is not None})) or "not told"
            cure = "another slot for the NIC or the GPU; until then --numa-bind of vLLM keeps memory on the GPU's node"
            value = f"GPU on node {home}, NICs on {there}"
            yield Finding("GPU and NIC", value, "warn", "the same node", cure, item, "warn")
    if count == 1:
        yield Finding("GPU and NIC", "one node for all", "ok", "the same node")


register("numa", "NUMA nodes, and GPUs and NICs on them", numa)
