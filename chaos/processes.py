"""Finding the process behind a replica, and making sure that it is that one and ours."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from chaoslib.exceptions import ActivityFailed

from chaos.fleet import Replica


def run_folder() -> Path:
    """Where ``exaserve up`` writes what it runs: ``$EXASERVE_RUN``, else ``run`` in ``$EXASERVE_HOME``."""
    if own := os.environ.get("EXASERVE_RUN"):
        return Path(own).absolute()
    home = Path(os.environ.get("EXASERVE_HOME") or Path.home() / ".exaserve")
    return home.expanduser().absolute() / "run"


def of_replica(replica: Replica) -> psutil.Process:
    """The process that listens on the replica's port.

    If ``exaserve up`` wrote down who that is (``stack.json``), it has to be that process or a child of it.
    Raises ActivityFailed: replica on another machine, nobody or several listen, another user's process, this
    process or an ancestor of it, or not the one written down.
    """
    url = urlsplit(replica.url)
    port = url.port
    if port is None or not _is_local(url.hostname or ""):
        raise ActivityFailed(
            f"{replica.name} ({replica.url}) is not on this machine; its process can't be reached"
        )
    pids = _listeners(port)
    if len(pids) != 1:
        who = ", ".join(str(p) for p in sorted(pids)) or "no process that this user can see"
        raise ActivityFailed(f"port {port} of {replica.name}: {who} listens; one process was expected")
    process = _open(pids.pop())
    if process.uids().real != os.getuid():
        raise ActivityFailed(f"process {process.pid} on port {port} is another user's; nothing was done")
    if process.pid in {os.getpid(), *(p.pid for p in psutil.Process().parents())}:
        raise ActivityFailed(f"process {process.pid} on port {port} runs this experiment; nothing was done")
    written = _written_down(replica.name, port)
    if written is not None and written not in {process.pid, *(p.pid for p in process.parents())}:
        raise ActivityFailed(
            f"process {process.pid} listens on port {port}, but {replica.name} was started as {written}; "
            "nothing was done"
        )
    return process


def with_children(process: psutil.Process) -> list[psutil.Process]:
    """The process and all below it (vLLM's engine core is a child of its API server), parents first."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def wait_gone(process: psutil.Process, timeout: float) -> bool:
    """True once the process has ended (a zombie has: it only waits to be collected), within the seconds."""
    end = time.monotonic() + timeout
    while True:
        try:
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.01)


def _open(pid: int) -> psutil.Process:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        raise ActivityFailed(f"process {pid} ended before anything was done") from None


def _listeners(port: int) -> set[int]:
    found = {
        c.pid
        for c in psutil.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port and c.pid
    }
    return {_opener(pid, port) for pid in found}


def _opener(pid: int, port: int) -> int:
    """The topmost of the process and its ancestors that holds the socket: forked children share it."""
    try:
        for parent in psutil.Process(pid).parents():
            held = (
                c.laddr.port
                for c in parent.net_connections("tcp")
                if c.status == psutil.CONN_LISTEN and c.laddr
            )
            if port not in held:
                break
            pid = parent.pid
    except psutil.Error:
        pass  # ended, or another user's: the one found stands
    return pid


def _is_local(host: str) -> bool:
    own = {a.address for addresses in psutil.net_if_addrs().values() for a in addresses}
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(host, None)} <= own
    except OSError:
        return False


def _written_down(name: str, port: int) -> int | None:
    """Pid of the part in ``stack.json``; None if there is no file, or of another stack, or it has ended."""
    try:
        parts = json.loads((run_folder() / "stack.json").read_bytes())["parts"]
        started = next(
            p["identity"] for p in parts if p["name"] == name and urlsplit(p["address"]).port == port
        )
        pid = int(started["pid"])
        stat = Path(f"/proc/{pid}/stat").read_text()
        ticks = int(stat[stat.rindex(")") + 2 :].split()[19])  # proc(5): start time since boot, field 22
    except (OSError, ValueError, KeyError, TypeError, IndexError, StopIteration):
        return None
    return pid if ticks == started.get("ticks") else None
