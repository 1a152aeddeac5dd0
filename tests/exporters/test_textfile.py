"""Textfile mode: a reader sees whole pages or none, faults are outlived, and nothing stays after the end."""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from exporters.textfile import keep_written, write


def test_a_page_replaces_the_one_before_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    write(path, b"one\n")
    inode = path.stat().st_ino
    write(path, b"two\n")
    assert path.read_bytes() == b"two\n"
    assert path.stat().st_ino != inode  # renamed over, not written into
    assert os.listdir(tmp_path) == ["x.prom"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o600 == 0o600


def test_a_write_that_fails_keeps_the_page_before_and_no_half_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.prom"
    write(path, b"one\n")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(path, b"two\n")
    assert path.read_bytes() == b"one\n"
    assert os.listdir(tmp_path) == ["x.prom"]


def test_a_reader_never_sees_half_a_page(tmp_path: Path) -> None:
    path, end = tmp_path / "x.prom", threading.Event()
    pages = [b"a" * 200_000, b"b" * 200_000]

    def page() -> bytes:
        pages.reverse()
        return pages[0]

    writer = threading.Thread(target=keep_written, args=(path, page, 0.001, end))
    writer.start()
    seen: set[bytes] = set()
    until = time.monotonic() + 60
    while len(seen) < 2 and time.monotonic() < until:
        if path.exists():
            seen.add(path.read_bytes())
    end.set()
    writer.join(60)
    assert seen == set(pages)
    assert os.listdir(tmp_path) == []  # an exporter that ended has no series


def test_a_folder_that_goes_and_comes_back_is_said_once_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, end, turns = tmp_path / "gone", threading.Event(), iter(range(100))

    def page() -> bytes:
        turn = next(turns)
        if turn == 3:
            folder.mkdir()
        if turn == 5:
            end.set()
        return b"x\n"

    with caplog.at_level(logging.WARNING, logger="exaserve.exporter"):
        keep_written(folder / "x.prom", page, 0.001, end)
    said = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert said == ["can't be written: No such file or directory", "is written again"]


def test_an_error_of_the_write_is_told_even_where_nothing_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "not even entered")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "missing" / "a.prom", b"x")
