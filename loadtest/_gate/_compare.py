"""From the runs of two sides to a verdict: each metric passes, fails, or needs more runs.

For latencies (ratio of candidate to baseline, logarithms of the runs' quantiles)::

    pass          the upper bound of the ratio is below 1 + margin: shown to be within it
    fail          slower for certain (lower bound above 1, by Holm over all metrics) and not shown to be within it
    inconclusive  neither: more runs, or less noise
    refused       the runs have too few requests for this quantile

A candidate passes if every metric does, so a truly 5 % slower one passes at most once in twenty however many metrics
there are; it fails if one does, and Holm keeps a false alarm among all of them below once in twenty. The point
estimate alone decides nothing: a rule "ratio > 1.05" catches a change of exactly 5 % only half of the time.

Failures are a family of their own: a candidate that completes a smaller share of requests than the baseline never
passes. Attainment (share of offered requests that met the objectives) is compared where runs have objectives.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from ._runs import LATENCIES, QUANTILES, Run, unlike
from ._stats import CONFIDENCE, MOST_RUNS, Difference, difference, holm, least_requests, permuted, runs_needed

PASS, FAIL, INCONCLUSIVE, REFUSED = "pass", "fail", "inconclusive", "refused"
EXIT = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3}
#: How much slower a candidate may be, by quantile; of attainment, how much less.
MARGINS = {"p50": 0.05, "p99": 0.05, "p999": 0.20, "attainment": 0.01}
#: A difference in failed requests that needs no statistics: every run of the candidate fails so much more than any
#: of the baseline.
CLEARLY_MORE_FAILURES = 0.01
ALPHA = 1 - CONFIDENCE


@dataclass
class Row:
    """One metric. baseline, candidate: seconds (geometric mean over runs) or shares. change: ratio - 1, or difference.

    low, high: bounds of change, null if unknown; p: adjusted; noise: how much runs of a side differ (standard
    deviation, of logarithms for times); further: runs a side still needed, null if none or more than can be told.
    """

    workload: str
    metric: str
    quantile: str
    status: str
    why: str
    margin: float | None
    baseline: float | None = None
    candidate: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    noise: tuple[float, float] | None = None
    runs: tuple[int, int] = (0, 0)
    requests: int | None = None
    further: int | None = None

    @property
    def label(self) -> str:
        return " ".join(x for x in (self.workload, self.metric, self.quantile.upper()) if x)


@dataclass
class Result:
    """verdict: pass, fail or inconclusive. further: runs a side still needed, null if it can't be told or none."""

    verdict: str
    reason: str
    rows: list[Row]
    notes: list[str]
    used: dict[str, list[str]]
    unused: list[dict[str, str]]
    further: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    version: int = 1

    @property
    def exit_code(self) -> int:
        return EXIT[self.verdict]

    def plain(self) -> dict[str, Any]:
        """For JSON; infinite bounds are null."""
        return {**asdict(self), "exit_code": self.exit_code}


def compare(
    baseline: list[Run],
    candidate: list[Run],
    latencies: tuple[str, ...] = LATENCIES[:3],
    margins: dict[str, float] | None = None,
    workloads: tuple[str, ...] = (),
) -> Result:
    """workloads: those that have to be there (default: all that are on either side)."""
    margins = MARGINS | (margins or {})
    sides = (baseline, candidate)
    names = list(dict.fromkeys([*workloads, *(p for side in sides for r in side for p in r.groups)]))
    if workloads:
        names = [n for n in names if n in workloads]
    rows: list[Row] = []
    tested: list[tuple[Row, Difference, float]] = []
    for workload in names:
        for metric in latencies:
            for quantile, key in QUANTILES.items():
                rows.append(_latency(workload, metric, quantile, key, margins[key], sides, tested))
        rows += _attainment(workload, margins["attainment"], sides, tested)
    _judge(tested)
    rows += _failures(names, sides)
    unused = [
        {"side": side, "run": r.name, "why": r.unusable}
        for side, runs in zip(("baseline", "candidate"), sides, strict=True)
        for r in runs
        if r.unusable
    ]
    verdict, reason = _overall(rows, names)
    further = [r.further for r in rows if r.status == INCONCLUSIVE and r.further]
    beyond = any(r.status == INCONCLUSIVE and r.further is None for r in rows)
    return Result(
        verdict,
        reason,
        rows,
        [f"the sides were not asked the same: {x}" for x in unlike(baseline, candidate)],
        {
            side: [r.name for r in runs if not r.unusable]
            for side, runs in zip(("baseline", "candidate"), sides, strict=True)
        },
        unused,
        max(further) if verdict == INCONCLUSIVE and further and not beyond else None,
    )


def _latency(
    workload: str,
    metric: str,
    quantile: float,
    key: str,
    margin: float,
    sides: tuple[list[Run], list[Run]],
    tested: list[tuple[Row, Difference, float]],
) -> Row:
    """The row, still without its verdict where it can be tested; then it is in ``tested`` too."""
    usable = [
        [g for r in runs if not r.unusable and (g := r.groups.get(workload)) and g.counts.get(metric)]
        for runs in sides
    ]
    row = Row(workload, metric, key, REFUSED, "", margin, runs=(len(usable[0]), len(usable[1])))
    if not usable[0] and not usable[1]:
        return _without(row, sides, workload)
    row.requests = min(g.counts[metric] for side in usable for g in side)
    if row.requests < least_requests(quantile):
        row.why = (
            f"{row.requests} requests in the smallest run, {key.upper()} needs {least_requests(quantile):,}"
        )
        return row
    if not usable[0] or not usable[1]:
        row.status, row.further = INCONCLUSIVE, 2
        row.why = f"no usable run of the {'baseline' if not usable[0] else 'candidate'}"
        return row
    values = [[g.times[metric, quantile] for g in side] for side in usable]
    if min(min(v) for v in values) <= 0:
        row.why = "is 0 in a run: several tokens came at once; there is no ratio to 0"
        return row
    logs = [[math.log(v) for v in side] for side in values]
    found = difference(*logs)
    row.baseline, row.candidate = (math.exp(statistics.fmean(side)) for side in logs)
    row.change = math.expm1(found.value)
    row.low, row.high = _bound(found.low), _bound(found.high)
    tested.append((row, found, math.log1p(margin)))
    return row


