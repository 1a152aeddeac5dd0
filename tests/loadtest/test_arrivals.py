"""Schedules: exact counts, the asked distribution, the same for the same seed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import islice, pairwise
from statistics import fmean, pstdev

import pytest

from loadtest._lib._arrivals import Stage, parse_rate, parse_stages, peak, schedule, seconds, units


def offsets(text: str, kind: str = "constant", cv: float = 1.0, seed: int = 1) -> list[float]:
    return [at for at, _ in schedule(parse_stages(text), units(kind, cv, seed))]


def test_a_constant_rate_is_due_at_even_distances_and_never_drifts() -> None:
    due = offsets("100x600")
    assert len(due) == 60_000
    assert due[:3] == [0.0, 0.01, 0.02]
    assert due[-1] == 599.99


@pytest.mark.parametrize(
    "text", ["0.1x30", "3x0.333333333", "7x10,0x5,13x10", "10-100x60", "100-10x60", "0-40x10"]
)
def test_each_stage_has_rate_times_seconds_of_constant_arrivals(text: str) -> None:
    expected = sum(stage.area for stage in parse_stages(text))
    assert len(offsets(text)) == math.ceil(expected - 1e-6)


def test_stages_are_numbered_and_a_pause_has_none() -> None:
    due = list(schedule(parse_stages("2x2,0x3,1x2"), units("constant", 1.0, 1)))
    assert due == [(0.0, 0), (0.5, 0), (1.0, 0), (1.5, 0), (5.0, 2), (6.0, 2)]


def test_a_ramp_has_the_rate_of_each_moment() -> None:
    due = offsets("0-100x10")
    assert sum(at < 5 for at in due) == 125
    assert len(due) == 500


def test_poisson_intervals_have_the_mean_and_the_deviation_of_the_rate() -> None:
    gaps = [b - a for a, b in pairwise(offsets("50x2000", "poisson"))]
    assert fmean(gaps) == pytest.approx(0.02, rel=0.02)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("cv", [0.5, 2.0])
def test_gamma_intervals_have_the_asked_coefficient_of_variation(cv: float) -> None:
    gaps = [b - a for a, b in pairwise(offsets("50x2000", "gamma", cv))]
    assert fmean(gaps) == pytest.approx(0.02, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.05)


def test_gamma_without_variation_is_constant() -> None:
    assert offsets("4x1", "gamma", 0.0) == [0.0, 0.25, 0.5, 0.75]


def test_one_seed_makes_one_schedule_and_another_another() -> None:
    assert offsets("10x10", "poisson", seed=7) == offsets("10x10", "poisson", seed=7)
    assert offsets("10x10", "poisson", seed=7) != offsets("10x10", "poisson", seed=8)


def test_an_open_end_goes_on_for_ever() -> None:
    due: Iterator[tuple[float, int]] = schedule([Stage(1000, 1000, math.inf)], units("constant", 1.0, 1))
    assert next(islice(due, 100_000, None)) == (100.0, 0)


def test_the_peak_is_that_of_the_busiest_window() -> None:
    assert peak([0.0, 50.0, 59.0, 61.0, 62.0, 300.0]) == 4 / 60  # 50 to 62 s
    assert peak([]) == 0.0


@pytest.mark.parametrize(
    ("text", "rate", "of_peak"), [("120", 120.0, False), ("1.5x80", 120.0, False), ("1.5xpeak", 1.5, True)]
)
def test_a_rate_may_be_a_multiple(text: str, rate: float, of_peak: bool) -> None:
    assert parse_rate(text) == (rate, of_peak)


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1.5x", "xpeak", "2xtrace", "1e9", "nan", "inf", "٣"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="rate"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("50", "stage 1, '50': is not RATExSECONDS, like 50x60"),
        ("5x10,50y60", "stage 2, '50y60'"),
        ("5x0", "not a number of seconds above 0"),
        ("axb", "'a' is not a rate"),
        ("1-x60", "'' is not a rate"),
        ("0x60", "no stage has a rate above 0"),
        (",".join(["1x1"] * 1001), "1001 stages are too many"),
    ],
)
def test_a_wrong_stage_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_stages(text)


def test_stages_are_told_as_they_are_typed() -> None:
    assert [stage.text() for stage in parse_stages("10x1m, 10-100x2m")] == ["10x60", "10-100x120"]


@pytest.mark.parametrize(("text", "value"), [("90", 90.0), ("500ms", 0.5), ("2m", 120.0), ("1.5h", 5400.0)])
def test_seconds_may_have_a_unit(text: str, value: float) -> None:
    assert seconds(text) == value
