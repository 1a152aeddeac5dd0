"""The gate's statistics: against hand-made numbers and scipy's own tests."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from loadtest._gate import _stats

A, B = [1.00, 1.02, 0.98, 1.01, 0.99], [1.05, 1.09, 1.01, 1.06, 1.04]


def test_a_quantile_needs_so_many_requests_that_one_lies_above_it() -> None:
    assert [_stats.least_requests(q) for q in (0.5, 0.99, 0.999)] == [6, 368, 3688]
    assert 0.999**3688 <= 0.025 < 0.999**3687


def test_the_comparison_is_welchs() -> None:
    found = _stats.difference(A, B)
    theirs = stats.ttest_ind(B, A, equal_var=False, alternative="greater")
    both = stats.ttest_ind(B, A, equal_var=False).confidence_interval(0.9)
    assert found.value == pytest.approx(0.05)
    assert found.p == pytest.approx(theirs.pvalue)
    assert (found.low, found.high) == pytest.approx((both.low, both.high))
    assert found.spread == pytest.approx((math.sqrt(0.00025), math.sqrt(0.00085)))


def test_one_run_a_side_says_nothing_for_certain() -> None:
    found = _stats.difference([1.0], [9.0, 9.0])
    assert (found.value, found.low, found.high, found.p) == (8.0, -math.inf, math.inf, 1.0)
    assert _stats.runs_needed(found, 0.05, 27) == 2


def test_runs_without_any_spread_decide_by_their_value() -> None:
    assert _stats.difference([1.0, 1.0], [1.0, 1.0]).p == 1.0
    found = _stats.difference([1.0, 1.0], [1.1, 1.1])
    assert (found.p, found.low, found.high) == (0.0, found.value, found.value)


def test_holm_multiplies_the_smallest_by_all_and_never_falls() -> None:
    assert _stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert _stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert _stats.holm([]) == []


def test_permutation_of_shares_is_exact() -> None:
    assert _stats.permuted([0, 0, 0], [0.1, 0.1, 0.2]) == pytest.approx(1 / 20)
    assert _stats.permuted([0, 0, 0], [0, 0, 0]) == 1.0
    assert _stats.permuted([0.0], [1.0]) == 1.0


def test_runs_needed_are_the_fewest_that_would_decide() -> None:
    """No change, 2 % of noise, margin 5 %: (t.95 + t.80) × 0.02 × sqrt(2/n) <= ln 1.05 first holds at n = 3."""
    margin = math.log(1.05)
    noisy = _stats.Difference(0.0, -0.1, 0.1, 0.5, (0.02, 0.02), (2, 2))
    needed = _stats.runs_needed(noisy, margin, 1)
    by_hand = next(
        n for n in range(3, 50)
        if (stats.t.ppf(0.95, 2 * n - 2) + stats.t.ppf(0.8, 2 * n - 2)) * 0.02 * math.sqrt(2 / n) <= margin
    )  # fmt: skip
    assert needed == by_hand == 4
    wild = _stats.Difference(0.02, -1.0, 1.0, 0.4, (0.5, 0.5), (2, 2))
    assert _stats.runs_needed(wild, margin, 27) is None
