"""What a model's replicas do together, by cluster and model; boards draw a day or a week of it at any fleet size.

Sums of the signals by replica (``dashboards/signals.py``), which count each replica once. What GPUs of the fleet do
together, where the exporter reads them, is by cluster. A replica that can't be read adds nothing, and a model
without any is absent.
"""

from __future__ import annotations

from dashboards.rulefile import Group, Record
from dashboards.signals import (
    GENERATION_TOKENS,
    KV_USED,
    PREEMPTIONS,
    PROMPT_TOKENS,
    RUNNING,
    SHORT,
    UP,
    WAITING,
    Source,
)

#: By cluster and model: how fast the KV cache fills, blocks per second over the last hour.
KV_SLOPE = "model:exaserve_kv_blocks_used:deriv1h"
#: By cluster and model.
MODEL_RUNNING = "model:exaserve_requests_running:sum"
MODEL_WAITING = "model:exaserve_requests_waiting:sum"
MODEL_PREEMPTIONS = f"model:exaserve_preemptions:rate{SHORT}"
MODEL_PROMPT_TOKENS = f"model:exaserve_prompt_tokens:rate{SHORT}"
MODEL_GENERATION_TOKENS = f"model:exaserve_generation_tokens:rate{SHORT}"
#: Tokens whose keys and values are held: used KV blocks, by the tokens that a block holds. Only where the exporter
#: counts blocks.
ACTIVE_TOKENS = "model:exaserve_kv_tokens_used:sum"
#: By cluster, model, state: replicas in each state. A source without a router knows up and down.
STATES = "model:exaserve_replicas:count"

#: By cluster: GPUs that answer, mean share of time in which a kernel ran, watts.
GPUS = "cluster:exaserve_gpus:count"
GPU_BUSY = "cluster:exaserve_gpu_utilisation:mean"
GPU_POWER = "cluster:exaserve_gpu_power_watts:sum"

_SUMS = {
    MODEL_RUNNING: RUNNING,
    MODEL_WAITING: WAITING,
    MODEL_PREEMPTIONS: PREEMPTIONS,
    MODEL_PROMPT_TOKENS: PROMPT_TOKENS,
    MODEL_GENERATION_TOKENS: GENERATION_TOKENS,
}
#: A GPU that two exporters read counts once.
_GPU = "cluster, uuid"


def group(source: Source) -> Group:
    sums = [Record(name, f"sum by (cluster, model) ({signal})") for name, signal in _SUMS.items()]
    slope = Record(KV_SLOPE, f"deriv({KV_USED}[1h])")
    return Group("totals", (*sums, slope, *(_by_router() if source.has_router else _by_target()), *_gpus()))


def _by_router() -> tuple[Record, ...]:
    state = "max by (cluster, model, replica, state) (exaserve_replica_state)"
    blocks, size = (
        f"max by (cluster, model, replica) ({metric})"
        for metric in ("exaserve_kv_blocks_used", "exaserve_kv_block_size_tokens")
    )
    return (
        # Two routers that disagree about a replica show it in two states.
        Record(STATES, f"sum by (cluster, model, state) ({state})"),
        Record(ACTIVE_TOKENS, f"sum by (cluster, model) ({blocks} * {size})"),
    )


def _by_target() -> tuple[Record, ...]:
    return (
        Record(STATES, f"sum by (cluster, model) ({UP})", {"state": "up"}),
        Record(STATES, f"sum by (cluster, model) ({UP} == bool 0)", {"state": "down"}),
    )


def _gpus() -> tuple[Record, ...]:
    def one(metric: str) -> str:
        return f"max by ({_GPU}) ({metric})"

    return (
        Record(GPUS, f"sum by (cluster) ({one('exaserve_gpu_up')})"),
        Record(GPU_BUSY, f"avg by (cluster) ({one('exaserve_gpu_utilisation_ratio')})"),
        Record(GPU_POWER, f"sum by (cluster) ({one('exaserve_gpu_power_watts')})"),
    )
