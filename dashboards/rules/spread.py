"""How the replicas of a model differ: medians, largest, and how many fall into each bucket.

Medians and the largest value are for boards that draw days, where a query over each replica would read millions of
samples. A heat map over 3,072 replicas is then as many series as buckets. Buckets are cumulative, by ``le``, like
those of a histogram, but they count replicas at this moment: they are gauges, so ask for them without a rate. Which
replica is in a bucket is not here; the tables and top N of the boards say so. Medians that thresholds are made of
are ``thresholds.py``.
"""

from __future__ import annotations

from dashboards.rulefile import Group, Record
from dashboards.signals import BUR, GENERATION_TOKENS, LONG, QUEUE_TIME, REPLICA_TTFT, RUNNING, SHORT

BUR_BUCKETS = "model:exaserve_kv_block_utilisation:replicas"
RUNNING_BUCKETS = "model:exaserve_requests_running:replicas"
TTFT_BUCKETS = "model:exaserve_ttft_seconds:replicas"

#: Median over a model's replicas, by cluster and model.
BUR_MEDIAN = "model:exaserve_kv_block_utilisation:median"
RUNNING_MEDIAN = "model:exaserve_requests_running:median"
GENERATION_MEDIAN = f"model:exaserve_generation_tokens:median{SHORT}"
QUEUE_MEDIAN = f"model:exaserve_queue_seconds:median{LONG}"

#: Largest over a model's replicas.
RUNNING_MAX = "model:exaserve_requests_running:max"
GENERATION_MAX = f"model:exaserve_generation_tokens:max{SHORT}"
QUEUE_MAX = f"model:exaserve_queue_seconds:max{LONG}"

_MEDIANS = {
    BUR_MEDIAN: BUR,
    RUNNING_MEDIAN: RUNNING,
    GENERATION_MEDIAN: GENERATION_TOKENS,
    QUEUE_MEDIAN: QUEUE_TIME,
}

_MAXIMA = {RUNNING_MAX: RUNNING, GENERATION_MAX: GENERATION_TOKENS, QUEUE_MAX: QUEUE_TIME}

#: Series -> (signal by replica, upper edges).
_SPREADS: dict[str, tuple[str, tuple[float, ...]]] = {
    BUR_BUCKETS: (BUR, (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1)),
    RUNNING_BUCKETS: (RUNNING, (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, float("inf"))),
    TTFT_BUCKETS: (REPLICA_TTFT, (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, float("inf"))),
}


def group() -> Group:
    medians = [Record(name, f"quantile by (cluster, model) (0.5, {of})") for name, of in _MEDIANS.items()]
    maxima = [Record(name, f"max by (cluster, model) ({of})") for name, of in _MAXIMA.items()]
    # bool: a bucket that holds no replica is 0, not absent, or the heat map would carry the one below into it.
    counts = [
        Record(name, f"sum by (cluster, model) ({of} <= bool {_promql(edge)})", {"le": _edge(edge)})
        for name, (of, edges) in _SPREADS.items()
        for edge in edges
    ]
    return Group("spread", (*medians, *maxima, *counts))


def _edge(edge: float) -> str:
    return "+Inf" if edge == float("inf") else f"{edge:g}"


def _promql(edge: float) -> str:
    return "Inf" if edge == float("inf") else f"{edge:g}"
