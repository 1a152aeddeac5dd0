"""ExaServe's own fleets: the router says what users see, the exporter what is in each engine, engines their latencies."""

from __future__ import annotations

from dashboards import signals
from dashboards.rulefile import Record
from dashboards.signals import LONG, SHORT, Source
from dashboards.slo import ROUTER_EDGES
from dashboards.sources import _engine

#: Replicas' own pages, scraped through the router's service discovery, which names them.
ENGINES = _engine.EngineNames("vllm:", "replica")

_POOL = "cluster, model, pool"
_REPLICA = "cluster, model, replica"

_LATENCIES = {
    "ttft": "exaserve_router_time_to_first_token_seconds",
    "inter_token": "exaserve_router_time_per_output_chunk_seconds",
    "e2e": "exaserve_router_request_duration_seconds",
}


def users() -> tuple[Record, ...]:
    """An error is an answer of 5xx (refusals for want of capacity too), or one that broke off after it had begun.

    Bad requests and refusals of a tenant's limits (4xx) are not the service's errors; clients that went away (499)
    are no requests of it.
    """
    records = []
    for window in (SHORT, LONG):
        total = f'sum by ({_POOL}) (rate(exaserve_router_requests_total{{code!="499"}}[{window}]))'
        errors = f'sum by ({_POOL}) (rate(exaserve_router_requests_total{{code=~"5.."}}[{window}]))'
        cut = f"sum by ({_POOL}) (rate(exaserve_router_cut_answers_total[{window}]))"
        # A counter that nothing has raised yet has no series; beside a total that is there it means 0.
        records += [
            Record(signals.requests(window), total),
            Record(signals.failed(window), f"({errors} or {total} * 0) + ({cut} or {total} * 0)"),
        ]
        records += [
            Record(
                signals.buckets(latency, window), f"sum by ({_POOL}, le) (rate({metric}_bucket[{window}]))"
            )
            for latency, metric in _LATENCIES.items()
        ]
    return tuple(records)


def engines() -> tuple[Record, ...]:
    """A replica that two exporters read counts once; a data-parallel engine's ranks are added up."""

    def level(metric: str) -> str:
        return f"max by ({_REPLICA}) ({metric})"

    def rate(counter: str, window: str, *more: str) -> str:
        kept = ", ".join((_REPLICA, "rank", *more))
        return f"sum by ({_REPLICA}) (max by ({kept}) (rate({counter}[{window}])))"

    # What the engine's own cache lacked is looked up in the external one; hits of both count, the question once.
    hits = "exaserve_kv_prefix_hit_tokens_total"
    queried = 'exaserve_kv_prefix_queried_tokens_total{cache="local"}'
    return (
        Record(signals.RUNNING, level("exaserve_engine_requests_running")),
        Record(signals.WAITING, level("exaserve_engine_requests_waiting")),
        Record(signals.PREEMPTIONS, rate("exaserve_engine_preemptions_total", SHORT)),
        Record(signals.PROMPT_TOKENS, rate("exaserve_engine_prompt_tokens_total", SHORT)),
        Record(signals.GENERATION_TOKENS, rate("exaserve_engine_generation_tokens_total", SHORT)),
        Record(signals.PREFIX_HITS, signals.ratio(rate(hits, LONG, "cache"), rate(queried, LONG))),
        *_engine.latencies(ENGINES),
    )


def kv() -> tuple[Record, ...]:
    """Replicas whose engine can't be read count neither as used nor as room."""
    blocks = f"max by ({_REPLICA}) (exaserve_kv_blocks and on ({_REPLICA}) exaserve_kv_blocks_used)"
    used = f"max by ({_REPLICA}) (exaserve_kv_blocks_used)"
    return (
        Record(signals.BUR, f"{used} / (max by ({_REPLICA}) (exaserve_kv_blocks) > 0)"),
        Record(signals.KV_USED, f"sum by (cluster, model) ({used})"),
        Record(signals.KV_TOTAL, f"sum by (cluster, model) ({blocks})"),
        Record(signals.KV_LARGEST, f"max by (cluster, model) ({blocks})"),
        Record(signals.KV_REPLICAS, f"count by (cluster, model) ({blocks})"),
    )


SOURCE = Source(
    name="exaserve",
    title="ExaServe fleets",
    has_router=True,
    users=users,
    engines=engines,
    kv=kv,
    edges=ROUTER_EDGES,
    kv_unit="%.0f KV blocks",
    up=None,
    # Both sources, so that the boards also work where there is only the exporter, or only the router.
    model_values='{__name__=~"exaserve_replica_up|exaserve_kv_blocks"}',
    replica_values='{__name__=~"exaserve_replica_up|exaserve_kv_blocks", model=~"$model"}',
)
