"""The largest packet that reaches a peer, found with plain UDP sockets (no raw socket, no right is needed).

A datagram as large as the path's known MTU, with "don't fragment" set (IP_PMTUDISC_DO, ip(7) and ipv6(7)),
goes to a UDP port where hardly anybody listens, and a small one beside it:

- A router on the way that can't pass it says so; the kernel notes the smaller MTU, and IP_MTU has it.
- The peer answers "port unreachable" (ECONNREFUSED here): it arrived.
- Only the small one is answered: packets of this size vanish on the way (a switch with a smaller MTU tells
  nobody).
- Neither is answered: a firewall, or somebody listens there. Then nothing is said.

Linux answers about one such packet a second to each address (icmp_ratelimit), which is enough for this.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from dataclasses import dataclass

from exporters.collectors._addresses import Address

#: Of traceroute's range, which firewalls know and where nobody listens.
PORT = 33434
#: Answers come within a round trip.
WAIT = 0.5
SMALL = 64

# linux/in.h, linux/in6.h; Python's socket module lacks them.
_IP_MTU_DISCOVER, _IP_MTU, _IPV6_MTU_DISCOVER, _IPV6_MTU, _DO = 10, 14, 23, 24, 2
_HEADERS = {socket.AF_INET: 20 + 8, socket.AF_INET6: 40 + 8}


@dataclass(slots=True)
class Path:
    """mtu: bytes, IP header included. verified: whether a packet of that size arrived; None: not known.

    interface, interface_mtu: which one packets leave by; None if that could not be told.
    """

    mtu: int | None = None
    verified: bool | None = None
    interface: str | None = None
    interface_mtu: int | None = None


class _Try:
    def __init__(self, address: Address) -> None:
        self.path = Path()
        self.family = address.family
        self.local = ""
        self.sockets: dict[str, socket.socket] = {}
        self.arrived: set[str] = set()
        self.too_big = False
        target = (address.at[0], PORT, *address.at[2:])
        try:
            for which in ("small", "large"):
                s = socket.socket(self.family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
                self.sockets[which] = s
                if self.family == socket.AF_INET6:
                    s.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _DO)
                else:
                    s.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _DO)
                s.connect(target)
        except OSError:
            self.close()
            raise
        self.local = self.sockets["large"].getsockname()[0].partition("%")[0]

    def mtu(self) -> int:
        s = self.sockets["large"]
        if self.family == socket.AF_INET6:
            return s.getsockopt(socket.IPPROTO_IPV6, _IPV6_MTU)
        return s.getsockopt(socket.IPPROTO_IP, _IP_MTU)

    def send(self) -> None:
        try:
            size = min(self.mtu(), 65_535) - _HEADERS[socket.AddressFamily(self.family)]
        except OSError:  # the route went away meanwhile
            return
        for which, length in (("small", SMALL), ("large", max(SMALL, size))):
            try:
                self.sockets[which].send(b"\0" * length)
            except OSError as error:
                self.heard(which, error.errno)

    def heard(self, which: str, number: int | None) -> None:
        if number == errno.ECONNREFUSED:
            self.arrived.add(which)
        elif number == errno.EMSGSIZE:
            self.too_big = True

    def close(self) -> None:
        for s in self.sockets.values():
            s.close()


def paths(peers: dict[str, Address], until: float) -> dict[str, Path]:
    """The path to each address, all at once, before ``until`` (time.monotonic()).

    Peers without a route are absent.
    """
    tries: dict[str, _Try] = {}
    try:
        for name, address in peers.items():
            try:
                tries[name] = _Try(address)
            except OSError:
                continue
        _exchange(list(tries.values()), min(until, time.monotonic() + WAIT))
        interfaces = _interfaces() if tries else {}
        for one in tries.values():
            _judge(one)
            one.path.interface, one.path.interface_mtu = interfaces.get(one.local, (None, None))
        return {name: one.path for name, one in tries.items()}
    finally:
        for one in tries.values():
            one.close()


def _exchange(tries: list[_Try], until: float) -> None:
    poll = select.poll()
    waiting: dict[int, tuple[_Try, str]] = {}
    for one in tries:
        for which, s in one.sockets.items():
            poll.register(s, select.POLLERR)
            waiting[s.fileno()] = (one, which)
        one.send()
    while waiting and (left := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            one, which = waiting.pop(fd)
            poll.unregister(fd)
            one.heard(which, one.sockets[which].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


def _judge(one: _Try) -> None:
    try:
        one.path.mtu = one.mtu()
    except OSError:
        return
    if "large" in one.arrived:
        one.path.verified = True
    elif "small" in one.arrived and not one.too_big:
        # Where a router said "too big", the kernel knows the smaller size now; the next try has it.
        one.path.verified = False


def _interfaces() -> dict[str, tuple[str, int]]:
    """Address -> (interface, MTU), of this process's own network namespace."""
    import psutil  # 2 MB that an exporter without peers can save

    try:
        stats = psutil.net_if_stats()
        return {
            a.address.partition("%")[0]: (name, stats[name].mtu)
            for name, addresses in psutil.net_if_addrs().items()
            if name in stats
            for a in addresses
            if a.family in _HEADERS
        }
    except (OSError, psutil.Error):
        return {}
