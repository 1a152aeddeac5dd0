"""Intent drift over simulated hours: a router's page, a reference file, a clock that the test turns."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from math import log, log2
from pathlib import Path
from typing import Any

import pytest

from exporters.catalog import metric
from exporters.collectors._reference import MAX_BYTES, parse
from exporters.collectors.intent_drift import STEPS, IntentDriftCollector, Window, counters_of
from exporters.registry import NoData
from exporters.settings import Settings

WINDOW = 1800.0
P = "exaserve_intent_drift_"
NORMAL = {"general": 3000, "medical": 600, "legal": 400}
HEAD = "# TYPE exaserve_router_classifications_total counter\n"

Samples = dict[tuple[str, ...], float]


def file_of(counts: dict[str, Any], **more: Any) -> bytes:
    data = {"format": "exaserve intent reference", "version": 1, "counts": counts, "to": 1.5e9}
    return json.dumps({**data, **more}).encode()


class Router:
    """Counts requests; its page is what a router's would be."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self.page = lambda: self.text().encode()

    def text(self) -> str:
        lines = [
            f'exaserve_router_classifications_total{{intent="{i}",stage="{s}"}} {float(n)}\n'
            for (i, s), n in self.counts.items()
        ]
        return "up 1\n" + HEAD + "".join(lines) + "exaserve_router_classifications_created 1\n"

    def serve(self, **requests: int) -> None:
        """A third of each intent decided by the second stage."""
        for intent, n in requests.items():
            for stage, part in (("first", n - n // 3), ("second", n // 3)):
                self.counts[intent, stage] = self.counts.get((intent, stage), 0) + part


class Hours:
    """A collector whose page is read directly, at times of the test's own."""

    def __init__(self, router: Router, reference: Path | None, window: float = WINDOW) -> None:
        self.now, self.router = 1000.0, router
        settings = Settings(router="http://r/metrics", intent_reference=reference, intent_window=window)
        self.collector = IntentDriftCollector(settings, clock=lambda: self.now)
        self.collector._page = lambda url, deadline: self.router.page()  # type: ignore[method-assign]

    def scrape(self) -> Samples:
        samples = self.collector.collect(time.monotonic() + 5)
        assert all(len(metric(s.name).labels) == len(s.labels) for s in samples)
        found = {(s.name.removeprefix(P), *s.labels): s.value for s in samples}
        assert len(found) == len(samples)
        return found

    def run(self, minutes: float, every: float = 15.0, **a_minute: int) -> Samples:
        """Traffic for so long, with scrapes."""
        found = self.scrape()
        served = 0.0
        end = self.now + minutes * 60
        while self.now < end:
            self.now += every
            served += every / 60
            if served >= 1:
                served -= 1
                self.router.serve(**a_minute)
            found = self.scrape()
        return found


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    path = tmp_path / "reference.json"
    path.write_bytes(file_of(NORMAL))
    return path


def test_without_a_router_there_is_no_data() -> None:
    with pytest.raises(NoData):
        IntentDriftCollector(Settings()).collect(time.monotonic() + 1)


def test_the_same_mix_has_no_drift(reference: Path) -> None:
    found = Hours(Router(), reference).run(65, general=30, medical=6, legal=4)
    assert found["distance_ratio",] == pytest.approx(0, abs=1e-9)
    assert found["psi",] == pytest.approx(0, abs=1e-9)
    assert found["psi_threshold",] == 0.25
    assert found["shifted",] == 0
    assert found["window_samples",] == 1200
    assert found["window_seconds",] == 1800
    assert found["reference_samples",] == 4000
    assert found["reference_timestamp_seconds",] == 1.5e9
    assert found["share_ratio", "general"] == 0.75
    assert found["reference_share_ratio", "legal"] == 0.1


def test_a_shift_shows_within_two_windows_and_not_in_one(reference: Path) -> None:
    hours = Hours(Router(), reference)
    hours.run(90, general=30, medical=6, legal=4)
    # 30 minutes after the shift one whole window is over, and the one before it is not.
    found = hours.run(30, general=10, medical=26, legal=4)
    assert found["psi",] > found["psi_threshold",]
    assert found["shifted",] == 0
    found = hours.run(30, general=10, medical=26, legal=4)
    assert found["shifted",] == 1
    # shares .25 .65 .1 against .75 .15 .1, so their mean is .5 .4 .1
    divergence = (0.25 * log2(1 / 2) + 0.65 * log2(13 / 8) + 0.75 * log2(3 / 2) + 0.15 * log2(3 / 8)) / 2
    assert found["distance_ratio",] == pytest.approx(divergence**0.5, abs=1e-9)
    assert found["psi",] == pytest.approx(0.5 * log(3) + 0.5 * log(13 / 3), abs=1e-9)
    # It ends as soon as one window is as it was.
    assert hours.run(30, general=30, medical=6, legal=4)["shifted",] == 0


def test_below_200_samples_there_is_only_their_number(reference: Path) -> None:
    hours = Hours(Router(), reference)
    hours.scrape()
    hours.router.serve(medical=199)
    hours.now += 60
    found = hours.scrape()
    assert found["window_samples",] == 199
    assert {"distance_ratio", "psi", "psi_threshold", "shifted"} & {key[0] for key in found} == set()
    hours.router.serve(medical=1)
    found = hours.scrape()
    assert found["psi",] > found["psi_threshold",]
    assert ("shifted",) not in found  # there is no window before


def test_a_reference_below_2000_samples_compares_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(file_of({"general": 1999}))
    found = Hours(Router(), path).run(40, general=30)
    assert found["reference_samples",] == 1999
    assert found["window_samples",] == 900
    assert ("psi",) not in found
    path.write_bytes(file_of({"general": 2000}))


def test_a_night_without_traffic_is_silence_not_drift(reference: Path) -> None:
    hours = Hours(Router(), reference)
    hours.run(90, general=10, medical=26, legal=4)
    found = hours.run(31)
    assert found["window_samples",] == 0
    assert {key[0] for key in found if len(key) == 1} == {
        "window_samples", "window_seconds", "reference_samples", "reference_timestamp_seconds",
    }  # fmt: skip
    assert "share_ratio" not in {key[0] for key in found}


def test_what_the_router_counted_before_the_exporter_started_does_not_count(reference: Path) -> None:
    router = Router()
    router.serve(medical=100_000)
    hours = Hours(router, reference)
    assert hours.scrape()["window_samples",] == 0
    found = hours.run(10, general=30, medical=6, legal=4)
    assert found["window_samples",] == 400
    assert found["window_seconds",] == 600


def test_a_router_that_restarts_loses_nothing_and_adds_nothing() -> None:
    window = Window(100.0)
    one, two = b'intent="a",stage="first"', b'intent="a",stage="second"'
    window.take(0, {one: 1000.0, two: 50.0})
    window.take(10, {one: 1010.0, two: 55.0})
    window.take(20, {one: 7.0})  # began anew; the second stage has said nothing yet
    window.take(30, {one: 8.0, two: 60.0})
    counts, seconds, before = window.counts(30)
    assert counts == {"a": 15 + 7 + 61}
    assert (seconds, before) == (30, {})


def test_a_pause_in_the_scrapes_makes_no_window_of_hours(reference: Path) -> None:
    hours = Hours(Router(), reference)
    hours.run(60, general=30, medical=6, legal=4)
    hours.now += 4 * 3600
    hours.router.serve(medical=10_000)
    found = hours.scrape()
    assert found["window_seconds",] == 0
    assert found["window_samples",] == 0


def test_memory_is_bounded_however_often_it_is_scraped_and_however_many_models_come_and_go() -> None:
    window = Window(WINDOW)
    for i in range(6000):
        intents = {f'intent="{i // 300}-{n}"'.encode(): float(i) for n in range(64)}
        window.take(i * 1.0, intents)
    assert len(window._ring) <= 2 * STEPS + 2
    assert len(window._counted) <= 256
    with pytest.raises(ValueError, match="more than 64 intents"):
        window.take(1e9, {f'intent="{n}"'.encode(): 1.0 for n in range(65)})


def test_an_intent_that_only_one_side_knows_is_shown_with_what_is_known(reference: Path) -> None:
    found = Hours(Router(), reference).run(65, general=30, sport=10)
    assert found["share_ratio", "medical"] == 0
    assert found["share_ratio", "sport"] == 0.25
    assert ("reference_share_ratio", "sport") not in found
    assert found["shifted",] == 1


def test_without_a_reference_shares_are_exported_and_nothing_is_compared() -> None:
    found = Hours(Router(), None).run(35, general=30, legal=10)
    assert {key[0] for key in found} == {"window_samples", "window_seconds", "share_ratio"}


def test_a_reference_that_is_saved_anew_counts_from_the_next_scrape(reference: Path) -> None:
    hours = Hours(Router(), reference)
    assert hours.run(65, medical=40)["shifted",] == 1
    reference.with_name("new").write_bytes(file_of({"medical": 5000}))
    os.replace(reference.with_name("new"), reference)
    assert hours.scrape()["shifted",] == 0


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a file of"),
        (b"{}", "not a file of"),
        (file_of(NORMAL, version=2), "of version 2, this reads 1"),
        (file_of({}), "1 to 64 intents"),
        (file_of({str(i): 1 for i in range(65)}), "1 to 64 intents"),
        (file_of({"a": 0}), "not all 0"),
        (file_of({"a": -1, "b": 5}), "not negative"),
        (file_of({"a": "5"}), "not negative"),
        (file_of({"a": True}), "not negative"),
        (file_of(NORMAL).replace(b"3000", b"NaN"), "not negative"),
        (file_of(NORMAL, to=None), "to: a unix time"),
        (b"x" * (MAX_BYTES + 1), "longer than"),
    ],
)
def test_a_damaged_reference_says_what_is_wrong_and_costs_no_counts(
    data: bytes, why: str, reference: Path
) -> None:
    with pytest.raises(ValueError, match=why):
        parse(data)
    hours = Hours(Router(), reference)
    hours.run(30, general=30)
    reference.write_bytes(data)
    with pytest.raises(ValueError, match=str(reference)):
        hours.run(10, general=30)
    for _ in range(20):
        hours.now += 60
        hours.router.serve(general=30)
        with pytest.raises(ValueError, match=why):
            hours.scrape()
    reference.write_bytes(file_of(NORMAL))
    assert hours.scrape()["window_samples",] == 900


