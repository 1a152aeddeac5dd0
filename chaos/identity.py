"""Processes told apart for good: by pid, start time and boot. Standard library only, Python 3.8 (see ``undo.py``).

An identity is ``{"pid", "ticks", "boot"}``; ticks: start time in clock ticks since boot (proc(5), stat, field 22),
which no change of the clock moves; boot: the kernel's boot id. A pid that another process got since is never taken
for the recorded one. All here read /proc; a process that is hidden from this user counts as gone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

#: In the environment of every helper process that a fault starts: the path of its undo record.
MARK = "EXASERVE_CHAOS_RECORD"
#: The same in that of every program that puts a fault in. It is no helper: it ends before the fault is in.
STEP = "EXASERVE_CHAOS_STEP"


def boot_id() -> str:
    """The kernel's boot id; empty where /proc does not tell it."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            return f.read().strip()
    except OSError:
        return ""


def stat(pid: int) -> tuple[str, int, int, int] | None:
    """(state, parent, session, ticks) of a process (proc(5), stat); None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            fields = f.read().decode("utf-8", "replace").rpartition(")")[2].split()
        return fields[0], int(fields[1]), int(fields[3]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def of(pid: int) -> dict[str, Any] | None:
    """The identity of a process that is there; None if it is not (a zombie is not)."""
    found = stat(pid)
    return {"pid": pid, "ticks": found[3], "boot": boot_id()} if found and found[0] not in "ZX" else None


def well_formed(who: Any) -> bool:
    """Whether it is an identity, of whatever process."""
    kinds = {"pid": int, "ticks": int, "boot": str}
    return isinstance(who, dict) and all(isinstance(who.get(key), kind) for key, kind in kinds.items())


def alive(who: dict[str, Any] | None) -> bool:
    """Whether that very process is still there and no zombie."""
    return who is not None and of(who["pid"]) == {k: who[k] for k in ("pid", "ticks", "boot")}


def send(who: dict[str, Any], number: int) -> bool:
    """Send a signal to that very process. Returns False if it is gone. Raises PermissionError."""
    handle = None
    try:
        if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
            handle = os.pidfd_open(who["pid"])
        # The handle holds the process that had the pid when it was opened: what is looked at is what is hit.
        if not alive(who):
            return False
        if handle is None:
            os.kill(who["pid"], number)
        else:
            signal.pidfd_send_signal(handle, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        if handle is not None:
            os.close(handle)


def pids() -> list[int]:
    """All that /proc shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def tree(pid: int) -> list[dict[str, Any]]:
    """A process and all below it, parents first; empty if it is gone."""
    parents: dict[int, list[int]] = {}
    for one in pids():
        found = stat(one)
        if found:
            parents.setdefault(found[1], []).append(one)
    order, found_all = [pid], []
    for one in order:
        order += parents.get(one, [])
        who = of(one)
        if who:
            found_all.append(who)
    return found_all


def helpers(record: str = "", folder: str = "", mark: str = MARK) -> list[tuple[dict[str, Any], str]]:
    """Helpers of that undo record, or of any in the folder: (identity, path of the record)."""
    found, want = [], f"{mark}=".encode()
    for pid in pids():
        who = of(pid)
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                marks = [
                    w[len(want) :].decode("utf-8", "replace")
                    for w in f.read().split(b"\0")
                    if w.startswith(want)
                ]
        except OSError:
            continue
        if who and marks and (marks[0] == record or (folder and os.path.dirname(marks[0]) == folder)):
            found.append((who, marks[0]))
    return found


def session(who: dict[str, Any]) -> list[dict[str, Any]]:
    """All in the session that this process leads or led: while one of them lives, its number goes to nobody else."""
    leader = stat(who["pid"])
    if who["boot"] != boot_id() or (leader and leader[3] != who["ticks"]):
        return []
    found = [(pid, stat(pid)) for pid in pids()]
    inside = [of(pid) for pid, s in found if s and s[2] == who["pid"] and s[3] >= who["ticks"]]
    return [one for one in inside if one]


def listening(pid: int) -> list[int]:
    """TCP ports that the process listens on, in its own network namespace; empty if that can't be seen."""
    held, ports = sockets(pid), []
    for table in (f"/proc/{pid}/net/tcp", f"/proc/{pid}/net/tcp6"):
        ports += [port for inode, port in listeners(table).items() if inode in held]
    return sorted(set(ports))


def listeners(table: str) -> dict[str, int]:
    """Inode -> port of the sockets that listen, from a table like /proc/net/tcp; empty if it can't be read."""
    try:
        with open(table) as f:
            rows = [line.split() for line in f][1:]
    except OSError:
        return {}
    # 0A: TCP_LISTEN (include/net/tcp_states.h)
    return {row[9]: int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


def sockets(pid: int) -> set[str]:
    """Inodes of the process's open sockets; empty if they can't be seen."""
    found = set()
    try:
        for handle in os.listdir(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{handle}")
            except OSError:
                continue
            if link.startswith("socket:["):
                found.add(link[len("socket:[") : -1])
    except OSError:
        pass
    return found


def until(true: Callable[[], Any], seconds: float) -> bool:
    """Whether it came true within the seconds; looked at every 10 ms."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() >= end:
            return False
        time.sleep(0.01)
    return True
