"""``exaserve runbook``: finds, shows and lists runbooks, and tells commands from what they print."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dashboards import runbooks
from dashboards.runbook_cli import app

ROOT = Path(__file__).parents[2]
ALL = {p.stem: p for p in (ROOT / "runbooks").glob("*.md") if p.stem not in ("TEMPLATE", "README")}


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(args))
    return result.exit_code, result.output


def test_into_a_pipe_it_is_the_file_as_it_stands() -> None:
    assert run("ExaServeReplicaDown") == (0, ALL["ExaServeReplicaDown"].read_text())


def test_on_a_terminal_it_is_laid_out_without_markdowns_marks() -> None:
    master, slave = pty.openpty()
    code = "from dashboards.runbook_cli import app; app()"
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "ExaServeReplicaDown"], stdout=slave, stdin=slave, env=env, cwd=ROOT
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(master)
    assert process.wait(60) == 0
    text = shown.decode()
    assert "ExaServeReplicaDown" in text
    assert "exaserve status" in text
    assert "\n## " not in text
    assert "```" not in text
    assert "\x1b[" in text


@pytest.mark.parametrize(
    "name", ["exaservereplicadown", "ReplicaDown", "replica-down", "replica_down", "ExaServeReplicaDown.md"]
)
def test_case_dashes_and_the_leading_name_do_not_matter(name: str) -> None:
    assert run(name)[1].startswith("# ExaServeReplicaDown\n")


def test_a_wrong_name_ends_with_2_and_names_what_was_meant() -> None:
    code, output = run("ReplicaDwn")
    assert code == 2
    assert "no runbook ReplicaDwn; did you mean ExaServeReplicaDown" in output
    code, output = run("../../etc/passwd")
    assert (code, output.splitlines()[0]) == (
        2,
        "no runbook ../../etc/passwd; exaserve runbook --list names them all",
    )


@pytest.mark.parametrize("args", [(), ("--list", "ExaServeReplicaDown"), ("--commands",)])
def test_wrong_usage_ends_with_2_and_points_to_the_help(args: tuple[str, ...]) -> None:
    code, output = run(*args)
    assert (code, "exaserve runbook --help" in output) == (2, True)


def test_list_has_each_runbook_with_its_first_sentence_and_not_the_template() -> None:
    code, output = run("--list")
    rows = dict(line.split(maxsplit=1) for line in output.splitlines())
    assert (code, set(rows)) == (0, set(ALL))
    assert rows["ExaServeReplicaDown"] == "A replica gets no requests any more; the others carry its share."


def test_commands_are_those_of_the_file_without_what_they_print() -> None:
    code, output = run("ExaServeReplicaDown", "--commands")
    lines = output.splitlines()
    assert code == 0
    assert lines[:4] == [
        "# Diagnosis",
        "curl -s -o /dev/null -w '%{http_code}\\n' 127.0.0.1:8001/readyz",
        "curl -s 127.0.0.1:8001/fleet",
        "exaserve status",
    ]
    assert [line for line in lines if line.startswith("# ")] == [
        "# Diagnosis",
        "# Verification",
        "# Escalation",
    ]
    assert not any(line.startswith(("{", "PART", "replica-0", "Out of")) for line in lines)


def test_a_block_after_good_or_bad_is_an_output_and_so_is_one_of_another_language() -> None:
    text = """# X
## Diagnosis
Is it (good is 0):
```
one
two \\
  more
```
good:
```
0
```
bad, and here it
is worse:
```
7
```
Now the next:
```bash
three
```
```yaml
key: value
```
"""
    assert runbooks.commands(text) == [("Diagnosis", "one\ntwo \\\n  more"), ("Diagnosis", "three")]


@pytest.mark.parametrize("name", sorted(ALL))
def test_no_runbook_shows_an_output_as_a_command(name: str) -> None:
    blocks = runbooks.commands(ALL[name].read_text())
    assert blocks, "a runbook without a command"
    for _, block in blocks:
        first = block.splitlines()[0].split()[0]
        assert first.isascii(), block
        assert not first.startswith(("{", "[", "|", "=>")), block
        assert "=> " not in block, block


def test_without_runbooks_it_says_so_and_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise FileNotFoundError("the runbooks are not installed beside dashboards")

    monkeypatch.setattr(runbooks, "folder", nowhere)
    assert run("--list") == (1, "the runbooks are not installed beside dashboards\n")
