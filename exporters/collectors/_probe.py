"""One probe of one folder: free space, a small write with fsync, a small read. Blocks as long as the storage
does.

Every call that may hang gives up the interpreter's lock, so a stuck mount stops only the thread that asked it
(os.DirEntry.stat does not, hence os.stat). When it is asked and what is made of it: ``storage.py``.

The file is ``.exaserve-probe-<host>``, 4 KiB, removed at once; one that a killed exporter left is removed by
the next. It is never opened through a link that somebody put there. Where nothing can be written (read-only,
full, not allowed), the read takes the first file that is found in the folder, and there is none without such
a file.

Reads use O_DIRECT. A file system that refuses it (tmpfs before Linux 6.6, some FUSE ones) is read after
posix_fadvise(DONTNEED), which is only a hint: ``direct`` is then False and the page cache may have answered.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field

BLOCK = 4096
#: Entries of a folder, its subfolders included, among which a file to read is looked for.
MAX_ENTRIES = 256

_KINDS = {
    errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EROFS: "read_only", errno.EACCES: "denied",
    errno.EPERM: "denied", errno.ENOENT: "missing", errno.ENOTDIR: "missing", errno.EIO: "io",
    errno.ESTALE: "stale", errno.ENOTCONN: "unreachable", errno.ETIMEDOUT: "unreachable",
    errno.EHOSTDOWN: "unreachable", errno.EHOSTUNREACH: "unreachable", errno.ECONNABORTED: "unreachable",
    errno.ECONNREFUSED: "unreachable", errno.ENODEV: "unreachable",
}  # fmt: skip
#: Kinds of error of a write that say only that we may not write here.
NOT_ALLOWED = frozenset(("denied", "read_only"))


@dataclass(slots=True)
class Found:
    """What a probe found; None where it could not be told. Seconds, bytes, numbers of files.

    errors: (operation, kind) of what failed.
    """

    size: int | None = None
    free: int | None = None
    available: int | None = None
    inodes: int | None = None
    inodes_free: int | None = None
    read: float | None = None
    direct: bool | None = None
    write: float | None = None
    errors: list[tuple[str, str]] = field(default_factory=list)


def kind_of(error: OSError) -> str:
    return _KINDS.get(error.errno or 0, "other")


def probe(folder: str, host: str, read_only: bool) -> Found:
    """Ask the folder once. Errors are in the answer, not raised."""
    found = Found()
    try:
        _space(folder, found)
    except OSError as error:
        found.errors.append(("stat", kind_of(error)))
        return found
    written = False
    if not read_only:
        try:
            written = _write_and_read(os.path.join(folder, f".exaserve-probe-{host}"), found)
        except OSError as error:
            found.errors.append(("write", kind_of(error)))
    if not written:
        try:
            path = _some_file(folder)
            if path is not None:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    _read(fd, found)
                finally:
                    os.close(fd)
        except OSError as error:
            found.errors.append(("read", kind_of(error)))
    return found


def _space(folder: str, found: Found) -> None:
    s = os.statvfs(folder)
    if s.f_blocks:
        found.size, found.free = s.f_blocks * s.f_frsize, s.f_bfree * s.f_frsize
        found.available = s.f_bavail * s.f_frsize
    if s.f_files:
        found.inodes, found.inodes_free = s.f_files, s.f_ffree


def _write_and_read(path: str, found: Found) -> bool:
    """Whether there was a file to read. Raises OSError of the write; one of the read goes into ``found``."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        began = time.perf_counter()
        if os.pwrite(fd, b"\0" * BLOCK, 0) < BLOCK:
            raise OSError(errno.ENOSPC, "a short write")
        os.fsync(fd)
        found.write = time.perf_counter() - began
        try:
            _read(fd, found)
        except OSError as error:
            found.errors.append(("read", kind_of(error)))
        return True
    finally:
        try:
            os.close(fd)
        finally:
            os.unlink(path)


def _read(fd: int, found: Found) -> None:
    """Read the first block past the page cache, or at least after asking the kernel to forget it."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    direct = True
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
    except OSError:
        direct = False
    # O_DIRECT wants memory that is aligned to the device's blocks; a mapping is aligned to pages.
    with mmap.mmap(-1, BLOCK) as memory:
        if direct:
            began = time.perf_counter()
            try:
                os.preadv(fd, [memory], 0)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                direct = False
                fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        if not direct:
            os.posix_fadvise(fd, 0, BLOCK, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            os.preadv(fd, [memory], 0)
        found.read, found.direct = time.perf_counter() - began, direct


def _some_file(folder: str) -> str | None:
    """A regular file that is not empty, in the folder or below it; None if the first entries are none."""
    left, folders = MAX_ENTRIES, [folder]
    while folders and left:
        at = folders.pop(0)
        names = []
        with os.scandir(at) as entries:
            for entry in entries:
                names.append(entry.name)
                left -= 1
                if not left:
                    break
        for name in names:
            path = os.path.join(at, name)
            s = os.stat(path, follow_symlinks=False)
            if stat.S_ISREG(s.st_mode) and s.st_size:
                return path
            if stat.S_ISDIR(s.st_mode):
                folders.append(path)
    return None
