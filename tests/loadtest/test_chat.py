"""The chat locustfile as its users run it: locust itself, headless, against servers of known pace and faults.

locust is never imported here: that would put gevent's sockets and threads into the whole test process.
"""

from __future__ import annotations

import csv
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import free_ports

ALONE = pytest.mark.alone  # timed, or of several processes

ROOT = Path(__file__).parents[2]
LOCUST = Path(sys.executable).parent / "locust"
#: Tests are not about how busy this machine is.
PATIENT = ("--client-limits", "lag=60s,delay=60s,cpu=100")
#: Of a run: two seconds are enough but for a machine on which locust has not begun by then. So one that has too little to
#: be looked at is followed by a longer one.
LENGTHS = ("2s", "10s")


def locust(
    cwd: Path, *arguments: str, file: str = "chat.py", limits: tuple[str, ...] = PATIENT
) -> subprocess.CompletedProcess[str]:
    command = [str(LOCUST), "-f", f"{ROOT}/loadtest/{file}", "--headless", *limits, *arguments]
    environment = os.environ | {"EXASERVE_HOME": str(cwd)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def processes(n: int) -> tuple[str, ...]:
    """Several processes on a port that no other test has."""
    port = str(free_ports())
    return (
        "--processes",
        str(n),
        "--master-bind-host",
        "127.0.0.1",
        "--master-bind-port",
        port,
        "--master-port",
        port,
    )


def kept(cwd: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """run.json, requests.jsonl and summary.json of the only run."""
    (folder,) = (path.parent for path in (cwd / "loadtest").glob("*/run.json"))
    records = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    return (
        json.loads((folder / "run.json").read_text()),
        records,
        json.loads((folder / "summary.json").read_text()),
    )


def rows(cwd: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads((cwd / "run.json").read_text())}


def exact(row: dict[str, Any]) -> list[float]:
    """The response times of a row, ms, as locust kept them."""
    return [float(ms) for ms, times in row["response_times"].items() for _ in range(times)]


@ALONE
def test_ttft_itl_and_tpot_are_those_of_the_server(paced: Any, tmp_path: Path) -> None:
    """Within 5 ms in the median: reading in blocks would make it hundreds."""
    # Where something else had the machine for a moment, both sides were late, not by the same.
    for _ in range(3):
        with paced(ttft=0.2, gap=0.02, tokens=20) as server:
            run = locust(tmp_path, "-u", "4", "-r", "4", "-t", "6s", "-H", server.url, "--json-file", "run")
        assert run.returncode == 0, run.stderr
        row = rows(tmp_path)
        found = {name: statistics.median(exact(row[name])) for name in ("TTFT", "ITL", "TPOT", "e2e")}
        right = {
            "TTFT": pytest.approx(statistics.median(server.true_ttft) * 1000, abs=5),
            "ITL": pytest.approx(statistics.median(server.true_gaps) * 1000, abs=5),
            "TPOT": pytest.approx(20, abs=5),
            "e2e": pytest.approx(200 + 19 * 20, abs=20),
        }
        if found == right:
            break
    assert found == right
    requests = row["e2e"]["num_requests"]
    assert requests >= 8
    assert row["TTFT"]["num_requests"] == row["TPOT"]["num_requests"] == requests
    assert row["ITL"]["num_requests"] == 19 * requests


@ALONE
def test_the_table_shows_ttft_and_its_total_counts_each_request_once(paced: Any, tmp_path: Path) -> None:
    for seconds in LENGTHS:
        with paced(ttft=0.01, gap=0.005, tokens=4) as server:
            run = locust(tmp_path, "-u", "2", "-r", "2", "-t", seconds, "-H", server.url)
        table = (run.stdout + run.stderr).rsplit("Type     Name", 2)[1]
        counts = dict(re.findall(r"(ITL|TTFT|e2e|Aggregated)\s+(\d+)\s", table))
        if run.returncode == 0 and int(counts.get("TTFT", 0)) > 2:
            break
    assert run.returncode == 0, run.stderr
    assert int(counts["TTFT"]) == int(counts["e2e"]) == int(counts["Aggregated"]) > 2
    assert int(counts["ITL"]) == 3 * int(counts["TTFT"])


def test_requests_are_what_the_docstring_says(paced: Any, tmp_path: Path) -> None:
    for seconds in LENGTHS:
        with paced(ttft=0.01, gap=0.001, tokens=3) as server:
            run = locust(
                tmp_path,
                *("-u", "3", "-r", "3", "-t", seconds, "-H", f"{server.url}/v1/", "--max-tokens", "5-7"),
            )
        if run.returncode == 0 and len(server.bodies) > 10 and len(server.ports) >= 3:
            break
    assert run.returncode == 0, run.stderr
    assert {b["model"] for b in server.bodies} == {"paced-model"}
    assert {b["max_tokens"] for b in server.bodies} <= {5, 6, 7}
    assert all(b["stream"] and b["stream_options"] == {"include_usage": True} for b in server.bodies)
    assert {h["accept-encoding"] for h in server.headers} == {"identity"}
    prefixes = [b["messages"][0]["content"][:16] for b in server.bodies]
    assert len(set(prefixes)) == len(prefixes) > 10
    assert len(server.ports) == 3, "one kept-alive connection per user"


def test_a_seed_sends_the_same_prompts_again_but_for_their_first_16_characters(
    paced: Any, tmp_path: Path
) -> None:
    sent, heads = [], set()
    for _ in range(2):
        for seconds in LENGTHS:
            with paced(ttft=0.01, gap=0.001, tokens=2) as server:
                given = ("-H", server.url, "--seed", "7", "--model", "named")
                locust(tmp_path, "-u", "1", "-t", seconds, *given)
            if len(server.bodies) >= 2:
                break
        prompts = [b["messages"][0]["content"] for b in server.bodies]
        heads |= {prompt[:16] for prompt in prompts}
        sent.append(
            [(b["model"], p[16:], b["max_tokens"]) for b, p in zip(server.bodies, prompts, strict=True)]
        )
    both = min(len(sent[0]), len(sent[1]))
    assert both >= 2
    assert sent[0][:both] == sent[1][:both]
    assert sent[0][0][0] == "named"
    assert len(heads) == len(sent[0]) + len(sent[1]), "the second run finds nothing in a prefix cache"


@ALONE
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("http503", "HTTP 503: no_replica: no replica for request #"),
        ("error-event", "error event in the stream: replica_lost: engine died"),
        ("silent", "no token for 0.5 s"),
    ],
)
def test_each_fault_is_a_failure_with_its_reason_and_adds_no_time(
    fault: str, reason: str, paced: Any, tmp_path: Path
) -> None:
    # Where the answer comes it has the time to come, however late this machine is with it.
    limit = "0.5" if fault == "silent" else "60"
    for seconds in LENGTHS:
        with paced(ttft=0.01, gap=0.005, fault=fault) as server:
            run = locust(
                tmp_path,
                *("-u", "2", "-r", "2", "-t", seconds, "-H", server.url, "--request-timeout", limit),
                *("--json-file", "run", "--csv", "run"),
            )
        row = rows(tmp_path)
        if "e2e" in row and row["e2e"]["num_requests"] > 1:
            break
    assert run.returncode == 5, run.stderr
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
        (("-H", "http://127.0.0.1:9"), 4, "/v1/models can't be read: connection refused"),
        (("-H", "http://127.0.0.1:9", "--max-tokens", "9-3"), 2, "neither a number of tokens nor a range"),
        (("-H", "http://127.0.0.1:9", "--request-timeout", "nan"), 2, "not a number of seconds above 0"),
        (("-H", "http://127.0.0.1:9", "--slo", "ttft=1"), 2, "'1' is no time with its unit"),
        (("-H", "http://127.0.0.1:9", "--no-save", "--run-name", "x"), 2, "--no-save keeps no folder"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(
    arguments: tuple[str, ...], code: int, message: str, tmp_path: Path
) -> None:
    run = locust(tmp_path, "-u", "2", "-r", "2", "-t", "5s", *arguments)
    assert run.returncode == code
    assert message in run.stderr
    assert "Traceback" not in run.stderr


@ALONE
def test_a_run_in_which_no_request_ended_measured_nothing(paced: Any, tmp_path: Path) -> None:
    for seconds in ("1s", "10s"):
        (folder := tmp_path / seconds).mkdir()
        with paced(fault="silent") as server:
            run = locust(folder, "-u", "1", "-t", seconds, "-s", "0", "--warmup", "0", "-H", server.url)
        _, records, summary = kept(folder)
        if records:
            break
    assert run.returncode == 4
    assert "not one measured request ended" in run.stderr
    assert [(r["outcome"], r["detail"]) for r in records] == [("open", "not ended when the run did")]
    assert (summary["verdict"], summary["all"]["open"], summary["all"]["attainment"]) == (
        "no_requests",
        1,
        0.0,
    )


@ALONE
@pytest.mark.parametrize(
    ("arguments", "limits", "code", "verdict"),
    [
        (("--slo", "ttft=10s,itl=10s,tpot=10s,e2e=10s"), PATIENT, 0, "passed"),
        (("--slo", "ttft=1ms"), PATIENT, 1, "missed"),
        ((), ("--client-limits", "delay=0.001ms"), 3, "void"),
    ],
)
def test_the_exit_code_is_the_verdict(
    arguments: tuple[str, ...], limits: tuple[str, ...], code: int, verdict: str, paced: Any, tmp_path: Path
) -> None:
    for seconds in ("3s", "12s"):
        (folder := tmp_path / seconds).mkdir()
        with paced(ttft=0.02, gap=0.005, tokens=4) as server:
            given = ("-u", "2", "-r", "2", "-t", seconds, "-H", server.url, *arguments)
            run = locust(folder, *given, limits=limits)
        told = kept(folder)[2]["verdict"]
        if told != "no_requests":
            break
    assert (run.returncode, told) == (code, verdict), run.stderr
    assert f"load test: {verdict}: " in run.stderr


@ALONE
def test_every_request_is_a_line_of_the_runs_folder(paced: Any, tmp_path: Path) -> None:
    for seconds, warmup in (("3s", "1"), ("12s", "6")):
        (folder := tmp_path / seconds).mkdir()
        with paced(ttft=0.05, gap=0.005, tokens=4) as server:
            run = locust(
                folder,
                *("-u", "2", "-r", "2", "-t", seconds, "-H", server.url, "--seed", "5", "--warmup", warmup),
                *("--api-key", "secret", "--gpus", "2", "--slo", "ttft=60s"),
            )
        told, records, summary = kept(folder)
        if {r["phase"] for r in records} == {"warmup", "measured"}:
            break
    assert run.returncode == 0, run.stderr
    assert len(records) == len(server.bodies)
    assert {r["phase"] for r in records} == {"warmup", "measured"}
    assert all((r["sent"] < told["warmup_until"]) == (r["phase"] == "warmup") for r in records)
    assert all(
        (r["outcome"], r["chunks"], r["output_tokens"], len(r["gaps"])) == ("ok", 4, 4, 3) for r in records
    )
    assert all(r["sent"] < told["stopping"] <= told["ended"] for r in records), (
        "nothing is sent after the end"
    )
    assert {h["authorization"] for h in server.headers} == {"Bearer secret"}
    assert "secret" not in json.dumps(told)
    assert {k: told[k] for k in ("profile", "model", "seed", "gpus", "host", "workers")} == {
        "profile": "chat",
        "model": "paced-model",
        "seed": 5,
        "gpus": 2.0,
        "host": server.url,
        "workers": 1,
    }
    assert summary["all"]["offered"] == sum(r["phase"] == "measured" for r in records)
    assert summary["run"] == told["name"]
    assert re.fullmatch(r"\d{8}-\d{6}-chat-[0-9a-f]{4}", told["name"])


@ALONE
def test_requests_that_are_open_when_the_time_is_up_may_end(paced: Any, tmp_path: Path) -> None:
    # Two seconds for both to be sent, four more for locust to see that the time is up before one ends.
    with paced(ttft=6.0, gap=0.005, tokens=4) as server:
        run = locust(tmp_path, "-u", "2", "-r", "2", "-t", "2s", "--warmup", "0", "-H", server.url)
    assert run.returncode == 0, run.stderr
    told, records, _ = kept(tmp_path)
    assert [r["outcome"] for r in records] == ["ok", "ok"]
    assert all(r["ended"] > told["stopping"] for r in records)


@ALONE
def test_it_runs_in_worker_processes_too(paced: Any, tmp_path: Path) -> None:
    with paced(ttft=0.5, gap=0.005, tokens=4) as server:
        run = locust(
            tmp_path,
            *("-u", "4", "-r", "4", "-t", "5s", "-H", server.url, *processes(2), "--warmup", "0"),
            *("--seed", "3", "--json-file", "run"),
        )
    assert run.returncode == 0, run.stderr
    prompts = [b["messages"][0]["content"] for b in server.bodies]
    assert len(set(prompts)) == len(prompts) > 4, "workers with one seed send different prompts"
    told, records, summary = kept(tmp_path)
    assert (told["workers"], told["lost_workers"]) == (2, [])
    assert len(records) == len(prompts), "the master has waited for the last batch of each worker"
    assert {r["worker"] for r in records} == {0, 1}
    assert {r["outcome"] for r in records} == {"ok"}
    assert summary["all"]["offered"] == len(records)


def test_several_locustfiles_share_one_run(paced: Any, tmp_path: Path) -> None:
    for seconds in ("3s", "12s"):
        (folder := tmp_path / seconds).mkdir()
        with paced(ttft=0.01, gap=0.005, tokens=4) as server:
            given = ("-u", "4", "-r", "4", "-t", seconds, "--equal-weights", "-H", server.url)
            run = locust(folder, *given, "ChatUser", "CodeUser", file="")
        told, records, summary = kept(folder)
        if len(summary["profiles"]) == 2:
            break
    assert run.returncode == 0, run.stderr
    assert told["profile"] == "mixed"
    assert {r["profile"] for r in records} == set(summary["profiles"]) == {"chat", "code"}
    assert len(records) == len(server.bodies), "each request is kept once"


def test_the_installed_package_can_be_imported_without_locust_running_it() -> None:
    code = "import loadtest.chat; print(loadtest.chat.ChatUser.__name__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.stdout == "ChatUser\n", run.stderr


def test_locust_takes_no_shared_module_for_a_locustfile() -> None:
    code = f"from locust.argument_parser import *; print(parse_locustfile_paths(['{ROOT}/loadtest']))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "/loadtest/chat.py'" in run.stdout, run.stderr
    assert "_lib" not in run.stdout
