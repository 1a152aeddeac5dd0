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
#: Between two pieces of a stream: a decode step takes from a millisecond to a few hundred.
GAP_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.05,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1.0,
    5.0,
)
#: Waiting before a replica is chosen; most requests don't wait at all and are in the first one.
QUEUE_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: What the router itself takes: tens of microseconds, until its event loop is late.
OVERHEAD_BUCKETS = (
    5e-05,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    5.0,
)


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
#: What a request of the router is counted under. Configuration names all values; "" = none, "other" = too many.
REQUEST_LABELS = ("route", "model", "pool", "intent", "tenant")

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
        "Requests answered, by HTTP status.",
        (*REQUEST_LABELS, "code"),
        source="router: counted when the answer ends",
    ),
    Metric(
        "exaserve_router_request_duration_seconds",
        "histogram",
        "From the last byte of the request to the last byte of the answer.",
        REQUEST_LABELS,
        "seconds",
        "router",
        LATENCY_BUCKETS,
    ),
    Metric(
        "exaserve_router_time_to_first_token_seconds",
        "histogram",
        "From the last byte of a streaming request to the first byte of the answer's body.",
        REQUEST_LABELS,
        "seconds",
        "router: vLLM sends a stream's first byte with the first token",
        LATENCY_BUCKETS,
    ),
    Metric(
        "exaserve_router_rejected_requests_total",
        "counter",
        "Requests that the router itself refused, by reason.",
        ("reason", "pool", "tenant"),
        source="router: reasons are listed in serving/router/errors.py",
    ),
    Metric(
        "exaserve_router_retries_total",
        "counter",
        "Requests sent once more because the first attempt failed before anything was sent to the client.",
        ("reason", "pool"),
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
    Metric(
        "exaserve_router_time_per_output_chunk_seconds",
        "histogram",
        "Mean gap between two pieces of a stream's body as they came from the replica; each stream counts once per"
        " gap. A piece is mostly one token.",
        REQUEST_LABELS,
        "seconds",
        "router: (last - first) / (pieces - 1), added pieces - 1 times when the stream ends",
        GAP_BUCKETS,
    ),
    Metric(
        "exaserve_router_queue_duration_seconds",
        "histogram",
        "Time that an admitted request waited for a replica that may take it.",
        REQUEST_LABELS,
        "seconds",
        "router",
        QUEUE_BUCKETS,
    ),
    Metric(
        "exaserve_router_overhead_seconds",
        "histogram",
        "The router's own share: from the last byte of the request to the first byte sent to the replica, less the"
        " time it waited in the queue.",
        ("route",),
        "seconds",
        "router",
        OVERHEAD_BUCKETS,
    ),
    Metric(
        "exaserve_router_retries_denied_total",
        "counter",
        "Failed attempts that were not tried again though the client had nothing yet, by what forbade it.",
        ("why",),
        source="router: budget, deadline, attempts",
    ),
    Metric(
        "exaserve_router_hedges_total",
        "counter",
        "Second attempts sent beside a slow first one, and which of the two answered first.",
        ("outcome",),
        source="router: sent, won (the second was first), lost",
    ),
    Metric(
        "exaserve_router_fallbacks_total",
        "counter",
        "Requests that another pool took because their own could not (pools.NAME.fallback).",
        ("pool", "to"),
        source="router",
    ),
    Metric(
        "exaserve_router_classifications_total",
        "counter",
        "Requests classified by intent, and which stage decided.",
        ("intent", "stage"),
        source="router: first, second, timeout (the first stands: the second was too slow), skipped (no text)",
    ),
    Metric(
        "exaserve_router_rate_limited_requests_total",
        "counter",
        "Requests refused by a limit of their tenant, by limit.",
        ("tenant", "limit"),
        source="router: requests, tokens, in_flight, max_tokens",
    ),
    Metric(
        "exaserve_router_tokens_total",
        "counter",
        "Tokens that engines reported for answered requests.",
        ("tenant", "model", "kind"),
        source="router: usage of the answer; kind is input or output",
    ),
    Metric(
        "exaserve_router_open_requests",
        "gauge",
        "Requests between their last byte and the last byte of their answer, waiting ones included.",
        ("pool",),
        source="router",
    ),
    Metric(
        "exaserve_router_waiting_requests",
        "gauge",
        "Requests that wait for a replica that may take them.",
        ("pool",),
        source="router",
    ),
    Metric(
        "exaserve_router_buffered_bytes",
        "gauge",
        "Bytes of request bodies that the router holds.",
        (),
        "bytes",
        "router",
    ),
    Metric(
        "exaserve_router_panic",
        "gauge",
        "1 while the pool has no healthy replica and requests go to any that listens, else 0.",
        ("pool",),
        source="router",
    ),
    Metric(
        "exaserve_router_event_loop_lag_seconds",
        "histogram",
        "How late a timer of a worker's event loop was; every stream of that worker was late by as much.",
        ("worker",),
        "seconds",
        "router: a timer each 200 ms",
        OVERHEAD_BUCKETS,
    ),
    Metric(
        "exaserve_router_workers",
        "gauge",
        "Data-plane processes that serve requests; router.workers are wanted.",
        (),
        source="router's master",
    ),
    Metric(
        "exaserve_router_worker_restarts_total",
        "counter",
        "Data-plane processes that were replaced, by why.",
        ("worker", "why"),
        source="router's master: died, frozen (no sign of life: killed)",
    ),
    Metric(
        "exaserve_router_worker_cpu_seconds_total",
        "counter",
        "CPU time, user and system, of a process of the router.",
        ("worker",),
        "seconds",
        "router: /proc; worker is 0, 1, … or master",
    ),
    Metric(
        "exaserve_router_worker_resident_bytes",
        "gauge",
        "Resident memory of a process of the router; what processes share counts in each.",
        ("worker",),
        "bytes",
        "router: /proc",
    ),
    Metric(
        "exaserve_router_worker_open_files",
        "gauge",
        "Open file descriptors of a process of the router: two a stream.",
        ("worker",),
        source="router: /proc",
    ),
    Metric(
        "exaserve_router_config_last_reload_successful",
        "gauge",
        "1 if the configuration that was read last is the one that runs, 0 if it was refused and the one before runs.",
        (),
        source="router's master",
    ),
    Metric(
        "exaserve_router_config_last_reload_success_timestamp_seconds",
        "gauge",
        "Unix time at which the running configuration was taken.",
        (),
        "seconds",
        "router's master",
    ),
    Metric(
        "exaserve_router_audit_written_total",
        "counter",
        "Audit records written to the files.",
        (),
        source="router: serving/audit/writer.py",
    ),
    Metric(
        "exaserve_router_audit_dropped_total",
        "counter",
        "Audit records that are missing in the files: the disk took none and the queue was full.",
        (),
        source="router: serving/audit/writer.py",
    ),
    Metric(
        "exaserve_router_audit_queue",
        "gauge",
        "Audit records that wait to be written; router.audit.queue is the most for each worker.",
        (),
        source="router: serving/audit/writer.py",
    ),
    Metric(
        "exaserve_router_spans_exported_total",
        "counter",
        "Spans that the endpoint of router.tracing took.",
        (),
        source="router: serving/router/span_export.py",
    ),
    Metric(
        "exaserve_router_spans_dropped_total",
        "counter",
        "Spans of sampled requests that were lost: the queue was full, or the endpoint did not take them.",
        (),
        source="router: serving/router/tracing.py, serving/router/span_export.py",
    ),
    Metric(
        "exaserve_router_tls_certificate_expiry_timestamp_seconds",
        "gauge",
        "Unix time at which the first certificate in router.tls.certificate expires; absent without TLS.",
        (),
        "seconds",
        "router: serving/router/tls.py",
    ),
    Metric(
        "exaserve_router_tls_handshake_failures_total",
        "counter",
        "Connections to the TLS port that came to nothing, by reason; absent without TLS.",
        ("reason",),
        source="router: serving/router/tls_listener.py",
    ),
    Metric(
        "exaserve_router_tunnels_total",
        "counter",
        "Upgraded (WebSocket) connections that have ended, by outcome.",
        ("outcome",),
        source="router: serving/router/websocket.py; ok, error, failed, cut, aborted",
    ),
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
        source="router: starting, ready, degraded, ejected, draining, down, frozen",
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
    Metric(
        "exaserve_replica_ejections_total",
        "counter",
        "Times the replica was taken out for what its answers showed.",
        _REPLICA,
        source="router: passive health (router.ejection)",
    ),
    Metric(
        "exaserve_replica_weight",
        "gauge",
        "Its share of traffic against other replicas; grows to its full value after a restart or an ejection.",
        _REPLICA,
        source="router: slow start (router.ejection.slow_start), weight in the replicas file",
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
