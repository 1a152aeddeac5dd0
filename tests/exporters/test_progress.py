"""A stuck engine is told apart from an idle one and from one that works slowly."""

from __future__ import annotations

import pytest

from exporters.collectors._page import Vital
from exporters.collectors._progress import Progress

ENGINE = ("m", "0")


def test_the_first_read_says_nothing_and_the_clock_begins_there() -> None:
    progress = Progress()
    assert progress.stalled("r", {ENGINE: Vital(3, (10.0,))}, 100.0) == {}
    assert progress.stalled("r", {ENGINE: Vital(3, (10.0,))}, 115.0) == {"m": 15.0}
    assert progress.stalled("r", {ENGINE: Vital(9, (10.0,))}, 130.0) == {"m": 30.0}


@pytest.mark.parametrize(
    "alive",
    [Vital(3, (11.0,)), Vital(0, (10.0,)), Vital(3, (2.0,))],
    ids=["a token more", "nothing to do", "restarted, counters lower"],
)
def test_a_sign_of_life_no_work_or_a_restart_sets_the_clock_back(alive: Vital) -> None:
    progress = Progress()
    progress.stalled("r", {ENGINE: Vital(3, (10.0,))}, 0.0)
    assert progress.stalled("r", {ENGINE: Vital(3, (10.0,))}, 60.0) == {"m": 60.0}
    assert progress.stalled("r", {ENGINE: alive}, 70.0) == {"m": 0.0}
    assert progress.stalled("r", {ENGINE: Vital(3, alive.signs)}, 75.0) == {"m": 5.0}


def test_an_idle_engine_is_never_stuck() -> None:
    progress = Progress()
    for now in range(0, 1000, 100):
        assert progress.stalled("r", {ENGINE: Vital(0, (10.0,))}, now) == ({"m": 0.0} if now else {})


def test_the_worst_of_two_engines_counts_for_their_model() -> None:
    progress = Progress()
    for now, moving in ((0.0, 1.0), (30.0, 2.0)):
        found = progress.stalled("r", {("m", "0"): Vital(1, (moving,)), ("m", "1"): Vital(1, (5.0,))}, now)
    assert found == {"m": 30.0}


def test_a_replica_that_is_gone_is_forgotten() -> None:
    progress = Progress()
    progress.stalled("r", {ENGINE: Vital(3, (10.0,))}, 0.0)
    progress.keep({"other"})
    assert progress.stalled("r", {ENGINE: Vital(3, (10.0,))}, 500.0) == {}


def test_an_engine_that_left_the_page_is_forgotten() -> None:
    progress = Progress()
    progress.stalled("r", {ENGINE: Vital(3, (10.0,))}, 0.0)
    progress.stalled("r", {}, 10.0)
    assert progress.stalled("r", {ENGINE: Vital(3, (10.0,))}, 500.0) == {}
