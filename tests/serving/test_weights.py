"""The model's copy on a local disk: made, kept, renewed, and done without."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from serving.engines import weights
from serving.engines.weights import MANIFEST, fill

FILES = {"config.json": b"{}", "deep/model.safetensors": b"weights" * 1000}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "shared" / "model"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name != MANIFEST
    }


def test_the_model_is_copied_once(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = tmp_path / "disk" / "models"
    assert fill(source, cache) == cache / "model"
    assert contents(cache / "model") == FILES
    assert capsys.readouterr().out == f"model cache: copying {source} into {cache / 'model'} (0 MB)\n"
    assert fill(source, cache) == cache / "model"
    assert capsys.readouterr().out == ""


def test_a_copy_that_is_damaged_or_old_is_made_anew(source: Path, tmp_path: Path) -> None:
    copy = fill(source, tmp_path / "disk")
    (copy / "config.json").write_bytes(b"")
    assert contents(fill(source, tmp_path / "disk")) == FILES
    (copy / MANIFEST).write_text("[")
    assert contents(fill(source, tmp_path / "disk")) == FILES
    (source / "config.json").write_bytes(b'{"new": 1}')
    (source / "deep" / "model.safetensors").unlink()
    assert contents(fill(source, tmp_path / "disk")) == {"config.json": b'{"new": 1}'}
    assert sorted(p.name for p in (tmp_path / "disk").iterdir()) == [".model.lock", "model"]


def test_a_whole_copy_serves_while_shared_storage_is_gone_or_silent(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = fill(source, tmp_path / "disk")
    source.rename(tmp_path / "elsewhere")
    assert fill(source, tmp_path / "disk") == copy
    assert f"{source} does not answer; starting from the copy in {copy}" in capsys.readouterr().out
    monkeypatch.setattr(weights, "PATIENCE", 0.2)
    release, listing = threading.Event(), weights._listing

    def silent(folder: Path) -> dict[str, list[int]]:
        if folder == source:
            release.wait(30)
        return listing(folder)

    monkeypatch.setattr(weights, "_listing", silent)
    begin = time.monotonic()
    assert fill(source, tmp_path / "disk") == copy
    assert time.monotonic() - begin < 20  # of the 30 s that it is silent
    release.set()


def test_without_a_copy_a_model_that_is_gone_is_an_error(source: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        fill(tmp_path / "nothing", tmp_path / "disk")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="there is no model in it"):
        fill(tmp_path / "empty", tmp_path / "disk")
    assert not (tmp_path / "disk" / "empty").exists()


def test_a_disk_that_takes_nothing_does_not_keep_the_replica_from_starting(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    assert fill(source, tmp_path / "file" / "models") == source
    assert f"can't copy the model into {tmp_path}/file/models (Not a directory)" in capsys.readouterr().out


def test_a_copy_that_fails_halfway_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(old: Path, new: Path) -> None:
        raise OSError(28, "No space left on device", str(new))

    monkeypatch.setattr(weights.shutil, "copy2", full)
    assert fill(source, tmp_path / "disk") == source
    assert [p.name for p in (tmp_path / "disk").iterdir()] == [".model.lock"]


def test_replicas_that_start_together_copy_once_and_read_the_copy(source: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "serving.engines.weights", str(source), str(tmp_path / "disk"), "--"]
    argv += [sys.executable, "-c", "import os, sys; print(os.getpid(), sys.argv[1:])", str(source), "other"]
    started = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate(timeout=120)[0] for process in started]
    for process, text in zip(started, said, strict=True):
        # The very process: a signal to it reaches the replica.
        assert text.splitlines()[-1] == f"{process.pid} {[str(tmp_path / 'disk' / 'model'), 'other']}"
    assert sum("copying" in text for text in said) == 1


def test_a_command_that_cannot_be_had_is_told(source: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "serving.engines.weights", str(source), str(tmp_path / "disk"), "--"]
    for arguments, status, problem in (
        ([*argv, "/no/such"], 1, "No such file"),
        (argv, 2, "usage:"),
        ([*argv[:3], str(tmp_path / "nothing"), *argv[4:], "true"], 1, "No such file"),
    ):
        done = subprocess.run(arguments, capture_output=True, text=True, env=os.environ)
        assert (done.returncode, problem in done.stderr) == (status, True)
