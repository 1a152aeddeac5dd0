"""Two groups of runs compared: ratio, its bounds, who is sure of what, and how many runs would be.

The run is the unit. A quantile of a run is one number; requests inside of a run share its noise (clocks, placement,
neighbours, how batches happened to form), so tests that count requests (Mann-Whitney, a bootstrap of requests) find
"differences" between a server and itself. Welch's t on the logarithms of the runs' quantiles needs nothing else: the
sampling noise of a quantile is already in what differs between runs. A hierarchical bootstrap (runs, then requests in
them) was the alternative: it counts that noise twice, so that its 95 % intervals held the truth in 98 to 99 % of cases
where Welch's did in 96 % (5 and 10 runs a side, tests/benchmarks/gate_power.py), and it needs every request again.

Which runs there are and what is compared belong to ``_compare.py``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

#: Each bound holds with this probability; both together form a two-sided interval of 90 %.
CONFIDENCE = 0.95
#: Of finding what is there, when runs still needed are estimated.
POWER = 0.8
#: More runs than these a side are not counted out: the noise has to be lowered instead.
MOST_RUNS = 200


@dataclass(frozen=True)
class Difference:
    """Candidate - baseline of the mean of runs (for latencies: of logarithms), higher = worse.

    low, high: one-sided bounds of CONFIDENCE each. p: of seeing this if the candidate were not worse. spread: standard
    deviations between runs of both sides. Without two runs a side bounds are infinite and p is 1.
    """

    value: float
    low: float
    high: float
    p: float
    spread: tuple[float, float]
    runs: tuple[int, int]


def least_requests(quantile: float) -> int:
    """Requests of a run below which it has no such quantile: 6 for 0.5, 368 for 0.99, 3,688 for 0.999.

    From here on the slowest request lies above the true quantile with a probability of 97.5 % (1 - q^n); with fewer
    no upper bound of the quantile can be read from the run at all.
    """
    return math.ceil(math.log(0.025) / math.log(quantile))


def difference(baseline: Sequence[float], candidate: Sequence[float]) -> Difference:
    """Welch's comparison of means. Both sides need at least one value."""
    value = statistics.fmean(candidate) - statistics.fmean(baseline)
    runs = (len(baseline), len(candidate))
    if min(runs) < 2:
        return Difference(value, -math.inf, math.inf, 1.0, (math.nan, math.nan), runs)
    spread = (statistics.stdev(baseline), statistics.stdev(candidate))
    error, freedom = _error(spread, runs)
    if error == 0:
        return Difference(value, value, value, 0.0 if value > 0 else 1.0, spread, runs)
    half = float(stats.t.ppf(CONFIDENCE, freedom)) * error
    p = float(stats.t.sf(value / error, freedom))
    return Difference(value, value - half, value + half, p, spread, runs)


def _error(spread: tuple[float, float], runs: tuple[float, float]) -> tuple[float, float]:
    """Standard error of the difference and Welch-Satterthwaite degrees of freedom."""
    a, b = spread[0] ** 2 / runs[0], spread[1] ** 2 / runs[1]
    if a + b == 0:
        return 0.0, 1.0
    return math.sqrt(a + b), (a + b) ** 2 / (a**2 / (runs[0] - 1) + b**2 / (runs[1] - 1))


def holm(values: Sequence[float]) -> list[float]:
    """P values adjusted by Holm's step-down: each may be compared with 1 - CONFIDENCE as if it were the only one."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted = [0.0] * len(values)
    highest = 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[i]))
        adjusted[i] = highest
    return adjusted


def permuted(baseline: Sequence[float], candidate: Sequence[float]) -> float:
    """P of a mean difference as large as this if sides were drawn by lot among the runs; one-sided, exact.

    For shares of failures, which are 0 in most runs and follow no bell curve. 3 runs a side can reach 0.05.
    """
    if min(len(baseline), len(candidate)) < 2 or set(baseline) == set(candidate) == {baseline[0]}:
        return 1.0

    def apart(x: Sequence[float], y: Sequence[float]) -> float:
        return statistics.fmean(y) - statistics.fmean(x)

    found = stats.permutation_test(
        (list(baseline), list(candidate)), apart, alternative="greater", n_resamples=20_000, rng=0
    )
    return float(found.pvalue)


def runs_needed(found: Difference, margin: float, tests: int) -> int | None:
    """Runs a side with which the answer would be pass or fail with a probability of POWER; None: above MOST_RUNS.

    Taken from the difference and the spread seen, so it is a guess as good as they are. tests: how many share the
    risk of a false alarm (Bonferroni, which is Holm's first step). Without a spread: 2.
    """
    if min(found.runs) < 2:
        return 2

    def enough(runs: int) -> bool:
        error, freedom = _error(found.spread, (runs, runs))
        if error == 0:
            return True
        reserve = float(stats.t.ppf(POWER, freedom))
        passes = (float(stats.t.ppf(CONFIDENCE, freedom)) + reserve) * error
        fails = (float(stats.t.isf((1 - CONFIDENCE) / max(1, tests), freedom)) + reserve) * error
        return margin - found.value >= passes or found.value >= fails

    first, last = max(found.runs) + 1, MOST_RUNS
    if first > last or not enough(last):
        return None
    # Errors only shrink with more runs, so the first that is enough can be searched for by halves.
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if enough(middle) else (middle + 1, last)
    return first
