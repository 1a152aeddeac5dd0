"""The mathematics of drift: exact numbers for known distributions."""

from __future__ import annotations

import math
import random

import pytest

from exporters.collectors import _drift

A, B = {"a": 1.0, "b": 1.0}, {"a": 3.0, "b": 1.0}


@pytest.mark.parametrize(
    ("window", "reference", "distance"),
    [
        (A, A, 0.0),
        ({"a": 10}, {"a": 7000}, 0.0),
        ({"a": 10}, {"b": 7000}, 1.0),
        # shares 1/2 and 1: m = 3/4, 1/4; JSD = 1/4 lg(2/3) + 1/4 lg 2 + 1/2 lg(4/3) = 3/2 - 3/4 lg 3 bits
        (A, {"a": 1}, math.sqrt(1.5 - 0.75 * math.log2(3))),
        # shares 1/2, 1/2 and 3/4, 1/4: JSD = H(5/8) - (H(1/2) + H(3/4)) / 2 bits
        (A, B, math.sqrt(0.954434002924965 - (1 + 0.8112781244591328) / 2)),
        ({"a": 1, "b": 0}, {"a": 5}, 0.0),
    ],
)
def test_jensen_shannon_distance(
    window: dict[str, float], reference: dict[str, float], distance: float
) -> None:
    assert _drift.jensen_shannon(window, reference) == pytest.approx(distance, abs=1e-12)
    assert _drift.jensen_shannon(reference, window) == pytest.approx(distance, abs=1e-12)


@pytest.mark.parametrize(
    ("window", "reference", "psi"),
    [
        (A, A, 0.0),
        (A, B, 0.25 * math.log(3)),  # (1/2 - 3/4) ln(2/3) + (1/2 - 1/4) ln 2
        # A label that the window lacks counts as half a sample: (1 - .9) ln(1/.9) + (.005 - .1) ln(.005/.1)
        ({"a": 100}, {"a": 90, "b": 10}, 0.1 * math.log(1 / 0.9) - 0.095 * math.log(0.05)),
        ({"a": 1}, {"a": 5, "b": 0}, 0.0),
    ],
)
def test_psi(window: dict[str, float], reference: dict[str, float], psi: float) -> None:
    assert _drift.psi(window, reference) == pytest.approx(psi, abs=1e-12)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    # NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.4, upper 0.05.
    [
        (1, 3.841),
        (2, 5.991),
        (3, 7.815),
        (7, 14.067),
        (10, 18.307),
        (30, 43.773),
        (63, 82.529),
        (100, 124.342),
    ],
)
def test_chi_square_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert _drift.chi_square_quantile(0.95, degrees) == pytest.approx(quantile, abs=5e-4)


@pytest.mark.parametrize(("probability", "degrees"), [(0.0, 1), (1.0, 1), (0.95, 0), (math.nan, 1)])
def test_a_quantile_that_is_none_is_refused(probability: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="probability"):
        _drift.chi_square_quantile(probability, degrees)


def test_the_threshold_is_a_quarter_or_what_chance_reaches() -> None:
    many = {str(i): 1000.0 for i in range(8)}
    assert _drift.psi_threshold(many, many) == 0.25
    few = {str(i): 5.0 for i in range(8)}  # n = 40, m = 2000, 7 degrees of freedom
    normal = {str(i): 250.0 for i in range(8)}
    assert _drift.psi_threshold(few, normal) == pytest.approx(14.067140449 * (1 / 40 + 1 / 2000), abs=1e-9)
    assert _drift.psi_threshold({"a": 5}, {"a": 5}) == 0.25


def test_an_empty_side_can_not_be_compared() -> None:
    for compare in (_drift.jensen_shannon, _drift.psi, _drift.psi_threshold):
        for window, reference in (({}, A), (A, {}), ({"a": 0.0}, A)):
            with pytest.raises(ValueError, match="no sample"):
                compare(window, reference)


def test_windows_of_the_same_mix_are_over_the_noise_term_in_about_1_of_20() -> None:
    """The formula of the facts, tried: 500 windows of 200 out of the mix of the reference."""
    dice = random.Random(4)
    labels, weights = list("abcdefgh"), [30, 20, 15, 10, 10, 5, 5, 5]

    def draw(n: int) -> dict[str, float]:
        drawn = dice.choices(labels, weights, k=n)
        return {x: float(drawn.count(x)) for x in labels}

    reference = draw(2000)
    noise = _drift.chi_square_quantile(0.95, 7) * (1 / 200 + 1 / 2000)
    over = sum(_drift.psi(draw(200), reference) > noise for _ in range(500))
    assert 10 <= over <= 60
