"""``exaserve dashboards build``: what is committed is what the code writes, and --check names what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dashboards import build
from dashboards.cli import app


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["build", *args])
    return result.exit_code, result.output


def test_what_is_committed_is_what_the_code_writes() -> None:
    assert build.differing(build.GENERATED) == []


def test_every_board_and_rule_file_of_the_folders_is_built_under_its_name() -> None:
    folder = Path(build.__file__).parent
    for kind, table in (("boards", build.BOARDS), ("rules", build.RULES)):
        assert sorted(table) == sorted(p.stem for p in (folder / kind).glob("[!_]*.py"))


def test_build_writes_all_files_and_check_then_agrees(tmp_path: Path) -> None:
    code, output = run("--out", str(tmp_path))
    assert code == 0
    written = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert written == {"fleet.json", "rules/kv.yaml", "rules/replica.yaml", "rules/users.yaml"}
    assert output.count("wrote ") == 4
    assert run("--out", str(tmp_path), "--check")[0] == 0


def test_check_names_files_that_differ_are_missing_or_left_over_and_writes_nothing(tmp_path: Path) -> None:
    run("--out", str(tmp_path))
    (tmp_path / "fleet.json").write_text("{}")
    (tmp_path / "rules" / "kv.yaml").unlink()
    (tmp_path / "old.json").write_text("{}")
    code, output = run("--out", str(tmp_path), "--check")
    assert code == 1
    named = [line for line in output.splitlines() if line.startswith("differs: ")]
    assert named == [
        f"differs: {tmp_path}/fleet.json",
        f"differs: {tmp_path}/old.json (nothing writes it)",
        f"differs: {tmp_path}/rules/kv.yaml",
    ]
    assert (tmp_path / "fleet.json").read_text() == "{}"


def test_other_bases_for_links_differ_from_the_default(tmp_path: Path) -> None:
    base = ["--out", str(tmp_path), "--runbooks", "https://wiki.example/"]
    run(*base)
    assert run(*base, "--check")[0] == 0
    assert run("--out", str(tmp_path), "--check")[0] == 1


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_cannot_be_written_ends_with_1_and_no_traceback(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    code, output = run("--out", str(tmp_path / place))
    assert (code, output.startswith("can't write into")) == (1, True)
