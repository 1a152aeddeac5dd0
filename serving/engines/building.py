"""What building an engine or a model has in common: one process at a time, room on disk, clear errors.

What is built is in ``install.py`` (environments) and ``model.py`` (model folders).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

#: Takes one line without a line end, for a person to read.
Progress = Callable[[str], None]


class BuildError(RuntimeError):
    """Something could not be built; the message says what, why, and what to do about it."""


def say(line: str) -> None:
    """Progress on standard output, line by line even into a pipe."""
    print(line, flush=True)


@contextmanager
def one_at_a_time(lock: Path, what: str, progress: Progress, timeout: float = 3600.0) -> Iterator[None]:
    """Hold ``lock`` (a file beside the folder that is built) while the block runs.

    Waits while another process holds it, and says so; the lock goes with its process, however that ends.
    Raises BuildError if it can't be made, or after ``timeout`` seconds.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = lock.open("a+")
    except OSError as e:
        raise BuildError(
            f"{what}: can't write in {lock.parent}: {e.strerror}. Make it writable, or set EXASERVE_HOME to a "
            "folder that is."
        ) from e
    with handle:
        start = time.monotonic()
        told = -30.0
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - start
                holder = _holder(lock)
                if waited > timeout:
                    raise BuildError(
                        f"{what}: process {holder} has held {lock} for {waited:.0f} s. End it, then try again."
                    ) from None
                if waited - told >= 15:
                    told = waited
                    progress(f"{what}: process {holder} is building it; waiting ({waited:.0f} s)")
                time.sleep(0.2)
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def _holder(lock: Path) -> str:
    try:
        return lock.read_text().strip() or "unknown"
    except OSError:
        return "unknown"


def need_room(folder: Path, what: str, size: int) -> None:
    """Raise BuildError unless ``size`` bytes are free where ``folder`` (which exists) lies."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise BuildError(
            f"{what}: needs {size / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free. "
            "Make room, or set EXASERVE_HOME to a folder on a larger disk."
        )
