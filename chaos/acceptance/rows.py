"""The rows of the matrix, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chaos.acceptance import fleet_rows, region_rows, traffic_rows
from chaos.acceptance.bench import Bench
from chaos.acceptance.result import Result


@dataclass(frozen=True)
class Row:
    """expected: in one sentence. act: does it and fills in checks; None where the product has no such part yet.

    runbook: page of runbooks/. missing: what is not built.
    """

    key: str
    title: str
    expected: str
    act: Callable[[Bench, Result], None] | None
    runbook: str
    missing: str = ""


ROWS = (
    Row(
        "replica-terminated",
        "Replica terminated",
        "No request is lost that had not begun to stream; users feel it for a second at most; it is started again.",
        fleet_rows.terminated,
        "ExaServeReplicaDown",
    ),
    Row(
        "node-lost",
        "Node lost",
        "No request is lost that had not begun to stream; within 3 s nothing more is sent there; it comes back whole.",
        fleet_rows.node_lost,
        "ExaServeNodeDown",
    ),
    Row(
        "weights-cache-empty",
        "Weights cache empty",
        "A replica that starts without its cache fetches its weights and serves; no user loses a request.",
        fleet_rows.cache_empty,
        "StartDownloadStuck",
    ),
    Row(
        "upstream-429",
        "Upstream 429",
        "Requests that one replica refuses are answered by another; no client sees the 429.",
        fleet_rows.upstream_429,
        "ExaServeEngineErrors",
    ),
    Row(
        "over-long-request",
        "Over-long request",
        "A clear 400 that names the field and the limit, at once; no replica is harmed, other users feel nothing.",
        traffic_rows.overlong,
        "ExaServeEngineErrors",
    ),
    Row(
        "peak",
        "1.5 x peak",
        "Of the admitted requests at least 99 % are inside the SLO; the others are refused at once, with Retry-After.",
        traffic_rows.peak,
        "ExaServeCapacityRefused",
    ),
    Row(
        "canary-regression",
        "Canary regression",
        "A worse version that gets a share of the traffic is noticed and taken back by itself.",
        None,
        "EngineUpgradeRegression",
        "There is no rollout yet, so nothing sends a canary a share of the traffic or takes it back. `exaserve gate` "
        "compares two engine versions before one is taken into service.",
    ),
    Row(
        "region-switch",
        "Region switch",
        "One region is gone: its router's fallback, or its clients' second address, brings requests to the other one.",
        region_rows.switch,
        "ExaServeFallbackInUse",
    ),
)
