"""Thousands of streams through the router, as its own process; and too few open files for them.

The minute-long version with its figures is ``python tests/benchmarks/router.py --only soak``.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Any

import pytest

from tests.benchmarks import ours, peers, soak, upstreams

pytestmark = pytest.mark.alone

STREAMS = 3000
GAP = 0.5  # seconds between chunks: 6,000 chunks a second, for a machine that does other things too


@pytest.fixture(scope="module")
def fakes() -> Iterator[upstreams.Upstreams]:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2 * STREAMS + 500:
        pytest.skip(f"the hard limit of open files is below {2 * STREAMS + 500}")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    upstreams.raise_file_limit()
    with upstreams.running(8, GAP) as running:
        yield running
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture(scope="module")
def many(fakes: upstreams.Upstreams) -> dict[str, Any]:
    with peers.running("exaserve", ours.everything, fakes.urls, (), ours.ready) as proxy:
        return soak.many_streams(proxy, STREAMS, 12, tokens=8, gap=GAP)


def test_three_thousand_streams_all_end_whole(many: dict[str, Any]) -> None:
    assert many["errors"] == {}
    assert many["failed"] == 0
    assert many["whole"] >= STREAMS


def test_livez_answers_while_they_are_open(many: dict[str, Any]) -> None:
    """A busy machine may hold up a few of the samples; nine in ten are below half a second."""
    assert many["livez_failed"] == []
    assert many["livez_p90_s"] < 0.5


def test_open_files_are_bounded_and_nothing_stays_in_flight(many: dict[str, Any]) -> None:
    assert many["files_most"] <= 2 * STREAMS + 200
    assert (
        many["files_after"] <= many["files_before"] + STREAMS + 200
    )  # idle connections to replicas may stay
    assert many["in_flight_after"] == 0


@pytest.fixture(scope="module")
def limited(fakes: upstreams.Upstreams) -> dict[str, Any]:
    return soak.at_the_file_limit(fakes.urls, (), limit=1024, streams=700)


def test_with_1024_open_files_some_streams_are_served_and_the_others_refused(limited: dict[str, Any]) -> None:
    """Refused in HTTP: 503, not a connection that is reset; nobody is left hanging."""
    assert limited["hanging"] == 0
    assert limited["served"] >= 300
    assert limited["served"] + limited["refused"] == 700
    assert limited["answered_503"] >= 0.9 * limited["refused"]


def test_at_the_limit_the_admin_api_answers_and_afterwards_requests_do(limited: dict[str, Any]) -> None:
    assert limited["livez"]
    assert limited["serves_again"] is True
    assert limited["files"] <= 1024


def test_the_log_names_the_limit_and_does_not_repeat_itself(limited: dict[str, Any]) -> None:
    assert "1024" in limited["log_names_limit"][0]
    assert limited["log_lines"] < 50
