"""Reads the small files of sysfs at little cost, keeping them open from scrape to scrape.

Opening a file below ``/sys/class/infiniband`` costs five times what reading it costs, and there are 60 of them for
each port. A kept file is read anew from its beginning each time, which makes the kernel compute its value anew
(fs/seq_file.c), and one of a device that is gone answers ENODEV (fs/kernfs/file.c). On an ordinary file system a
deleted file would go on to give its last value: noticing that a folder has changed, and closing, is the work of
``_infiniband_device.py``.
"""

from __future__ import annotations

import os
import resource
import threading

#: Bytes of a counter that are read: 20 digits at most, and a reason such as "N/A (no PMA)".
COUNTER_BYTES = 64
#: Bytes of a text (firmware version, board) that are read, and characters of it that are kept.
TEXT_BYTES, TEXT_CHARACTERS = 512, 128
#: Most files that are kept open. Eight ports have 500.
MAX_OPEN = 1024
#: Share of the process's limit that may be kept open; the other collectors and the clients need the rest.
_OPEN_SHARE = 0.5

# O_NONBLOCK: what should be a file of sysfs and is a pipe must not hang us.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class File:
    """One file that is read again and again. ``read`` and ``close`` are called by one thread at a time."""

    __slots__ = ("_fd", "_files", "path")

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self._files = files
        self._fd = -1

    def read(self) -> bytes:
        """What it says now, at most COUNTER_BYTES of it. Raises OSError."""
        if self._fd >= 0:
            return os.pread(self._fd, COUNTER_BYTES, 0)
        fd = os.open(self.path, _FLAGS)
        keep = False
        try:
            data = os.pread(fd, COUNTER_BYTES, 0)
            keep = self._files.may_keep()
            return data
        finally:
            if keep:
                self._fd = fd
            else:
                os.close(fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self._files.given_back()

    # A collector that is thrown away (another configuration) must not leave its files open.
    __del__ = close


class Files:
    """Makes Files and counts how many of them are open. Tests put in one whose files fail or hang."""

    def __init__(self, most: int | None = None) -> None:
        self._free = _limit() if most is None else most
        self._lock = threading.Lock()

    def file(self, path: str) -> File:
        return File(self, path)

    def text(self, path: str) -> str:
        """The text of a file, without the white space around it. Raises OSError."""
        fd = os.open(path, _FLAGS)
        try:
            data = os.read(fd, TEXT_BYTES)
        finally:
            os.close(fd)
        return data.decode("utf-8", "replace").strip("\x00 \t\r\n")[:TEXT_CHARACTERS]

    def may_keep(self) -> bool:
        with self._lock:
            keep = self._free > 0
            self._free -= keep
            return keep

    def given_back(self) -> None:
        with self._lock:
            self._free += 1


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN if soft == resource.RLIM_INFINITY else min(MAX_OPEN, int(soft * _OPEN_SHARE))
