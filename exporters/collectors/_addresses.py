"""Addresses of host names, looked up in threads of their own: a resolver that hangs holds up nothing else.

Used by ``_fetch.py``, which waits for nothing. A literal address is answered at once. A name's addresses are kept
KEEP_SECONDS and, while they are looked up anew or can't be, given as they were.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from functools import lru_cache
from typing import Any, NamedTuple

KEEP_SECONDS = 60.0
#: After a look-up that failed.
KEEP_FAILED_SECONDS = 5.0
#: Names that nobody asked for in this time are forgotten.
FORGET_SECONDS = 600.0
#: Look-ups at one time; a name server that hangs keeps no more threads than this.
MAX_THREADS = 16


class Address(NamedTuple):
    """What a socket is made of and connected to."""

    family: int
    at: tuple[Any, ...]


class _Known:
    __slots__ = ("asked", "error", "hosts", "looking", "until")

    def __init__(self) -> None:
        self.hosts: tuple[tuple[int, str], ...] = ()
        self.error: OSError | None = None
        self.until = 0.0
        self.asked = 0.0
        self.looking = False


class Addresses:
    """One per fetcher. ``of`` and ``prefer`` are called by one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._waiting: deque[str] = deque()
        self._threads = 0
        self._lock = threading.Lock()

    def of(self, host: str, port: int) -> list[Address] | None:
        """In the resolver's order; None while they are looked up. Raises OSError if there are none."""
        literal = _literal(host)
        if literal is not None:
            return [_address(*literal, port)]
        now = time.monotonic()
        with self._lock:
            known = self._known.setdefault(host, _Known())
            known.asked = now
            if now >= known.until and not known.looking:
                known.looking = True
                self._waiting.append(host)
                if self._threads < MAX_THREADS:
                    self._threads += 1
                    threading.Thread(target=self._work, name="resolver", daemon=True).start()
            if known.hosts:
                return [_address(family, name, port) for family, name in known.hosts]
            if known.error is not None and not known.looking:
                raise known.error
        return None

    def prefer(self, host: str, address: Address) -> None:
        """That one answered: it comes first until the name is looked up anew."""
        with self._lock:
            known = self._known.get(host)
            if known is not None and len(known.hosts) > 1:
                first = (address.family, str(address.at[0]))
                known.hosts = (first, *(h for h in known.hosts if h != first))

    def forget(self) -> None:
        """Drops the names that nobody asks for any more."""
        before = time.monotonic() - FORGET_SECONDS
        with self._lock:
            self._known = {n: k for n, k in self._known.items() if k.asked >= before or k.looking}

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                host = self._waiting.popleft()
            hosts: tuple[tuple[int, str], ...] = ()
            error: OSError | None = None
            try:
                found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                hosts = tuple(dict.fromkeys((int(f[0]), str(f[4][0])) for f in found))
            except (OSError, UnicodeError) as problem:
                error = OSError(f"no address of {host}: {getattr(problem, 'strerror', None) or problem}")
            with self._lock:
                known = self._known.get(host)
                if known is None:
                    continue
                # The last known addresses outlive a name server that fails.
                known.hosts, known.error = hosts or known.hosts, error
                known.until = time.monotonic() + (KEEP_SECONDS if hosts else KEEP_FAILED_SECONDS)
                known.looking = False


def _address(family: int, host: str, port: int) -> Address:
    if family == socket.AF_INET6 and "%" in host:  # its zone has to become a number
        at = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
        return Address(family, tuple(at))
    return Address(family, (host, port))


@lru_cache(maxsize=16_384)
def _literal(host: str) -> tuple[int, str] | None:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None
    return int(found[0][0]), host
