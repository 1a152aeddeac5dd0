"""The router's listening sockets: made by the master, one a worker and address, so that they outlive a worker.

The kernel spreads connections over the sockets of one address (SO_REUSEPORT). A socket here is bound and not yet
listening: it gets its first connection when its worker is ready. Linux only.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

Address = tuple[socket.AddressFamily, tuple[str, int]]


class CannotStart(Exception):
    """What keeps the router from starting, in words."""


def resolve(host: str, port: int, key: str = "") -> list[Address]:
    """Every address of a name. Raises CannotStart if it has none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as e:
        why = getattr(e, "strerror", e)
        raise CannotStart(f"{host} has no address: {why} ({_keys(key + 'host')})") from None
    return list(dict.fromkeys((f, a) for f, _, _, _, a in found if f in (socket.AF_INET, socket.AF_INET6)))  # type: ignore[misc]


def bind(host: str, port: int, workers: int, key: str = "") -> list[list[socket.socket]]:
    """Sockets of each worker, one an address of ``host``. Raises CannotStart that names the keys.

    key: "admin_" for the admin API's.

    An address that this machine does not have (IPv6 switched off) is left out if another one works.
    """
    rows: list[list[socket.socket]] = [[] for _ in range(workers)]
    missing = None
    for address in resolve(host, port, key):
        try:
            _must_be_free(address)
            for row in rows:
                row.append(_bound(address))
        except OSError as e:
            if e.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                close(rows)
                raise _in_words(host, port, e, key) from None
            missing = e
    if not rows[0]:
        assert missing is not None
        raise _in_words(host, port, missing, key)
    return rows


def again(sock: socket.socket) -> socket.socket:
    """Another one on the same address, for a worker that may or may not come up: ``sock`` is closed."""
    address = (sock.family, sock.getsockname())
    new = _bound(address)
    sock.close()
    return new


def close(rows: list[list[socket.socket]]) -> None:
    for row in rows:
        for sock in row:
            sock.close()


def _in_words(host: str, port: int, e: OSError, key: str) -> CannotStart:
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    what = "port" if e.errno in (errno.EADDRINUSE, errno.EACCES) else "host"
    return CannotStart(f"could not listen on {shown}: {e.strerror} ({_keys(key + what)})")


def _keys(name: str) -> str:
    return f"router.{name}, --{name.replace('_', '-')}"


def _must_be_free(address: Address) -> None:
    """With SO_REUSEPORT another router of the same user would share the port without a word."""
    with _socket(address[0]) as probe:
        probe.bind(address[1])


def _bound(address: Address) -> socket.socket:
    sock = _socket(address[0])
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address[1])
    except OSError:
        sock.close()
        raise
    return sock


def _socket(family: socket.AddressFamily) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(
        socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
    )  # connections of a router before us linger in TIME_WAIT
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # 0.0.0.0 and :: are two addresses
    return sock


def bind_unix(path: Path) -> socket.socket:
    """One socket that all workers share. A file that nobody listens on any more is replaced. Raises CannotStart."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            sock.bind(str(path))
        except OSError as e:
            if e.errno != errno.EADDRINUSE or not _is_stale(path):
                raise
            path.unlink()
            sock.bind(str(path))
    except OSError as e:
        sock.close()
        # Python's own check of the length has no errno.
        raise CannotStart(f"could not listen on {path}: {e.strerror or e} (router.unix_socket)") from None
    return sock


def _is_stale(path: Path) -> bool:
    if not stat.S_ISSOCK(os.stat(path, follow_symlinks=False).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
