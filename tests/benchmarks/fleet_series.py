"""What a Prometheus has scraped of a large fleet: the series of routers, exporters and engines, for ``boards.py``.

Engines say what a captured page of vLLM 0.32 says, routers and exporters what the catalogue declares. The fleet:
nodes of eight replicas, GPUs and InfiniBand ports, three models with two pools each, two routers that know every
replica, twenty tenants. All is well in it but for a few replicas in other states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path

from exporters.catalog import CATALOG, Metric
from tests.benchmarks.remote_write import Series, labels

PAGE = Path(__file__).parents[1] / "fixtures" / "vllm-0.32.0-metrics.txt"
PER_NODE = 8
ROUTERS = ("router-0:8001", "router-1:8001")
MODELS = ("llama-8b", "llama-70b", "qwen-32b")
STATES = ("starting", "ready", "degraded", "draining", "ejected", "frozen", "down")
#: Pieces of catalogue names that a router says; loadtest and chaos say theirs themselves, the exporter the rest.
_ROUTER = ("exaserve_router_", "exaserve_replica_")
_NOBODY = ("exaserve_loadtest_", "exaserve_chaos_", "node_infiniband_")
_HW = ("local_ack_timeout_err", "packet_seq_err", "out_of_buffer", "rnr_nak_retry_err", "rp_cnp_handled",
       "req_transport_retries_exceeded", "np_cnp_sent", "np_ecn_marked_roce_packets")  # fmt: skip

#: Values of labels that tell series of one target apart; a label that is not here has the value "x".
_VALUES: dict[str, tuple[str, ...]] = {
    "route": ("/v1/chat/completions",),
    "intent": ("chat", "code", "rag", "batch"),
    "tenant": tuple(f"tenant-{i}" for i in range(20)),
    "code": ("200", "400", "503"),
    "kind": ("input", "output"),
    "why": ("budget",),
    "outcome": ("ok", "failed"),
    "worker": tuple(str(i) for i in range(4)),
    "result": ("ok", "failed"),
    "cache": ("local", "external"),
    "device": tuple(f"mlx5_{i}" for i in range(8)),
    "port": ("1",),
    "counter": _HW,
    "gpu": tuple(str(i) for i in range(PER_NODE)),
    "node": ("0", "1"),
    "to": ("0", "1"),
    "mount": ("models", "scratch"),
    "peer": ("next", "router"),
    "interface": ("ib0", "eth0"),
    "verdict": ("right", "wrong", "unknown"),
    "sensor": ("gpu", "memory"),
    "limit": ("slowdown", "shutdown"),
    "collector": ("engine", "gpu", "infiniband", "network", "node", "numa", "storage", "leak"),
    "via": ("nixl",),
    "direction": ("in", "out"),
}
#: Levels that mean something to a rule; other gauges are 1.
_GAUGES = {
    "exaserve_kv_blocks": 20_000.0,
    "exaserve_kv_blocks_used": 12_000.0,
    "exaserve_kv_block_size_tokens": 16.0,
    "exaserve_engine_requests_running": 24.0,
    "exaserve_engine_requests_waiting": 2.0,
    "exaserve_replica_in_flight_requests": 26.0,
}
#: Counters of trouble stand still.
_TROUBLE = re.compile(r"error|fail|discard|drop|retr|recover|downed|denied|reject|eject|preempt|restart|refus|cut|disconnect|replay|xid|limited")  # fmt: skip


def model_of(number: int) -> str:
    return MODELS[number % len(MODELS)]


def fleet(replicas: int, wanted: Callable[[str], bool]) -> Iterator[Series]:
    """Every series of ``wanted`` metrics (by the names that samples have, ``…_bucket`` too)."""
    engine = [line for line in _page() if wanted(line[0])]
    for i in range(replicas):
        yield from _engine(i, engine)
    said = [(m, m.name.startswith(_ROUTER)) for m in CATALOG.values() if not m.name.startswith(_NOBODY)]
    for router in ROUTERS:
        target = {"job": "exaserve-router", "instance": router}
        yield _one("up", target, False, 1)
        for metric in (m for m, by_router in said if by_router):
            yield from _catalogue(metric, target, range(replicas), wanted)
    for node in range(-(-replicas // PER_NODE)):
        target = {"job": "exaserve-exporter", "instance": f"node-{node}:9420"}
        yield _one("up", target, False, 1)
        here = range(node * PER_NODE, min(replicas, (node + 1) * PER_NODE))
        for metric in (m for m, by_router in said if not by_router):
            yield from _catalogue(metric, target, here, wanted)


def _one(name: str, pairs: Mapping[str, str], counter: bool, value: float, variant: int = -1) -> Series:
    return Series(labels(name, pairs), counter, value, variant, variant >= 0)


def _page() -> list[tuple[str, dict[str, str], bool, float]]:
    found, kind = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("# TYPE "):
            kind = line.split()[3]
        elif line[:1] != "#":
            name, _, value = line.rpartition(" ")
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', name))
            rising = kind in ("counter", "histogram") and not name.partition("{")[0].endswith("_created")
            found.append((name.partition("{")[0], pairs, rising, float(value)))
    return found


def _engine(number: int, page: list[tuple[str, dict[str, str], bool, float]]) -> Iterator[Series]:
    target = {
        "job": "exaserve-replica",
        "instance": f"node-{number // PER_NODE}:{8000 + number % PER_NODE}",
        "replica": f"replica-{number}",
    }
    yield _one("up", target, False, 1)
    for name, pairs, rising, value in page:
        more = {"model_name": model_of(number)} if "model_name" in pairs else {}
        # What it had done by the capture it does in ten minutes. Sums differ from replica to replica, counts
        # don't, and so their means do.
        yield _one(
            name,
            pairs | more | target,
            rising,
            value / 600 if rising else value,
            number if name.endswith("_sum") else -1,
        )


def _catalogue(
    metric: Metric, target: Mapping[str, str], replicas: range, wanted: Callable[[str], bool]
) -> Iterator[Series]:
    suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
    if not any(wanted(metric.name + suffix) for suffix in suffixes):
        return
    names = [label for label in metric.labels if label not in ("replica", "model", "pool", "uuid")]
    choices = [STATES if n == "state" else _VALUES.get(n, ("x",)) for n in names]
    about = replicas if "replica" in metric.labels else _models(metric)
    for number in about:
        for values in product(*choices):
            pairs = dict(zip(names, values, strict=True)) | dict(target)
            if "model" in metric.labels:
                pairs["model"] = model_of(number)
            if "pool" in metric.labels:
                pairs["pool"] = f"{model_of(number)}-{number // len(MODELS)}"
            if "uuid" in metric.labels:
                pairs["uuid"] = f"GPU-{target['instance']}-{pairs.get('gpu', '0')}"
            if "replica" in metric.labels:
                pairs["replica"] = f"replica-{number}"
                if "gpu" in pairs and pairs["gpu"] != str(number % PER_NODE):
                    continue
            yield from _samples(metric, pairs, number, wanted)


def _models(metric: Metric) -> range:
    """Numbers that stand for a pool, a model, or nothing."""
    return range(
        2 * len(MODELS) if "pool" in metric.labels else len(MODELS) if "model" in metric.labels else 1
    )


def _samples(
    metric: Metric, pairs: Mapping[str, str], number: int, wanted: Callable[[str], bool]
) -> Iterator[Series]:
    if metric.kind == "histogram":
        edges = [*(format(edge, "g") for edge in metric.buckets), "+Inf"]
        for i, edge in enumerate(edges):
            if wanted(f"{metric.name}_bucket"):
                share = min(1.0, (i + 1) / (0.8 * len(edges)))
                yield _one(f"{metric.name}_bucket", {**pairs, "le": edge}, True, 0.5 * share)
        for suffix, rate in (("_sum", 0.5), ("_count", 0.5)):
            if wanted(metric.name + suffix):
                yield _one(metric.name + suffix, pairs, True, rate)
        return
    if not wanted(metric.name):
        return
    if metric.kind == "counter":
        still = (
            _TROUBLE.search(metric.name)
            or pairs.get("code") in ("400", "503")
            or pairs.get("outcome") == "failed"
        )
        yield _one(metric.name, pairs, True, 0.0 if still else 1.0, number)
    elif "state" in pairs:
        yield _one(metric.name, pairs, False, float(pairs["state"] == _state(number)))
    elif metric.name == "exaserve_replica_up":
        yield _one(metric.name, pairs, False, float(_state(number) in ("ready", "degraded")))
    else:
        spread = number if metric.name in _GAUGES else -1
        yield _one(metric.name, pairs, False, _GAUGES.get(metric.name, 1.0), spread)


def _state(number: int) -> str:
    """One in 400 is down, one in 401 slow to its probe."""
    return "down" if number % 400 == 399 else "degraded" if number % 401 == 400 else "ready"
