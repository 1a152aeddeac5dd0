"""The chat locustfile as its users run it: locust itself, headless, against servers of known pace and faults.

locust is never imported here: that would put gevent's sockets and threads into the whole test process.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
LOCUST = Path(sys.executable).parent / "locust"


def locust(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(LOCUST), "-f", f"{ROOT}/loadtest/", "--headless", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)


def rows(cwd: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads((cwd / "run.json").read_text())}


def exact(row: dict[str, Any]) -> list[float]:
    """The response times of a row, ms, as locust kept them."""
    return [float(ms) for ms, times in row["response_times"].items() for _ in range(times)]


def test_ttft_itl_and_tpot_are_those_of_the_server(paced: Any, tmp_path: Path) -> None:
    """Within 5 ms in the median: reading in blocks would make it hundreds."""
    with paced(ttft=0.2, gap=0.02, tokens=20) as server:
        run = locust(tmp_path, "-u", "4", "-r", "4", "-t", "6s", "-H", server.url, "--json-file", "run")
    assert run.returncode == 0, run.stderr
    row = rows(tmp_path)
    assert statistics.median(exact(row["TTFT"])) == pytest.approx(
        statistics.median(server.true_ttft) * 1000, abs=5
    )
    assert statistics.median(exact(row["ITL"])) == pytest.approx(
        statistics.median(server.true_gaps) * 1000, abs=5
    )
    assert statistics.median(exact(row["TPOT"])) == pytest.approx(20, abs=5)
    assert statistics.median(exact(row["e2e"])) == pytest.approx(200 + 19 * 20, abs=20)
    requests = row["e2e"]["num_requests"]
    assert requests >= 8
    assert row["TTFT"]["num_requests"] == row["TPOT"]["num_requests"] == requests
    assert row["ITL"]["num_requests"] == 19 * requests


def test_the_table_shows_ttft_and_its_total_counts_each_request_once(paced: Any, tmp_path: Path) -> None:
    with paced(ttft=0.01, gap=0.005, tokens=4) as server:
        run = locust(tmp_path, "-u", "2", "-r", "2", "-t", "2s", "-H", server.url)
    assert run.returncode == 0, run.stderr
    table = (run.stdout + run.stderr).rsplit("Type     Name", 2)[1]
    counts = dict(re.findall(r"(ITL|TTFT|e2e|Aggregated)\s+(\d+)\s", table))
    assert int(counts["TTFT"]) == int(counts["e2e"]) == int(counts["Aggregated"]) > 2
    assert int(counts["ITL"]) == 3 * int(counts["TTFT"])


def test_requests_are_what_the_docstring_says(paced: Any, tmp_path: Path) -> None:
    with paced(ttft=0.01, gap=0.001, tokens=3) as server:
        run = locust(
            tmp_path, "-u", "3", "-r", "3", "-t", "2s", "-H", f"{server.url}/v1/", "--max-tokens", "5-7"
        )
    assert run.returncode == 0, run.stderr
    assert {b["model"] for b in server.bodies} == {"paced-model"}
    assert {b["max_tokens"] for b in server.bodies} <= {5, 6, 7}
    assert all(b["stream"] and b["stream_options"] == {"include_usage": True} for b in server.bodies)
    assert {h["accept-encoding"] for h in server.headers} == {"identity"}
    prefixes = [b["messages"][0]["content"][:16] for b in server.bodies]
    assert len(set(prefixes)) == len(prefixes) > 10
    assert len(server.ports) == 3, "one kept-alive connection per user"


def test_a_seed_sends_the_same_prompts_again(paced: Any, tmp_path: Path) -> None:
    sent = []
    for _ in range(2):
        with paced(ttft=0.01, gap=0.001, tokens=2) as server:
            locust(tmp_path, "-u", "1", "-t", "2s", "-H", server.url, "--seed", "7", "--model", "named")
        sent.append([(b["model"], b["messages"][0]["content"], b["max_tokens"]) for b in server.bodies])
    both = min(len(sent[0]), len(sent[1]))
    assert both >= 2
    assert sent[0][:both] == sent[1][:both]
    assert sent[0][0][0] == "named"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("http503", "HTTP 503: no_replica: no replica for request #"),
        ("html", "not an event stream but application/json"),
        ("empty", "empty stream: no token in it"),
        ("error-event", "error event in the stream: replica_lost: engine died"),
        ("cut", "cut stream: connection closed inside the body"),
        ("no-done", "cut stream: ended without [DONE]"),
        ("no-reason", "no finish_reason in the stream"),
        ("garbage", "an event that is no chat chunk in the stream"),
        ("silent", "no token for 0.5 s"),
    ],
)
def test_each_fault_is_a_failure_with_its_reason_and_adds_no_time(
    fault: str, reason: str, paced: Any, tmp_path: Path
) -> None:
    # Two seconds are enough but for a machine on which locust has not begun by then.
    for seconds in ("2s", "10s"):
        with paced(ttft=0.01, gap=0.005, fault=fault) as server:
            run = locust(
                tmp_path,
                *("-u", "2", "-r", "2", "-t", seconds, "-H", server.url, "--request-timeout", "0.5"),
                *("--json-file", "run", "--csv", "run"),
            )
        row = rows(tmp_path)
        if "e2e" in row and row["e2e"]["num_requests"] > 1:
            break
    assert run.returncode == 1, run.stderr
    assert set(row) == {"e2e"}
    assert row["e2e"]["num_failures"] == row["e2e"]["num_requests"] > 1
    assert row["e2e"]["response_times"] == {}
    with (tmp_path / "run_failures.csv").open() as failures:
        assert [f["Error"] for f in csv.DictReader(failures)] == [f"RequestFailed('{reason}')"]
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "no address; give one with -H"),
        (("-H", "foo"), 2, "'foo' is not an address like http://127.0.0.1:8000"),
        (("-H", "http://127.0.0.1:9"), 1, "/v1/models can't be read: connection refused"),
        (("-H", "http://127.0.0.1:9", "--max-tokens", "9-3"), 2, "neither a number of tokens nor a range"),
        (("-H", "http://127.0.0.1:9", "--request-timeout", "nan"), 2, "not a number of seconds above 0"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(
    arguments: tuple[str, ...], code: int, message: str, tmp_path: Path
) -> None:
    run = locust(tmp_path, "-u", "2", "-r", "2", "-t", "5s", *arguments)
    assert run.returncode == code
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_a_cold_client_reports_that_it_measured_nothing(paced: Any, tmp_path: Path) -> None:
    with paced(fault="silent") as server:
        run = locust(tmp_path, "-u", "1", "-t", "1s", "-H", server.url)
    assert run.returncode == 1
    assert "not one request ended" in run.stderr


def test_it_runs_in_worker_processes_too(paced: Any, tmp_path: Path) -> None:
    with paced(ttft=0.01, gap=0.005, tokens=4) as server:
        run = locust(
            tmp_path,
            *("-u", "4", "-r", "4", "-t", "3s", "-H", server.url, "--processes", "2"),
            *("--seed", "3", "--json-file", "run"),
        )
    assert run.returncode == 0, run.stderr
    assert rows(tmp_path)["TTFT"]["num_requests"] == rows(tmp_path)["e2e"]["num_requests"] > 4
    prompts = [b["messages"][0]["content"] for b in server.bodies]
    assert len(set(prompts)) == len(prompts), "workers with one seed send different prompts"


def test_the_installed_package_can_be_imported_without_locust_running_it() -> None:
    code = "import loadtest.chat, loadtest._lib._prompts; print(loadtest.chat.ChatUser.__name__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout == "ChatUser\n", run.stderr


def test_locust_takes_no_shared_module_for_a_locustfile() -> None:
    code = f"from locust.argument_parser import *; print(parse_locustfile_paths(['{ROOT}/loadtest']))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "/loadtest/chat.py'" in run.stdout, run.stderr
    assert "_lib" not in run.stdout