def test_a_reference_that_is_gone_is_named(reference: Path) -> None:
    hours = Hours(Router(), reference)
    reference.unlink()
    with pytest.raises(ValueError, match="No such file"):
        hours.scrape()
    os.mkfifo(reference)
    with pytest.raises(ValueError, match="not a file"):
        hours.scrape()


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (HEAD, {}),
        (HEAD + 'exaserve_router_classifications_total{intent="a"} NaN', {}),
        (HEAD + 'exaserve_router_classifications_total{intent="a"} -1\n', {}),
        (HEAD + 'exaserve_router_classifications_total{intent="a"} x', {}),
        (
            HEAD + 'exaserve_router_classifications_total{stage="first",intent="a b"} 3 170\nup 1',
            {b'stage="first",intent="a b"': 3.0},
        ),
        (HEAD + 'exaserve_router_classifications_total_x{intent="a"} 3', {}),
    ],
)
def test_counters_are_found_on_a_page_whatever_else_is_on_it(page: str, found: dict[bytes, float]) -> None:
    assert counters_of(page.encode()) == found


def test_a_page_of_something_else_and_a_server_that_is_silent_are_errors_with_the_address(
    serve: Callable[..., str], hung: str
) -> None:
    for url, why in ((serve(b"up 1\n"), "not an ExaServe router"), (serve(b"", 503), "answered 503")):
        collector = IntentDriftCollector(Settings(router=url, timeout=60.0))
        with pytest.raises(ValueError, match=why):
            collector.collect(time.monotonic() + 60)
    began = time.monotonic()
    with pytest.raises(ValueError, match=hung):
        IntentDriftCollector(Settings(router=hung, timeout=0.2)).collect(time.monotonic() + 60)
    assert time.monotonic() - began < 30


def test_a_page_is_read_over_http(serve: Callable[..., str], reference: Path) -> None:
    router = Router()
    url = serve(lambda: router.text().encode())
    collector = IntentDriftCollector(Settings(router=url, intent_reference=reference, timeout=60.0))
    router.serve(general=10)
    collector.collect(time.monotonic() + 60)
    router.serve(general=150, legal=50)
    found = {s.name: s.value for s in collector.collect(time.monotonic() + 60)}
    assert found[f"{P}window_samples"] == 200
    assert 0 < found[f"{P}distance_ratio"] < 1


def test_counts_that_no_router_reaches_are_none() -> None:
    name = b"exaserve_router_classifications_total"
    page = b"".join(
        b'%b{intent="%d"} %b\n' % (name, i, v) for i, v in enumerate((b"1e308", b"1e15", b"-1", b"7"))
    )
    assert counters_of(page) == {b'intent="3"': 7.0}
