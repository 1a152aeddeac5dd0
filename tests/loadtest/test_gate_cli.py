"""``exaserve gate`` as it is typed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from loadtest._gate._cli import gate
from tests.benchmarks.gate_check import Simulated
from tests.conftest import exaserve
from tests.loadtest import gate_runs


def asked(*arguments: str) -> Result:
    """The command in this process."""
    app = typer.Typer(rich_markup_mode=None)
    app.command("gate")(gate)
    return CliRunner().invoke(app, arguments)


def test_stored_runs_that_are_alike_pass_and_leave_a_report(tmp_path: Path) -> None:
    for name in "ab":
        gate_runs.side(tmp_path, name, noise=0.01)
    out = tmp_path / "out"
    done = exaserve(
        "gate", "--baseline", f"{tmp_path}/a-*", "--candidate", f"{tmp_path}/b-*", "--folder", str(out)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS: all 10 metrics are shown to be within their margins" in done.stdout
    assert json.loads((out / "result.json").read_text())["verdict"] == "pass"
    assert (out / "report.md").read_text().startswith("## Gate: PASS")
    page = (out / "report.html").read_text()
    assert page.count("<h1") == 1
    assert "chat ttft P99" in page
    assert 'src="http' not in page
    assert '<link rel="stylesheet"' not in page


def test_a_slower_candidate_fails_with_status_1_and_says_so_as_json(tmp_path: Path) -> None:
    gate_runs.side(tmp_path, "a", noise=0.005)
    gate_runs.side(tmp_path, "b", noise=0.005, factors={"p99": 1.1})
    done = asked("--baseline", f"{tmp_path}/a-*", "--candidate", f"{tmp_path}/b-*", "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["exit_code"], told["verdict"]) == (1, 1, "fail")
    assert {r["quantile"] for r in told["rows"] if r["status"] == "fail"} == {"p99"}


def test_a_self_check_of_stored_runs_divides_them(tmp_path: Path) -> None:
    gate_runs.side(tmp_path, "a", runs=10, noise=0.10)
    done = asked("--self-check", "--baseline", f"{tmp_path}/a-*")
    assert done.exit_code == 3
    assert "runs used: 5 baseline, 5 candidate" in done.stdout
    assert "more runs a side" in done.stdout


BOTH = ("--baseline", "http://127.0.0.1:1", "--candidate", "http://127.0.0.1:2")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give --baseline an address"),
        (("--baseline", "http://127.0.0.1:1"), "give --candidate an address"),
        (BOTH, "--rate: give the requests a second, like --rate 4 or --rate chat=4"),
        ((*BOTH, "--rate", "0"), "--rate 0: requests a second above 0"),
        ((*BOTH, "--rate", "talk=4"), "--rate talk=4: talk is not among the workloads"),
        ((*BOTH, "--rate", "4", "--workload", "../chat"), "--workload ../chat: there is no such locustfile"),
        ((*BOTH, "--rate", "4", "--workload", "chat", "--arrivals", "fast"), "--arrivals fast: constant, poisson"),
        ((*BOTH, "--rate", "4", "--workload", "chat", "--baseline-command", "'"), "--baseline-command: No closing"),
        ((*BOTH, "--latency", "p50"), "--latency p50: one of ttft, tpot, e2e, itl"),
        ((*BOTH, "--margin", "p50=0"), "--margin p50=0: p50, p99, p999, attainment"),
        (("--baseline", "http://127.0.0.1:1", "--candidate", "runs"), "--candidate runs: one address like"),
        (("--baseline", "nowhere-*", "--candidate", "nowhere"), "--baseline nowhere-*: there is no such folder"),
        ((*BOTH, "--self-check"), "leave --candidate out"),
        (("--baseline", "a", "--candidate", "b", "--baseline-command", "x"), "a command starts what an address"),
    ],
)  # fmt: skip
def test_wrong_usage_names_the_option_and_the_cure(arguments: tuple[str, ...], said: str) -> None:
    done = asked(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "see `exaserve gate --help`" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_on_both_sides_is_refused(tmp_path: Path) -> None:
    gate_runs.side(tmp_path, "a")
    done = asked("--baseline", f"{tmp_path}/a-*", "--candidate", f"{tmp_path}/a-1")
    assert done.exit_code == 2
    assert "a-1 is on both sides" in done.stderr


def test_a_dry_run_prints_each_locust(tmp_path: Path) -> None:
    done = asked(
        *BOTH, "--rate", "4", "--workload", "chat", "--runs", "2", "--dry-run", "--folder", str(tmp_path),
        "--", "--slo", "ttft=1s",
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert all("-m locust -f" in x and x.endswith("--slo ttft=1s") for x in lines)


@pytest.mark.timeout(360)
def test_locust_runs_are_made_compared_and_found_again(tmp_path: Path) -> None:
    """The real thing, as small as it can be: too few requests for a P99, so nothing can pass."""
    server = Simulated(1)
    words = [
        "gate", "--self-check", "--baseline", server.addresses[0], "--workload", "chat", "--rate", "20",
        "--requests", "10", "--warmup", "0", "--runs", "2", "--folder", str(tmp_path), "--", "--max-tokens", "4",
    ]  # fmt: skip
    try:
        done = exaserve(*words, timeout=280)
    finally:
        server.end()
    assert done.returncode in (1, 3), done.stdout + done.stderr
    assert "4 of 4 runs to do" in done.stdout
    told = json.loads((tmp_path / "result.json").read_text())
    assert len(told["used"]["baseline"]) + len(told["used"]["candidate"]) + len(told["unused"]) == 4
    row = next(r for r in told["rows"] if (r["metric"], r["quantile"]) == ("ttft", "p99"))
    assert row["status"] in ("refused", "inconclusive")
    assert (tmp_path / "runs" / "01-chat-baseline" / "requests.jsonl").is_file()


def test_a_copy_of_a_run_is_no_further_run(tmp_path: Path) -> None:
    for name in "ab":
        gate_runs.side(tmp_path, name)
    shutil.copytree(tmp_path / "b-0", tmp_path / "b-again")
    done = asked("--baseline", f"{tmp_path}/a-*", "--candidate", f"{tmp_path}/b-*")
    assert done.exit_code == 2
    assert f"{tmp_path / 'b-0'} and {tmp_path / 'b-again'} are one run and its copy" in done.stderr


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_times_that_no_clock_shows_are_refused(tmp_path: Path, value: float) -> None:
    for name in "ab":
        gate_runs.side(tmp_path, name)
    gate_runs.write(tmp_path / "b-9", factors={"ttft p50": value})
    done = asked("--baseline", f"{tmp_path}/a-*", "--candidate", f"{tmp_path}/b-*")
    assert done.exit_code == 2
    assert f"{tmp_path / 'b-9'}: its numbers can't be read (ValueError: a time of" in done.stderr


def test_a_pattern_without_quotes_is_told_what_it_lacks(tmp_path: Path) -> None:
    runs = [str(path) for path in gate_runs.side(tmp_path, "a", runs=2)]
    done = asked("--baseline", *runs, "--candidate", runs[0])
    assert done.exit_code == 2
    assert "quote patterns: --baseline 'a-*'" in done.stderr
