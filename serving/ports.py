"""Which ports are in use, by whom, and which key of the configuration changes them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection

import psutil

from serving.config import Config, ports


def reach(host: str) -> str:
    """The address at which something that listens on ``host`` is reached from here, ready for a URL."""
    local = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"[{local}]" if ":" in local else local


def host_of(config: Config, key: str) -> str:
    """The address that the part listens on whose port ``key`` sets."""
    if key == "router.admin_port":
        return config.router.admin_host
    section = key.partition(".")[0]
    return {"router": config.router.host, "exporter": config.exporter.host, "fleet": config.fleet.host}.get(
        section, "127.0.0.1"
    )


def problems(config: Config, which: Collection[str]) -> list[str]:
    """One line for every port that can't be listened on: who holds it and how to change it; empty if all are free.

    which: the parts that run here, as in ``serving/parts.py``.
    """
    found = []
    for name, port in ports(config).items():
        key = name.partition(" ")[0]
        section = key.partition(".")[0]
        if ("replicas" if section == "fleet" else section) not in which:
            continue
        host = host_of(config, key)
        error = _listen_error(host, port)
        if error is None:
            continue
        option = " (or --port)" if key == "router.port" else ""
        if error.errno == errno.EADDRINUSE:
            found.append(f"port {port} ({name}) is held by {holder(port)}; end it or change {key}{option}")
        else:
            found.append(f"can't listen on {host}:{port} ({name}): {error.strerror}; change {key}{option}")
    return found


def holder(port: int) -> str:
    """The process that listens on ``port``: name, pid, user and the start of its command line."""
    try:
        pids = {c.pid for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.pid}
    except psutil.Error:
        pids = set()
    for pid in sorted(pids):
        try:
            process = psutil.Process(pid)
            command = " ".join(process.cmdline())
            shown = f": {command[:80]}" if command else ""
            return f"{process.name()} (pid {pid}, user {process.username()}{shown})"
        except psutil.Error:
            continue
    return "a process of another user"


def _listen_error(host: str, port: int) -> OSError | None:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(address)
            s.listen(1)
    except OSError as error:
        return error
    return None
