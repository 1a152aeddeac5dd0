"""Faults of a replica on a simulated one: in, proven, out, nothing left."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from chaos import ask, identity, inject
from chaos import fault as faults
from chaos.engines import memory, sim
from chaos.engines.signals import Duty
from chaos.fault import Fault, Refused
from chaos.faults import replica_cut, replica_leak, replica_slow
from tests.chaos.framework import BRIEF, Here, answer, eventually, records
from tests.chaos.simulated import Simulated, simulated


@pytest.fixture(scope="module")
def replica() -> Iterator[Simulated]:
    with simulated("--faults") as one:
        yield one


@pytest.fixture(autouse=True)
def as_before(request: Any, own_home: Path) -> Iterator[None]:
    """Nothing is left: no record, no helper, no stopped process, no simulated fault."""
    yield
    assert records(own_home) == []
    assert identity.helpers(folder=str(own_home / "chaos" / "undo")) == []
    if "replica" in request.fixturenames:
        one: Simulated = request.getfixturevalue("replica")
        assert one.process.poll() is None
        assert one.state not in ("T", "t")
        assert httpx.get(f"{one.url}/_sim/fault", timeout=30).json() == {"fault": {"kind": "none"}}


def only(name: str, engine: str) -> Fault:
    """The fault with that engine alone."""
    f = faults.load(name)
    return Fault(f.name, f.kind, f.summary, tuple(e for e in f.engines if e.name == engine), f.parameters)


def test_crash_kills_it_and_nothing_is_held(own_home: Path) -> None:
    with simulated() as one:
        injection = inject.start("replica_crash", "replica-0", one.place(), 30)[0]
        assert injection.proof is not None
        assert injection.proof.measured == f"process {one.pid} is gone"
        assert injection.over
        assert one.process.wait(30) == -signal.SIGKILL


def test_freeze_stops_it_until_it_is_undone(replica: Simulated) -> None:
    with inject.held("replica_freeze", "replica-0", replica.place(), 60) as (injection,):
        assert injection.proof is not None
        assert (injection.proof.measured, injection.proof.value) == ("1 of 1 processes are stopped", 1.0)
        assert replica.state == "T"
        assert ask.status(f"{replica.url}/health", 0.3) == (0, "no answer within 0.3 s")
    assert eventually(lambda: ask.status(f"{replica.url}/health") == (200, ""))


def test_freeze_ends_by_itself(replica: Simulated) -> None:
    injection = inject.start("replica_freeze", "replica-0", replica.place(), BRIEF)[0]
    assert injection.wait(60)
    assert replica.state != "T"


def test_freeze_of_children_needs_children(replica: Simulated) -> None:
    with pytest.raises(
        Refused, match="nothing to freeze with scope 'children': replica-0 is a single process"
    ):
        inject.start("replica_freeze", "replica-0", replica.place(), 5, {"scope": "children"})


def test_a_replica_that_died_while_it_was_frozen_leaves_nothing_to_undo(own_home: Path) -> None:
    with simulated() as one:
        injection = inject.start("replica_freeze", "replica-0", one.place(), 60)[0]
        one.process.kill()
        one.process.wait()
        injection.undo()


def test_slow_stretches_every_token(replica: Simulated) -> None:
    with inject.held("replica_slow", "replica-0", replica.place(), 60, {"factor": 8}) as (injection,):
        assert injection.engine.name == "sim"
        assert injection.proof is not None
        assert (injection.proof.value or 0) >= 4
        assert " ms a token, " in injection.proof.measured


def test_slow_by_stopping_and_continuing_needs_no_simulated_engine(own_home: Path) -> None:
    with simulated() as one:
        with pytest.raises(Refused, match="replica-0 is no simulated replica that was started with --faults"):
            inject.start(only("replica_slow", "sim"), "replica-0", one.place(), 30)
        with inject.held("replica_slow", "replica-0", one.place(), 60, {"factor": 6}) as (injection,):
            assert injection.engine.name == "duty"
            assert (injection.proof.value or 0) >= 3 if injection.proof else False
        assert eventually(lambda: one.state != "T")
        assert not answer(one.url).error


@pytest.mark.parametrize("status", [429, 500, 503])
def test_error_answers_with_the_status(status: int, replica: Simulated) -> None:
    given = {"status": status, "retry_after": 7}
    with inject.held("replica_error", "replica-0", replica.place(), 60, given) as (injection,):
        assert injection.proof is not None
        assert injection.proof.measured == f"3 of 3 requests were answered with {status}"
        if status == 429:
            assert answer(replica.url).headers["retry-after"] == "7"
    assert answer(replica.url).status == 200


def test_cut_ends_streams_without_an_end(replica: Simulated) -> None:
    with inject.held("replica_cut", "replica-0", replica.place(), 60, {"after_tokens": 5}) as (injection,):
        assert injection.engine.name == "sim"
        assert injection.proof is not None
        assert injection.proof.measured.startswith("3 of 3 streams broke, the last after ")
    assert answer(replica.url).done


def test_cut_of_any_other_replica_kills_it_while_it_streams(own_home: Path) -> None:
    with simulated() as one:
        given = replica_cut.FAULT
        with pytest.raises(Refused, match="a killed replica cuts all of its streams"):
            inject.start(given, "replica-0", one.place(), 30, {"probability": 0.5})
        injection = inject.start(given, "replica-0", one.place(), 30, {"after_tokens": 4})[0]
        assert injection.engine.name == "kill"
        assert injection.proof is not None
        assert f"process {one.pid} is gone; a stream broke after " in injection.proof.measured
        assert (injection.proof.value or 0) >= 4
        assert injection.over


def test_leak_grows_resident_memory_and_gives_it_back(replica: Simulated) -> None:
    def resident() -> float:
        pages = Path(f"/proc/{replica.pid}/statm").read_text().split()[1]
        return int(pages) * 4096 / 2**20

    before = resident()
    given = {"mib_per_second": 100, "limit_mib": 64}
    with inject.held("replica_leak", "replica-0", replica.place(), 60, given) as (injection,):
        assert injection.engine.name == "sim"
        assert (injection.proof.value or 0) >= 32 if injection.proof else False
        assert eventually(lambda: resident() >= before + 60)
        assert resident() <= before + 80
    assert eventually(lambda: resident() <= before + 10)


def test_leak_by_the_debugger_maps_pages_and_unmaps_them(own_home: Path) -> None:
    if (why := memory.MapByDebugger().missing(Here())) is not None:
        pytest.skip(why)
    with simulated() as one:
        maps = Path(f"/proc/{one.pid}/maps")
        given = {"mib_per_second": 8, "limit_mib": 16}
        with inject.held("replica_leak", "replica-0", one.place(), 60, given) as (injection,):
            assert injection.engine.name == "gdb"
            assert "6e0000000000-" in maps.read_text()
            assert eventually(lambda: "6e0000000000-6e0001000000" in maps.read_text())
        assert "6e0000000" not in maps.read_text()
        assert not answer(one.url).error


def test_a_second_simulated_fault_is_refused(replica: Simulated) -> None:
    httpx.post(f"{replica.url}/_sim/fault", json={"kind": "slow"}, timeout=30)
    try:
        with pytest.raises(Refused, match="replica-0 has the simulated fault slow already"):
            inject.start(only("replica_error", "sim"), "replica-0", replica.place(), 30)
    finally:
        httpx.post(f"{replica.url}/_sim/fault", json={"kind": "none"}, timeout=30)


def test_engines_in_order_of_preference() -> None:
    assert [e.name for e in replica_slow.FAULT.engines] == ["sim", "duty"]
    assert [e.name for e in replica_leak.FAULT.engines] == ["sim", "gdb"]
    assert isinstance(replica_slow.FAULT.engines[1], Duty)
    assert isinstance(replica_slow.FAULT.engines[0], sim.Simulated)
