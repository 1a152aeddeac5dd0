"""The one catalogue of ExaServe's own metrics: name, type, unit, labels, help and source of each.

One file a subsystem, each with its ``METRICS``. Everything that exports a metric registers it from here;
everything that asks for one (dashboards, rules, runbooks, tests) is checked against here. It is a leaf: it imports
nothing of ExaServe, so that every folder may import it. The engine's own names (``vllm:…``) are not ours to
declare: they are recorded from a running engine in ``exporters/engine_catalog/``.

Conventions: ``exaserve_<subsystem>_<quantity>_<unit>``, base units (seconds, bytes, ratios 0-1), ``_total``
on counters only. Label values come from configuration or from the replica, never from what a client sent.
"""

from __future__ import annotations

from exporters.catalog import (
    chaos,
    engine,
    exporter,
    gpu,
    infiniband,
    intent_drift,
    loadtest,
    network,
    node,
    numa,
    process,
    replica,
    router,
    storage,
)
from exporters.catalog.metric import Metric
from exporters.catalog.router import GAP_BUCKETS, LATENCY_BUCKETS, OVERHEAD_BUCKETS, QUEUE_BUCKETS

__all__ = [
    "CATALOG",
    "GAP_BUCKETS",
    "LATENCY_BUCKETS",
    "OVERHEAD_BUCKETS",
    "QUEUE_BUCKETS",
    "Metric",
    "metric",
]

#: Every metric by name, subsystem by subsystem.
CATALOG: dict[str, Metric] = {
    m.name: m
    for subsystem in (
        router,
        replica,
        engine,
        exporter,
        infiniband,
        intent_drift,
        storage,
        network,
        node,
        numa,
        gpu,
        process,
        loadtest,
        chaos,
    )
    for m in subsystem.METRICS
}


def metric(name: str) -> Metric:
    """The metric of that name. Raises KeyError that names the catalogue if there is none."""
    try:
        return CATALOG[name]
    except KeyError:
        raise KeyError(f"{name} is not in exporters/catalog/; declare it there first") from None
