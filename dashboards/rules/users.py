"""What users see, over the whole fleet: requests, the share that failed, time to first token, duration.

An error is an answer of 5xx, or an answer that broke off after it had begun (its code was 200 by then). Refusals
of bad requests (4xx) and clients that went away are not the service's errors. Without traffic there is no ratio
and no quantile: they are absent, not NaN and not 0.
"""

from __future__ import annotations

from dashboards.rulefile import Group, Record

#: Rate window of these series. Boards that follow their zoom ask for the raw counters instead.
WINDOW = "5m"

ERRORS = "fleet:exaserve_request_errors:ratio_rate5m"
REQUESTS = "fleet:exaserve_router_requests:rate5m"
TTFT_P99 = "fleet:exaserve_router_time_to_first_token_seconds:p99_5m"


def error_ratio(window: str) -> str:
    """PromQL: share of requests that failed, absent without traffic."""
    total = f"sum(rate(exaserve_router_requests_total[{window}]))"
    failed = f'sum(rate(exaserve_router_requests_total{{code=~"5.."}}[{window}]))'
    cut = f'sum(rate(exaserve_replica_requests_total{{outcome="cut"}}[{window}]))'
    # A counter that nothing has raised yet has no series; beside a total that is there it means 0.
    return f"(({failed} or {total} * 0) + ({cut} or {total} * 0)) / ({total} > 0)"


def quantile(q: float, histogram: str, window: str) -> str:
    """PromQL: a quantile over the summed buckets of all routers, absent without observations."""
    return (
        f"histogram_quantile({q:g}, sum by (le) (rate({histogram}_bucket[{window}])))"
        f" and on () (sum(rate({histogram}_count[{window}])) > 0)"
    )


def group() -> Group:
    ttft, whole = "exaserve_router_time_to_first_token_seconds", "exaserve_router_request_duration_seconds"
    quantiles = [
        Record(f"fleet:{histogram}:p{q * 100:g}_{WINDOW}", quantile(q, histogram, WINDOW))
        for histogram in (ttft, whole)
        for q in (0.5, 0.95, 0.99)
    ]
    return Group(
        "users",
        (
            Record(REQUESTS, f"sum(rate(exaserve_router_requests_total[{WINDOW}]))"),
            Record(ERRORS, error_ratio(WINDOW)),
            *quantiles,
        ),
    )
