"""``exaserve chaos`` as a user meets it: what it says, and its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chaos import catalogue, cli, undo
from chaos import fault as faults
from tests.chaos.framework import BRIEF, eventually, records

README = Path(__file__).parents[2] / "chaos" / "README.md"


def call(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli.app, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_list_names_every_fault_and_says_what_is_missing(make_stack: Any) -> None:
    code, said = call("list", "--admin", make_stack().url)
    assert code == 0
    for name in faults.names():
        assert f"  {name} " in said
    assert "replica:\n" in said
    assert "it is not known where the router is (--router URL)" in said
    rows = json.loads(call("list", "--json", "--admin", make_stack().url)[1])
    freeze = next(r for r in rows if r["name"] == "replica_freeze")
    assert [e["missing"] for e in freeze["engines"]] == [None]
    assert all(e["missing"] for r in rows if r["kind"] in ("link", "storage") for e in r["engines"])


def test_list_without_a_stack_says_so() -> None:
    code, said = call("list")
    assert code == 0
    assert "not here: no stack is up here" in said


def test_list_and_describe_say_so_if_the_router_does_not_answer() -> None:
    for words in (["list"], ["describe", "gpu_lost"]):
        code, said = call(*words, "--admin", "http://127.0.0.1:1")
        assert (code, "not here: http://127.0.0.1:1/fleet can't be read" in said) == (0, True)


def test_what_others_wrote_does_not_steer_the_terminal(own_home: Path) -> None:
    path = own_home / "chaos" / "undo" / "x.json"
    undo.write(str(path), {"version": "\x1b[31m\x07"})
    assert call("status") == (
        1,
        f"damaged record {path}: it has version '\\x1b[31m\\x07', this program knows 1\n",
    )
    path.rename(path.with_name("\x1b[2J.json"))
    code, said = call("status")
    assert (code, "\x1b" in said) == (1, False)


def test_describe_tells_parameters_with_units_and_bounds() -> None:
    code, said = call("describe", "replica_slow")
    assert code == 0
    assert "factor: how many times as long a token takes (no unit) (>= 1.5, <= 1000, default 5.0)" in said
    assert "held for its duration, at most 600 s" in said
    assert "over once it is proven" in call("describe", "replica_crash")[1]
    assert call("describe", "nothing")[0] == 2


def test_inject_holds_and_takes_out(make_stack: Any, own_home: Path) -> None:
    stack = make_stack()
    code, said = call("inject", "replica_freeze", "-t", "replica-0", "-d", f"{BRIEF:g}", "--admin", stack.url)
    assert code == 0, said
    assert "replica_freeze is in replica-0 (by signals), proven after " in said
    assert "1 of 1 processes are stopped" in said
    assert "replica_freeze on replica-0: over, undone" in said
    assert not stack.replicas["replica-0"].stopped
    assert records(own_home) == []


def test_inject_says_it_in_json_too(make_stack: Any) -> None:
    stack = make_stack()
    words = ["inject", "replica_freeze", "-t", "any", "-d", f"{BRIEF:g}", "--admin", stack.url, "--json"]
    code, said = call(*words)
    assert code == 0
    begin, end = map(json.loads, said.splitlines())
    assert (begin["event"], begin["value"], end["event"], end["id"]) == ("in", 1.0, "out", begin["id"])
    assert begin["until"] - begin["injected_at"] == pytest.approx(BRIEF)


def test_a_dry_run_prints_the_exact_steps(make_stack: Any, own_home: Path) -> None:
    stack = make_stack()
    pid = stack.replicas["replica-0"].process.pid
    code, said = call(
        "inject", "replica_freeze", "-t", "replica-0", "-d", "5", "--admin", stack.url, "--dry-run"
    )
    assert code == 0
    assert said == (
        "replica_freeze on replica-0 by signals, for 5 s. Nothing was done.\n"
        f"  do   signal: who {pid}, signal 'SIGSTOP'\n"
        f"  undo signal: who {pid}, signal 'SIGCONT'\n"
    )
    assert not stack.replicas["replica-0"].stopped
    assert not own_home.exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["replica_freze", "-t", "any", "-d", "5"], "did you mean replica_freeze"),
        (["replica_freeze", "-t", "any", "-d", "601"], "duration must be over 0 and at most 600 s, not 601"),
        (
            ["replica_freeze", "-t", "any", "-d", "5", "-p", "scope"],
            "--parameter 'scope': KEY=VALUE is wanted",
        ),
        (["replica_freeze", "-t", "any", "-d", "5", "-p", "scope=all"], "scope: Input should be 'tree'"),
        (["replica_freeze", "-t", "any", "-d", "5", "-p", "x=1"], "x: Extra inputs are not permitted"),
        (["replica_freeze", "-t", "any", "-d", "5"], "no stack is up here"),
        (["replica_freeze", "-t", "any", "-d", "5", "--place", "moon"], "--place: no place 'moon'"),
        (
            ["replica_freeze", "-t", "any", "-d", "5", "--place", "none.yaml"],
            "inventory none.yaml: No such file",
        ),
        (["replica_freeze", "-t", "any", "-d", "5", "--admin", "nonsense"], "nonsense/fleet"),
        (
            ["replica_freeze", "-t", "any", "-d", "5", "-p", "scope=2026-13-45"],
            "scope: Input should be 'tree'",
        ),
        (["replica_freeze", "-t", "any", "-d", "5", "-p", "scope=!!int x"], "scope: Input should be 'tree'"),
        (["replica_freeze", "-t", "any", "-d", "5", "-p", "a=1", "-p", "a=2"], "a is given twice"),
        (["replica_freeze", "-t", "any"], "Missing option '--duration'"),
        (["replica_freeze", "-d", "5"], "Missing option '--target'"),
    ],
)
def test_wrong_usage_is_exit_2_with_the_option_named(words: list[str], why: str, own_home: Path) -> None:
    code, said = call("inject", *words)
    assert code == 2
    assert why in said
    assert records(own_home) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_takes_it_out_at_once(number: int, make_stack: Any, own_home: Path) -> None:
    stack = make_stack()
    argv = [sys.executable, "-m", "chaos.cli", "inject", "replica_freeze", "-t", "replica-0", "-d", "60"]
    process = subprocess.Popen([*argv, "--admin", stack.url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "is in replica-0" in process.stdout.readline()
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert eventually(lambda: not stack.replicas["replica-0"].stopped and records(own_home) == [])
    if number == signal.SIGINT:
        assert said.endswith("interrupted: taken out, undone\n")
        assert process.returncode == 130


def test_pressing_ctrl_c_again_and_again_leaves_nothing(make_stack: Any, own_home: Path) -> None:
    stack = make_stack()
    argv = [sys.executable, "-m", "chaos.cli", "inject", "replica_freeze", "-t", "replica-0", "-d", "60"]
    process = subprocess.Popen([*argv, "--admin", stack.url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "is in replica-0" in process.stdout.readline()
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    process.communicate(timeout=120)
    assert eventually(lambda: not stack.replicas["replica-0"].stopped and records(own_home) == [])


def test_status_tells_what_is_in_and_what_was_left(make_stack: Any, own_home: Path) -> None:
    from chaos import inject, places

    assert call("status") == (0, "no fault is in\n")
    place = places.open("local", make_stack().url)
    injection = inject.start("replica_freeze", "replica-0", place, 100)[0]
    code, said = call("status")
    assert code == 0
    assert said.startswith("replica_freeze on replica-0: in, ")
    assert said.endswith(" s left\n")
    assert json.loads(call("status", "--json")[1])[0]["id"] == injection.id
    deadman = json.loads(injection.path.read_text())["deadman"]["pid"]
    os.kill(deadman, signal.SIGKILL)
    assert eventually(lambda: injection.over)
    code, said = call("status")
    assert (code, said) == (1, "replica_freeze on replica-0: left behind (exaserve chaos recover)\n")
    damaged = own_home / "chaos" / "undo" / "x.json"
    damaged.write_text("{")
    assert f"damaged record {damaged}" in call("status")[1]
    code, said = call("recover")
    assert code == 1
    assert f"undone: {injection.id}\n" in said
    assert f"left: {damaged}: it is no undo record" in said
    damaged.unlink()
    code, said = call("recover")
    assert code == 0
    assert f"nothing to undo in {own_home / 'chaos' / 'undo'}" in said


def test_help_teaches_with_examples() -> None:
    assert "exaserve chaos inject replica_freeze --target replica-0 --duration 20" in call("--help")[1]
    assert "Exit status:" in call("inject", "--help")[1]


def test_the_readme_has_the_table_of_all_faults() -> None:
    """python -c "from chaos import catalogue; print(catalogue.markdown())" writes it."""
    assert catalogue.markdown() in README.read_text()
