"""Signals out of vLLM's own metrics, for every source: under its names or Ray's, by instance or by name of replica.

Engines say nothing of pools, refusals of a router, or connections that broke; what they can't know is absent.
"""

from __future__ import annotations

from dataclasses import dataclass

from dashboards import signals
from dashboards.rulefile import Record
from dashboards.signals import LONG, SHORT, UP, Source


@dataclass(frozen=True, slots=True)
class EngineNames:
    """prefix: of every metric. replica: the label that tells replicas apart.

    bare_counters: some versions write counters without ``_total``, some with, some both.
    """

    prefix: str
    replica: str
    bare_counters: bool = False

    def name(self, metric: str) -> str:
        return f"{self.prefix}{metric}"

    def by_replica(self, expr: str, *more: str) -> str:
        """``expr`` (an instant vector per engine) summed by cluster, model, replica under those names."""
        summed = f"sum by (cluster, model_name, {', '.join((self.replica, *more))}) ({expr})"
        return self._renamed(summed, replica=True)

    def by_model(self, expr: str, *more: str) -> str:
        """The same by cluster and model."""
        return self._renamed(
            f"sum by ({', '.join(('cluster', 'model_name', *more))}) ({expr})", replica=False
        )

    def _renamed(self, expr: str, replica: bool) -> str:
        # The outer sum drops the old names of the labels.
        renamed = f'label_replace({expr}, "model", "$1", "model_name", "(.*)")'
        if replica and self.replica != "replica":
            renamed = f'label_replace({renamed}, "replica", "$1", "{self.replica}", "(.*)")'
        return renamed

    def rate(self, counter: str, window: str, matchers: str = "") -> str:
        """Rate of a counter, or of a part of a histogram; where both spellings are there, of one of them."""
        rate = f"rate({self.name(counter)}{matchers}[{window}])"
        if self.bare_counters and counter.endswith("_total"):
            return f"({rate} or rate({self.name(counter.removesuffix('_total'))}{matchers}[{window}]))"
        return rate


_LEVELS = {
    signals.RUNNING: "num_requests_running",
    signals.WAITING: "num_requests_waiting",
}
_RATES = {
    signals.PREEMPTIONS: "num_preemptions_total",
    signals.PROMPT_TOKENS: "prompt_tokens_total",
    signals.GENERATION_TOKENS: "generation_tokens_total",
}
_MEANS = {
    signals.REPLICA_TTFT: "time_to_first_token_seconds",
    signals.REPLICA_INTER_TOKEN: "inter_token_latency_seconds",
    signals.QUEUE_TIME: "request_queue_time_seconds",
}
_LATENCIES = {
    "ttft": "time_to_first_token_seconds",
    "inter_token": "inter_token_latency_seconds",
    "e2e": "e2e_request_latency_seconds",
}
#: vLLM 0.32's buckets of them, in seconds.
EDGES = {
    "ttft": (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
        *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
    ),
    "inter_token": (
        *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
        *(20.0, 40.0, 80.0),
    ),
    "e2e": (
        *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
        *(240.0, 480.0, 960.0, 1920.0, 7680.0),
    ),
}


def engines(names: EngineNames) -> tuple[Record, ...]:
    """What is in each engine now, what it did, and its own view of latencies."""
    levels = [
        Record(record, _left(names.by_replica(names.name(metric)))) for record, metric in _LEVELS.items()
    ]
    rates = [
        Record(record, _left(names.by_replica(names.rate(metric, SHORT))))
        for record, metric in _RATES.items()
    ]
    # Tokens that the engine's own cache lacked are looked up in the external one, where there is one.
    found, external = (_rate(names, f"{kind}prefix_cache_hits_total") for kind in ("", "external_"))
    hits = signals.ratio(f"{found} + ({external} or {found} * 0)", _rate(names, "prefix_cache_queries_total"))
    return (*levels, *rates, Record(signals.PREFIX_HITS, hits), *latencies(names))


def latencies(names: EngineNames) -> tuple[Record, ...]:
    """Each engine's own view of its latencies, and over how many requests."""
    means = [
        Record(record, signals.ratio(_rate(names, f"{metric}_sum"), _rate(names, f"{metric}_count")))
        for record, metric in _MEANS.items()
    ]
    return (*means, Record(signals.FIRST_TOKENS, _rate(names, f"{_MEANS[signals.REPLICA_TTFT]}_count")))


def _rate(names: EngineNames, counter: str) -> str:
    return _left(names.by_replica(names.rate(counter, LONG)))


def users(names: EngineNames) -> tuple[Record, ...]:
    """What users see, as far as engines know: finished requests without aborts, errors, latencies."""
    records = []
    for window in (SHORT, LONG):
        done = names.rate("request_success_total", window, '{finished_reason!="abort"}')
        errors = names.rate("request_success_total", window, '{finished_reason="error"}')
        refused = names.rate("admission_rejections_total", window)
        total = _pool(names.by_model(done))
        # An engine that has refused or failed nothing yet has no such series; beside traffic that means 0.
        lost = f"({_pool(names.by_model(refused))} or {total} * 0)"
        bad = f"({_pool(names.by_model(errors))} or {total} * 0)"
        records += [
            Record(signals.requests(window), f"{total} + {lost}"),
            Record(signals.failed(window), f"{bad} + {lost}"),
        ]
        records += [
            Record(
                signals.buckets(latency, window),
                _pool(names.by_model(names.rate(f"{metric}_bucket", window), "le"), "le"),
            )
            for latency, metric in _LATENCIES.items()
        ]
    return tuple(records)


KV_UNIT = "%.2f replicas' KV cache"


def kv_shares(names: EngineNames) -> tuple[Record, ...]:
    """KV cache in replicas' worth, where only its used share is known: each replica has one "block"."""
    share = _left(
        names.by_replica(
            f"max by (cluster, model_name, {names.replica}) ({names.name('kv_cache_usage_perc')})"
        )
    )
    return (
        Record(signals.BUR, share),
        Record(signals.KV_USED, f"sum by (cluster, model) ({signals.BUR})"),
        Record(signals.KV_TOTAL, f"count by (cluster, model) ({signals.BUR})"),
        Record(signals.KV_LARGEST, f"group by (cluster, model) ({signals.BUR})"),
        Record(signals.KV_REPLICAS, f"count by (cluster, model) ({signals.BUR})"),
    )


def _left(expr: str) -> str:
    return f"sum by (cluster, model, replica) ({expr})"


def _pool(expr: str, *more: str) -> str:
    return f"sum by ({', '.join(('cluster', 'model', 'pool', *more))}) ({expr})"


def source(name: str, title: str, names: EngineNames, up: str) -> Source:
    """A kind of fleet of which only its engines tell. up: PromQL for UP."""
    return Source(
        name=name,
        title=title,
        has_router=False,
        users=lambda: users(names),
        engines=lambda: engines(names),
        kv=lambda: kv_shares(names),
        edges=EDGES,
        kv_unit=KV_UNIT,
        up=Record(UP, up),
        model_values=UP,
        replica_values=f'{UP}{{model=~"$model"}}',
    )
