"""Writes whole pages into a file, for nodes that can't be scraped: node_exporter's textfile collector reads them.

Each page goes to a file beside the target first and is then renamed over it, so that a reader never sees half a
page. The file goes away at an orderly end: series of an exporter that no longer runs would go on for ever.
(After a crash they do, and ``node_textfile_mtime_seconds`` tells.)
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("exaserve.exporter")


def write(path: Path, page: bytes) -> None:
    """``path`` holds ``page``, whole, readable for all. Raises OSError; then what was there before still is."""
    # Not .prom: node_exporter reads every file of that name.
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        with open(descriptor, "wb") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def keep_written(path: Path, page: Callable[[], bytes], interval: float, end: threading.Event) -> None:
    """A page every ``interval`` seconds until ``end``; then the file is removed.

    A write that fails (disk full, folder gone) is logged when it begins and when it works again, and tried again.
    """
    said = ""
    try:
        while not end.is_set():
            try:
                write(path, page())
                problem = ""
            except OSError as error:
                problem = f"can't be written: {error.strerror or error}"
            if problem != said:
                log.warning("%s: %s", path, problem or "is written again")
            said = problem
            end.wait(interval)
    finally:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: can't be removed: %s", path, error.strerror or error)
