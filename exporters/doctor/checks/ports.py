"""Each port of exaserve.yaml: free, or held by ExaServe. Which keys there are is told by serving/config.py, too."""

from __future__ import annotations

import errno
import itertools
import os
import socket
from collections.abc import Iterator

import psutil

from exporters.doctor.check import Finding, Node, register

#: Ports by their key: (its default, key of the address, its default).
_KEYS = {
    "router.port": (8000, "router.host"),
    "router.admin_port": (8001, "router.admin_host"),
    "exporter.port": (9420, "exporter.host"),
    "monitoring.prometheus_port": (9090, ""),
    "monitoring.alertmanager_port": (9093, ""),
}
#: Modules that are ours as ``python -m``, programs that are, and programs that `exaserve up` starts beside.
_MODULES, _PROGRAM = ("serving.cli", "serving.stack", "exporters"), "exaserve"
_BESIDE = ("prometheus", "alertmanager")


def ports(node: Node) -> Iterator[Finding]:
    wanted: dict[str, tuple[str, int]] = {}
    monitoring = node.key("monitoring", {}).get("enabled", True) is not False
    for key, (default, host) in _KEYS.items():
        if monitoring or not key.startswith("monitoring."):
            wanted[key] = (node.key(host, "127.0.0.1") if host else "127.0.0.1", node.key(key, default))
    first, host = node.key("fleet.first_port", 8100), node.key("fleet.host", "127.0.0.1")
    for i in range(min(256, node.key("fleet.replicas_per_node", 2))):
        wanted["fleet.first_port" + (f" + {i}" if i else "")] = (host, first + i)
    for key, (address, port) in wanted.items():
        yield _port(key, address, port)


def _port(key: str, host: str, port: int) -> Finding:
    expected = "free, or held by ExaServe"
    error = _listen_error(host, port)
    if error is None:
        return Finding("port", "free", "ok", expected, item=f"{port} ({key})")
    cure = f"another {key.partition(' ')[0]} in exaserve.yaml"
    if error.errno != errno.EADDRINUSE:
        value = f"can't listen on {host}: {error.strerror}"
        verdict = "warn" if error.errno == errno.EACCES else "fail"
        return Finding(
            "port", value, "fail" if verdict == "fail" else "warn", expected, cure, f"{port} ({key})"
        )
    who, ours = _holder(port, key)
    if ours:
        return Finding("port", f"held by ExaServe ({who})", "ok", expected, item=f"{port} ({key})")
    if who is None:
        value = "held by a process of another user"
        return Finding(
            "port", value, "unknown", expected, f"as root: ss -ltnp sport = :{port}", f"{port} ({key})"
        )
    return Finding("port", f"held by {who}", "fail", expected, f"end it, or {cure}", f"{port} ({key})")


def _listen_error(host: str, port: int) -> OSError | None:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(address)
            s.listen(1)
    except OverflowError:
        return OSError(errno.EINVAL, "no port has this number")
    except OSError as error:
        return error
    return None


def _holder(port: int, key: str) -> tuple[str | None, bool]:
    """(name and pid of who listens on the port, None if it isn't told; whether it is one of ours)."""
    try:
        listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        pids = sorted({c.pid for c in listening if c.laddr and c.laddr.port == port and c.pid})
    except (psutil.Error, OSError):
        return None, False
    for pid in pids:
        try:
            process = psutil.Process(pid)
            name = process.name()
            ours = any(is_ours(p.cmdline()) for p in (process, *process.parents()))
        except psutil.Error:
            continue
        return f"{name}, pid {pid}", ours or (key.startswith("monitoring.") and name in _BESIDE)
    return None, False


def is_ours(argv: list[str]) -> bool:
    """Whether this command line is ExaServe: ``exaserve …`` or ``python -m serving.cli …``, by whichever Python."""
    if any(os.path.basename(word) == _PROGRAM for word in argv[:2]):
        return True
    return any(a == "-m" and b in _MODULES for a, b in itertools.pairwise(argv[:6]))


register("ports", "ports of exaserve.yaml: free, or held by ExaServe", ports)
