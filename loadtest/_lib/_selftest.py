"""Proves the client on this machine: a server of known pace, measured by the load test, figure by figure.

The truth is computed here from what the server says it sent (``_paced``), by the definitions in ``_summary`` but with none
of its code. A figure is right within 2 ms or 1 %, a count exactly.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from loadtest._lib import _summary

SECONDS, SHARE = 0.002, 0.01
#: What is tried, the server's options, the load test's.
PARTS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "every kind of stream and failure",
        ("--scenario", "mix", "--ttft", "0.2", "--gap", "0.02", "--tokens", "20"),
        ("--arrivals", "poisson", "--rate", "28", "-t", "11s", "--warmup", "1", "--seed", "1"),
    ),
    (
        "3 s in which the server sends nothing, at 100 requests/s",
        ("--ttft", "0.02", "--gap", "0.005", "--tokens", "4", "--stall-at", "4", "--stall", "3"),
        ("--arrivals", "constant", "--rate", "100", "-t", "11s", "--warmup", "1"),
    ),
)
_ROOT = Path(__file__).resolve().parents[2]
#: reason of a record → scenario of ``_paced`` that must give it.
_REASONS = {"error": "error", "empty": "empty", "cut": "cut", "refused": "status_5xx"}
_STATISTICS = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. unit ``s``: seconds, right within 2 ms or 1 %; ``1/s``, ``1``: within 1 %; ``n``: exactly."""

    name: str
    unit: str
    truth: float
    measured: float

    @property
    def right(self) -> bool:
        difference = abs(self.truth - self.measured)
        if self.unit == "n":
            return difference == 0
        return difference <= max(SECONDS if self.unit == "s" else 0.0, SHARE * abs(self.truth))

    def __str__(self) -> str:
        mark = "  " if self.right else "! "
        if self.unit == "s":
            told = f"{self.truth * 1000:12.2f} ms {self.measured * 1000:12.2f} ms"
        else:
            told = f"{self.truth:12g} {'':2} {self.measured:12g} {'':2}"
        return f"{mark}{self.name:26} {told}"


def run(echo: Callable[[str], None] = print) -> int:
    """Two runs of some ten seconds each; 0 if every figure is right, 1 if not."""
    wrong = 0
    for title, server, client in PARTS:
        echo(f"{title}:")
        rows, client_told = measure(server, client)
        echo(f"  {'':26} {'truth':>12} {'':2} {'measured':>12}")
        for row in rows:
            echo(str(row))
        wrong += sum(not row.right for row in rows)
        echo(f"  this process: {client_told}\n")
    if wrong:
        echo(f"{wrong} figures (marked !) are off by more than {SECONDS * 1000:g} ms and {SHARE:.0%}.")
        echo("On a machine that does much else besides, try again when it is quiet.")
    else:
        echo(f"All figures are right within {SECONDS * 1000:g} ms or {SHARE:.0%}.")
    return int(bool(wrong))


def measure(server: tuple[str, ...], client: tuple[str, ...]) -> tuple[list[Row], str]:
    """Run the load test against a paced server. server, client: their options. Raises RuntimeError if it can't run."""
    with tempfile.TemporaryDirectory() as folder, paced(*server) as url:
        run_folder = Path(folder) / "run"
        locustfile = str(_ROOT / "loadtest" / "chat.py")
        command = [
            sys.executable,
            "-m",
            "locust",
            "-f",
            locustfile,
            "--headless",
            "-H",
            url,
            "--run-folder",
            str(run_folder),
        ]
        done = subprocess.run(
            [*command, "--only-summary", *client], capture_output=True, text=True, timeout=180, cwd=folder
        )
        if not (run_folder / "summary.json").exists():
            raise RuntimeError(f"no summary (exit code {done.returncode}):\n{done.stderr[-2000:]}")
        with urllib.request.urlopen(f"{url}/truth") as answer:  # noqa: S310 - the server of ours
            truth = json.load(answer)
        summary = json.loads((run_folder / "summary.json").read_text())
        return compare(run_folder, summary, truth), _told(summary["client"])


