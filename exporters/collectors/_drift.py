"""How far two sets of counts by label are apart, and how far chance alone would bring them. Mathematics only.

Reading the counts is ``intent_drift.py``.

- Jensen-Shannon distance: square root of the Jensen-Shannon divergence in bits (Lin, IEEE Trans. Inf. Theory
  37, 1991; Endres and Schindelin, 2003, for the root being a metric). 0: the same shares, 1: no label in
  common.
- PSI (population stability index): sum over labels of (p - q) ln(p / q). By convention below 0.1 is steady
  and above 0.25 shifted. If nothing has changed, PSI x nm / (n + m) follows a chi-square distribution with
  (labels - 1) degrees of freedom (Yurdakul, 2018), so few samples reach 0.25 by chance; the threshold takes
  that into account."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

Counts = Mapping[str, float]

#: PSI above which a population counts as shifted, by convention.
SHIFTED = 0.25
#: Samples below which nothing is said.
LEAST_WINDOW, LEAST_REFERENCE = 200, 2000


def shares(counts: Counts) -> dict[str, float]:
    """Each label's share of the sum; empty if the sum is 0."""
    total = math.fsum(counts.values())
    return {label: count / total for label, count in counts.items()} if total > 0 else {}


def jensen_shannon(window: Counts, reference: Counts) -> float:
    """The distance, 0 to 1. Labels that only one side has are fine. Raises ValueError if a side is empty."""
    p, q = _both(window, reference)
    divergence = math.fsum(_half(p.get(x, 0.0), q.get(x, 0.0)) for x in p.keys() | q.keys())
    return math.sqrt(min(1.0, max(0.0, divergence)))


def _half(p: float, q: float) -> float:
    middle = (p + q) / 2
    return sum(x / 2 * math.log2(x / middle) for x in (p, q) if x > 0)


def psi(window: Counts, reference: Counts) -> float:
    """The index, 0 or more. A label that one side lacks counts there as half a sample, since PSI has no zero.

    Raises ValueError if a side is empty.
    """
    _both(window, reference)
    n, m = math.fsum(window.values()), math.fsum(reference.values())
    found = 0.0
    for label in sorted(_labels(window, reference)):
        p = max(window.get(label, 0.0), 0.5) / n
        q = max(reference.get(label, 0.0), 0.5) / m
        found += (p - q) * math.log(p / q)
    return found


def psi_threshold(window: Counts, reference: Counts) -> float:
    """max(0.25, chi-square quantile 0.95 of (labels - 1) x (1/n + 1/m)). ValueError if a side is empty."""
    _both(window, reference)
    n, m = math.fsum(window.values()), math.fsum(reference.values())
    labels = len(_labels(window, reference))
    return max(SHIFTED, chi_square_quantile(0.95, labels - 1) * (1 / n + 1 / m)) if labels > 1 else SHIFTED


def _labels(window: Counts, reference: Counts) -> set[str]:
    """Labels that one side has at least once."""
    return {x for x in window.keys() | reference.keys() if window.get(x, 0) > 0 or reference.get(x, 0) > 0}


def _both(window: Counts, reference: Counts) -> tuple[dict[str, float], dict[str, float]]:
    p, q = shares(window), shares(reference)
    if not p or not q:
        raise ValueError("no sample to compare")
    return p, q


@lru_cache(maxsize=256)
def chi_square_quantile(probability: float, degrees: int) -> float:
    """The value that a chi-square variable stays below with that probability (0 to 1, both excluded).

    By bisection of the distribution function; right to 9 digits. Raises ValueError on other arguments.
    """
    if not 0 < probability < 1 or degrees < 1:
        raise ValueError("a probability between 0 and 1 and at least one degree of freedom")
    low, high = 0.0, float(degrees)
    while _chi_square(high, degrees) < probability:
        low, high = high, high * 2
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        if _chi_square(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _chi_square(x: float, degrees: int) -> float:
    """Distribution function: the regularised lower incomplete gamma function P(degrees/2, x/2), by its series
    (Abramowitz and Stegun 6.5.29), whose terms are all positive."""
    if x <= 0:
        return 0.0
    a, half = degrees / 2, x / 2
    term = math.exp(a * math.log(half) - half - math.lgamma(a + 1))
    total, k = term, a
    while term > total * 1e-16:
        k += 1
        term *= half / k
        total += term
    return min(1.0, total)
