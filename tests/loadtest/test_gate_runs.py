"""Runs as the gate reads them from their folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest._gate import _runs
from tests.loadtest import gate_runs


def record(number: int, **changes: object) -> str:
    told = {
        "worker": 0, "number": number, "profile": "chat", "phase": "measured", "outcome": "ok",
        "ttft": number / 100, "tpot": 0.01, "e2e": number / 10, "gaps": [10.0, 20.0],
    }  # fmt: skip
    return json.dumps(told | changes) + "\n"


def test_a_folder_without_summary_is_read_from_its_requests(tmp_path: Path) -> None:
    lines = [record(i) for i in range(1, 101)]
    lines += [record(900, phase="warmup"), record(901, outcome="failed", ttft=9.0), '{"worker": 0, "num']
    (tmp_path / "requests.jsonl").write_text("".join(lines))
    group = _runs.read(tmp_path).groups["chat"]
    assert (group.offered, group.completed, group.counts["itl"]) == (101, 100, 200)
    assert [group.times["ttft", q] for q in (0.5, 0.99, 0.999)] == [0.50, 0.99, 1.00]
    assert group.times["itl", 0.5] == pytest.approx(0.010)


def test_nearest_rank_is_not_thrown_off_by_binary_fractions() -> None:
    assert _runs.nearest_rank(list(range(1, 1001)), 0.999) == 999
    assert _runs.nearest_rank([7.0], 0.5) == 7.0


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has neither summary.json nor requests.jsonl"),
        ({"summary.json": "{"}, "can't be read"),
        ({"summary.json": "[]"}, "is no JSON object"),
        ({"summary.json": '{"version": 2}'}, "is of version 2, this reads 1"),
        ({"summary.json": '{"version": 1}'}, "its numbers can't be read (KeyError: 'profiles')"),
        ({"requests.jsonl": '{"worker": 0}\n'}, "its numbers can't be read (KeyError: 'phase')"),
    ],
)
def test_what_is_no_run_is_refused_with_the_reason(tmp_path: Path, files: dict[str, str], said: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(_runs.RunError) as refused:
        _runs.read(tmp_path)
    assert said in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_rates_may_differ_from_workload_to_workload(tmp_path: Path) -> None:
    runs = []
    for profile, rate in (("chat", 8.0), ("code", 1.0)):
        path = gate_runs.write(tmp_path / profile, profile=profile)
        (path / "run.json").write_text(json.dumps({"arrivals": {"rate": rate}}))
        runs.append(_runs.read(path))
    assert _runs.unlike(runs, runs) == []
