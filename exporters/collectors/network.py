"""Network collector: TCP connections and path MTU to the listed peers. Off unless turned on: it sends
packets.

Each peer gets, at most every ``peer_interval`` seconds (15 at least), one TCP connection that is closed at
once, and two UDP datagrams (``_mtu.py``). All peers are tried at the same time without a thread for any of
them; only names are looked up in threads (``_addresses.py``). The result ``name`` is a name that has no
address, or none in time. A name's further addresses are tried when one refuses or has no route; the time is
that of the one that was reached.

Between two tries the last result stands. A peer that can't be reached has ``up`` 0 and neither a time nor an
MTU."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from exporters.collectors._addresses import Address, Addresses
from exporters.collectors._mtu import Path, paths
from exporters.registry import NoData, Sample, register
from exporters.settings import Settings, parse_peer

MAX_PEERS = 256
#: Seconds between two connections to a peer, whatever the settings say.
LEAST_INTERVAL = 15.0
#: Addresses of one name that are tried.
MAX_ADDRESSES = 4
#: Between two looks whether a name has its addresses.
_NAME_TICK = 0.01
RESULTS = ("ok", "refused", "timeout", "no_route", "name", "other")

_RESULT_OF = {
    0: "ok", errno.ECONNREFUSED: "refused", errno.ETIMEDOUT: "timeout", errno.EHOSTUNREACH: "no_route",
    errno.ENETUNREACH: "no_route", errno.EHOSTDOWN: "no_route", errno.EADDRNOTAVAIL: "no_route",
    errno.ENETDOWN: "no_route",
}  # fmt: skip


@dataclass(slots=True)
class Attempt:
    """One peer's connection. left: addresses to try after this one."""

    left: list[Address]
    result: str = "timeout"
    seconds: float | None = None
    reached: Address | None = None
    began: float = 0.0
    socket: socket.socket | None = None

    def next(self) -> bool:
        """Begin with the next address. Whether there is something to wait for."""
        while self.left and self.result != "ok":
            address = self.left.pop(0)
            try:
                s = socket.socket(
                    address.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
                )
            except OSError as error:
                self.result = _result(error.errno)
                continue
            self.socket, self.reached, self.began = s, address, time.perf_counter()
            number = s.connect_ex(address.at)
            if number == errno.EINPROGRESS:
                self.result = "timeout"
                return True
            self.over(number)
        return False

    def over(self, number: int) -> None:
        """The connection was made (0) or not."""
        self.result = _result(number)
        if self.result == "ok":
            self.seconds = time.perf_counter() - self.began
        self.close()

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None


def _result(number: int | None) -> str:
    return _RESULT_OF.get(number if number is not None else -1, "other")


def connect(peers: dict[str, list[Address]], until: float) -> dict[str, Attempt]:
    """Connects to all peers at once, to the first address of each that takes it. until: time.monotonic()."""
    attempts = {name: Attempt(list(addresses)) for name, addresses in peers.items()}
    poll = select.poll()
    waiting: dict[int, Attempt] = {}

    def begin(attempt: Attempt) -> None:
        if attempt.next() and attempt.socket is not None:
            waiting[attempt.socket.fileno()] = attempt
            poll.register(attempt.socket, select.POLLOUT)

    try:
        for attempt in attempts.values():
            begin(attempt)
        while waiting and (left := until - time.monotonic()) > 0:
            for fd, _ in poll.poll(left * 1000):
                attempt = waiting.pop(fd)
                poll.unregister(fd)
                assert attempt.socket is not None
                attempt.over(attempt.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                begin(attempt)
    finally:
        for attempt in attempts.values():
            attempt.close()
    return attempts


class NetworkCollector:
    """Tries ``settings.peers``."""

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if len(settings.peers) > MAX_PEERS:
            raise ValueError(f"{len(settings.peers)} peers, at most {MAX_PEERS} are tried")
        self._peers = {text: parse_peer(text) for text in settings.peers}
        self._addresses = Addresses()
        self._timeout = settings.timeout
        self._interval = max(LEAST_INTERVAL, settings.peer_interval)
        self._clock = clock
        self._tried: float | None = None
        self._results: Counter[tuple[str, str]] = Counter()
        self._last: list[Sample] = []

    def collect(self, deadline: float) -> list[Sample]:
        if not self._peers:
            raise NoData
        now = self._clock()
        if self._tried is None or now - self._tried >= self._interval:
            self._tried = now
            self._last = self._try(deadline)
        return self._last + [
            Sample("exaserve_network_connects_total", (name, result), self._results[name, result])
            for name in self._peers
            for result in RESULTS
        ]

    def _try(self, deadline: float) -> list[Sample]:
        # A third of the time for names, a third for connections, the rest for the MTU.
        share = max(0.0, deadline - 0.2 - time.monotonic()) / 3
        with_address = self._resolved(time.monotonic() + share)
        until = time.monotonic() + min(share, self._timeout)
        attempts = connect(with_address, until)
        reached = {n: a.reached for n, a in attempts.items() if a.result == "ok" and a.reached is not None}
        ways = paths(reached, deadline - 0.1)
        samples: list[Sample] = []
        for name in self._peers:
            attempt = attempts.get(name)
            result = attempt.result if attempt is not None else "name"
            self._results[name, result] += 1
            samples.append(Sample("exaserve_network_peer_up", (name,), float(result == "ok")))
            if attempt is not None and attempt.seconds is not None:
                samples.append(Sample("exaserve_network_connect_duration_seconds", (name,), attempt.seconds))
            if name in ways:
                samples += _of_path(name, ways[name])
        return samples

    def _resolved(self, until: float) -> dict[str, list[Address]]:
        """Addresses by peer, without those whose name has none, or has none by ``until``."""
        found: dict[str, list[Address]] = {}
        left = dict(self._peers)
        while left:
            for name, (host, port) in list(left.items()):
                try:
                    addresses = self._addresses.of(host, port)
                except OSError:
                    addresses = []
                if addresses is not None:
                    del left[name]
                if addresses:
                    found[name] = addresses[:MAX_ADDRESSES]
            if time.monotonic() >= until:
                break
            if left:
                time.sleep(_NAME_TICK)
        return found


def _of_path(peer: str, path: Path) -> list[Sample]:
    samples = []
    if path.mtu is not None:
        samples.append(Sample("exaserve_network_path_mtu_bytes", (peer,), path.mtu))
    if path.interface is not None and path.interface_mtu is not None:
        about = (peer, path.interface)
        samples.append(Sample("exaserve_network_interface_mtu_bytes", about, path.interface_mtu))
    if path.verified is not None:
        samples.append(Sample("exaserve_network_path_mtu_verified", (peer,), float(path.verified)))
    return samples


register("network", NetworkCollector, default=False)
