"""What users see: requests, the share that failed, latencies, by pool (cluster, model, pool) and over the fleet.

What counts as a request and as a failure is the source's to say (``dashboards/sources/``). Without traffic there is
no ratio and no quantile: they are absent, not NaN and not 0. Quantiles are of summed buckets, never means of
quantiles.
"""

from __future__ import annotations

from dashboards import signals
from dashboards.rulefile import Group, Record
from dashboards.signals import BY_POOL, LATENCIES, LONG, SHORT, Source

REQUESTS = f"fleet:exaserve_requests:rate{LONG}"
ERRORS = f"fleet:exaserve_request_errors:ratio_rate{LONG}"
POOL_ERRORS = f"pool:exaserve_request_errors:ratio_rate{LONG}"
QUANTILES = (0.5, 0.95, 0.99)


def fleet_quantile(latency: str, q: float) -> str:
    """Recorded quantile over the whole fleet, by cluster."""
    return f"fleet:exaserve_{latency}_seconds:p{q * 100:g}_{LONG}"


def pool_quantile(latency: str, q: float, window: str = LONG) -> str:
    """Recorded quantile by pool. Over the short window for lines, over the long one for thresholds."""
    return f"pool:exaserve_{latency}_seconds:p{q * 100:g}_{window}"


TTFT_P99 = fleet_quantile("ttft", 0.99)


def group(source: Source) -> Group:
    requests, failed = signals.requests(LONG), signals.failed(LONG)
    fleet = [
        Record(fleet_quantile(latency, q), signals.quantile(q, latency))
        for latency in LATENCIES
        for q in QUANTILES
    ]
    pools = [
        Record(pool_quantile(latency, q, window), signals.quantile(q, latency, window, BY_POOL))
        for latency in LATENCIES
        for window in (SHORT, LONG)
        for q in QUANTILES
    ]
    return Group(
        "users",
        (
            *source.users(),
            Record(REQUESTS, f"sum by (cluster) ({requests})"),
            Record(ERRORS, signals.ratio(f"sum by (cluster) ({failed})", f"sum by (cluster) ({requests})")),
            Record(POOL_ERRORS, signals.ratio(failed, requests)),
            *fleet,
            *pools,
        ),
    )
