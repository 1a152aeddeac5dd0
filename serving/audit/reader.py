"""Reads audit files: every worker's, with the rotated ones, while routers go on writing and rotating.

Memory stays the same however large the files are. What a line means is ``record.py``; sums are ``query.py``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from serving.audit.record import Line, Lost

MAX_LINE = 2**16  # bytes; a longer line is not ours
BLOCK = 2**20
_CURRENT = re.compile(r"^audit-[0-9]+(-[0-9]+)?\.jsonl$")
_ROTATED = re.compile(r"^(audit-[0-9]+(?:-[0-9]+)?\.jsonl)\.[0-9]+$")
_decode = msgspec.json.Decoder(Line).decode
_decode_lost = msgspec.json.Decoder(Lost).decode


@dataclass
class Seen:
    """What was met that is no record. foreign: torn lines and lines of others. lost: records that a router
    could not write, as the files say."""

    foreign: int = 0
    lost: int = 0
    unreadable: list[str] = field(default_factory=list)


def current_files(folder: Path) -> list[Path]:
    """The file of each worker, whether it is there or only rotated ones are. Raises OSError."""
    names: set[str] = set()
    for name in os.listdir(folder):
        if _CURRENT.match(name):
            names.add(name)
        elif rotated := _ROTATED.match(name):
            names.add(rotated[1])
    return [folder / name for name in sorted(names)]


def raw_lines(files: Iterable[Path], seen: Seen, since: float = 0.0) -> Iterator[bytes]:
    """Every line of ``files`` and their rotated ones, each file from its start, the newest file first.

    since: Unix time; files that were last written before it are left out.
    """
    for path in files:
        for f in generations(path, seen, since):
            yield from lines_of(f, seen)


def generations(path: Path, seen: Seen, since: float = 0.0) -> Iterator[BinaryIO]:
    """``path``, then its rotated files, newest first, each open until the next is asked for.

    That way a rotation in between only shows a file again, which is passed over; oldest first, it would
    hide one.
    """
    shown: set[tuple[int, int]] = set()
    number, missing = 0, 0
    last = 1 + max(
        (int(p.name.rpartition(".")[2]) for p in path.parent.glob(f"{path.name}.*") if _number(p)), default=0
    )
    while number <= last or not missing:  # a rotation meanwhile makes one more
        name = path if number == 0 else path.with_name(f"{path.name}.{number}")
        number += 1
        try:
            f = name.open("rb")
        except FileNotFoundError:
            missing += 1
            continue
        except OSError as error:
            missing += 1
            seen.unreadable.append(f"{name}: {error.strerror}")
            continue
        with f:
            missing = 0
            found = os.fstat(f.fileno())
            if (found.st_dev, found.st_ino) in shown:
                continue
            shown.add((found.st_dev, found.st_ino))
            if found.st_mtime < since:
                return  # older ones were written before this one
            yield f


def lines_of(f: BinaryIO, seen: Seen) -> Iterator[bytes]:
    """Lines without their newline, empty ones left out; half a line at the end is handed out too."""
    splitter = Splitter(seen)
    while block := f.read(BLOCK):
        yield from splitter.feed(block)
    if splitter.rest:
        yield splitter.rest


class Splitter:
    """Makes lines of blocks. rest: the half line at the end so far. Lines beyond MAX_LINE are counted as foreign
    and dropped as they come."""

    def __init__(self, seen: Seen) -> None:
        self.rest = b""
        self._seen = seen
        self._skipping = False

    def feed(self, block: bytes) -> list[bytes]:
        *lines, self.rest = (self.rest + block).split(b"\n")
        if lines and self._skipping:  # the end of a line that was counted already
            del lines[0]
            self._skipping = False
        if self._skipping or len(self.rest) > MAX_LINE:
            self._seen.foreign += not self._skipping
            self.rest, self._skipping = b"", True
        whole = [line for line in lines if 0 < len(line) <= MAX_LINE]
        self._seen.foreign += sum(len(line) > MAX_LINE for line in lines)
        return whole


def parse(raw: bytes, seen: Seen) -> Line | None:
    """The record; None (and counted) if it is none."""
    try:
        line = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            seen.lost += _decode_lost(raw).lost
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            seen.foreign += 1
        return None
    # Times are compared as text: all of ours have the same form.
    if len(line.ts) != 24 or line.ts[23] != "Z" or not line.outcome:
        seen.foreign += 1
        return None
    return line


def _number(path: Path) -> bool:
    last = path.name.rpartition(".")[2]
    return last.isascii() and last.isdigit()
