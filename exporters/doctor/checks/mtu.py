"""MTU of network interfaces, and the active MTU of InfiniBand and RoCE ports.

sysfs has no active MTU: it is asked of ``ibv_devinfo`` where that is installed, and worked out from the interface's
for RoCE otherwise (include/rdma/ib_addr.h, iboe_get_mtu: the largest power of two that leaves room for 96 bytes of
headers). Two ends that differ drop packets on Ethernet, or use the smaller.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

from exporters.doctor import apart
from exporters.doctor.check import Finding, Node, Verdict, register
from exporters.doctor.checks import _nccl
from exporters.doctor.fabric import Port, ib_ports, interfaces

_HEADERS = 96


def mtu(node: Node) -> Iterator[Finding]:
    links = interfaces(node.sysfs)
    chosen = _nccl.socket_interface(node).value
    takes = _nccl.matches(chosen) if chosen else None
    shown = [i for i in links if i.up and (i.physical or (takes and takes(i.name, "")))]
    for link in shown:
        value = str(link.mtu) if link.mtu is not None else "can't be read"
        verdict: Verdict = "ok" if link.mtu is not None else "unknown"
        yield Finding("interface", value, verdict, "the same on every node", item=link.name, compare="fail")
    if not shown:
        yield Finding("interface", "no physical interface that is up", "not here")
    ports = [p for p in ib_ports(node.sysfs) if p.state == "ACTIVE"]
    if not ports:
        yield Finding("InfiniBand", "no active port", "not here")
        return
    told = _devinfo(node)
    mtus = {link.name: link.mtu for link in links}
    for port in ports:
        yield _active(port, told.get(port.name), mtus.get(port.interface))


def _devinfo(node: Node) -> dict[str, tuple[int, int]]:
    program = shutil.which("ibv_devinfo", path=node.environ.get("PATH"))
    if program is None:
        return {}
    outcome = apart.run([program, "-v"], 3.0, node.environ)
    return parse_devinfo(outcome.out.decode(errors="replace")) if outcome.code == 0 else {}


def parse_devinfo(raw: str) -> dict[str, tuple[int, int]]:
    """``ibv_devinfo``'s (active MTU, largest MTU) in bytes by ``device/port``."""
    found: dict[str, tuple[int, int]] = {}
    device = port = ""
    most = 0
    for line in raw.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "hca_id":
            device = value
        elif key == "port" and value.isdecimal():
            port = value
        elif key in ("max_mtu", "active_mtu") and (bytes_ := re.match(r"\d+", value)):
            if key == "max_mtu":
                most = int(bytes_[0])
            else:
                found[f"{device}/{port}"] = (int(bytes_[0]), most)
    return found


def _active(port: Port, told: tuple[int, int] | None, interface: int | None) -> Finding:
    ethernet = port.link_layer == "Ethernet"
    if told is None and ethernet and interface is not None:
        fitting = [m for m in (4096, 2048, 1024, 512, 256) if m <= interface - _HEADERS]
        if fitting:
            told = (fitting[0], 4096)
    if told is None:
        cure = "apt install ibverbs-utils (ibv_devinfo)"
        return Finding("InfiniBand", "can't be read", "unknown", "4096", cure, port.name)
    active, most = told
    if ethernet and active < 2048:
        cure = f"ip link set {port.interface or 'IFACE'} mtu 9000, on the switch and on every node"
        return Finding(
            "InfiniBand", str(active), "warn", "4096 (interface 4200 or more)", cure, port.name, "fail"
        )
    expected = f"the same on every node (the port can {most})"
    return Finding("InfiniBand", str(active), "ok", expected, item=port.name, compare="fail")


register("mtu", "MTU of interfaces and active MTU of InfiniBand ports", mtu)
