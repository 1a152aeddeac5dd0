"""Error rates and burn-rate alerts of the objectives in exaserve.yaml, for every cluster, model and pool.

Good and total are recorded as rates over 5 minutes; longer windows are sums of those samples, so three days cost
no more series than five minutes, a counter reset or a replica that comes or goes leaves no dent, and a ratio is
weighted by traffic. Alerts follow the multi-window, multi-burn-rate recipe (Google's SRE workbook, chapter 5): both
a long and a short window burn, so an alert comes fast and goes when the burning has stopped.

One failed request at night wakes nobody: the long window needs ``min_requests`` requests (of an objective about
pieces of a stream: streams), and at least MIN_BAD bad ones. A target that vanishes does not resolve an alert at
once: it keeps firing for KEEP. What is left of the budget is ``slo_budget.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from dashboards import signals
from dashboards.rulefile import Alert, Group, Record
from dashboards.signals import LONG
from dashboards.slo import Slo

#: Between two evaluations; three days are 8,640 samples of a series. Sums of samples times this are requests.
INTERVAL_SECONDS = 30
#: Bad requests in the long window below which nothing is said.
MIN_BAD = 5
KEEP = "15m"
#: An objective like 0.9 has no rate that is 14.4 times what it allows; from here on it is as bad as can be.
MOST = 0.9

#: By BY. What an objective is judged by: requests, or the gaps between pieces of a stream.
BAD = f"slo:exaserve_bad_requests:rate{LONG}"
TOTAL = f"slo:exaserve_requests:rate{LONG}"
#: By BY: the requests behind TOTAL, which has many gaps to a stream.
COUNTED = f"slo:exaserve_requests_counted:rate{LONG}"
OBJECTIVE = "slo:exaserve_objective:ratio"
#: Seconds, by slo and kind (ttft, inter_token, e2e); boards draw it beside the latency.
THRESHOLD = "slo:exaserve_latency_threshold:seconds"
#: By slo and long_window: the share of bad requests above which the alert of that window speaks.
LIMIT = "slo:exaserve_error:threshold"
BY = ("slo", *signals.BY_POOL)

#: (long window, short window, factor for a 30-day budget, severity, for).
BURNS = (
    ("1h", "5m", 14.4, "critical", "2m"),
    ("6h", "30m", 6.0, "critical", "15m"),
    ("1d", "2h", 3.0, "warning", "1h"),
    ("3d", "6h", 1.0, "warning", "3h"),
)
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
ALERT = "ExaServeErrorBudgetBurn"


def error(window: str) -> str:
    """Recorded share of bad requests of each objective over ``window``, one of WINDOWS."""
    return f"slo:exaserve_error:ratio_rate{window}"


def limit(slo: Slo, factor: float) -> float:
    """Share of bad requests that burns the budget ``factor`` times as fast as a 30-day budget allows.

    The factors spend a given part of a budget; another window has another budget. Never below what the objective
    itself allows, never above MOST.
    """
    return min(MOST, max(1.0, factor * slo.window / 30) * (1 - slo.objective))


def group(slos: Mapping[str, Slo]) -> Group:
    rules: list[Record | Alert] = []
    for name, slo in slos.items():
        rules += _counted(name, slo)
    for window in WINDOWS:
        # A rate over 5 minutes is what it is; the others are sums of such rates.
        bad, total = (_over(series, window) for series in (BAD, TOTAL))
        rules.append(Record(error(window), signals.ratio(bad, total)))
    for name, slo in slos.items():
        rules += [_alert(name, slo, *burn) for burn in BURNS]
    return Group("slo", tuple(rules), interval=f"{INTERVAL_SECONDS}s")


def _over(series: str, window: str) -> str:
    return series if window == LONG else f"sum_over_time({series}[{window}])"


def _counted(name: str, slo: Slo) -> list[Record]:
    chosen = f', pool="{slo.pool}"' if slo.pool else ""
    pool = f'{{pool="{slo.pool}"}}' if slo.pool else ""

    def observed(latency: str, le: str) -> str:
        by = signals.by(signals.BY_POOL)
        return f'sum by ({by}) ({signals.buckets(latency, LONG)}{{le=~"{le}"{chosen}}})'

    if slo.kind == "availability":
        total = counted = f"{signals.requests(LONG)}{pool}"
        bad = f"{signals.failed(LONG)}{pool}"
    else:
        total = observed(slo.kind, _INF)
        counted = observed("ttft", _INF) if slo.kind == "inter_token" else total
        # No such edge in a source's histogram: no ratio, rather than everything bad.
        bad = f"clamp_min({total} - {observed(slo.kind, edge(slo.threshold or 0))}, 0)"
    labels, seconds = {"slo": name}, slo.threshold
    return [
        Record(TOTAL, total, labels),
        Record(BAD, bad, labels),
        Record(COUNTED, counted, labels),
        Record(OBJECTIVE, f"vector({slo.objective:.10g})", labels),
        *(
            Record(LIMIT, f"vector({limit(slo, factor):.10g})", labels | {"long_window": long})
            for long, _, factor, _, _ in BURNS
        ),
        *(
            []
            if seconds is None
            else [Record(THRESHOLD, f"vector({seconds:g})", labels | {"kind": slo.kind})]
        ),
    ]


_INF = r"\\+Inf"


def edge(threshold: float) -> str:
    """Both spellings of a bucket's edge: text has le="1", OpenMetrics and Prometheus 3 have le="1.0"."""
    plain = f"{threshold:g}".replace(".", r"\\.")
    return plain if "." in plain else rf"{plain}(\\.0)?"


def _alert(name: str, slo: Slo, long: str, short: str, factor: float, severity: str, wait: str) -> Alert:
    chosen, most = f'{{slo="{name}"}}', f"{limit(slo, factor):.10g}"
    enough = f"sum_over_time({COUNTED}{chosen}[{long}]) * {INTERVAL_SECONDS} >= {slo.min_requests}"
    some = f"sum_over_time({BAD}{chosen}[{long}]) * {INTERVAL_SECONDS} >= {MIN_BAD}"
    pages = severity == "critical" and slo.page
    urgency = "Users feel it now" if pages else "It wakes nobody, but the budget won't last"
    return Alert(
        ALERT,
        f"""
        {error(long)}{chosen} > {most}
        and {error(short)}{chosen} > {most}
        and {enough}
        and {some}
        """,
        "critical" if pages else "warning",
        summary=f"{{{{ $labels.model }}}}{{{{ with $labels.pool }}}} (pool {{{{ . }}}}){{{{ end }}}}:"
        f" {{{{ $value | humanizePercentage }}}} of {_bad_things(slo)} in the last {long};"
        f" from {100 * limit(slo, factor):.6g} % on, objective {name} loses its budget too fast",
        description=f"""
            {urgency}: the objective is {slo.objective * 100:.10g} % good over {slo.window} days. The SLO board
            says how much budget is left, the Fleet board which model, pool or replica; the runbook goes on from there.
            """,
        wait=wait,
        keep_firing=KEEP,
        board="slo",
        variables={"model": "{{ $labels.model }}", "pool": "{{ $labels.pool }}"},
        labels={"slo": name, "long_window": long},
    )


def _bad_things(slo: Slo) -> str:
    within = f"took more than {slo.threshold:g} s" if slo.threshold else "failed"
    return {
        "availability": "requests failed",
        "ttft": f"first tokens {within}",
        "inter_token": f"gaps between tokens {within}",
        "e2e": f"requests {within}",
    }[slo.kind]
