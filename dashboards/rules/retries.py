"""What hides failures from users, and how near it is to hiding them no more: retries and fallback pools."""

from __future__ import annotations

from dashboards.rulefile import Alert, Group, Record

DENIED = "router:exaserve_router_retries_denied:increase5m"
FALLBACKS = "pool:exaserve_router_fallbacks:rate5m"

BUDGET = "ExaServeRetryBudgetSpent"
FALLBACK = "ExaServeFallbackInUse"

#: Events in 5 minutes below which nobody is told.
_LEAST = 10


def group() -> Group:
    return Group(
        "retries",
        (
            Record(
                DENIED,
                'sum by (cluster) (increase(exaserve_router_retries_denied_total{why="budget"}[5m]))',
            ),
            Record(FALLBACKS, "sum by (cluster, pool, to) (rate(exaserve_router_fallbacks_total[5m]))"),
            Alert(
                BUDGET,
                f"{DENIED} >= {_LEAST}",
                "warning",
                summary="{{ $value | humanize }} failed attempts in 5 minutes were not tried again: the retry budget is spent",
                description="""
                    So many attempts fail that retries would be a load of their own; users get the failures now. Find
                    the replicas whose attempts fail; don't raise the budget.
                    """,
                wait="1m",
                keep_firing="5m",
                board="router",
            ),
            Alert(
                FALLBACK,
                f"{FALLBACKS} * 300 >= {_LEAST}",
                "warning",
                summary='Pool {{ $labels.pool }} sends {{ printf "%.0f" $value }} requests in 5 minutes to'
                " {{ $labels.to }}: it can't take them itself",
                description="""
                    Users are served, by replicas that are meant for others. See why the pool's own can't: out of
                    rotation, full, or too few.
                    """,
                wait="5m",
                keep_firing="5m",
                board="router",
                variables={"pool": "{{ $labels.pool }}"},
            ),
        ),
    )
