"""Each InfiniBand or RoCE port: state, rate, link layer, subnet manager.

A port that NCCL is told to use has to be up; another may be uncabled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from exporters.doctor.check import Compare, Finding, Node, register
from exporters.doctor.checks import _nccl
from exporters.doctor.fabric import Port, ib_ports


def infiniband(node: Node) -> Iterator[Finding]:
    ports = ib_ports(node.sysfs)
    if not ports:
        yield Finding("ports", "no InfiniBand or RoCE device", "not here", compare="fail")
        return
    chosen = _nccl.hca(node).value
    takes = _nccl.matches(chosen) if chosen else None
    none_up = not any(p.state == "ACTIVE" for p in ports)
    rates = Counter(p.rate for p in ports if p.state == "ACTIVE")
    usual = max(rates, key=lambda r: (rates[r], r or 0)) if rates else None
    for port in ports:
        needed = none_up or (takes is not None and takes(port.device, port.port))
        yield _state(port, needed)
        if port.state == "ACTIVE":
            yield _rate(port, node.limits.link_bits, usual)
            yield Finding("link layer", port.link_layer or "?", "ok", item=port.name, compare="fail")
        if port.link_layer == "InfiniBand":
            yield _subnet_manager(port, needed)


def _state(port: Port, needed: bool) -> Finding:
    state = f"{port.state or '?'}{f' ({port.physical})' if port.physical else ''}"
    compare: Compare = "warn"
    if port.state == "ACTIVE":
        return Finding("state", state, "ok", "ACTIVE", item=port.name, compare=compare)
    if not port.state:
        return Finding("state", "can't be read", "unknown", "ACTIVE", "dmesg | tail", port.name, compare)
    if port.state in ("INIT", "ARMED"):
        cure = "the cable works, but no subnet manager has set the port up: is opensm running? sminfo"
    elif port.physical == "Disabled":
        cure = f"ibportstate -C {port.device} -P {port.port} enable, or ip link set up for RoCE"
    else:
        cure = f"cable, transceiver and switch port; iblinkinfo, mlxlink -d {port.device}"
    return Finding("state", state, "fail" if needed else "warn", "ACTIVE", cure, port.name, compare)


def _rate(port: Port, least: float, usual: float | None) -> Finding:
    expected = f"at least {least / 1e9:g} Gb/s"
    if port.rate is None:
        return Finding("rate", "can't be read", "unknown", expected, item=port.name, compare="fail")
    value = port.shown_rate
    cure = f"cable and switch port (fewer lanes or a slower generation?); mlxlink -d {port.device}"
    if port.rate < least:
        return Finding("rate", value, "fail", expected, cure, port.name, "fail")
    if usual and port.rate < usual:
        expected = f"{usual / 1e9:g} Gb/s as most ports here"
        return Finding("rate", value, "warn", expected, cure, port.name, "fail")
    return Finding("rate", value, "ok", expected, item=port.name, compare="fail")


def _subnet_manager(port: Port, needed: bool) -> Finding:
    if port.sm_lid is None:
        return Finding("subnet manager", "can't be read", "unknown", "a LID", item=port.name)
    if port.sm_lid:
        return Finding("subnet manager", f"LID {port.sm_lid}", "ok", "a LID", item=port.name)
    cure = "start opensm on a node or the switch's own subnet manager; sminfo asks for it"
    return Finding("subnet manager", "none (LID 0)", "fail" if needed else "warn", "a LID", cure, port.name)


register("infiniband", "state, rate, link layer and subnet manager of InfiniBand and RoCE ports", infiniband)
