"""The registry: each collector alone, within its limit, with its own account; no data apart from broken."""

from __future__ import annotations

import itertools
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


def scrape(of: Registry, limit: float = 60) -> dict[tuple[str, str], float]:
    """Values by metric and the value of its first label."""
    return {
        (name, labels[0]): value
        for name, values in of.scrape(limit).items()
        for labels, value in values.items()
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
    assert 0 <= found[DURATION, "a"] < 60
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
        Fake(lambda: [Sample("exaserve_engine_up", (["r1"],), 1)]),  # type: ignore[list-item]
        Fake(lambda: [Sample("exaserve_router_request_duration_seconds", ("r1",), 1)]),
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
        gate.wait(120)
        return []

    hanging = Fake(hang)
    of = Registry({"a": up("r0"), "hangs": hanging, "c": up("r2")})
    began = time.monotonic()
    first, second = scrape(of, 2.5), scrape(of, 2.5)  # the others have as much
    assert time.monotonic() - began < 45
    for found in (first, second):
        assert (found[SUCCESS, "a"], found[SUCCESS, "hangs"], found[SUCCESS, "c"]) == (1, 0, 1)
    assert second[DURATION, "hangs"] > first[DURATION, "hangs"] >= 2.5
    assert hanging.calls == 1
    gate.set()
    end = time.monotonic() + 60
    while scrape(of)[SUCCESS, "hangs"] != 1 and time.monotonic() < end:
        time.sleep(0.01)
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


def test_last_success_ends_when_there_is_nothing_of_its_kind_any_more() -> None:
    there = [[Sample("exaserve_engine_up", ("r0",), 1)]]

    def work() -> Iterable[Sample]:
        if not there:
            raise NoData
        return there.pop()

    of = Registry({"a": Fake(work)})
    assert (LAST, "a") in scrape(of)
    gone = scrape(of)
    assert [key for key in gone if key[1] == "a"] == [(DURATION, "a")]


def test_scrapes_at_one_time_share_a_run(gate: threading.Event) -> None:
    entered = threading.Event()

    def slow() -> Iterable[Sample]:
        entered.set()
        gate.wait(60)
        return [Sample("exaserve_engine_up", ("r0",), 1)]

    shared = Fake(slow)
    of = Registry({"a": shared})
    results: list[dict[tuple[str, str], float]] = []
    threads = [threading.Thread(target=lambda: results.append(scrape(of))) for _ in range(4)]
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


def test_a_scrape_that_joins_a_patient_ones_run_waits_no_longer_than_it_may(gate: threading.Event) -> None:
    entered = threading.Event()

    def hang() -> Iterable[Sample]:
        entered.set()
        gate.wait(60)
        return []

    of = Registry({"hangs": Fake(hang)})
    patient = threading.Thread(target=of.scrape, args=(50,))
    patient.start()
    entered.wait(20)
    began = time.monotonic()
    assert scrape(of, 0.3)[SUCCESS, "hangs"] == 0
    assert time.monotonic() - began < 10
    gate.set()
    patient.join(20)


@pytest.mark.parametrize("limit", [0.0, 0.001, 0.05])
def test_a_tiny_limit_is_kept_with_a_grace_that_is_no_longer_than_it(
    gate: threading.Event, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang() -> Iterable[Sample]:
        gate.wait(60)
        return []

    monkeypatch.setattr(registry, "GRACE", 30)
    of = Registry({"hangs": Fake(hang)})
    began = time.monotonic()
    assert scrape(of, limit)[SUCCESS, "hangs"] == 0
    assert time.monotonic() - began < 15


def test_a_collector_with_a_limit_of_its_own_is_cut_there(gate: threading.Event) -> None:
    deadlines: dict[str, float] = {}

    class Noting:
        def __init__(self, name: str) -> None:
            self.name = name

        def collect(self, deadline: float) -> Iterable[Sample]:
            deadlines[self.name] = deadline
            return []

    before = time.monotonic()
    scrape(Registry({"a": Noting("a"), "b": Noting("b")}, {"a": 20.0, "b": 99.0}), 50)
    since = time.monotonic() - before  # the scrape began somewhere in between
    assert 20 <= deadlines["a"] - before <= 20 + since
    assert 50 <= deadlines["b"] - before <= 50 + since


def test_collectors_run_side_by_side() -> None:
    """Each waits until all have begun."""
    together = threading.Barrier(8)

    def work() -> Iterable[Sample]:
        together.wait(20)
        return []

    found = scrape(Registry({str(i): Fake(work) for i in range(8)}), 30)
    assert [found[SUCCESS, str(i)] for i in range(8)] == [1] * 8


def test_a_series_that_a_collector_no_longer_gives_is_gone() -> None:
    turns = [[Sample("exaserve_engine_up", (r,), 1) for r in names] for names in ("c", "", "ab")]
    of = Registry({"a": Fake(turns.pop)})
    pages = [scrape(of) for _ in range(3)]
    assert [[r for n, r in page if n == "exaserve_engine_up"] for page in pages] == [["a", "b"], [], ["c"]]


def test_a_value_that_is_not_finite_is_absent_and_costs_no_other() -> None:
    values = {"a": float("nan"), "b": float("inf"), "c": 1, "d": float("-inf"), "e": 10**400}
    found = scrape(
        Registry({"x": Fake(lambda: [Sample("exaserve_engine_up", (r,), v) for r, v in values.items()])})
    )
    assert {r for n, r in found if n == "exaserve_engine_up"} == {"c"}
    assert found[SUCCESS, "x"] == 1


def test_plain_tuples_are_samples_too() -> None:
    plain: list[Sample] = [("exaserve_engine_up", ("r0",), 1)]  # type: ignore[list-item]
    assert scrape(Registry({"a": Fake(lambda: plain)}))["exaserve_engine_up", "r0"] == 1


def test_endless_samples_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_SAMPLES", 100)
    endless = Fake(lambda: (Sample("exaserve_engine_up", (str(i),), 1) for i in itertools.count()))
    found = scrape(Registry({"a": endless, "b": up("r0")}))
    assert (found[SUCCESS, "a"], found[SUCCESS, "b"]) == (0, 1)
    assert [r for n, r in found if n == "exaserve_engine_up"] == ["r0"]


def test_threads_stay_between_scrapes_and_end_with_the_registry() -> None:
    of = Registry({f"ends-{i}": up(f"r{i}") for i in range(3)})
    seen = []
    for _ in range(3):
        scrape(of)
        seen.append({t.ident for t in threading.enumerate() if t.name.startswith("collector-ends-")})
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 3
    threads = [t for t in threading.enumerate() if t.name.startswith("collector-ends-")]
    of.close()
    for t in threads:
        t.join(20)
    assert not any(t.is_alive() for t in threads)


def test_a_machine_without_room_for_a_thread_breaks_the_collector_and_not_the_scrape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    of = Registry({"a": up("r0")})
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        assert scrape(of)[SUCCESS, "a"] == 0
    assert scrape(of)[SUCCESS, "a"] == 1


def test_a_collector_that_cannot_be_loaded_is_there_and_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def factory(settings: Settings) -> registry.Collector:
        raise ImportError("no such library")

    registry.build(Settings(), ["engine"])
    monkeypatch.setitem(registry.FACTORIES, "engine", factory)
    assert scrape(registry.build(Settings(), ["engine", "no_such_file"])) | {
        (DURATION, n): 0 for n in ("engine", "no_such_file")
    } == {
        ("exaserve_exporter_build_info", registry._version()): 1,
        (SUCCESS, "engine"): 0,
        (SUCCESS, "no_such_file"): 0,
        (DURATION, "engine"): 0,
        (DURATION, "no_such_file"): 0,
    }


def test_only_the_collectors_that_are_asked_for_are_there() -> None:
    assert registry.build(Settings(), ["engine"]).names == ["engine"]
    assert registry.build(Settings(), []).names == []


def test_a_name_can_be_registered_once() -> None:
    registry.build(Settings(), ["engine"])
    with pytest.raises(ValueError, match="engine is registered twice"):
        registry.register("engine", lambda settings: up("r"))
