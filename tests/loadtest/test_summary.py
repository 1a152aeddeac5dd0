"""A run's summary: every figure of a hand-made folder, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtest._lib import _run, _summary, _verdict
from loadtest._lib._record import Record

RUN: dict[str, Any] = {
    "version": 1,
    "name": "hand-made",
    "profile": "chat",
    "started": 1000.0,
    "ended": 1022.0,
    "warmup": {"seconds": 10.0, "rule": "--warmup 10"},
    "warmup_until": 1010.0,
    "stopping": 1020.0,
    "slo": {"ttft": 1.0, "itl": None, "tpot": None, "e2e": None},
    "attainment": 0.5,
    "limits": {"lag": 0.05, "delay": 0.05, "cpu": 0.9, "cpu_share": 0.1},
    "gpus": 2.0,
    "arrivals": {},
}
SAMPLE: dict[str, Any] = {"at": 1015.0, "worker": "0", "cpu": 0.3, "delays": [1.0, 2.0], "lag_max": 0.0}


def ok(number: int, sent: float, ttft: float, gaps: list[float], tokens: int | None, **more: Any) -> Record:
    """A completed stream; gaps in seconds."""
    record = Record(0, number, "chat", "measured", "ok", sent=sent, status=200)
    record.first, record.ttft = sent + ttft, ttft
    record.last = record.first + sum(gaps)
    record.e2e = record.last - sent
    record.gaps = [gap * 1000 for gap in gaps]
    record.chunks, record.input_tokens, record.output_tokens = len(gaps) + 1, 10, tokens
    record.tpot = sum(gaps) / (tokens - 1) if tokens and tokens > 1 else None
    for key, value in more.items():
        setattr(record, key, value)
    return record


def bad(number: int, outcome: str, **more: Any) -> Record:
    record = Record(0, number, "chat", "measured", outcome, sent=1012.0)
    for key, value in more.items():
        setattr(record, key, value)
    return record


def folder(
    tmp_path: Path, records: list[Record], samples: list[dict[str, Any]] | None = None, **run: Any
) -> Path:
    (tmp_path / "run.json").write_text(json.dumps(RUN | run))
    lines = [msgspec.json.encode(record) for record in records]
    (tmp_path / "requests.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    told = [SAMPLE] if samples is None else samples
    (tmp_path / "client.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in told))
    return tmp_path


EIGHT = [
    ok(0, 1005.0, 0.5, [0.1], 3, phase="warmup"),
    ok(1, 1011.0, 0.5, [0.1, 0.3], 5, replica="a", intent="code"),
    ok(2, 1012.0, 2.0, [0.2], 4, replica="b"),
    ok(3, 1013.0, 0.25, [], 1, replica="a"),
    bad(4, "failed", reason="status_5xx", status=503, replica="a"),
    bad(5, "failed", reason="cut"),
    bad(6, "open"),
    bad(7, "unsent", sent=None, due=1013.0),
]


def test_every_figure(tmp_path: Path) -> None:
    summary = _summary.make(folder(tmp_path, EIGHT))
    all_ = summary["all"]
    assert summary["measured_seconds"] == 10.0
    assert summary["warmup"] == {"seconds": 10.0, "rule": "--warmup 10", "requests": 1}
    assert {k: all_[k] for k in ("offered", "started", "completed", "good", "failed", "unsent", "open")} == {
        "offered": 7,
        "started": 6,
        "completed": 3,
        "good": 2,
        "failed": 2,
        "unsent": 1,
        "open": 1,
    }
    assert all_["reasons"] == {"cut": 1, "status_5xx": 1}
    assert all_["attainment"] == 2 / 7
    assert all_["goodput"] == 0.2
    assert all_["rate"] == 0.3
    assert all_["output_tokens_per_second"] == 1.0
    assert (all_["input_tokens"], all_["output_tokens"]) == (30, 10)
    assert all_["tokens_per_gpu_hour"] == 1800.0
    assert all_["tokens_per_chunk"] == 10 / 6
    ttft = all_["latency"]["ttft"]
    assert (ttft["count"], ttft["min"], ttft["p50"], ttft["p99"], ttft["max"]) == (3, 0.25, 0.5, 2.0, 2.0)
    assert ttft["mean"] == pytest.approx(2.75 / 3, abs=1e-6)
    itl = all_["latency"]["itl"]
    assert (itl["count"], itl["p50"], itl["max"]) == (3, 0.2, 0.3)
    tpot = all_["latency"]["tpot"]
    assert (tpot["count"], tpot["min"], tpot["max"]) == (2, pytest.approx(0.2 / 3, abs=1e-6), 0.1)
    assert all_["latency"]["e2e"]["p50"] == 0.9
    assert all_["lag"]["count"] == 0
    assert (summary["verdict"], summary["exit_code"], summary["void"]) == ("missed", 1, False)


def test_groups_by_profile_intent_and_replica(tmp_path: Path) -> None:
    summary = _summary.make(folder(tmp_path, EIGHT))
    assert list(summary["profiles"]) == ["chat"]
    assert summary["profiles"]["chat"] == summary["all"]
    assert {name: g["offered"] for name, g in summary["intents"].items()} == {"code": 1}
    assert {name: (g["offered"], g["good"], g["failed"]) for name, g in summary["replicas"].items()} == {
        "a": (3, 2, 1),
        "b": (1, 0, 0),
    }


def test_quantiles_are_values_that_occurred_by_nearest_rank(tmp_path: Path) -> None:
    records = [ok(i, 1011.0, (i + 1) / 1000, [], 1) for i in range(1000)]
    ttft = _summary.make(folder(tmp_path, records))["all"]["latency"]["ttft"]
    assert [ttft[q] for q in ("p50", "p90", "p95", "p99", "p999", "max")] == [
        0.5,
        0.9,
        0.95,
        0.99,
        0.999,
        1.0,
    ]


def test_tokens_per_second_are_those_that_came_inside_the_measured_time(tmp_path: Path) -> None:
    """Two of the first one's four chunks and one of the last one's two did; each chunk had two tokens."""
    records = [
        ok(0, 1008.0, 1.0, [0.5, 1.0, 1.0], 8, phase="warmup"),
        ok(1, 1019.0, 0.5, [2.0], 4),
    ]
    all_ = _summary.make(folder(tmp_path, records))["all"]
    assert all_["output_tokens_per_second"] == pytest.approx((4 + 2) / 10)
    assert all_["rate"] == 0.1
    assert all_["completed"] == 1


def test_latencies_and_goodput_of_an_open_loop_count_from_the_due_time(tmp_path: Path) -> None:
    records = [ok(i, 1011.0, 0.5, [], 1, due=1011.0 - i / 1000) for i in range(10)]
    lag = _summary.make(folder(tmp_path, records))["all"]["lag"]
    assert (lag["count"], lag["min"], lag["max"]) == (10, 0.0, pytest.approx(0.009, abs=2e-6))


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        ({}, 3),
        ({"ttft": 0.5}, 2),
        ({"e2e": 0.8}, 1),
        ({"itl": 0.25}, 2),
        ({"tpot": 0.08}, 2),
        ({"ttft": 0.5, "itl": 0.25}, 1),
    ],
)
def test_good_requests_keep_every_objective_that_they_can(
    slo: dict[str, float], good: int, tmp_path: Path
) -> None:
    limits = {"ttft": None, "itl": None, "tpot": None, "e2e": None} | slo
    assert _summary.make(folder(tmp_path, EIGHT, slo=limits))["all"]["good"] == good


def test_a_line_that_was_cut_off_is_skipped(tmp_path: Path) -> None:
    made = folder(tmp_path, EIGHT)
    with (made / "requests.jsonl").open("ab") as file:
        file.write(b'{"worker":0,"numb')
    assert _summary.make(made)["all"]["offered"] == 7


def busy(**more: Any) -> list[dict[str, Any]]:
    return [SAMPLE | {"at": 1010.5 + i} | more for i in range(9)]


@pytest.mark.parametrize(
    ("samples", "run", "reason"),
    [
        (busy(cpu=0.95), {}, "CPU of worker 0: above 0.9 of a core in 100% of the seconds"),
        (busy(delays=[80.0]), {}, "event loop of worker 0: 9 of 9 timers were over 50 ms late"),
        (busy(), {"lost_workers": [2]}, "lost: not all records of worker 2 have arrived"),
        (busy(), {"incomplete": True}, "lost: the folder could not be written to the end"),
    ],
)
def test_what_makes_a_run_void(
    samples: list[dict[str, Any]], run: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    summary = _summary.make(folder(tmp_path, EIGHT, samples, **run))
    assert [r for r in summary["void_reasons"] if r.startswith(reason)] == summary["void_reasons"] != []
    assert (summary["void"], summary["verdict"], summary["exit_code"]) == (True, "void", 3)


def test_requests_that_went_out_late_make_a_run_void(tmp_path: Path) -> None:
    records = [ok(i, 1011.1, 0.5, [], 1, due=1011.0 if i < 4 else 1011.1) for i in range(200)]
    reasons = _summary.make(folder(tmp_path, records))["void_reasons"]
    assert [r.partition(";")[0] for r in reasons] == [
        "schedule lag: 4 of 200 requests were sent over 50 ms late"
    ]
    assert _summary.make(folder(tmp_path, records[1:]))["void_reasons"] == [], "three are no pattern"


def test_the_client_before_and_after_the_measured_time_and_a_master_do_not_count(tmp_path: Path) -> None:
    samples = [
        SAMPLE | {"at": 1005.0, "cpu": 1.0, "delays": [500.0] * 10},
        SAMPLE | {"at": 1021.0, "cpu": 1.0, "delays": [500.0] * 10},
        SAMPLE | {"at": 1015.0, "cpu": 1.0, "delays": [500.0] * 10, "worker": "master"},
        SAMPLE,
    ]
    client = _summary.make(folder(tmp_path, EIGHT, samples))["client"]
    assert (client["cpu_max"], client["delay_p99"], list(client["workers"])) == (0.3, 0.002, ["0"])


def test_a_search_brings_its_own_exit_code(tmp_path: Path) -> None:
    """Single steps of it must miss."""
    summary = _summary.make(folder(tmp_path, EIGHT, arrivals={"search": {"exit_code": 0}}))
    assert (summary["exit_code"], summary["verdict"]) == (0, "passed")


def test_an_empty_run(tmp_path: Path) -> None:
    summary = _summary.write(folder(tmp_path, [], []))
    assert (summary["verdict"], summary["exit_code"]) == ("no_requests", 4)
    assert summary["all"]["attainment"] is None
    assert summary["all"]["latency"]["ttft"]["p99"] is None
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert any("nothing was measured" in line for line in _verdict.lines(summary))


@pytest.mark.parametrize(
    ("completed", "failed", "attainment", "void", "code"),
    [
        (0, 0, None, False, 4),
        (0, 0, 0.0, True, 4),
        (0, 5, 0.0, True, 5),
        (9, 1, 0.9, True, 3),
        (9, 1, 0.9, False, 1),
        (99, 1, 0.99, False, 0),
    ],
)
def test_the_first_verdict_that_applies_counts(
    completed: int, failed: int, attainment: float | None, void: bool, code: int
) -> None:
    assert _verdict.code(completed, failed, attainment, 0.99, void) == code


def test_a_run_is_found_by_folder_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path))
    made = tmp_path / "loadtest" / "r1"
    made.mkdir(parents=True)
    folder(made, [])
    assert _run.find("r1") == _run.find(str(made)) == made
    with pytest.raises(FileNotFoundError, match="no run 'r2': neither that folder nor "):
        _run.find("r2")


def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not of version 1"):
        _summary.make(folder(tmp_path, [], version=2))
