"""Faults of traffic against a real router: in, proven, out, nothing left, and bounded whatever is asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos import identity, inject
from chaos.engines import traffic_source
from chaos.fault import Refused
from tests.chaos.framework import Here, eventually, records
from tests.chaos.small_stack import SmallStack, small_stack

pytestmark = pytest.mark.xdist_group("traffic")  # one worker sets up what they share


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallStack]:
    with small_stack(tmp_path_factory.mktemp("traffic")) as one:
        yield one


@pytest.fixture(autouse=True)
def as_before(stack: SmallStack, own_home: Path) -> Iterator[None]:
    yield
    assert records(own_home) == []
    assert identity.helpers(folder=str(own_home / "chaos" / "undo")) == []
    assert list((own_home / "chaos" / "traffic").glob("*")) == []
    assert eventually(lambda: stack.metric("exaserve_router_open_requests") == 0)


def test_a_peak_adds_to_the_traffic_of_now(stack: SmallStack) -> None:
    with inject.held("traffic_peak", "fleet", stack.place(), 60, {"rate": 10, "factor": 1.5}) as (injection,):
        assert injection.proof is not None
        assert (injection.proof.value or 0) >= 4
        assert "requests/s more are sent (5.0 wanted)" in injection.proof.measured
        before = stack.metric("exaserve_router_requests_total")
        assert eventually(lambda: stack.metric("exaserve_router_requests_total") >= before + 5)


def test_a_peak_of_nothing_is_refused(stack: SmallStack) -> None:
    def quiet() -> bool:
        """What the test before had sent is counted, which comes late on a busy machine."""
        before = stack.metric("exaserve_router_requests_total")
        time.sleep(2)
        return stack.metric("exaserve_router_requests_total") == before

    assert eventually(quiet)
    with pytest.raises(Refused, match="the router has no traffic now that could be multiplied"):
        inject.start("traffic_peak", "fleet", stack.place(), 60)


def test_over_long_requests_are_refused_by_the_fleet(stack: SmallStack) -> None:
    with inject.held("traffic_long", "fleet", stack.place(), 60, {"rate": 5, "words": 50_000}) as (
        injection,
    ):
        assert injection.proof is not None
        assert (injection.proof.value or 0) >= 2
        assert "refused as too long" in injection.proof.measured


def test_a_retry_storm_asks_again_at_once(stack: SmallStack) -> None:
    given = {"clients": 4, "patience": 0.1}
    with inject.held("traffic_retry_storm", "fleet", stack.place(), 60, given) as (injection,):
        assert injection.proof is not None
        assert " of them again at once" in injection.proof.measured
        assert eventually(lambda: stack.metric("exaserve_router_client_disconnects_total") > 0)


def test_clients_that_vanish_are_counted_by_the_router(stack: SmallStack) -> None:
    with inject.held("traffic_vanish", "fleet", stack.place(), 60) as (injection,):
        assert injection.proof is not None
        assert "; the router counted " in injection.proof.measured
        assert (injection.proof.value or 0) >= 2


def test_slow_readers_hold_their_connections(stack: SmallStack) -> None:
    given = {"clients": 3, "bytes_per_second": 300}
    with inject.held("traffic_slow_reader", "fleet", stack.place(), 60, given) as (injection,):
        assert injection.proof is not None
        assert injection.proof.measured.startswith("3 clients read ")
        assert 0 < (injection.proof.value or 0) <= 450
        assert eventually(lambda: stack.metric("exaserve_router_client_connections") >= 3)


def test_without_a_router_there_is_no_traffic(stack: SmallStack) -> None:
    with pytest.raises(Refused, match="here does not say where its router is"):
        inject.start("traffic_vanish", "fleet", Here(), 60)


def test_a_source_ends_at_its_number_of_requests_and_at_its_time(stack: SmallStack, tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    common = [f"--url={stack.url}", "--model=m", f"--stats={stats}"]
    assert (
        traffic_source.main(["peak", *common, "--seconds=30", "--limit=7", "--rate=200", "--max-tokens=1"])
        == 0
    )
    assert json.loads(stats.read_text())["sent"] == 7
    began = time.monotonic()
    assert traffic_source.main(["slow", *common, "--seconds=4", "--clients=2", "--bytes-per-second=50"]) == 0
    assert time.monotonic() - began < 40  # to read the answers would take longer
    told = json.loads(stats.read_text())
    assert (told["sent"], told["open"]) == (2, 0)
