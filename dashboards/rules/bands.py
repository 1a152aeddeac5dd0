"""What a pool usually does: bands around its last day, and the alert ExaServeLatencyUnusual.

The middle is the median of a day, the width K times its spread (quartiles, so an incident of some hours changes
neither), at least half the median and at least ``least``; the upper end stops at a ceiling that is too much on any
day. From an hour of history on; a pool without traffic has no latency and so no history. Bands warn and never page:
what was promised to users is for ``slo.py`` to judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dashboards import signals
from dashboards.rulefile import Alert, Group, Record
from dashboards.rules.users import POOL_ERRORS, pool_quantile
from dashboards.signals import LONG

#: Between two evaluations, and between two samples of the day that are looked at.
INTERVAL = "1m"
DAY = f"[1d:{INTERVAL}]"
#: Standard deviations of the day to each side.
K = 4
#: Quartiles of a normal distribution are this many standard deviations apart.
_QUARTILES = 1.349
#: Minutes of history before there is a band.
HISTORY = 60
#: Requests in 5 minutes below which latency is not judged.
ENOUGH = 20

ALERT = "ExaServeLatencyUnusual"


@dataclass(frozen=True, slots=True)
class Usual:
    """series: by pool. quantity: part of the band's names. least: half a band's least width. ceiling: of its top."""

    series: str
    quantity: str
    least: float
    ceiling: float | None


USUAL: Mapping[str, Usual] = {
    "ttft": Usual(pool_quantile("ttft", 0.95), "ttft_seconds", 0.25, 10),
    "inter_token": Usual(pool_quantile("inter_token", 0.95), "inter_token_seconds", 0.025, 1),
    "errors": Usual(POOL_ERRORS, "request_errors", 0.01, 0.05),
    "requests": Usual(signals.requests(LONG), "requests", 1, None),
}


def band(signal: str, edge: Literal["lower", "median", "upper"]) -> str:
    """Recorded edge of the band of a signal of USUAL, by cluster, model, pool."""
    return f"pool:exaserve_{USUAL[signal].quantity}:band_{edge}"


def group() -> Group:
    rules: list[Record | Alert] = [record for name in USUAL for record in _band(name)]
    return Group(
        "bands",
        (
            *rules,
            _unusual("ttft", "first token of 95 % of requests within"),
            _unusual("inter_token", "95 % of gaps between tokens within"),
        ),
        interval=INTERVAL,
    )


def _band(name: str) -> tuple[Record, ...]:
    usual = USUAL[name]
    middle = band(name, "median")
    quartiles = [f"quantile_over_time({q}, {usual.series}{DAY})" for q in (0.75, 0.25)]
    spread = f"{K / _QUARTILES:.4g} * ({' - '.join(quartiles)})"
    least = f"clamp_min(0.5 * {middle}, {usual.least:g})"
    width = f"({spread} > {least} or {least})"
    upper = f"{middle} + {width}"
    return (
        Record(
            middle,
            f"""
            quantile_over_time(0.5, {usual.series}{DAY})
            and
            count_over_time({usual.series}{DAY}) >= {HISTORY}
            """,
        ),
        Record(
            band(name, "upper"), upper if usual.ceiling is None else f"clamp_max({upper}, {usual.ceiling:g})"
        ),
        Record(band(name, "lower"), f"clamp_min({middle} - {width}, 0)"),
    )


def _unusual(name: str, what: str) -> Alert:
    upper = band(name, "upper")
    query = f"printf `{upper}{{cluster=%q, model=%q, pool=%q}}` $labels.cluster $labels.model $labels.pool"
    return Alert(
        ALERT,
        f"{USUAL[name].series} > {upper} and {signals.requests(LONG)} * 300 >= {ENOUGH}",
        "warning",
        summary="{{ $labels.model }}{{ with $labels.pool }} (pool {{ . }}){{ end }}:"
        f" {what} {{{{ $value | humanizeDuration }}}}, usual is up to"
        f" {{{{ with {query} | query }}}}{{{{ . | first | value | humanizeDuration }}}}{{{{ end }}}}",
        description="""
            Slower than on the day before, though what was promised may still hold. See on the Fleet board whether
            load has grown (Capacity board), one replica is slow (ExaServeReplicaSlow), or prompts have become
            longer; and what was changed when it began.
            """,
        wait="10m",
        keep_firing="10m",
        variables={"model": "{{ $labels.model }}", "pool": "{{ $labels.pool }}"},
        labels={"signal": name},
    )
