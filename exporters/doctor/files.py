"""Bounded reads of small kernel files, and how numbers are written for people. Nothing here raises."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

#: Bytes of one kernel file; /proc/mounts of a container host has a few hundred KiB.
MAX_BYTES = 4 << 20
_PIECE = 1 << 16
#: Characters of a number of the kernel's: 64 bits have 20 digits, and a sign.
_DIGITS = 24


def text(path: Path, limit: int = MAX_BYTES) -> str | None:
    """Its text without the blank ends; None if it is not there or can't be read."""
    try:
        # Not blocking: what should be a file of the kernel and is a pipe must not hang the check.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        data = bytearray()
        # In pieces: a sysctl refuses a read of 4 MiB (ENOMEM).
        while len(data) < limit and (piece := os.read(fd, min(_PIECE, limit - len(data)))):
            data += piece
        return data.decode(errors="replace").strip("\x00 \t\r\n")
    except OSError:
        return None
    finally:
        os.close(fd)


def number(path: Path) -> int | None:
    """The whole number that the file holds (decimal, or hexadecimal with 0x); None where it holds none."""
    raw = text(path, 4096)
    if not raw or len(raw) > _DIGITS:
        return None
    try:
        return int(raw, 0)
    except ValueError:
        try:
            return int(raw)
        except ValueError:
            return None


def names(path: Path) -> list[str]:
    """Names in a folder, in the order people count (``eth2`` before ``eth10``); [] where there is none."""
    try:
        return sorted(os.listdir(path), key=natural)
    except OSError:
        return []


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts ``node-9`` before ``node-10``."""
    parts: list[tuple[int, int, str]] = []
    digits = ""
    for letter in name + "\x00":
        if letter.isdecimal() and letter.isascii():
            digits += letter
            continue
        if digits:
            parts.append((0, int(digits), digits))
            digits = ""
        parts.append((1, 0, letter))
    return tuple(parts)


def expand(spec: str) -> list[int]:
    """The numbers of a kernel list (``0-3,8``). [] for an empty or broken one."""
    found: list[int] = []
    for part in spec.replace("\n", "").split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            continue
        found += range(int(first), min(int(last or first), int(first) + 65536) + 1)
    return found


def size(count: float) -> str:
    """Bytes for people: ``1.5 GiB``."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024:
            break
        count, unit = count / 1024, larger
    return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 100 else f"{count:.3g} {unit}"


def seconds(value: float) -> str:
    """Seconds for people: ``0.21 ms``, ``1.5 s``."""
    if value < 0.001:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def printable(said: str) -> str:
    """What others said, without what would move the cursor of whoever reads it."""
    return "".join(c if c.isprintable() else " " for c in said)


def listed(items: Iterable[str], limit: int = 4) -> str:
    """``a, b, c, d and 3 more``."""
    every = list(items)
    shown = ", ".join(every[:limit])
    return shown if len(every) <= limit else f"{shown} and {len(every) - limit} more"