@contextlib.contextmanager
def paced(*options: str) -> Iterator[str]:
    """A paced server in a process of its own; its address."""
    command = [sys.executable, "-m", "loadtest._lib._paced", *options]
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError("the paced server did not start")
        yield url
    finally:
        process.terminate()
        process.wait(10)


def compare(folder: Path, summary: dict[str, Any], truth: list[dict[str, Any]]) -> list[Row]:
    """Each figure of the summary beside what it has to be. truth: as ``/truth`` has it."""
    run = _summary.read_run(folder)
    records = [record for record in _summary.read_records(folder) if record.request_id]
    by_id = {answer["id"]: answer for answer in truth}
    measured = [(r, by_id[str(r.request_id)]) for r in records if r.phase == "measured"]
    good = [(r, answer) for r, answer in measured if answer["good"]]
    all_ = summary["all"]
    failed = Counter(_REASONS[answer["scenario"]] for _, answer in measured if not answer["good"])
    rows = [
        Row("offered", "n", len(measured), all_["offered"]),
        Row("completed", "n", len(good), all_["completed"]),
        *(
            Row(f"failed: {reason}", "n", failed[reason], all_["reasons"].get(reason, 0))
            for reason in sorted(failed | Counter(all_["reasons"]))
        ),
        Row("attainment", "1", len(good) / len(measured), all_["attainment"] or 0.0),
    ]
    for name, values in _latencies(good).items():
        latency = all_["latency"][name]
        rows.append(Row(f"{name}: how many", "n", len(values), latency["count"]))
        if values and latency["count"]:
            rows.append(Row(f"{name}: mean", "s", sum(values) / len(values), latency["mean"]))
            rows += [
                Row(f"{name}: {label}", "s", _rank(values, q), latency[label])
                for label, q in _STATISTICS.items()
            ]
    began, stopped = run["warmup_until"], run["stopping"]
    seconds = stopped - began
    ended = [by_id[str(r.request_id)] for r in records if by_id[str(r.request_id)]["good"]]
    tokens = sum(
        answer["tokens"] * sum(began <= at <= stopped for at in answer["sends"]) / len(answer["sends"])
        for answer in ended
        if answer["usage"] and answer["sends"]
    )
    known = [answer for _, answer in good if answer["usage"]]
    rows += [
        Row("goodput", "1/s", len(good) / seconds, all_["goodput"]),
        Row("tokens per second", "1/s", tokens / seconds, all_["output_tokens_per_second"]),
        Row("output tokens", "n", sum(answer["tokens"] for answer in known), all_["output_tokens"]),
        Row(
            "tokens per chunk",
            "1",
            sum(answer["tokens"] for answer in known) / max(1, sum(len(answer["sends"]) for answer in known)),
            all_["tokens_per_chunk"] or 0.0,
        ),
    ]
    return rows


def _latencies(good: list[tuple[Any, dict[str, Any]]]) -> dict[str, list[float]]:
    """From when the request was due by the client's schedule, or else from when the server had it."""
    found: dict[str, list[float]] = {"ttft": [], "itl": [], "tpot": [], "e2e": []}
    for record, answer in good:
        sends = answer["sends"]
        began = answer["arrived"] if record.due is None else record.due
        found["ttft"].append(sends[0] - began)
        found["e2e"].append(sends[-1] - began)
        found["itl"] += [b - a for a, b in pairwise(sends)]
        if answer["usage"] and answer["tokens"] > 1:
            found["tpot"].append((sends[-1] - sends[0]) / (answer["tokens"] - 1))
    return found


def _rank(values: list[float], q: float) -> float:
    return sorted(values)[math.ceil(q * len(values)) - 1]


def _told(client: dict[str, Any]) -> str:
    lag = client["lag_p99"] or 0.0
    return (
        f"{client['cpu_mean'] or 0:.0%} of a core, timers {(client['delay_p99'] or 0) * 1000:.1f} ms late in P99, "
        f"requests {lag * 1000:.1f} ms"
    )
