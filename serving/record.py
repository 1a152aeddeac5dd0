"""What is known about the running stack: one lock, one file, and cleaning up after a killed supervisor.

``run/stack.lock`` is held by the supervisor for as long as it lives; ``run/stack.json`` says what it runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from serving.home import home, write_whole
from serving.launch.local import Identity

PHASES = ("preparing", "starting", "ready", "stopping")


class NotEnded(Exception):
    """Parts that live on after SIGKILL; the message names them, for the user. Their record is kept."""

    def __init__(self, parts: list[PartRecord]) -> None:
        named = ", ".join(f"{p.name} (pid {p.identity.pid if p.identity else '?'})" for p in parts)
        super().__init__(
            f"SIGKILL did not end {named}: the kernel holds it, mostly for a GPU or a disk that does not answer. "
            "Memory and port stay taken until it lets go, or the machine is restarted; then exaserve down again"
        )


@dataclass
class PartRecord:
    """One part: ``state`` as ``exaserve status`` shows it; ``identity`` None while it does not run."""

    name: str
    address: str
    state: str = "waiting"
    identity: Identity | None = None
    ready_seconds: float | None = None
    restarts: int = 0
    log: str = ""


@dataclass
class Record:
    """The whole stack. ``started`` is Unix time in seconds; ``addresses``: name -> base URL."""

    supervisor: Identity
    started: float
    phase: str = "preparing"
    config: str = "defaults"
    addresses: dict[str, str] = field(default_factory=dict)
    parts: list[PartRecord] = field(default_factory=list)

    def write(self) -> None:
        """Write ``run/stack.json`` whole. Raises OSError."""
        write_whole(path(), json.dumps(asdict(self), indent=1) + "\n", mode=0o600)


def run_folder() -> Path:
    """``$EXASERVE_HOME/run``; ``$EXASERVE_RUN`` gives a second stack its own, with the same engine and model."""
    own = os.environ.get("EXASERVE_RUN")
    return Path(own).absolute() if own else home() / "run"


def logs_folder() -> Path:
    """``$EXASERVE_HOME/logs``, or ``$EXASERVE_RUN/logs``."""
    own = os.environ.get("EXASERVE_RUN")
    return Path(own).absolute() / "logs" if own else home() / "logs"


def path() -> Path:
    return run_folder() / "stack.json"


def lock_path() -> Path:
    return run_folder() / "stack.lock"


def read() -> Record | None:
    """The record on disk; None if there is none, or none that can be read. It may be stale: see ``is_up``."""
    try:
        data: dict[str, Any] = json.loads(path().read_text())
        parts = [
            PartRecord(**{**p, "identity": Identity(**p["identity"]) if p["identity"] else None})
            for p in data.pop("parts")
        ]
        return Record(supervisor=Identity(**data.pop("supervisor")), parts=parts, **data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def remove() -> None:
    """The stack is gone."""
    path().unlink(missing_ok=True)


def close(found: Record) -> list[PartRecord]:
    """The stack has ended: its record goes. It stays, with the parts that still live, if there are any: these."""
    found.parts = [p for p in found.parts if p.identity and p.identity.alive()]
    if found.parts:
        with contextlib.suppress(OSError):  # a full disk: then the one before stays, which names them too
            found.write()
    else:
        remove()
    return found.parts


def lock() -> int | None:
    """Take the stack's lock for as long as this process lives: its file descriptor, or None if another has it.

    Raises OSError if the file can't be made.
    """
    run_folder().mkdir(parents=True, exist_ok=True)
    fd = os.open(lock_path(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def is_up() -> bool:
    """Whether a supervisor lives (it holds the lock)."""
    if not lock_path().exists():
        return False
    fd = lock()
    if fd is None:
        return True
    os.close(fd)
    return False


def clean_stale(seconds: float = 5.0) -> list[str]:
    """Kill what a supervisor that is gone left behind, and its record: names of what was killed.

    Only to be called while nobody holds the lock, or after its holder was killed. A recorded pid that now
    belongs to another process is left alone. Raises NotEnded if something lives on.
    """
    stale = read()
    if stale is None:
        remove()
        return []
    left = [p for p in stale.parts if p.identity and p.identity.alive()]
    for part in left:
        assert part.identity is not None
        part.identity.signal(signal.SIGKILL, group=True)
    wait_gone([p.identity for p in left if p.identity], seconds)
    alive = close(stale)
    if alive:
        raise NotEnded(alive)
    return [p.name for p in left]


def wait_gone(processes: list[Identity], seconds: float) -> bool:
    """Wait until all are gone; False if some are still there after ``seconds``."""
    end = time.monotonic() + seconds
    while any(p.alive() for p in processes):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