def _without(row: Row, sides: tuple[list[Run], list[Run]], workload: str) -> Row:
    """No run measured this metric: an embedding has no tokens; but a workload that nobody played is missing."""
    if any(workload in r.groups and not r.unusable for runs in sides for r in runs):
        row.why = "nothing of this kind was measured"
    else:
        row.status, row.further, row.why = INCONCLUSIVE, 2, "no usable run of this workload"
    return row


def _bound(value: float) -> float | None:
    return math.expm1(value) if math.isfinite(value) else None


def _attainment(
    workload: str,
    margin: float,
    sides: tuple[list[Run], list[Run]],
    tested: list[tuple[Row, Difference, float]],
) -> list[Row]:
    values = [
        [
            g.attainment
            for r in runs
            if not r.unusable and (g := r.groups.get(workload)) and g.attainment is not None
        ]
        for runs in sides
    ]
    if not values[0] or not values[1]:
        return []
    found = difference([-v for v in values[0]], [-v for v in values[1]])
    row = Row(workload, "attainment", "", REFUSED, "", margin, runs=(len(values[0]), len(values[1])))
    row.baseline, row.candidate = (statistics.fmean(side) for side in values)
    row.change = -found.value
    row.low = -found.high if math.isfinite(found.high) else None
    row.high = -found.low if math.isfinite(found.low) else None
    tested.append((row, found, margin))
    return [row]


def _judge(tested: list[tuple[Row, Difference, float]]) -> None:
    adjusted = holm([found.p for _, found, _ in tested])
    for (row, found, margin), p in zip(tested, adjusted, strict=True):
        row.p = p
        if min(found.runs) >= 2:
            row.noise = found.spread
        word = "less" if row.metric == "attainment" else "slower"
        if found.high < margin:
            row.status, row.why = PASS, f"shown to be at most {_percent(row, found.high)} {word}"
        elif p < ALPHA:
            row.status, row.why = FAIL, f"{word} for certain, by {_percent(row, found.value)}"
        else:
            row.status = INCONCLUSIVE
            needed = runs_needed(found, margin, len(tested))
            row.further = None if needed is None else max(1, needed - min(found.runs))
            row.why = (
                f"more than {MOST_RUNS} runs a side would be needed: lower the noise, or play more requests a run"
                if row.further is None
                else "no spread without two runs a side"
                if min(found.runs) < 2
                else f"between {_percent(row, found.low)} and {_percent(row, found.high)} {word}"
            )


def _percent(row: Row, value: float) -> str:
    share = value if row.metric == "attainment" else math.expm1(value)
    return f"{100 * share:.1f} %"


def _failures(workloads: list[str], sides: tuple[list[Run], list[Run]]) -> list[Row]:
    """Share of offered requests that did not complete; runs whose every request failed count here."""
    rows, tests = [], []
    for workload in workloads:
        # A void run's client lost requests by itself.
        values = [
            [
                1 - g.completed / g.offered
                for r in runs
                if not r.unusable.startswith("void") and (g := r.groups.get(workload)) and g.offered
            ]
            for runs in sides
        ]
        if not values[0] or not values[1]:
            continue
        row = Row(workload, "not completed", "", PASS, "", None, runs=(len(values[0]), len(values[1])))
        row.baseline, row.candidate = (statistics.fmean(side) for side in values)
        row.change = row.candidate - row.baseline
        tests.append((row, values))
        rows.append(row)
    for (row, values), p in zip(tests, holm([permuted(*v) for _, v in tests]), strict=True):
        row.p = p
        apart = min(values[1]) - max(values[0])
        if (row.change or 0.0) <= 0:
            row.why = "the candidate fails no more often"
        elif p < ALPHA or (min(row.runs) > 1 and apart >= CLEARLY_MORE_FAILURES):
            row.status, row.why = FAIL, "the candidate fails more often, for certain"
        else:
            row.status, row.why = INCONCLUSIVE, "the candidate failed more often; it may be chance"
            row.further = max(1, 5 - min(row.runs))
    return rows


def _overall(rows: list[Row], workloads: list[str]) -> tuple[str, str]:
    failed = [r for r in rows if r.status == FAIL]
    if failed:
        worst = max(failed, key=lambda r: abs(r.change or 0.0))
        return FAIL, f"{len(failed)} of {_tested(rows)} metrics fail; worst: {worst.label}"
    if not workloads:
        return INCONCLUSIVE, "there is no run to compare"
    open_ = [r for r in rows if r.status == INCONCLUSIVE]
    if open_:
        return INCONCLUSIVE, f"{len(open_)} of {_tested(rows)} metrics can't be told yet"
    # P999 alone may be refused: the promise is about P50 and P99.
    short = [r for r in rows if r.status == REFUSED and r.quantile != "p999" and r.requests]
    if short:
        return INCONCLUSIVE, f"too few requests a run for {short[0].label}: {short[0].why}"
    return PASS, f"all {_tested(rows)} metrics are shown to be within their margins"


def _tested(rows: list[Row]) -> int:
    return sum(r.status != REFUSED for r in rows)
