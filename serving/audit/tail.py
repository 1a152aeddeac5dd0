"""The last records of all workers, and those that are added while we look: ``exaserve audit tail``."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

from serving.audit.reader import BLOCK, Seen, Splitter, current_files, generations, lines_of, parse
from serving.audit.record import Line

_when = attrgetter("ts")


class Tail:
    """Follows the files of ``folder``, or just ``files``.

    wanted: which records are shown. seen: counts what is no record.
    """

    def __init__(
        self, folder: Path | None, files: Iterable[Path], wanted: Callable[[Line], bool], seen: Seen
    ) -> None:
        self._folder = folder
        self._files = list(files)
        self._wanted = wanted
        self._seen = seen
        self._open: dict[Path, tuple[BinaryIO, Splitter]] = {}

    def last(self, n: int) -> list[Line]:
        """The last ``n`` records by time, oldest first; ``more`` goes on after them."""
        found: list[Line] = []
        for path in self._paths():
            newest = deque(self._new(path), maxlen=n)
            if n:
                for f in generations(path, self._seen):
                    if len(newest) >= n:
                        break
                    if not self._is_open(path, f):
                        older = deque(self._records(lines_of(f, self._seen)), maxlen=n - len(newest))
                        newest.extendleft(reversed(older))
            found += newest
        found.sort(key=_when)
        return found[-n:] if n else []

    def more(self) -> list[Line]:
        """What was added since, oldest first."""
        return sorted((line for path in self._paths() for line in self._new(path)), key=_when)

    # --- inside ---

    def _paths(self) -> list[Path]:
        return current_files(self._folder) if self._folder is not None else self._files

    def _records(self, lines: Iterable[bytes]) -> Iterable[Line]:
        for raw in lines:
            line = parse(raw, self._seen)
            if line is not None and self._wanted(line):
                yield line

    def _new(self, path: Path) -> Iterable[Line]:
        """Of the file that we have open to its end, then of its successor if it was rotated."""
        while True:
            opened = self._open.get(path)
            if opened is None:
                try:
                    opened = self._open[path] = (path.open("rb"), Splitter(self._seen))
                except OSError:  # rotated this very moment, or not there: the next look finds it
                    return
            f, splitter = opened
            gone = not self._is_same(path, f)  # asked first: what is written until it moves is read below
            if not gone and os.fstat(f.fileno()).st_size < f.tell():
                f.seek(0, os.SEEK_END)  # a batch was taken back: the disk is full
                splitter.rest = b""
            while block := f.read(BLOCK):
                yield from self._records(splitter.feed(block))
            if not gone:
                return
            f.close()
            del self._open[path]

    def _is_open(self, path: Path, f: BinaryIO) -> bool:
        return path in self._open and os.path.sameopenfile(self._open[path][0].fileno(), f.fileno())

    @staticmethod
    def _is_same(path: Path, f: BinaryIO) -> bool:
        try:
            return os.path.samestat(os.stat(path), os.fstat(f.fileno()))
        except OSError:
            return False
