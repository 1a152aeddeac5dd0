"""The operations of the lab's file system: each one meets the rules, then goes to the folder behind it.

The rules are ``faultrules.py``, mounting and ending ``faultfs.py``. Operations are named as libfuse names them
and called by many threads at once.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from chaos.lab.faultrules import Folder, Rule

_SIGKILL_PENDING = 1 << (signal.SIGKILL - 1)
_TIMES = ("st_atime", "st_mtime", "st_ctime")
_STAT = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_rdev", "st_size", "st_blksize", "st_blocks")
_STATVFS = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail")


class Faults:
    """Applies the rules to operations. All of it may be called by many threads."""

    def __init__(self, folder: Folder) -> None:
        self.hits: Counter[str] = Counter()
        self._folder = folder
        self._rules: list[Rule] = []
        self._lock = threading.Condition()
        self._free_at = 0.0  # monotonic time at which the link of ``bandwidth`` is idle again

    def look(self) -> bool:
        """Read the rules again; True if they changed. What is held or waits by a rule that went goes on."""
        if not self._folder.changed():
            return False
        with self._lock:
            self._rules = self._folder.rules()
            self._lock.notify_all()
        return True

    def meet(self, op: str, path: str, size: int = 0, caller: int = 0) -> list[Rule]:
        """Wait or raise OSError as the rules say. Returns the ones that are the caller's business (full, corrupt).

        size: bytes that are read or written. caller: its thread's id; if it is being killed, EINTR.
        """
        left = []
        for rule in self._rules:
            if not rule.covers(op, path) or (rule.share < 1 and random.random() >= rule.share):  # noqa: S311
                continue
            self.hits[rule.source] += 1
            if rule.fault == "latency":
                self._wait(rule, rule.seconds, caller)
            elif rule.fault == "bandwidth":
                self._wait(rule, self._turn(size / rule.bytes_per_second), caller)
            elif rule.fault == "hang":
                self._wait(rule, None, caller)
            elif rule.fault == "error":
                raise OSError(rule.code, os.strerror(rule.code))
            elif rule.fault == "full" and op != "statfs":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            else:
                left.append(rule)
        return left

    def is_full(self, path: str) -> bool:
        return any(rule.fault == "full" and rule.covers("write", path) for rule in self._rules)

    def _turn(self, seconds: float) -> float:
        """How long to wait until ``seconds`` of the shared link have passed for this operation."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + seconds
            return self._free_at - now

    def _wait(self, rule: Rule, seconds: float | None, caller: int) -> None:
        end = None if seconds is None else time.monotonic() + seconds
        with self._lock:
            while rule in self._rules and (end is None or time.monotonic() < end):
                left = 0.1 if end is None else min(0.1, end - time.monotonic())
                self._lock.wait(max(0.0, left))
                if _is_being_killed(caller):
                    raise OSError(errno.EINTR, os.strerror(errno.EINTR))


def _is_being_killed(thread: int) -> bool:
    """Whether the thread has SIGKILL pending: it then waits for us alone. 0 or one that we can't see: False."""
    if not thread:
        return False
    try:
        with open(f"/proc/{thread}/status", "rb") as f:
            return any(
                int(line.split()[1], 16) & _SIGKILL_PENDING
                for line in f
                if line.startswith((b"SigPnd", b"ShdPnd"))
            )
    except OSError:
        return False


