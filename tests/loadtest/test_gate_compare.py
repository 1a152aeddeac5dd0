"""Verdicts of the gate on runs whose truth is known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from loadtest._gate import _compare, _runs, _text
from tests.loadtest import gate_runs


def compared(
    folder: Path, candidate: dict[str, Any], baseline: dict[str, Any] | None = None
) -> _compare.Result:
    sides = [
        [_runs.read(p) for p in gate_runs.side(folder, name, **given)]
        for name, given in (("a", baseline or {}), ("b", candidate))
    ]
    return _compare.compare(sides[0], sides[1])


def row(result: _compare.Result, label: str) -> _compare.Row:
    return next(r for r in result.rows if r.label == label)


def test_runs_alike_pass(tmp_path: Path) -> None:
    result = compared(tmp_path, {"noise": 0.01}, {"noise": 0.01})
    assert (result.verdict, result.exit_code) == ("pass", 0)
    assert {r.status for r in result.rows} == {"pass"}
    assert len(result.rows) == 10
    assert result.used == {
        "baseline": [f"a-{i}" for i in range(5)],
        "candidate": [f"b-{i}" for i in range(5)],
    }


def test_five_per_cent_at_p50_fail_and_are_named(tmp_path: Path) -> None:
    result = compared(tmp_path, {"noise": 0.005, "factors": {"p50": 1.05}}, {"noise": 0.005})
    assert (result.verdict, result.exit_code) == ("fail", 1)
    assert {r.label for r in result.rows if r.status == "fail"} == {
        "chat ttft P50",
        "chat tpot P50",
        "chat e2e P50",
    }
    found = row(result, "chat ttft P50")
    drawn = [math.log(g.times["ttft", 0.5]) for g in _groups(tmp_path, "b")]
    before = [math.log(g.times["ttft", 0.5]) for g in _groups(tmp_path, "a")]
    assert found.change == pytest.approx(math.exp(sum(drawn) / 5 - sum(before) / 5) - 1)
    assert found.baseline == pytest.approx(math.exp(sum(before) / 5))


def _groups(folder: Path, name: str) -> list[_runs.Group]:
    return [_runs.read(folder / f"{name}-{i}").groups["chat"] for i in range(5)]


def test_ten_per_cent_at_one_p99_fail_alone(tmp_path: Path) -> None:
    result = compared(tmp_path, {"noise": 0.01, "factors": {"ttft p99": 1.10}}, {"noise": 0.01})
    assert result.verdict == "fail"
    assert [r.label for r in result.rows if r.status == "fail"] == ["chat ttft P99"]


def test_what_is_surely_slower_but_surely_within_the_margin_passes(tmp_path: Path) -> None:
    result = compared(tmp_path, {"noise": 0.001, "factors": {"p50": 1.02, "p999": 1.15}}, {"noise": 0.001})
    assert result.verdict == "pass"
    assert row(result, "chat ttft P50").low > 0  # type: ignore[operator]


def test_noise_is_inconclusive_and_says_how_many_runs_are_missing(tmp_path: Path) -> None:
    result = compared(tmp_path, {"noise": 0.10}, {"noise": 0.10})
    assert (result.verdict, result.exit_code) == ("inconclusive", 3)
    assert result.further is not None
    assert result.further > 5
    assert f"about {result.further} more runs a side" in _text.headline(result)


def test_a_single_run_a_side_is_inconclusive(tmp_path: Path) -> None:
    result = compared(tmp_path, {"runs": 1}, {"runs": 1})
    assert result.verdict == "inconclusive"
    assert row(result, "chat e2e P99").further == 1


def test_p999_is_refused_below_3688_requests_and_hinders_no_pass(tmp_path: Path) -> None:
    result = compared(tmp_path, {"noise": 0.005, "count": 3687}, {"noise": 0.005, "count": 3688})
    found = row(result, "chat ttft P999")
    assert (found.status, found.why) == (
        "refused",
        "3687 requests in the smallest run, P999 needs 3,688",
    )
    assert result.verdict == "pass"


def test_p99_that_is_refused_leaves_the_gate_inconclusive(tmp_path: Path) -> None:
    result = compared(tmp_path, {"noise": 0.005, "count": 300}, {"noise": 0.005, "count": 300})
    assert result.verdict == "inconclusive"
    assert "P99 needs 368" in result.reason


def test_void_runs_are_not_used_and_named(tmp_path: Path) -> None:
    paths = gate_runs.side(tmp_path, "a", noise=0.01)
    others = gate_runs.side(tmp_path, "b", noise=0.01)
    void = gate_runs.write(
        tmp_path / "b-9", noise=3.0, void=True, void_reasons=["lag P99 80 ms"], verdict="void"
    )
    result = _compare.compare([_runs.read(p) for p in paths], [_runs.read(p) for p in [*others, void]])
    assert result.verdict == "pass"
    assert result.unused == [{"side": "candidate", "run": "b-9", "why": "void: lag P99 80 ms"}]
    assert "not used: b-9 (candidate): void: lag P99 80 ms" in _text.markdown(result)


def test_a_candidate_that_fails_every_request_fails(tmp_path: Path) -> None:
    result = compared(
        tmp_path,
        {"count": 0, "failed": 5000, "attainment": 0.0, "verdict": "all_failed", "exit_code": 5},
    )
    assert result.verdict == "fail"
    assert row(result, "chat not completed").candidate == 1.0


def test_a_candidate_that_failed_once_more_does_not_pass(tmp_path: Path) -> None:
    paths = [_runs.read(p) for p in gate_runs.side(tmp_path, "a", noise=0.01)]
    others = gate_runs.side(tmp_path, "b", runs=4, noise=0.01)
    others.append(gate_runs.write(tmp_path / "b-9", failed=1))
    result = _compare.compare(paths, [_runs.read(p) for p in others])
    assert row(result, "chat not completed").status == "inconclusive"
    assert result.verdict == "inconclusive"


def test_more_failures_in_every_run_fail(tmp_path: Path) -> None:
    result = compared(tmp_path, {"noise": 0.005, "failed": 20}, {"noise": 0.005})
    assert row(result, "chat not completed").status == "fail"
    better = compared(tmp_path / "2", {"noise": 0.005}, {"noise": 0.005, "failed": 20})
    assert better.verdict == "pass"


def test_attainment_is_compared_where_runs_have_objectives(tmp_path: Path) -> None:
    slo = {"ttft": 1.0, "attainment": 0.99}
    result = compared(
        tmp_path,
        {"noise": 0.005, "attainment": 0.90, "slo": slo},
        {"noise": 0.005, "attainment": 0.99, "slo": slo},
    )
    found = row(result, "chat attainment")
    assert (found.status, found.baseline, found.candidate) == (
        "fail",
        pytest.approx(0.99),
        pytest.approx(0.90),
    )
    assert found.change == pytest.approx(-0.09)


def test_sides_that_were_asked_differently_are_told(tmp_path: Path) -> None:
    paths = [gate_runs.side(tmp_path, name) for name in "ab"]
    (paths[1][0] / "run.json").write_text(json.dumps({"arrivals": {"kind": "poisson", "rate": 8.0}}))
    result = _compare.compare(*[[_runs.read(p) for p in side] for side in paths])
    assert result.notes == ["the sides were not asked the same: rate of chat is 4.0 and 8.0"]


def test_nothing_to_compare_is_inconclusive() -> None:
    assert _compare.compare([], []).verdict == "inconclusive"


def test_a_workload_that_one_side_lacks_is_inconclusive(tmp_path: Path) -> None:
    paths = [_runs.read(p) for p in gate_runs.side(tmp_path, "a", noise=0.005)]
    others = [_runs.read(p) for p in gate_runs.side(tmp_path, "b", noise=0.005)]
    result = _compare.compare(paths, others, workloads=("chat", "code"))
    assert result.verdict == "inconclusive"
    assert row(result, "code ttft P50").why == "no usable run of this workload"
