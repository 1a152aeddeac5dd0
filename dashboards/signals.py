"""The signals: the recorded series that boards, SLOs and thresholds share, whatever a fleet is made of.

A source (``dashboards/sources/``, one a file) records them from what it has; everything above asks for these names
only, so that one board serves ExaServe's fleets, plain vLLM servers and vLLM under Ray. What a source can't know is
absent there, never 0. All rates are per second.

Labels: ``cluster`` is a label of the targets where several clusters share a Prometheus; without it, it is empty.
``pool`` is the router's; plain engines have none. ``replica`` is the replica's name, or its address where it has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dashboards.rulefile import Record
from dashboards.slo import Edges

#: What series about users are told apart by.
BY_POOL = ("cluster", "model", "pool")
#: What series about one replica are told apart by.
BY_REPLICA = ("cluster", "model", "replica")

#: Windows of the recorded rates: the short one is drawn, the long one is what thresholds and SLOs ask for.
SHORT, LONG = "1m", "5m"

#: Latencies of users: name of the signal -> what it is. Their buckets are recorded, so that quantiles over any
#: set of pools are taken from summed buckets.
LATENCIES = {
    "ttft": "from the whole request to the first token of a stream",
    "inter_token": "between two pieces of a stream",
    "e2e": "from the whole request to the end of its answer",
}


def requests(window: str) -> str:
    """Requests that ended, by BY_POOL. Clients that went away are left out where the source can tell."""
    return f"pool:exaserve_requests:rate{window}"


def failed(window: str) -> str:
    """Requests that failed for the service's fault, by BY_POOL; 0 beside traffic without failures."""
    return f"pool:exaserve_requests_failed:rate{window}"


def buckets(latency: str, window: str) -> str:
    """Cumulative buckets of a latency of LATENCIES, by BY_POOL and le."""
    return f"pool:exaserve_{latency}_seconds_bucket:rate{window}"


#: Per replica, by BY_REPLICA.
RUNNING = "replica:exaserve_requests_running:sum"
WAITING = "replica:exaserve_requests_waiting:sum"
PREEMPTIONS = f"replica:exaserve_preemptions:rate{SHORT}"
PROMPT_TOKENS = f"replica:exaserve_prompt_tokens:rate{SHORT}"
GENERATION_TOKENS = f"replica:exaserve_generation_tokens:rate{SHORT}"
#: Mean over 5 minutes as the engine measured it; a mean because outliers are compared, not promised.
REPLICA_TTFT = f"replica:exaserve_ttft_seconds:mean{LONG}"
REPLICA_INTER_TOKEN = f"replica:exaserve_inter_token_seconds:mean{LONG}"
#: Requests that got their first token: over how many the means are.
FIRST_TOKENS = f"replica:exaserve_first_tokens:rate{LONG}"
QUEUE_TIME = f"replica:exaserve_queue_seconds:mean{LONG}"
PREFIX_HITS = f"replica:exaserve_prefix_hits:ratio_rate{LONG}"
#: Used / all KV blocks (BUR).
BUR = "replica:exaserve_kv_block_utilisation:ratio"
#: By model: blocks in use, all blocks, those of its largest replica, replicas that were read. A source that knows
#: only shares counts in replicas: each has one "block".
KV_USED = "model:exaserve_kv_blocks_used:sum"
KV_TOTAL = "model:exaserve_kv_blocks:sum"
KV_LARGEST = "model:exaserve_kv_blocks:max"
KV_REPLICAS = "model:exaserve_kv_replicas:count"
#: 1 or 0: whether the replica serves, by the best witness that the source has.
UP = "replica:exaserve_replica_up:effective"


@dataclass(frozen=True, slots=True)
class Source:
    """One kind of fleet, and the recording rules that make the signals of what it has.

    title: for people. has_router: ExaServe's router stands in front, so there are pools, tenants, intents,
    admission and the states of replicas; boards about those are built for no other source.
    users, engines, kv: rules for the series by pool, by replica, and of the KV cache.
    edges: of its latencies' buckets in seconds; thresholds of objectives must be among them.
    kv_unit: what KV_USED and its like count, as ``printf`` writes it: "%.0f KV blocks".
    up: rule for UP; None where ``rules/replica.py`` makes it from the router's word.
    model_values, replica_values: selectors that the variables `model` and `replica` take their values from.
    """

    name: str
    title: str
    has_router: bool
    users: Callable[[], tuple[Record, ...]]
    engines: Callable[[], tuple[Record, ...]]
    kv: Callable[[], tuple[Record, ...]]
    edges: Edges
    kv_unit: str
    up: Record | None
    model_values: str
    replica_values: str


def by(labels: tuple[str, ...], *more: str) -> str:
    """``sum by (…)``'s list."""
    return ", ".join((*labels, *more))


def ratio(part: str, whole: str) -> str:
    """part / whole, absent where there is no whole."""
    return f"({part}) / ({whole} > 0)"


def quantile(
    q: float, latency: str, window: str = LONG, over: tuple[str, ...] = ("cluster",), chosen: str = ""
) -> str:
    """PromQL: a quantile of a latency over summed buckets; absent without observations.

    over: labels that are left. chosen: matchers without braces.
    """
    rates = f"{buckets(latency, window)}{{{chosen}}}" if chosen else buckets(latency, window)
    everything = f"{buckets(latency, window)}{{{', '.join(filter(None, (chosen, _INF)))}}}"
    return (
        f"histogram_quantile({q:g}, sum by ({by(over, 'le')}) ({rates}))"
        f" and on ({by(over)}) (sum by ({by(over)}) ({everything}) > 0)"
    )


_INF = 'le="+Inf"'
