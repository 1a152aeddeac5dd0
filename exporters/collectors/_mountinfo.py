"""What is mounted where, from ``/proc/self/mountinfo`` (proc(5)): read and searched without touching a mount.

Reading this file never waits for a file system that hangs.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

#: Some 200 bytes a mount; a node of a container cluster has a few thousand.
MAX_BYTES = 8 * 2**20
MAX_OPTIONS = 1000

#: Options that may hold a secret; the value is left out.
_SECRET = re.compile(r"(?i)^[^=]*(pass|secret|token|key|cred)[^=]*=")
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """point: where it is mounted. source: device, export or name, without user and password.

    options: of the mount and of the file system, by commas, without the values of those that may be secret.
    """

    point: str
    fs_type: str
    source: str
    options: str
    read_only: bool


def read(procfs: Path) -> list[Mount]:
    """All mounts of this process, in the kernel's order. Raises OSError; ValueError if too long."""
    # Byte by byte from the kernel: Path.read_bytes would ask for a size that is 0.
    fd = os.open(procfs / "self" / "mountinfo", os.O_RDONLY)
    data = bytearray()
    try:
        while chunk := os.read(fd, 1 << 16):
            data += chunk
            if len(data) > MAX_BYTES:
                raise ValueError(f"{procfs}/self/mountinfo is longer than {MAX_BYTES} bytes")
    finally:
        os.close(fd)
    found = (_parse(line) for line in data.decode(errors="replace").splitlines())
    return [mount for mount in found if mount is not None]


def of(folder: str, mounts: list[Mount]) -> Mount | None:
    """The mount that an absolute path without links lies on; None if the list has not even a root."""
    path = PurePosixPath(folder)
    best: Mount | None = None
    for mount in mounts:
        # Of several on one point the last one hides the others.
        if path.is_relative_to(mount.point) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def is_above(point: str, other: str) -> bool:
    """Whether ``other`` is mounted below ``point``."""
    return point != other and PurePosixPath(other).is_relative_to(point)


def _parse(line: str) -> Mount | None:
    """``36 35 98:0 /root /mnt rw,noatime master:1 - ext4 /dev/sda rw,errors=panic``; else None."""
    left, found, right = line.partition(" - ")
    fields, about = left.split(" "), right.split(" ")
    if not found or len(fields) < 6 or len(about) < 3:
        return None
    own, whole = fields[5].split(","), about[2].split(",")
    options = list(dict.fromkeys(own + [o for o in whole if o not in ("rw", "ro")]))
    shown = ",".join(_without_value(o) for o in options)
    return Mount(
        point=_plain(fields[4]),
        fs_type=_plain(about[0]),
        source=re.sub(r"//[^/]*@", "//", _plain(about[1]))[:MAX_OPTIONS],
        options=_plain(shown)[:MAX_OPTIONS],
        read_only="ro" in own or "ro" in whole,
    )


def _without_value(option: str) -> str:
    return option.partition("=")[0] + "=…" if _SECRET.search(option) else option


def _plain(text: str) -> str:
    """Blanks, tabs, newlines and backslashes are written as octal."""
    return _OCTAL.sub(lambda m: chr(int(m[1], 8)), text)
