"""What the router knows about each replica."""

from __future__ import annotations

from exporters.catalog.metric import REPLICA_LABELS, Metric

METRICS = (
    Metric(
        "exaserve_replica_up",
        "gauge",
        "1 if the router may send new requests to the replica (ready or degraded), else 0.",
        REPLICA_LABELS,
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
        REPLICA_LABELS,
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
        REPLICA_LABELS,
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
        REPLICA_LABELS,
        source="router: passive health (router.ejection)",
    ),
    Metric(
        "exaserve_replica_weight",
        "gauge",
        "Its share of traffic against other replicas; grows to its full value after a restart or an ejection.",
        REPLICA_LABELS,
        source="router: slow start (router.ejection.slow_start), weight in the replicas file",
    ),
)
