"""Reading audit files: what is counted as what, in which files, and that nothing of others breaks it."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.audit.query import OTHERS, By, Durations, Group, QueryError, Summary, moment, wanted
from serving.audit.reader import MAX_LINE, Seen, Splitter, current_files, generations, parse, raw_lines
from serving.audit.record import FIELDS, Line
from serving.audit.tail import Tail
from serving.router.tenants_file import Price


def line(ts: str = "2026-11-30T08:00:00.000Z", **changed: Any) -> Line:
    values: dict[str, Any] = {
        "request_id": "r", "tenant": "alice", "model": "m", "decision": "admitted", "status": 200,
        "input_tokens": 100, "output_tokens": 10, "duration_s": 0.5, "outcome": "ok",
    }  # fmt: skip
    return Line(ts, **(values | changed))


def raw(request_id: str, second: int = 0, **changed: Any) -> bytes:
    found = line(f"2026-11-30T08:00:{second:02d}.000Z", request_id=request_id, **changed)
    return json.dumps({name: getattr(found, name) for name in FIELDS}).encode() + b"\n"


def ids(files: list[Path], seen: Seen | None = None, since: float = 0.0) -> list[str]:
    seen = seen or Seen()
    return [p.request_id for r in raw_lines(files, seen, since) if (p := parse(r, seen)) is not None]


# --- which files ---


def test_every_worker_and_every_rotated_file_is_read(tmp_path: Path) -> None:
    for name in ("audit-0.jsonl", "audit-0.jsonl.1", "audit-0.jsonl.3", "audit-1.jsonl.1", "audit-0-2.jsonl"):
        (tmp_path / name).write_bytes(raw(name))
    for name in ("other.jsonl", "audit-0.jsonl.gz", "audit-0.jsonl.1.bak", ".audit-0.lock"):
        (tmp_path / name).write_bytes(raw(name))
    files = current_files(tmp_path)
    assert [f.name for f in files] == ["audit-0-2.jsonl", "audit-0.jsonl", "audit-1.jsonl"]
    assert ids(files) == [
        "audit-0-2.jsonl", "audit-0.jsonl", "audit-0.jsonl.1", "audit-0.jsonl.3", "audit-1.jsonl.1",
    ]  # fmt: skip


def test_a_rotation_while_reading_neither_hides_nor_repeats_a_line(tmp_path: Path) -> None:
    path = tmp_path / "audit-0.jsonl"
    path.write_bytes(raw("new"))
    for i in (1, 2, 3):
        path.with_name(f"audit-0.jsonl.{i}").write_bytes(raw(f"old-{i}"))
    found = []
    for f in generations(path, Seen()):
        found.append(json.loads(f.readline())["request_id"])
        if len(found) == 2:
            for i in (3, 2, 1):
                path.with_name(f"audit-0.jsonl.{i}").rename(path.with_name(f"audit-0.jsonl.{i + 1}"))
            path.rename(path.with_name("audit-0.jsonl.1"))
            path.write_bytes(raw("newer"))
    assert found == ["new", "old-1", "old-2", "old-3"]


def test_files_that_ended_before_the_time_asked_for_are_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "audit-0.jsonl"
    for i, mtime in ((0, 3000.0), (1, 2000.0), (2, 1000.0)):
        file = path.with_name(path.name + (f".{i}" if i else ""))
        file.write_bytes(raw(str(i)))
        os.utime(file, (mtime, mtime))
    assert ids([path], since=2000.0) == ["0", "1"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "audit-0.jsonl").mkdir()
    seen = Seen()
    assert ids(current_files(tmp_path), seen) == []
    assert seen.unreadable == [f"{tmp_path}/audit-0.jsonl: Is a directory"]


# --- lines ---


def test_torn_and_foreign_lines_are_passed_over_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "audit-0.jsonl"
    path.write_bytes(
        raw("a") + raw("b")[:40] + b"\n" + b"\xff\x00\n\n" + b'{"msg":"another log"}\n' + b"[1]\n"
        + b"{" * 50_000 + b"\n" + b'{"ts":"2026-11-30T08:00:00.000Z","request_id":"x"}\n'
        + b'{"ts":"2026-11-30","request_id":"x","outcome":"ok"}\n'
        + b'{"ts":"2026-11-30T08:00:00.000Z","lost":7}\n' + raw("c") + raw("d")[:-9]
    )  # fmt: skip
    seen = Seen()
    assert ids([path], seen) == ["a", "c"]
    assert (seen.foreign, seen.lost) == (8, 7)


def test_a_field_of_a_later_version_does_no_harm() -> None:
    later = json.loads(raw("a")) | {"later": {"x": 1}}
    assert parse(json.dumps(later).encode(), Seen()) == line(request_id="a")


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 50))
def test_lines_are_the_same_however_the_blocks_fall(lines: list[bytes], size: int) -> None:
    data = b"".join(x.replace(b"\n", b"") + b"\n" for x in lines) + b"rest"
    splitter = Splitter(Seen())
    found = [x for i in range(0, len(data), size) for x in splitter.feed(data[i : i + size])]
    assert found == [x for x in data.split(b"\n")[:-1] if x]
    assert splitter.rest == b"rest"


def test_a_file_without_newlines_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "audit-0.jsonl"
    with path.open("wb") as f:
        f.write(raw("a"))
        f.truncate(64 * 2**20)
        f.seek(0, os.SEEK_END)
        f.write(b"\n" + raw("b"))
    seen = Seen()
    tracemalloc.start()
    assert ids([path], seen) == ["a", "b"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen.foreign == 1
    assert peak < 8 * 2**20


def test_a_line_longer_than_any_of_ours_is_foreign() -> None:
    seen = Seen()
    splitter = Splitter(seen)
    assert splitter.feed(b"x" * (MAX_LINE + 1) + b"\nshort\n") == [b"short"]
    assert seen.foreign == 1


# --- sums ---


def test_sums_by_tenant_with_cost() -> None:
    summary = Summary([By.TENANT])
    for found in (
        line(), line(model="big", input_tokens=1_000_000, output_tokens=500_000, tokens_estimated=True),
        line(status=502, outcome="error"), line(outcome="cut"), line(outcome="aborted", input_tokens=None, output_tokens=None),
        line(status=429, outcome="rejected", input_tokens=None, output_tokens=None, duration_s=0.001),
        line(tenant=None, model="free"),
    ):  # fmt: skip
        summary.add(found)
    prices = {"m": Price(input=1.0, output=2.0), "big": Price(input=0.5, output=3.0)}
    alice, nobody = summary.rows(prices)
    assert alice == {
        "tenant": "alice", "requests": 6, "errors": 2, "rejected": 1, "input_tokens": 1_000_300,
        "output_tokens": 500_030, "requests_with_estimated_tokens": 1, "requests_without_tokens": 1,
        "cost": pytest.approx(0.5 + 1.5 + (300 * 1.0 + 30 * 2.0) / 1e6), "models_without_price": [],
        "p50_s": pytest.approx(0.5, rel=0.01), "p99_s": pytest.approx(0.5, rel=0.01),
    }  # fmt: skip
    assert (nobody["tenant"], nobody["cost"], nobody["models_without_price"]) == ("-", 0.0, ["free"])
    assert summary.total.row(None)["cost"] is None
    assert summary.total.row(prices)["requests"] == 7


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.audit.query.MAX_GROUPS", 3)
    summary = Summary([By.MODEL])
    for i in range(10):
        summary.add(line(model=f"m{i}"))
    assert {r["model"]: r["requests"] for r in summary.rows(None)} == {OTHERS: 7, "m0": 1, "m1": 1, "m2": 1}


def test_quantiles_are_within_one_percent() -> None:
    chooser = random.Random(7)
    values = sorted(chooser.lognormvariate(0, 2) for _ in range(10_000))
    durations = Durations()
    for value in values:
        durations.add(value)
    for q in (0.5, 0.9, 0.99):
        assert durations.quantile(q) == pytest.approx(values[int(q * 10_000) - 1], rel=0.01)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-9, 1e9, float("inf")])
def test_durations_beyond_all_sense_are_counted(seconds: float) -> None:
    durations = Durations()
    durations.add(seconds)
    assert durations.quantile(0.5) is not None
    assert Group().row(None)["p50_s"] is None


@pytest.mark.parametrize(
    ("asked", "passes"),
    [
        ({"status": "5xx"}, [False, True]),
        ({"status": "200,429"}, [True, False]),
        ({"status": "502"}, [False, True]),
        ({"tenant": "bob"}, [False, True]),
        ({"tenant": "bob", "model": "x"}, [False, False]),
        ({"since": 1796025601.0}, [False, True]),
        ({"until": 1796025601.0}, [True, False]),
        ({"since": -1e300}, [True, True]),
        ({"until": 1e300}, [True, True]),
        ({}, [True, True]),
    ],
)
def test_which_records_pass(asked: dict[str, Any], passes: list[bool]) -> None:
    records = [line(), line("2026-11-30T08:00:01.000Z", status=502, tenant="bob")]
    assert [wanted(**asked)(r) for r in records] == passes


@pytest.mark.parametrize("text", ["", "6xx", "20", "200;500", "abc", "٢٠٠"])
def test_a_status_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(QueryError, match="give statuses like 429"):
        wanted(status=text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", 1e6 - 90), ("15m", 1e6 - 900), ("1h", 1e6 - 3600), ("1.5d", 1e6 - 129_600), ("2w", 1e6 - 1_209_600),
        ("1970-01-02", 86_400.0), ("1970-01-01T01:00Z", 3600.0), ("1970-01-01T01:00+01:00", 0.0), ("all", None),
    ],
)  # fmt: skip
def test_moments(text: str, expected: float | None) -> None:
    assert moment(text, 1e6) == expected


@pytest.mark.parametrize("text", ["", "1y", "h", "yesterday", "-1h", "1970-13-01"])
def test_a_moment_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(QueryError, match="give a span"):
        moment(text, 1e6)


# --- tail ---


def shown(lines: list[Line]) -> list[str]:
    return [found.request_id for found in lines]


def test_the_last_records_of_all_workers_come_in_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "audit-0.jsonl").write_bytes(raw("c", 3) + raw("e", 5))
    (tmp_path / "audit-0.jsonl.1").write_bytes(raw("a", 1) + raw("b", 2))
    (tmp_path / "audit-1.jsonl").write_bytes(raw("d", 4) + raw("f", 6))
    assert shown(Tail(tmp_path, [], wanted(), Seen()).last(20)) == ["a", "b", "c", "d", "e", "f"]
    assert shown(Tail(tmp_path, [], wanted(), Seen()).last(4)) == ["c", "d", "e", "f"]
    assert shown(Tail(tmp_path, [], wanted(), Seen()).last(0)) == []


def test_what_is_added_is_shown_once_over_rotations_and_new_workers(tmp_path: Path) -> None:
    path = tmp_path / "audit-0.jsonl"
    path.write_bytes(raw("a"))
    tail = Tail(tmp_path, [], wanted(), Seen())
    assert shown(tail.last(5)) == ["a"]
    assert tail.more() == []
    with path.open("ab") as f:
        f.write(raw("b") + raw("c")[:50])
        f.flush()
        assert shown(tail.more()) == ["b"]
        f.write(raw("c")[50:])
    path.rename(tmp_path / "audit-0.jsonl.1")
    path.write_bytes(raw("d"))
    (tmp_path / "audit-1.jsonl").write_bytes(raw("e", 9))
    assert shown(tail.more()) == ["c", "d", "e"]
    assert tail.more() == []


def test_a_batch_that_was_taken_back_is_read_when_it_comes_again(tmp_path: Path) -> None:
    path = tmp_path / "audit-0.jsonl"
    path.write_bytes(raw("a"))
    tail = Tail(tmp_path, [], wanted(), Seen())
    tail.last(1)
    with path.open("ab") as f:
        f.write(raw("b")[:60])
    assert tail.more() == []
    os.truncate(path, len(raw("a")))
    assert tail.more() == []
    with path.open("ab") as f:
        f.write(raw("b") + raw("c"))
    assert shown(tail.more()) == ["b", "c"]
