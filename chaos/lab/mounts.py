"""Mounting and unmounting by system call: ``mount`` and ``umount`` look at what they mount, and looking may hang."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

# sys/mount.h
NOSUID, NODEV, NOEXEC, BIND, MOVE, REC = 0x2, 0x4, 0x8, 0x1000, 0x2000, 0x4000
SLAVE, SHARED = 1 << 19, 1 << 20
_DETACH, _NOFOLLOW = 2, 8

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo: where it is, its file system and its source."""

    path: str
    fstype: str
    source: str


def mount(source: str, target: str, fstype: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError that names the target."""
    arguments = [os.fsencode(text) if text else None for text in (source, target, fstype)]
    result = _libc.mount(*arguments, ctypes.c_ulong(flags), os.fsencode(data) if data else None)
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def detach(target: str) -> bool:
    """Take the topmost mount off ``target`` at once, whatever uses it. False if nothing is mounted there."""
    if _libc.umount2(os.fsencode(target), _DETACH | _NOFOLLOW) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOENT):
        return False
    raise OSError(number, os.strerror(number), target)


def below(folder: str) -> list[Mount]:
    """What is mounted at ``folder`` or below it, in the order in which it was mounted."""
    return [m for m in everything() if m.path == folder or m.path.startswith(f"{folder}/")]


def everything(process: int | None = None) -> list[Mount]:
    """All mounts that a process (this one) has. Raises OSError if it is gone."""
    found = []
    for line in Path(f"/proc/{process or 'self'}/mountinfo").read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        found.append(Mount(_plain(fields[4]), rest[0], _plain(rest[1])))
    return found


def _plain(text: str) -> str:
    """Without the octal escapes of mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text)
