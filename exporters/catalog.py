"""The one catalogue of ExaServe's own metrics: name, type, unit, labels, help and source of each.

Everything that exports a metric registers it from here; everything that asks for one (dashboards, rules,
runbooks, tests) is checked against here. It is a leaf: it imports nothing of ExaServe, so that every
folder may import it. The engine's own names (``vllm:…``) are not ours to declare: they are recorded from a
running engine in ``exporters/engine_catalog/``.

Conventions: ``exaserve_<subsystem>_<quantity>_<unit>``, base units (seconds, bytes, ratios 0-1), ``_total``
on counters only. Label values come from configuration or from the replica, never from what a client sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]

#: Upper bounds in seconds. Service levels are set on these edges, so that a ratio of buckets is exact.
LATENCY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    name: full name as Prometheus stores it (counters with ``_total``, histograms without a suffix).
    labels: label names in the order in which values are given.
    unit: base unit, or "" where the quantity has none (a count, a state).
    source: who measures it and where.
    buckets: upper bounds, for histograms only.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    source: str = ""
    buckets: tuple[float, ...] = ()


_REPLICA = ("replica", "model")

_ROUTER = (
    Metric(
        "exaserve_router_build_info",
        "gauge",
        "Constant 1; the version is a label.",
        ("version",),
        source="router",
    ),
    Metric(
        "exaserve_router_requests_total",
        "counter",
        "Requests answered, by route and HTTP status.",
        ("route", "code"),
        source="router: counted when the answer ends",
    ),
    Metric(
        "exaserve_router_request_duration_seconds",
        "histogram",
        "From the last byte of the request to the last byte of the answer.",
        ("route",),
        "seconds",
        "router",
        LATENCY_BUCKETS,
    ),
    Metric(
        "exaserve_router_time_to_first_token_seconds",
        "histogram",
        "From the last byte of a streaming request to the first byte of the answer's body.",
        ("route",),
        "seconds",
        "router: vLLM sends a stream's first byte with the first token",
        LATENCY_BUCKETS,
    ),
    Metric(
        "exaserve_router_rejected_requests_total",
        "counter",
        "Requests that the router itself refused, by reason.",
        ("reason",),
        source="router: reasons are listed in serving/router/errors.py",
    ),
    Metric(
        "exaserve_router_retries_total",
        "counter",
        "Requests sent once more because the first attempt failed before anything was sent to the client.",
        ("reason",),
        source="router: refused, reset, frozen, down; stale = a kept connection that the replica had closed,"
        " tried again on the same replica",
    ),
    Metric(
        "exaserve_router_client_disconnects_total",
        "counter",
        "Requests whose client went away before the answer ended; the replica's work was aborted.",
        (),
        source="router",
    ),
    Metric("exaserve_router_client_connections", "gauge", "Open client connections.", (), source="router"),
)

_REPLICA_VIEW = (
    Metric(
        "exaserve_replica_up",
        "gauge",
        "1 if the router may send new requests to the replica (ready or degraded), else 0.",
        _REPLICA,
        source="router: one-token inference probe, connection errors, silence",
    ),
    Metric(
        "exaserve_replica_state",
        "gauge",
        "1 for the state that the replica is in, 0 for the others.",
        ("replica", "model", "state"),
        source="router: starting, ready, degraded, down, frozen",
    ),
    Metric(
        "exaserve_replica_in_flight_requests",
        "gauge",
        "Requests that the router has open on the replica.",
        _REPLICA,
        source="router's own count",
    ),
    Metric(
        "exaserve_replica_requests_total",
        "counter",
        "Attempts sent to the replica, by how they ended.",
        ("replica", "model", "outcome"),
        source="router: ok, error (5xx), failed (nothing was sent yet), cut (mid-answer), aborted (client gone)",
    ),
    Metric(
        "exaserve_replica_probe_duration_seconds",
        "gauge",
        "Duration of the last one-token inference probe; absent until one has passed.",
        _REPLICA,
        "seconds",
        "router",
    ),
    Metric(
        "exaserve_replica_probes_total",
        "counter",
        "Probes by result.",
        ("replica", "model", "result"),
        source="router: ok, slow, busy, timeout, refused, error",
    ),
)

_ENGINE = (
    Metric(
        "exaserve_engine_up",
        "gauge",
        "1 if the engine's metrics page could be read at this scrape, else 0.",
        ("replica",),
        source="exporter, engine collector",
    ),
    Metric(
        "exaserve_engine_requests_running",
        "gauge",
        "Requests in the engine's batch.",
        _REPLICA,
        source="vllm:num_requests_running",
    ),
    Metric(
        "exaserve_engine_requests_waiting",
        "gauge",
        "Requests waiting in the engine.",
        _REPLICA,
        source="vllm:num_requests_waiting",
    ),
    Metric(
        "exaserve_engine_preemptions_total",
        "counter",
        "Requests put back because the KV cache ran out.",
        _REPLICA,
        source="vllm:num_preemptions_total",
    ),
    Metric(
        "exaserve_kv_blocks",
        "gauge",
        "KV cache blocks that the replica has in all.",
        _REPLICA,
        source="vllm:cache_config_info, label num_gpu_blocks (a label in the engine, so PromQL can't compute with it)",
    ),
    Metric(
        "exaserve_kv_blocks_used",
        "gauge",
        "KV cache blocks in use.",
        _REPLICA,
        source="vllm:kv_cache_usage_perc x blocks",
    ),
    Metric(
        "exaserve_kv_block_size_tokens",
        "gauge",
        "Tokens that one KV cache block holds.",
        _REPLICA,
        source="vllm:cache_config_info, label block_size",
    ),
)

_EXPORTER = (
    Metric(
        "exaserve_exporter_build_info",
        "gauge",
        "Constant 1; the version is a label.",
        ("version",),
        source="exporter",
    ),
    Metric(
        "exaserve_exporter_collector_success",
        "gauge",
        "1 if the collector did its work at this scrape, 0 if it broke.",
        ("collector",),
        source="exporter",
    ),
    Metric(
        "exaserve_exporter_collector_duration_seconds",
        "gauge",
        "How long the collector took at this scrape.",
        ("collector",),
        "seconds",
        "exporter",
    ),
    Metric(
        "exaserve_exporter_collector_last_success_timestamp_seconds",
        "gauge",
        "Unix time at which the collector last did its work; absent until it has.",
        ("collector",),
        "seconds",
        "exporter",
    ),
)

#: Every metric by name.
CATALOG: dict[str, Metric] = {m.name: m for m in (*_ROUTER, *_REPLICA_VIEW, *_ENGINE, *_EXPORTER)}


def metric(name: str) -> Metric:
    """The metric of that name. Raises KeyError that names the catalogue if there is none."""
    try:
        return CATALOG[name]
    except KeyError:
        raise KeyError(f"{name} is not in exporters/catalog.py; declare it there first") from None
