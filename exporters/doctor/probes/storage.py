"""Asks one folder: space, the latency of small reads and writes. Runs alone, for a stuck mount never answers.

Argument: the folder. Prints {"exists", "total", "free", "inodes", "inodes_free", "read",
"read_of", "write", "errors"}; read and write are medians in seconds of 4096 bytes, or null.

A write is a write and an fsync. A read asks the kernel to forget its copy of the page first (posix_fadvise), so
that it comes from the storage; a memory file system has nothing to forget. The file written has no name, or loses
it at once, so that nothing stays behind.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import IO, Any

_TRIES, _BYTES, _SPAN, _SECONDS = 15, 4096, 64, 2.0


def main(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {"exists": False, "read": None, "read_of": "", "write": None, "errors": []}
    try:
        space = os.statvfs(folder)
    except OSError as error:
        found["errors"].append(f"{folder}: {error.strerror}")
        return found
    found.update(
        exists=True,
        total=space.f_blocks * space.f_frsize,
        free=space.f_bavail * space.f_frsize,
        inodes=space.f_files,
        inodes_free=space.f_favail,
    )
    if not os.path.isdir(folder):
        folder = os.path.dirname(folder) or "/"
    try:
        measure_own_file(folder, found)
    except OSError as error:
        found["errors"].append(f"write: {error.strerror}")
        try:
            found["read"], found["read_of"] = read_a_file_of(folder)
        except OSError as error:
            found["errors"].append(f"read: {error.strerror}")
    return found


def measure_own_file(folder: str, found: dict[str, Any]) -> None:
    with unnamed(folder) as f:
        fd, block = f.fileno(), os.urandom(_BYTES)
        os.pwrite(fd, block * _SPAN, 0)
        os.fsync(fd)
        found["write"] = median(lambda i: write(fd, block, i % _SPAN * _BYTES))
        found["read"] = median(lambda i: os.pread(fd, _BYTES, i * 37 % _SPAN * _BYTES), lambda: forget(fd))
        found["read_of"] = "a new file"


def write(fd: int, block: bytes, offset: int) -> None:
    os.pwrite(fd, block, offset)
    os.fsync(fd)


def unnamed(folder: str) -> IO[bytes]:
    try:
        return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600), "r+b", buffering=0)
    except OSError:
        return tempfile.TemporaryFile(dir=folder, prefix=".exaserve-doctor.", buffering=0)


def read_a_file_of(folder: str) -> tuple[float | None, str]:
    sizes: list[tuple[int, str, str]] = []
    with os.scandir(folder) as entries:
        for entry in itertools.islice(entries, 1000):
            if entry.is_file():
                sizes.append((entry.stat().st_size, entry.path, entry.name))
    size, path, name = max(sizes, default=(0, "", ""))
    if size < _BYTES:
        return None, ""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return median(
            lambda i: os.pread(fd, _BYTES, i * 7919 % (size // _BYTES) * _BYTES), lambda: forget(fd)
        ), name
    finally:
        os.close(fd)


def forget(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def median(step: Callable[[int], object], before: Callable[[], object] = lambda: None) -> float:
    """Seconds of a step: the median of up to _TRIES, cut after _SECONDS. ``before`` is not counted."""
    took: list[float] = []
    ends = time.monotonic() + _SECONDS
    for i in range(_TRIES):
        before()
        start = time.perf_counter()
        step(i)
        took.append(time.perf_counter() - start)
        if time.monotonic() > ends:
            break
    return statistics.median(took)


if __name__ == "__main__":
    json.dump(main(sys.argv[1]), sys.stdout)
