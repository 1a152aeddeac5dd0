"""The registry: each collector alone, within its limit, with its own account; no data apart from broken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

import pytest

from exporters import registry
from exporters.registry import NoData, Registry, Sample
from exporters.settings import Settings

SUCCESS = "exaserve_exporter_collector_success"
LAST = "exaserve_exporter_collector_last_success_timestamp_seconds"
DURATION = "exaserve_exporter_collector_duration_seconds"


class Fake:
    """A collector that does what it is told, and counts."""

    def __init__(self, work: Callable[[], Iterable[Sample]]) -> None:
        self.work, self.calls = work, 0

    def collect(self, deadline: float) -> Iterable[Sample]:
        self.calls += 1
        return self.work()


def up(replica: str) -> Fake:
    return Fake(lambda: [Sample("exaserve_engine_up", (replica,), 1)])


def broken(error: Exception) -> Fake:
    def work() -> Iterable[Sample]:
        raise error

    return Fake(work)


def scrape(of: Registry, limit: float = 5) -> dict[tuple[str, str], float]:
    """Values by metric and the value of its first label."""
    return {
        (s.name, next(iter(s.labels.values()))): s.value
        for family in of.scrape(limit)
        for s in family.samples
    }


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Lets hung collectors go when the test ends."""
    event = threading.Event()
    yield event
    event.set()


def test_each_collector_has_duration_success_and_last_success() -> None:
    before = time.time()
    found = scrape(Registry({"a": up("r0")}))
    assert found["exaserve_engine_up", "r0"] == 1
    assert found[SUCCESS, "a"] == 1
    assert 0 <= found[DURATION, "a"] < 5
    assert before <= found[LAST, "a"] <= time.time()


@pytest.mark.parametrize(
    "bad",
    [
        broken(OSError("gone")),
        broken(SystemExit(3)),  # type: ignore[arg-type]
        Fake(lambda: [Sample("exaserve_nobody_declared_this", (), 1)]),
        Fake(lambda: [Sample("exaserve_engine_up", (), 1)]),
        Fake(lambda: [Sample("exaserve_engine_up", ("r1",), 1)] * 2),
        Fake(lambda: [Sample("exaserve_engine_up", ("r1",), "x")]),  # type: ignore[arg-type]
        Fake(lambda: None),  # type: ignore[arg-type, return-value]
        up("r0"),  # a series that a has given already
    ],
)
def test_a_collector_that_breaks_costs_no_other(bad: Fake) -> None:
    found = scrape(Registry({"a": up("r0"), "bad": bad, "c": up("r2")}))
    assert (found[SUCCESS, "a"], found[SUCCESS, "bad"], found[SUCCESS, "c"]) == (1, 0, 1)
    assert {r for name, r in found if name == "exaserve_engine_up"} == {"r0", "r2"}
    assert (LAST, "bad") not in found


def test_a_collector_that_hangs_is_cut_and_not_started_again(gate: threading.Event) -> None:
    def hang() -> Iterable[Sample]:
        gate.wait(60)
        return []

    hanging = Fake(hang)
    of = Registry({"a": up("r0"), "hangs": hanging, "c": up("r2")})
    began = time.monotonic()
    first, second = scrape(of, 0.3), scrape(of, 0.3)
    assert time.monotonic() - began < 20
    for found in (first, second):
        assert (found[SUCCESS, "a"], found[SUCCESS, "hangs"], found[SUCCESS, "c"]) == (1, 0, 1)
    assert second[DURATION, "hangs"] > first[DURATION, "hangs"] >= 0.3
    assert hanging.calls == 1
    gate.set()
    of._runs["hangs"].done.wait(20)
    assert scrape(of)[SUCCESS, "hangs"] == 1
    assert hanging.calls == 2


def test_no_data_is_neither_success_nor_failure() -> None:
    found = scrape(Registry({"none": broken(NoData()), "a": up("r0")}))
    assert (DURATION, "none") in found
    assert (SUCCESS, "none") not in found
    assert (LAST, "none") not in found


def test_last_success_stays_when_a_collector_breaks() -> None:
    turns = [[Sample("exaserve_engine_up", ("r0",), 1)]]
    of = Registry({"a": Fake(lambda: turns.pop())})
    first, second = scrape(of), scrape(of)
    assert (second[SUCCESS, "a"], second[LAST, "a"]) == (0, first[LAST, "a"])
    assert ("exaserve_engine_up", "r0") not in second


def test_scrapes_at_one_time_share_a_run(gate: threading.Event) -> None:
    entered = threading.Event()

    def slow() -> Iterable[Sample]:
        entered.set()
        gate.wait(60)
        return [Sample("exaserve_engine_up", ("r0",), 1)]

    shared = Fake(slow)
    of = Registry({"a": shared})
    results: list[dict[tuple[str, str], float]] = []
    threads = [threading.Thread(target=lambda: results.append(scrape(of, 30))) for _ in range(4)]
    threads[0].start()
    entered.wait(20)
    for t in threads[1:]:
        t.start()
    time.sleep(0.2)
    gate.set()
    for t in threads:
        t.join(30)
    assert [found[SUCCESS, "a"] for found in results] == [1] * 4
    assert shared.calls <= 2  # a thread that comes after the end starts a second one


def test_a_collector_that_cannot_be_loaded_is_there_and_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def factory(settings: Settings) -> registry.Collector:
        raise ImportError("no such library")

    registry.build(Settings())
    monkeypatch.setitem(registry.FACTORIES, "engine", factory)
    assert scrape(registry.build(Settings()))[SUCCESS, "engine"] == 0


def test_every_file_in_collectors_registers_under_its_own_name() -> None:
    registry.build(Settings())
    assert registry.build(Settings()).names == sorted(registry.FACTORIES)


def test_a_name_can_be_registered_once() -> None:
    registry.build(Settings())
    with pytest.raises(ValueError, match="engine is registered twice"):
        registry.register("engine", lambda settings: up("r"))
