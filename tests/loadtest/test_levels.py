"""``exaserve loadtest``: which locust command a level is, and what comes of wrong options."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loadtest._levels import _command
from loadtest._levels._cli import app

ROOT = Path(__file__).parents[2]
URL = "http://127.0.0.1:8000"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def command(*arguments: str) -> list[str]:
    result = run(*arguments, "--dry-run")
    assert result.exit_code == 0, result.output
    return [line.partition(" --headless --only-summary ")[2] for line in result.stdout.splitlines()]


def test_a_single_replica_gets_chats_and_then_long_documents() -> None:
    assert command("single", "-H", URL, "--seconds", "30") == [
        f"-H {URL} --arrivals poisson --rate 1 -t 30s",
        f"-H {URL} --arrivals poisson --rate 0.2 -t 30s",
    ]


def test_a_cluster_gets_3000_users_or_a_rate() -> None:
    [users] = command("cluster", "-H", URL, "--processes", "1")
    assert users == f"-H {URL} -u 3000 -r 100 -t 300s"
    [rate] = command(
        "cluster", "-H", URL, "--processes", "1", "--rate", "1.5x80", "--slo", "ttft=1s", "--seconds", "60"
    )
    assert rate == f"-H {URL} --arrivals poisson --rate 1.5x80 -t 60s --slo ttft=1s"
    [stages] = command("cluster", "-H", URL, "--processes", "1", "--stages", "10x60,20x60")
    assert stages == f"-H {URL} --arrivals poisson --stages 10x60,20x60"


def test_several_processes_meet_at_a_port_of_their_own() -> None:
    [first] = command("cluster", "-H", URL, "--processes", "3", "--users", "90")
    words = shlex.split(first)
    port = words[words.index("--master-port") + 1]
    assert words[words.index("--master-bind-port") + 1] == port != "5557"
    assert first.startswith(f"-H {URL} -u 90 -r 3 -t 300s --processes 3 --master-bind-host 127.0.0.1")


def test_a_replay_and_a_search_pass_their_options_on() -> None:
    [replay] = command("replay", "hour trace.jsonl", "-H", URL, "--speed", "2x", "--clip", "1000")
    assert replay == f"-H {URL} --trace 'hour trace.jsonl' --trace-speed 2x --trace-clip 1000"
    [search] = command("search", "1-200", "-H", URL, "--slo", "ttft=1s")
    assert search == (
        f"-H {URL} --search 1-200 --search-step 30s --search-warmup 10s --search-precision 5 --slo ttft=1s"
    )


def test_what_follows_two_dashes_goes_to_locust() -> None:
    result = run("replay", "t", "-H", URL, "--dry-run", "--", "--gpus", "8")
    assert result.stdout.endswith(" --gpus 8\n")


def test_several_profiles_are_several_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = run("cluster", "-H", URL, "--profile", "chat,code", "--dry-run")
    assert result.stdout.startswith("locust -f loadtest/chat.py,loadtest/code.py --headless")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cluster",), "Missing option '--host'"),
        (
            ("cluster", "-H", URL, "--profile", "chatty"),
            "--profile: 'chatty' is no profile; there are chat, batch",
        ),
        (
            ("cluster", "-H", URL, "--users", "5", "--rate", "5"),
            "--users is a closed loop and --rate or --stages an open",
        ),
        (("cluster", "-H", URL, "--rate", "5", "--stages", "5x5"), "--stages has the rates"),
        (("search", "1-200", "-H", URL), "Missing option '--slo'"),
    ],
)
def test_wrong_options_end_with_status_2_and_the_cure(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_profiles_are_listed() -> None:
    result = run("profiles")
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.stdout.splitlines()[1:]]
    assert sorted(listed) == sorted(_command.profiles())


def test_a_level_prints_its_command_runs_it_and_ends_with_its_status(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.5,20,5\n")
    level = [
        sys.executable,
        "-c",
        "from loadtest._levels._cli import app; app()",
        "replay",
        str(trace),
        "-H",
        URL,
    ]
    ended = subprocess.run(
        [*level, "--format", "mooncake"], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert ended.stdout.startswith(
        f"locust -f loadtest/chat.py --headless --only-summary -H {URL} --trace {trace}"
    )
    assert f"--trace {trace}: line 1: is no JSON" in ended.stderr
    assert ended.returncode == 2
