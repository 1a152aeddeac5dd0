"""Processes on this machine: started so that they end with us, logged within bounds, ended whole.

Which processes the stack has is ``serving/parts.py``; when they are started and restarted is
``serving/supervisor.py``. Linux only (process groups, PR_SET_PDEATHSIG, /proc).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

#: A log beyond this is moved to ``<part>.log.1``, which it replaces: two of these a part at most.
LOG_BYTES = 10 * 2**20

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)
# Holds the write end for as long as we live; its end is how guards notice that we were killed.
_alive: tuple[int, int] | None = None


@dataclass(frozen=True)
class Identity:
    """A process that a later one with the same pid is not taken for.

    ticks: start time in clock ticks since boot (proc(5), field 22), which no clock change moves.
    boot: the kernel's boot id.
    """

    pid: int
    ticks: int
    boot: str

    def alive(self) -> bool:
        """Whether this very process is there and not a zombie."""
        found = _stat(self.pid)
        return found == ("alive", self.ticks) and self.boot == boot_id()

    def signal(self, number: int, group: bool = False) -> None:
        """Send a signal to it (or to its whole process group) if it is still the same process."""
        found = _stat(self.pid)
        if found is None or found[1] != self.ticks or self.boot != boot_id():
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if group else os.kill)(self.pid, number)


def identity(pid: int) -> Identity | None:
    """Identity of a running process; None if it is gone."""
    found = _stat(pid)
    return Identity(pid, found[1], boot_id()) if found else None


def boot_id() -> str:
    """The kernel's boot id; empty where /proc does not tell it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _stat(pid: int) -> tuple[str, int] | None:
    try:
        raw = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    fields = raw[raw.rindex(")") + 2 :].split()
    return ("gone" if fields[0] in "ZX" else "alive"), int(fields[19])


class Process:
    """One started process, leader of its own session and group.

    Its output is appended to ``log``, its input is /dev/null. It gets SIGKILL when we die, however we die;
    what it started itself is killed by a guard that watches us for the group.
    Raises OSError if the program can't be started.
    """

    def __init__(self, argv: list[str], env: Mapping[str, str], log: Path, cwd: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        bound(log)
        with log.open("ab") as out:
            self.log_start = out.tell()
            self._popen = subprocess.Popen(
                argv,
                env={**os.environ, **env},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=dies_with_us(),
            )
        self.log = log
        self.pid = self._popen.pid
        self.started = time.monotonic()
        found = identity(self.pid)
        self.identity = found or Identity(self.pid, -1, "")
        try:
            self._guard = _guard(self.pid)
        except OSError:
            # Without its guard it would be nobody's, and hold its port against every later start.
            self.signal(signal.SIGKILL, group=True)
            self._popen.wait()
            raise

    def ended(self) -> int | None:
        """None while it runs, else its exit status (negative: the signal). Its group is killed then."""
        if self._popen.returncode is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            # Not reaped yet, so the group's number can't belong to anybody else.
            self.signal(signal.SIGKILL, group=True)
            self._popen.wait()
            self._guard.kill()
            self._guard.wait()
        return self._popen.returncode

    def signal(self, number: int, group: bool = False) -> None:
        """Send a signal to the process, or to everything that it started too."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end. A stopped process is continued, or it would never hear of it."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT, group=True)

    def kill(self) -> None:
        """End it and everything that it started, now."""
        self.signal(signal.SIGKILL, group=True)

    def has_written(self) -> bool:
        """Whether anything is in its log since this start."""
        try:
            return self.log.stat().st_size > self.log_start
        except OSError:
            return False


def dies_with_us() -> Callable[[], None]:
    """For Popen's ``preexec_fn``: the child gets SIGKILL when we die. Only from a process of one thread."""
    parent = os.getpid()

    def in_child() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # we died between fork and prctl
            os._exit(1)

    return in_child


def _guard(group: int) -> subprocess.Popen[bytes]:
    """A shell that waits for our end and then kills the group (PDEATHSIG reaches its leader only)."""
    global _alive
    if _alive is None:
        _alive = os.pipe()
    return subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; kill -9 "-$1"', "exaserve-guard", str(group)],
        stdin=_alive[0],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def tail(log: Path, lines: int, start: int = 0) -> list[str]:
    """The last lines of a log from byte ``start`` on (at most 64 KiB are read); empty if there is none."""
    try:
        with log.open("rb") as f:
            size = f.seek(0, os.SEEK_END)
            f.seek(max(start if start <= size else 0, size - 65536))
            return f.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


def bound(log: Path, limit: int = LOG_BYTES) -> None:
    """Keep a log within ``limit`` bytes: copy it to ``.1`` and empty it.

    Whoever writes it has it open for appending and goes on at its start. What was written between the copy
    and the emptying (well under a millisecond) is lost. Where there is no room for the copy, all of it is.
    """
    old = log.with_name(log.name + ".1")
    with contextlib.suppress(OSError):
        if log.stat().st_size > limit:
            try:
                shutil.copyfile(log, old)
            except OSError:
                old.unlink(missing_ok=True)
            os.truncate(log, 0)
