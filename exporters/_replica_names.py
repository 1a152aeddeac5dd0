"""Gives each replica that was found on this node the name that the rest of ExaServe has for it.

A name is taken from ``settings.replicas`` where the URL there leads to the server: same port, and a host that is
this machine (loopback, an address of the server's network namespace, this machine's name). Finding the processes
is ``exporters/processes.py``. Nothing is looked up in DNS: a lookup can hang.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from exporters import proctable
from exporters.commandline import Server
from exporters.proctable import Row
from exporters.settings import Replica, Settings

_LOCAL4 = re.compile(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL")
_UNSAFE = re.compile(r"[^A-Za-z0-9._:\[\]@-]")
_ANY = ("", "0.0.0.0", "::", "[::]", "*")  # noqa: S104


class Leader(NamedTuple):
    """A replica's first process. known_as, address: by ExaServe's record, or "". server: by its command line."""

    row: Row
    found_by: str
    known_as: str
    address: str
    server: Server | None


def named(settings: Settings, leaders: Sequence[Leader]) -> list[str]:
    """One name for each leader, in their order, no name twice."""
    places = [_place(leader) for leader in leaders]
    ports = Counter(port for _, port in places)
    names = []
    for leader, (host, port) in zip(leaders, places, strict=True):
        match = _configured(settings, leader, host, port, alone=ports[port] == 1)
        names.append(match or leader.known_as or _own_name(host, port, leader.row.pid))
    twice = Counter(names)
    return [
        name if twice[name] == 1 else f"{name}@{leader.row.pid}"
        for name, leader in zip(names, leaders, strict=True)
    ]


def _place(leader: Leader) -> tuple[str, int | None]:
    """Host and port that the server listens on; the host may be empty, the port unknown."""
    if leader.server is not None:
        return leader.server.host, leader.server.port
    return _split(leader.address)


def _split(url: str) -> tuple[str, int | None]:
    try:
        parts = urlsplit(url)
        usual = {"http": 80, "https": 443}.get(parts.scheme)
        return parts.hostname or "", parts.port or usual
    except ValueError:
        return "", None


def _own_name(host: str, port: int | None, pid: int) -> str:
    if port is None:
        return f"pid-{pid}"
    host = "127.0.0.1" if host in _ANY else host.strip("[]")
    return _UNSAFE.sub("_", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")[:100]


def _configured(settings: Settings, leader: Leader, host: str, port: int | None, alone: bool) -> str:
    """The name in the settings; empty if none leads here for sure.

    A host that can't be judged (another name of this machine?) counts if nothing else has this port.
    """
    if port is None:
        return ""
    same_port = [(r, _split(r.url)[0]) for r in settings.replicas if _split(r.url)[1] == port]
    if not same_port:
        return ""
    sure: list[Replica] = []
    perhaps: list[Replica] = []
    here = _Here(settings, leader.row.pid)
    for replica, there in same_port:
        verdict = here.has(there, host)
        if verdict is None:
            perhaps.append(replica)
        elif verdict and (alone or not _is_loopback(there)):
            sure.append(replica)
    if len(sure) == 1:
        return sure[0].name
    return perhaps[0].name if not sure and alone and len(perhaps) == 1 == len(same_port) else ""


class _Here:
    """What this machine is called, seen from the network namespace of one process."""

    def __init__(self, settings: Settings, pid: int) -> None:
        self._procfs, self._pid = settings.procfs, pid
        self._addresses: set[str] | None = None

    def has(self, host: str, bound: str) -> bool | None:
        """Whether ``host`` is here; None if that can't be said without asking DNS. bound: what it listens on."""
        if _is_loopback(host) or (bound not in _ANY and host == bound.strip("[]")):
            return True
        address = _address(host)
        if address is not None:
            if self._addresses is None:
                self._addresses = self._read()
            return str(address) in self._addresses if self._addresses else None
        name = (proctable.read(self._procfs / "sys/kernel/hostname", 256) or "").strip().lower()
        host = host.lower()
        return True if name and host in (name, name.partition(".")[0]) else None

    def _read(self) -> set[str]:
        """The addresses of the process's network namespace (``net/fib_trie``, ``net/if_inet6``)."""
        folder = f"{self._procfs}/{self._pid}/net"
        found = set(_LOCAL4.findall(proctable.read(f"{folder}/fib_trie", 2**20) or ""))
        for line in (proctable.read(f"{folder}/if_inet6", 65_536) or "").splitlines():
            digits = line.partition(" ")[0]
            if re.fullmatch(r"[0-9a-f]{32}", digits):
                found.add(str(ipaddress.IPv6Address(int(digits, 16))))
        return found


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)
