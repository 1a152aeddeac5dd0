"""fleet.json: what a Prometheus answers is kept by step; one that is away costs a run nothing but that file."""

from __future__ import annotations

import json
from pathlib import Path

import promql_parser
import pytest

from dashboards import signals
from loadtest._lib import _fleet
from tests.loadtest.fake_prometheus import serving

START, END = 1_790_000_000.0, 1_790_000_110.0


def test_names_and_queries_are_those_of_the_fleets_own_signals() -> None:
    known = {
        signals.requests(signals.SHORT),
        signals.failed(signals.SHORT),
        *(signals.buckets(latency, signals.SHORT) for latency in signals.LATENCIES),
        *(value for value in vars(signals).values() if isinstance(value, str)),
    }
    assert {signal.name for signal in _fleet.SIGNALS} <= known
    for signal in _fleet.SIGNALS:
        promql_parser.parse(_fleet._top(signal, 110.0) if signal.by_replica else signal.query)


def test_signals_are_kept_with_one_value_a_step() -> None:
    def reply(query: str, form: dict[str, str]) -> list[tuple[dict[str, str], float]] | str:
        if "kv_block" in query:
            return [({"replica": "replica-0", "__name__": "x"}, 0.123456789)]
        if "ALERTS" in query:
            return [({"alertname": "ExaServeKVPressure", "severity": "warning", "model": "m"}, 1)]
        if "preemptions" in query:
            return "too many samples"
        return []

    with serving(reply) as fake:
        fleet = _fleet.ask(fake.url, START, END)
    assert (fleet["start"], fleet["end"], fleet["step"]) == (START, END, 5)
    assert fleet["signals"]["kv"]["series"] == [
        {"labels": {"replica": "replica-0"}, "values": [0.123457] * 23}
    ]
    assert fleet["failed"] == {"preemptions": "too many samples"}
    assert "requests" in fleet["absent"]
    assert "kv" not in fleet["absent"]
    assert fleet["alerts"] == [
        {
            "alert": "ExaServeKVPressure",
            "severity": "warning",
            "labels": {"model": "m"},
            "from": START,
            "to": START + 110,
        }
    ]


def test_pools_have_their_means_over_the_whole_run() -> None:
    def reply(query: str, form: dict[str, str]) -> list[tuple[dict[str, str], float]] | str:
        if "time" not in form:
            return []
        assert "[110s]" in query
        both = [({"pool": "default"}, 40.0), ({}, 0.0)]
        return both if "requests:rate" in query else [({"pool": "default"}, 0.25)]

    with serving(reply) as fake:
        pools = _fleet.ask(fake.url, START, END)["pools"]
    assert [pool["labels"] for pool in pools] == [{"pool": "default"}]
    assert (pools[0]["requests"], pools[0]["ttft_p99"]) == (40.0, 0.25)


def test_values_that_are_no_numbers_are_none() -> None:
    with serving(lambda query, form: [({"pool": "default"}, float("nan"))]) as fake:
        fleet = _fleet.ask(fake.url, START, START + 10)
    assert fleet["signals"]["requests"]["series"][0]["values"] == [None, None, None]
    json.dumps(fleet, allow_nan=False)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://x", "not an address"),
        ("http://user:secret@127.0.0.1:1/", "127.0.0.1:1"),
    ],
)
def test_a_prometheus_that_is_away_is_one_line_without_its_password(
    url: str, said: str, tmp_path: Path
) -> None:
    why = _fleet.save(tmp_path, url, START, END)
    assert why is not None
    assert said in why
    assert "secret" not in why
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_prometheus_is_said_to_be_none(tmp_path: Path) -> None:
    for body in (b"<html>", b"[]", b'{"status": "success"}'):
        with serving(lambda query, form: []) as fake:
            fake.body = body
            why = _fleet.save(tmp_path, fake.url, START, END)
        assert why is not None
        assert "is no Prometheus" in why


def test_a_prometheus_without_the_rules_is_told_of(tmp_path: Path) -> None:
    with serving(lambda query, form: []) as fake:
        why = _fleet.save(tmp_path, fake.url, START, END)
    assert why is not None
    assert "rules" in why
    assert json.loads((tmp_path / "fleet.json").read_text())["signals"] == {}