class PassThrough:
    """The operations, by libfuse's names. Paths begin with ``/``; handles are descriptors of the backing files."""

    use_ns = True

    def __init__(self, backing: str, faults: Faults, context: Any, invalidate: Any) -> None:
        self._root, self._faults = backing, faults
        self._context, self._invalidate = context, invalidate
        self._paths: dict[int, str] = {}
        self._opened: set[str] = set()
        self._fuse: Any = None
        self.mounted = threading.Event()

    def init_with_config(self, connection: Any, config: Any) -> None:
        # No memory of attributes and names in the kernel: each use asks, so each use meets the rules.
        config.entry_timeout = config.attr_timeout = config.negative_timeout = 0.0
        config.use_ino = config.hard_remove = config.nullpath_ok = 1
        self._fuse = ctypes.c_void_p(self._context().contents.fuse)
        self.mounted.set()

    def drop_pages(self) -> None:
        """Have the kernel forget what it holds of every file opened so far. May wait for held reads."""
        for path in list(self._opened):
            if self._invalidate(self._fuse, os.fsencode(path)) == -errno.ENOENT:
                self._opened.discard(path)

    def _meet(self, op: str, path: str | None, size: int = 0) -> list[Rule]:
        return self._faults.meet(op, path or "", size, self._context().contents.pid)

    def _at(self, op: str, path: str) -> str:
        self._meet(op, path)
        return self._root + path

    def _keep(self, fd: int, path: str) -> int:
        self._paths[fd] = path
        self._opened.add(path)
        return fd

    def _give(self, path: str) -> None:
        """What the daemon (root) made belongs to who asked for it."""
        if os.geteuid() == 0:
            context = self._context().contents
            os.lchown(path, context.uid, context.gid)

    # --- files ---

    def open(self, path: str, flags: int) -> int:
        op = "open" if flags & os.O_ACCMODE == os.O_RDONLY else "open_write"
        # The kernel gives offsets for O_APPEND, and buffers of its own that O_DIRECT would refuse.
        return self._keep(
            os.open(self._at(op, path), flags & ~(os.O_APPEND | os.O_DIRECT | os.O_NOFOLLOW)), path
        )

    def create(self, path: str, mode: int, flags: int) -> int:
        real = self._at("create", path)
        fd = os.open(real, (flags | os.O_CREAT) & ~(os.O_APPEND | os.O_DIRECT | os.O_NOFOLLOW), mode)
        self._give(real)
        return self._keep(fd, path)

    def read(self, path: str | None, size: int, offset: int, fd: int) -> bytes:
        rules = self._meet("read", self._paths.get(fd), size)
        data = os.pread(fd, size, offset)
        for rule in rules:
            data = _corrupt(data, offset, rule)
        return data

    def write(self, path: str | None, data: bytes, offset: int, fd: int) -> int:
        self._meet("write", self._paths.get(fd), len(data))
        return os.pwrite(fd, data, offset)

    def release(self, path: str | None, fd: int) -> int:
        self._paths.pop(fd, None)
        os.close(fd)
        return 0

    def fsync(self, path: str | None, data_only: int, fd: int) -> int:
        self._meet("fsync", self._paths.get(fd))
        (os.fdatasync if data_only else os.fsync)(fd)
        return 0

    def truncate(self, path: str | None, length: int, fd: int | None = None) -> int:
        if fd is None:
            os.truncate(self._at("truncate", path or ""), length)
        else:
            self._meet("truncate", self._paths.get(fd))
            os.ftruncate(fd, length)
        return 0

    def fallocate(self, path: str | None, mode: int, offset: int, length: int, fd: int) -> int:
        self._meet("fallocate", self._paths.get(fd))
        if mode:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        os.posix_fallocate(fd, offset, length)
        return 0

    # --- names and attributes ---

    def getattr(self, path: str | None, fd: int | None = None) -> dict[str, int]:
        if fd is None:
            s = os.lstat(self._at("getattr", path or "/"))
        else:
            self._meet("getattr", self._paths.get(fd))
            s = os.fstat(fd)
        return {k: getattr(s, k) for k in _STAT} | {k: getattr(s, f"{k}_ns") for k in _TIMES}

    def readdir(self, path: str | None, fd: int) -> Iterator[Any]:
        path = self._paths.get(fd, "/")
        self._meet("readdir", path)
        yield from (".", "..")
        with os.scandir(fd) as entries:
            for entry in entries:
                s = os.lstat(f"{self._root}{path.rstrip('/')}/{entry.name}")
                yield entry.name, {"st_mode": s.st_mode, "st_ino": s.st_ino}, 0

    def opendir(self, path: str) -> int:
        fd = os.open(self._at("opendir", path), os.O_RDONLY | os.O_DIRECTORY)
        self._paths[fd] = path
        return fd

    def releasedir(self, path: str | None, fd: int) -> int:
        return self.release(path, fd)

    def statfs(self, path: str) -> dict[str, int]:
        s = os.statvfs(self._at("statfs", path))
        full = ("f_bfree", "f_bavail") if self._faults.is_full(path) else ()
        return {k: 0 if k in full else getattr(s, k) for k in _STATVFS} | {"f_namemax": s.f_namemax}

    def readlink(self, path: str) -> str:
        return os.readlink(self._at("readlink", path))

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(real := self._at("mkdir", path), mode)
        self._give(real)
        return 0

    def mknod(self, path: str, mode: int, device: int) -> int:
        os.mknod(real := self._at("mknod", path), mode, device)
        self._give(real)
        return 0

    def symlink(self, path: str, source: str) -> int:
        os.symlink(source, real := self._at("symlink", path))
        self._give(real)
        return 0

    def link(self, path: str, source: str) -> int:
        os.link(self._root + source, self._at("link", path), follow_symlinks=False)
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._at("unlink", path))
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self._at("rmdir", path))
        return 0

    def rename(self, old: str, new: str) -> int:
        os.rename(self._at("rename", old), self._root + new)
        self._opened |= {
            new + p[len(old) :] for p in list(self._opened) if p == old or p.startswith(f"{old}/")
        }
        return 0

    def chmod(self, path: str | None, mode: int) -> int:
        os.chmod(self._at("chmod", path or ""), mode)
        return 0

    def chown(self, path: str | None, uid: int, gid: int) -> int:
        os.lchown(self._at("chown", path or ""), uid, gid)
        return 0

    def utimens(self, path: str | None, times: tuple[int, int] | None = None) -> int:
        os.utime(self._at("utimens", path or ""), ns=times or (time.time_ns(),) * 2, follow_symlinks=False)
        return 0


def _corrupt(data: bytes, offset: int, rule: Rule) -> bytes:
    """The bytes at file offsets start, start + every … inverted."""
    first = rule.start if offset <= rule.start else offset + (rule.start - offset) % rule.every
    wrong = bytearray(data)
    for at in range(first - offset, len(data), rule.every):
        wrong[at] ^= 0xFF
    return bytes(wrong)
