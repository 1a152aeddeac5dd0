"""Open loops through locust itself: options, several processes, a trace, a search, and a stall that a closed loop hides."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import free_ports
from tests.loadtest.conftest import Paced

ROOT = Path(__file__).parents[2]


def locust(url: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """One headless run of chat.py, kept in ``folder``."""
    command = [
        sys.executable, "-m", "locust", "-f", "loadtest/chat.py", "--headless", "--only-summary", "-H", url,
        "--model", "m", "--run-folder", str(folder), *options,
    ]  # fmt: skip
    # The verdict is about the schedule; on a busy machine the client is late, which is told elsewhere.
    command += ["--client-limits", "lag=100s,delay=100s,cpu=100"] if "--client-limits" not in options else []
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "requests.jsonl").read_text().splitlines()
    return sorted((json.loads(line) for line in lines), key=lambda record: record["due"] or record["sent"])


def processes(count: int) -> list[str]:
    port = str(free_ports())
    return [
        "--processes",
        str(count),
        "--master-bind-host",
        "127.0.0.1",
        "--master-bind-port",
        port,
        "--master-port",
        port,
    ]


def test_several_processes_share_one_even_schedule(paced: type[Paced], tmp_path: Path) -> None:
    with paced(ttft=0.01, gap=0.001, tokens=2) as server:
        run = locust(
            server.url, tmp_path / "r", "--arrivals", "constant", "--rate", "40", "-t", "3s", "--warmup", "1",
            *processes(2),
        )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = records(tmp_path / "r")
    assert len(found) == 120
    assert {record["worker"] for record in found} == {0, 1}
    assert sum(record["phase"] == "measured" for record in found) == 80
    gaps = [b["due"] - a["due"] for a, b in pairwise(found)]
    assert all(abs(gap - 0.025) < 1e-4 for gap in gaps)
    kept = json.loads((tmp_path / "r" / "run.json").read_text())
    assert kept["arrivals"]["due"] == kept["arrivals"]["scheduled"] == 120
    assert "open loop, constant arrivals: 40x3 (requests/s x s), about 120 requests in 3 s" in run.stderr


def test_stages_are_told_and_kept(paced: type[Paced], tmp_path: Path) -> None:
    # A stage that is over before locust looks again, on a machine that stood still, is not told.
    for n in (1, 5):
        stages, folder = [f"20x{n}", f"0x{n}", f"10-30x{n}"], tmp_path / str(n)
        with paced(ttft=0.01, gap=0.001, tokens=2) as server:
            run = locust(server.url, folder, "--arrivals", "constant", "--stages", ",".join(stages))
        if run.stderr.count(" of 3: ") == 3:
            break
    assert run.returncode == 0, run.stderr
    assert [record["step"] for record in records(folder)] == [0] * 20 * n + [2] * 20 * n
    assert f"stage 1 of 3: 20 requests/s for {n} s" in run.stderr
    assert f"stage 3 of 3: 10 to 30 requests/s in {n} s" in run.stderr
    assert json.loads((folder / "run.json").read_text())["arrivals"]["stages"] == stages


def test_a_trace_is_replayed_with_its_tokens_and_intents(paced: type[Paced], tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"format": "exaserve-trace", "version": 1, "unit": "s"}\n'
        '{"at": 0, "input_tokens": 100, "output_tokens": 7, "intent": "code"}\n'
        '{"at": 2, "input_tokens": 50, "output_tokens": 9}\n'
    )
    with paced(ttft=0.01, gap=0.001, tokens=2) as server:
        run = locust(
            server.url, tmp_path / "r", "--trace", str(trace), "--trace-speed", "4x", "--warmup", "0"
        )
        asked = [(body["max_tokens"], len(body["messages"][0]["content"].split())) for body in server.bodies]
    assert run.returncode == 0, run.stderr
    # A client that was late with the first one sends both at once; which is due first is in the records.
    assert sorted(asked) == [(7, 100 - 8 - 14 + 1), (9, 50 - 8 - 14 + 1)]
    first, second = records(tmp_path / "r")
    assert second["due"] - first["due"] == pytest.approx(0.5, abs=1e-3)
    assert (first["profile"], first["intent"], second["intent"]) == ("trace", "code", None)
    assert "2 requests over 2.0 s" in run.stderr


def test_a_search_ends_with_its_own_status_and_result(paced: type[Paced], tmp_path: Path) -> None:
    # The first token comes after 200 ms: no rate can hold 100 ms.
    with paced(ttft=0.2, gap=0.001, tokens=2) as server:
        run = locust(
            server.url, tmp_path / "r", "--search", "20-40", "--search-step", "1s", "--search-warmup", "500ms",
            "--slo", "ttft=100ms",
        )  # fmt: skip
    assert "even 20 requests/s miss the SLO at 99% of the requests; try lower ones" in run.stderr
    assert run.returncode == 1
    result = json.loads((tmp_path / "r" / "run.json").read_text())["arrivals"]["search"]
    assert (result["rate"], result["not_above"], result["exit_code"]) == (None, 20.0, 1)
    [step] = result["steps"]
    assert (step["good"], step["verdict"]) == (0, "missed")
    assert step["offered"] == sum(record["step"] is not None for record in records(tmp_path / "r"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--arrivals", "poisson"),
            "--arrivals poisson: at what rate? give --rate 50, or --stages 10x60,50x60",
        ),
        (("--stages", "50"), "stage 1, '50': is not RATExSECONDS, like 50x60"),
    ],
)
def test_wrong_options_end_with_status_2_and_the_cure(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    run = locust("http://127.0.0.1:9", tmp_path / "r", *options)
    assert run.returncode == 2
    assert words in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "r").exists()


@contextmanager
def stalling(at: float, seconds: float) -> Iterator[str]:
    """A paced server that answers in 10 ms but sends nothing for so long. Gives its address."""
    command = [
        sys.executable,
        "-m",
        "loadtest._lib._paced",
        "--ttft",
        "0.005",
        "--gap",
        "0.005",
        "--tokens",
        "2",
    ]
    command += ["--stall-at", str(at), "--stall", str(seconds)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.mark.alone
def test_a_stall_of_3_s_shows_in_the_open_loop_and_is_hidden_in_the_closed_one(tmp_path: Path) -> None:
    """10 s at 100 requests/s, nothing answered from 3 to 6 s: 300 of the 1,000 arrivals wait, the 50th longest 2.5 s."""
    options = {"open": ("--arrivals", "constant", "--rate", "100"), "closed": ("-u", "4", "-r", "100")}
    # Where this machine itself stood still for a moment, it adds to the stall or has one more.
    for number in range(3):
        folder = tmp_path / str(number)
        with stalling(3.0, 3.0) as first, stalling(3.0, 3.0) as second, ThreadPoolExecutor(2) as both:
            runs = {
                name: both.submit(locust, url, folder / name, *options[name], "-t", "10s", "--warmup", "0")
                for name, url in (("open", first), ("closed", second))
            }
            codes = {name: run.result().returncode for name, run in runs.items()}
        assert codes == {"open": 0, "closed": 0}
        found = {name: json.loads((folder / name / "summary.json").read_text())["all"] for name in options}
        assert found["open"]["offered"] == 1000
        p95 = {name: of["latency"]["e2e"]["p95"] for name, of in found.items()}
        if p95["open"] == pytest.approx(2.5, abs=0.25) and p95["closed"] < 0.5:
            break
    assert p95["open"] == pytest.approx(2.5, abs=0.25)
    assert p95["closed"] < 0.5
    assert found["closed"]["latency"]["e2e"]["max"] > 2.9
