"""Reads the process table below a procfs folder: who is whose child, how long it lives, what it was started with.

Which of them belong to a replica is ``exporters/processes.py``. Nothing here raises for what a process does: one
that ends while it is read is simply not there. Every read has a size limit, and the reads that the kernel may
hold up (a command line needs the process's memory map, which a process stuck in a page fault never gives back)
have a time limit and a thread of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from exporters.patience import Job

#: Processes that are looked at; a node with more is not one that serves models.
MAX_PROCESSES = 65_536
#: Seconds in which one command line that does not come is given up; a usual one takes 20 µs.
PATIENCE = 0.25
#: Threads that may hang in a read; with so many, new command lines are not read until one comes back.
MAX_STUCK = 4

_COMMAND_LINE_BYTES = 32_768
_KERNEL_THREAD = 0x0020_0000  # PF_KTHREAD, include/linux/sched.h


class Row(NamedTuple):
    """One process. session: id of its session. ticks: start in clock ticks since boot. command: its comm."""

    pid: int
    parent: int
    session: int
    ticks: int
    command: str


def read(path: Path | str, limit: int = 65_536) -> str | None:
    """At most ``limit`` bytes of a file; None if it can't be read."""
    try:
        with open(path, "rb", buffering=0) as f:
            parts, left = [], limit
            # procfs gives a page or so at a time.
            while left > 0 and (part := f.read(left)):
                parts.append(part)
                left -= len(part)
    except (OSError, ValueError):
        return None
    return b"".join(parts).decode(errors="replace")


def row(procfs: Path, pid: int) -> Row | None:
    """One process by proc(5), ``stat``; None if it is gone, a zombie, or a thread of the kernel."""
    text = read(f"{procfs}/{pid}/stat", 4096)
    if text is None:
        return None
    # The name may hold spaces and brackets, so it is taken from both ends.
    start, end = text.find("("), text.rfind(")")
    fields = text[end + 2 :].split()
    try:
        if fields[0] in "ZXx" or int(fields[6]) & _KERNEL_THREAD:
            return None
        return Row(pid, int(fields[1]), int(fields[3]), int(fields[19]), text[start + 1 : end])
    except (IndexError, ValueError):
        return None


def rows(procfs: Path) -> dict[int, Row]:
    """Every process by pid; empty where procfs can't be read."""
    try:
        pids = sorted(int(p.name) for p in procfs.iterdir() if p.name.isascii() and p.name.isdigit())
    except OSError:
        return {}
    found = (row(procfs, pid) for pid in pids[:MAX_PROCESSES])
    return {r.pid: r for r in found if r is not None}


def boot_id(procfs: Path) -> str:
    """The kernel's boot id; empty where it is not told."""
    return (read(procfs / "sys/kernel/random/boot_id", 64) or "").strip()


_stuck: dict[tuple[str, int, int], threading.Thread] = {}
_lock = threading.Lock()


def command_lines(procfs: Path, processes: Iterable[Row], patience: float = PATIENCE) -> dict[int, list[str]]:
    """What each process was started with, by pid; those that can't be read are absent.

    One whose command line does not come within ``patience`` seconds is left out, here and at later calls, for
    as long as that read hangs.
    """
    with _lock:
        for key in [key for key, thread in _stuck.items() if not thread.is_alive()]:
            del _stuck[key]
        wanted = [p for p in processes if (str(procfs), p.pid, p.ticks) not in _stuck]
    found: dict[int, list[str]] = {}
    while wanted and len(_stuck) < MAX_STUCK:
        job = Job("command-lines", wanted, lambda process: _command_line(procfs, process))
        stuck = _wait(job, patience)
        found |= {process.pid: argv for process, argv in dict(job.found).items()}
        if stuck is None:
            break
        with _lock:
            _stuck[str(procfs), stuck.pid, stuck.ticks] = job.thread
        wanted = wanted[wanted.index(stuck) + 1 :]
    return found


def _wait(job: Job[Row, list[str]], patience: float) -> Row | None:
    """None when the job is done; else the process that it hangs at, and the job is given up."""
    while True:
        job.thread.join(patience / 5)
        if job.done():
            return None
        stuck = job.stuck(patience)
        if stuck is not None:
            job.give_up()
            return stuck


def _command_line(procfs: Path, process: Row) -> list[str] | None:
    text = read(f"{procfs}/{process.pid}/cmdline", _COMMAND_LINE_BYTES)
    # A title set by the process is padded with NULs or spaces up to the old length.
    return text.rstrip("\0 ").split("\0") if text else None
