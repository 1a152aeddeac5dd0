"""An audit file on disk: appended to in whole batches, rotated by size, one process to a file.

Each worker has its own file, so that rotation needs no agreement between processes and a batch can be taken
back when the disk takes only a part of it: a reader never meets half a line of a process that lives. A lock
beside the file keeps a second process off it (a router started twice, a new worker while the old one still
drains); that one takes the next free name, ``audit-0-2.jsonl``. Lines are made in ``record.py`` and queued in
``writer.py``.

The kernel writes data out by itself, within half a minute as a rule; we wait for the disk only when a file is
rotated or closed. So a killed process loses what was queued (a quarter of a second at most), a machine that
loses power what the kernel still held.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path

MAX_NAMES = 100  # processes with the same worker number in one folder


class AuditFile:
    """``folder/audit-<worker>.jsonl`` and its rotated ``….1`` (newest) to ``….<keep>``.

    max_bytes: size beyond which it is rotated. Together they take at most (keep + 1) × max_bytes.
    """

    def __init__(self, folder: Path, worker: int, max_bytes: int, keep: int) -> None:
        self.folder = folder
        self.path = folder / f"audit-{worker}.jsonl"
        self._worker = worker
        self._max_bytes = max_bytes
        self._keep = keep
        self._fd = -1
        self._lock = -1
        self._size = 0
        self._torn = False  # the file ends in half a line

    def write(self, data: bytes) -> None:
        """Append ``data``, whole lines, all or nothing. Raises OSError; it may be tried again then."""
        self._ready(len(data))
        if self._torn:
            data = b"\n" + data
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, memoryview(data)[done:])
        except OSError:
            self._take_back(done)
            raise
        self._torn = False
        self._size += len(data)

    def close(self) -> None:
        """Waits for the disk. Raises nothing: what it can't do now nobody can do later."""
        self._close_file()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # --- inside ---

    def _ready(self, more: int) -> None:
        """Open the file; again if somebody has moved it away; rotate it if ``more`` bytes do not fit."""
        if self._fd >= 0:
            try:
                there = os.stat(self.path)
                ours = os.fstat(self._fd)
                moved = (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)
            except FileNotFoundError:
                moved = True
            if moved:
                self._close_file()
        if self._fd < 0:
            self._open()
        if self._size and self._size + more > self._max_bytes and stat.S_ISREG(os.fstat(self._fd).st_mode):
            self._rotate()

    def _open(self) -> None:
        if self._lock < 0:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._take_name()
        # Readable too: whether the last line is whole.
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            found = os.fstat(fd)
            self._size = found.st_size if stat.S_ISREG(found.st_mode) else 0
            self._torn = self._size > 0 and os.pread(fd, 1, self._size - 1) != b"\n"
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        for path in self.folder.glob(f"{self.path.name}.*"):
            number = path.name.removeprefix(f"{self.path.name}.")
            if number.isascii() and number.isdigit() and int(number) > self._keep:
                path.unlink(missing_ok=True)

    def _take_name(self) -> None:
        for i in range(1, MAX_NAMES + 1):
            stem = f"audit-{self._worker}" + (f"-{i}" if i > 1 else "")
            fd = os.open(self.folder / f".{stem}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                # A file system without locks (Lustre mounted without them): the name will be ours alone as long
                # as one router uses the folder.
                if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                    os.close(fd)
                    if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                        continue
                    raise
            self._lock = fd
            self.path = self.folder / f"{stem}.jsonl"
            return
        raise OSError(errno.EBUSY, f"{MAX_NAMES} processes write here already", str(self.folder))

    def _rotate(self) -> None:
        """Each file moves up by one, the last one goes. A crash in between leaves a gap, which closes here."""
        self._close_file()
        names = [self.path, *(self.path.with_name(f"{self.path.name}.{i}") for i in range(1, self._keep + 1))]
        gap = next((i for i, name in enumerate(names) if i and not name.exists()), self._keep)
        for i in range(gap, 0, -1):
            os.replace(names[i - 1], names[i])
        self._open()

    def _take_back(self, done: int) -> None:
        """Cut off what was written of a batch that failed; where that fails too, remember the half line."""
        if not done:
            return
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            self._size += done
            self._torn = True

    def _close_file(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.fdatasync(self._fd)
            os.close(self._fd)
            self._fd = -1
