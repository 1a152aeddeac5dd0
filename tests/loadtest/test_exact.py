"""Exact: quantiles are values that occurred, of the rank that people mean, however many there are."""

from __future__ import annotations

import random

import numpy as np
import pytest

from loadtest._lib._exact import Exact, rank


def exact(*seconds: float) -> Exact:
    found = Exact()
    found.add_many(seconds)
    return found


def test_quantiles_are_by_nearest_rank() -> None:
    found = exact(*(n / 1000 for n in range(1, 101)))
    assert found.quantiles((0, 0.01, 0.5, 0.95, 0.99, 0.999, 1)) == [
        0.001,
        0.001,
        0.05,
        0.095,
        0.099,
        0.1,
        0.1,
    ]


@pytest.mark.parametrize(
    ("q", "count", "expected"),
    [
        (0.07, 100, 7),
        (0.29, 100, 29),
        (0.57, 100, 57),
        (0.999, 1000, 999),
        (0.99, 1, 1),
        (0.0, 5, 1),
        (1, 5, 5),
    ],
)
def test_ranks_are_those_of_the_decimals_that_were_written(q: float, count: int, expected: int) -> None:
    """0.07 × 100 is a little more than 7 in binary, and would be the 8th."""
    assert rank(q, count) == expected


@pytest.mark.parametrize("q", [-0.1, 1.1, 50])
def test_what_is_no_quantile_is_refused(q: float) -> None:
    for found in (exact(), exact(1.0)):
        with pytest.raises(ValueError, match="0 to 1"):
            found.quantile(q)


def test_nothing_has_no_quantile_mean_or_greatest() -> None:
    found = exact()
    assert (found.count, found.mean, found.min, found.max, found.quantile(0.5), found.total) == (
        0,
        None,
        None,
        None,
        None,
        0,
    )


def test_many_values_agree_with_sorting_them_all() -> None:
    draw = random.Random(1)
    values = [round(draw.lognormvariate(-3, 1), 6) for _ in range(150_000)]
    found = Exact()
    for start in range(0, len(values), 40_000):
        found.add_many(values[start : start + 40_000])
    found.add(0.5)
    every = sorted([*values, 0.5])
    for q in (0.001, 0.5, 0.9, 0.99, 0.999):
        assert found.quantile(q) == every[rank(q, len(every)) - 1]
    assert found.count == 150_001
    assert found.total == pytest.approx(sum(every), abs=1e-6)
    assert (found.min, found.max) == (every[0], every[-1])


def test_merged_is_as_if_all_had_been_added_to_one() -> None:
    one, other = exact(0.1, 0.2), exact(0.2, 0.3)
    one.merge(other)
    values, counts = one.values_and_counts()
    assert values.tolist() == [100_000, 200_000, 300_000]
    assert counts.tolist() == [1, 2, 1]
    assert one.mean == pytest.approx(0.2)


def test_ten_million_gaps_take_as_many_counts_as_there_are_different_microseconds() -> None:
    found = Exact()
    gaps = np.linspace(0.005, 0.006, 1_000_000)
    for _ in range(10):
        found.add_array(gaps)
    assert found.count == 10_000_000
    assert len(found.values_and_counts()[0]) == 1001


def test_what_is_below_zero_counts_as_zero() -> None:
    """Two clock readings in the wrong order are no time at all."""
    assert exact(-0.001, 0.002).quantiles((0, 1)) == [0.0, 0.002]
