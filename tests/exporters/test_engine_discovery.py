"""Replicas that the engine collector finds by service discovery: kept while it fails, gone when they are gone."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable

import pytest

from exporters.collectors.engine import EngineCollector
from exporters.registry import NoData, Sample
from exporters.settings import Settings

Page = Callable[[str], bytes]
Serve = Callable[..., str]


def run(collector: EngineCollector) -> dict[tuple[str, ...], float]:
    return {(s.name, *s.labels): s.value for s in collector.collect(time.monotonic() + 60)}


def of(discovery: str) -> EngineCollector:
    """With a timeout that no replica reaches, however slow this machine is."""
    return EngineCollector(Settings(discover=discovery, timeout=60.0))


def sd(**urls: str) -> bytes:
    return json.dumps(
        [
            {"targets": [url.removeprefix("http://")], "labels": {"replica": name}}
            for name, url in urls.items()
        ]
    ).encode()


def test_replicas_are_found_by_http_service_discovery(page: Page, serve: Serve, closed: str) -> None:
    discovery = serve(sd(a=serve(page("vllm-0.6-metrics.txt")), b=closed))
    found = run(of(discovery))
    assert (found["exaserve_engine_up", "a"], found["exaserve_engine_up", "b"]) == (1, 0)


@pytest.mark.parametrize("answer", [b"not json", b'{"a": 1}', b"[" * 100_000])
def test_a_discovery_that_breaks_keeps_the_replicas_known_before(
    page: Page, serve: Serve, answer: bytes
) -> None:
    answers = [sd(a=serve(page("vllm-0.6-metrics.txt"))), answer]
    collector = of(serve(lambda: answers.pop(0)))
    for up in (1.0, 0.0):
        samples = collector.collect(time.monotonic() + 60)
        assert Sample("exaserve_engine_up", ("a",), 1.0) in samples
        assert Sample("exaserve_engine_discovery_up", (), up) in samples


def test_a_discovery_that_never_answered_is_broken(closed: str) -> None:
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1"):
        of(closed).collect(time.monotonic() + 60)


def test_no_discovered_replica_is_no_data(serve: Serve) -> None:
    with pytest.raises(NoData):
        of(serve(b"[]")).collect(time.monotonic() + 60)


def test_a_bad_target_is_skipped_counted_and_told_once(
    page: Page, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    good = serve(page("vllm-0.6-metrics.txt")).removeprefix("http://")
    groups = [
        {"targets": [good], "labels": {"replica": "a"}},
        {"targets": ["user:secret@:0"], "labels": {}},
        {"targets": 3},
        {"targets": ["h:1"], "labels": {"replica": "a"}},
    ]
    collector = of(serve(json.dumps(groups).encode()))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = run(collector)
    assert found["exaserve_engine_up", "a"] == 1
    assert {k[1]: v for k, v in found.items() if k[0] == "exaserve_engine_discovery_skipped_targets"} == {
        "invalid": 2,
        "duplicate": 1,
        "too_many": 0,
    }
    told = [r.getMessage() for r in caplog.records]
    assert len(told) == 1
    assert told[0].startswith("targets: 3 of the discovery can't be used: ")
    assert "secret" not in told[0]


def test_a_list_of_bad_targets_only_is_told_and_no_failure(serve: Serve) -> None:
    found = run(of(serve(b'[{"targets": [1, 2]}]')))
    assert found["exaserve_engine_discovery_up",] == 1
    assert found["exaserve_engine_discovery_skipped_targets", "invalid"] == 2


def test_the_discoverys_password_is_not_in_the_error(closed: str) -> None:
    with pytest.raises(RuntimeError) as error:
        of(closed.replace("//", "//me:secret@")).collect(time.monotonic() + 60)
    assert "secret" not in str(error.value)


def test_a_replica_that_left_the_discovery_leaves_nothing_behind(
    page: Page, serve: Serve, closed: str
) -> None:
    url = serve(page("vllm-0.32.0-metrics.txt"))
    answers = [sd(a=url, b=closed), sd(b=closed)]
    collector = of(serve(lambda: answers.pop(0)))
    assert run(collector)["exaserve_engine_up", "a"] == 1
    assert not [key for key in run(collector) if "a" in key]
    assert list(collector._known) == ["b"]
    assert list(collector._progress._seen) == []
    assert set(collector._said) <= {"b", "discovery", "targets"}
