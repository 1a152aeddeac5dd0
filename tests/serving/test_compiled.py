"""Compiled modules: used only where they fit, and the same as plain Python where they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from serving import compile, compiled

SAME = """
import random, sys
from serving import compiled
assert compiled.use()
from serving.intent import classifier, ngram, scan
assert scan.__file__.startswith(str(compiled.folder()))
model = classifier.load("default", second_stage=False).model
there = model.scan()
assert there.whole and model.fast != model.classify
for point in range(0x110000):
    char = chr(point)
    if char == char.lower():
        code = scan.code(point)
        said = {0: " ", -1: ""}.get(code) if code <= 0 else chr(code)
        assert ngram._CHARACTERS[point].strip() == said.strip(), hex(point)
chance = random.Random(1)
some = "ab 'cdé’ß  我们头疼1２Ａİ\\ud800٣²ー한\\u3000-.🤒"
texts = ["".join(chance.choice(some) for _ in range(chance.randrange(0, 500))) for _ in range(2000)]
texts += ["My landlord won't give the deposit back " * n for n in range(12)] + ["头疼" * n for n in (35, 36, 37, 99)]
for text in texts:
    assert model.scores(text) == there.scores(text), text
    assert model.classify(text)[0] == there.classify(text)[0]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for compiled modules, and one source."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(compiled, "PACKAGES", tmp_path)
    monkeypatch.delenv(compiled.SWITCH, raising=False)
    (tmp_path / "source.py").write_text("x = 1\n")
    compiled.folder().mkdir()
    fits(tmp_path)
    return tmp_path


def fits(folder: Path, **other: object) -> None:
    sources = {"source.py": compiled.hash_of((folder / "source.py").read_bytes())}
    manifest = {"version": compiled.version(), "library": "lib__mypyc", "sources": sources} | other
    (compiled.folder() / compiled.MANIFEST).write_text(json.dumps(manifest))


def test_what_fits_is_used(place: Path) -> None:
    assert compiled.library() == "lib__mypyc"


def test_a_source_that_has_changed_means_plain_python(place: Path) -> None:
    (place / "source.py").write_text("x = 2\n")
    assert compiled.library() == ""
    fits(place)
    assert compiled.library() == "lib__mypyc"
    (place / "source.py").unlink()
    assert compiled.library() == ""


@pytest.mark.parametrize("other", [{"version": "3.9"}, {"sources": []}, {"sources": {"source.py": 5}}])
def test_another_python_or_a_damaged_manifest_means_plain_python(
    place: Path, other: dict[str, object]
) -> None:
    fits(place, **other)
    assert compiled.library() == ""


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}'])
def test_a_manifest_that_is_none_means_plain_python(place: Path, content: str) -> None:
    (compiled.folder() / compiled.MANIFEST).write_text(content)
    assert compiled.library() == ""


def test_plain_python_can_be_asked_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.SWITCH, "0")
    assert compiled.library() == ""


def test_a_library_that_can_not_be_loaded_means_plain_python(place: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from serving import compiled; sys.prefix = sys.argv[1]; "
            "compiled.library = lambda: 'lib__mypyc'; print(compiled.use(), compiled.active()); "
            "import serving.router.heads as h; print(h.__file__.endswith('.py'))",
            str(place),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == ["False", "False", "True"], done.stderr


def test_every_module_is_there() -> None:
    root = Path(compiled.__file__).parents[1]
    assert all((root / f"{name.replace('.', '/')}.py").is_file() for name in compiled.MODULES)
    assert sorted(compiled.MODULES) == list(compiled.MODULES)


def test_sources_are_the_modules_and_all_that_they_import_of_ours(tmp_path: Path) -> None:
    hashes = compile._copy(tmp_path)
    assert {f"{name.replace('.', '/')}.py" for name in compiled.MODULES} <= set(hashes)
    assert {"serving/config_router.py", "serving/router/shared.py", "serving/router/bodies.py"} <= set(hashes)
    assert not [name for name in hashes if not name.startswith("serving/")]
    assert all((tmp_path / name).is_file() for name in hashes)


def test_without_a_compiler_one_line_says_so(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (compiled.folder() / compiled.MANIFEST).unlink()
    monkeypatch.setattr("shutil.which", lambda _: None)
    compile.main()
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1
    assert said[0].startswith("the router is not compiled, and runs as plain Python: there is no C compiler")


@pytest.mark.skipif(not compiled.library(), reason="not compiled (make compiled)")
def test_the_compiled_first_stage_says_bit_for_bit_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", SAME], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
