"""What ``NCCL_SOCKET_IFNAME`` and ``NCCL_IB_HCA`` choose (NCCL's documentation, "Environment Variables")."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from exporters.doctor.check import Node


class Chosen(NamedTuple):
    """variable: name of the environment variable; key: of exaserve.yaml; value: "" where neither says anything.

    origin: which of the two ``value`` comes from. The environment of a replica is made from exaserve.yaml last.
    """

    variable: str
    key: str
    value: str
    origin: str
    other: str


def socket_interface(node: Node) -> Chosen:
    return _chosen(node, "NCCL_SOCKET_IFNAME", "network.nccl_socket_ifname")


def hca(node: Node) -> Chosen:
    return _chosen(node, "NCCL_IB_HCA", "network.nccl_ib_hca")


def _chosen(node: Node, variable: str, key: str) -> Chosen:
    environment = node.environ.get(variable, "")
    for named in (f"engine.env.{variable}", key):
        configured = node.key(named, None)
        if isinstance(configured, str) and configured:
            return Chosen(variable, named, configured, f"{named} in exaserve.yaml", environment)
    return Chosen(variable, key, environment, f"the environment's {variable}", "")


def wanted(value: str) -> tuple[bool, bool, list[str]]:
    """(excluded, exact, names) of ``^docker,lo``, ``=eth0`` or ``mlx5``."""
    excluded = value.startswith("^")
    value = value[excluded:]
    exact = value.startswith("=")
    return excluded, exact, [name.strip() for name in value[exact:].split(",") if name.strip()]


def matches(value: str) -> Callable[[str, str], bool]:
    """Whether NCCL takes a device (and port, "" where it has none), given the variable's value."""
    excluded, exact, entries = wanted(value)

    def one(entry: str, name: str, port: str) -> bool:
        prefix, _, number = entry.partition(":")
        fits = name == prefix if exact else name.startswith(prefix)
        return fits and (not number or not port or number == port)

    return lambda name, port: any(one(e, name, port) for e in entries) != excluded


def unmatched(value: str, devices: Iterable[tuple[str, str]]) -> list[str]:
    """Entries of the list (not of a list of exclusions) that no device answers to."""
    excluded, exact, entries = wanted(value)
    every = list(devices)
    if excluded:
        return []
    sign = "=" if exact else ""
    return [e for e in entries if not any(matches(sign + e)(name, port) for name, port in every)]
