"""How far a replica has to be spread, and how many of them there have to be: the ladder L0-L5.

====  ==========================================================  ==========================================
L0    several replicas share a GPU                                 cheapest; a replica takes at most half of one
L1    one GPU a replica                                            no communication
L2    tensor parallel: a replica on several GPUs of one node       two all-reduces a layer, over NVLink
L3    tensor parallel in nodes, pipeline parallel across them      activations alone go over the network
L4    replicas on several nodes behind one router                  for the rate, not for the memory
L5    several clusters, a router each                              more nodes than one cluster has, or its loss
====  ==========================================================  ==========================================

A step is climbed only where the one below is not enough; the reason is kept. L0-L3 are about one replica's memory,
L4-L5 about how many replicas there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .memory import Account, Asked, Gpu, account
from .number import GIB, PlanError
from .shape import Shape

NAMES = {
    "L0": "several replicas share a GPU",
    "L1": "one GPU a replica",
    "L2": "tensor parallel in a node",
    "L3": "tensor parallel in nodes, pipeline parallel across them",
    "L4": "replicas on several nodes behind one router",
    "L5": "several clusters",
}


@dataclass(frozen=True)
class Step:
    """enough: null where it can't be told (no rate was given)."""

    level: str
    enough: bool | None
    reason: str

    @property
    def name(self) -> str:
        return NAMES[self.level]


@dataclass(frozen=True)
class Replica:
    """The lowest step on which a replica has room, or what was asked for. per_gpu: replicas that share one (L0)."""

    level: str
    account: Account
    per_gpu: int
    per_node: float
    steps: tuple[Step, ...]


def replica(
    shape: Shape, on: Gpu, asked: Asked, per_node: int, tensor: int | None = None, pipeline: int | None = None
) -> Replica:
    """Raises PlanError where no way of dividing the model gives it room, or the one asked for does not exist."""
    if tensor is not None or pipeline is not None:
        return _given(shape, on, asked, per_node, tensor or 1, pipeline or 1)
    one = account(shape, on, asked)
    if asked.kv_memory is not None:
        # Blocks of a stated memory: the rest of the GPU is not in question.
        most = one.most.value if one.most else asked.requests
        reason = f"room for {most:,.0f} requests at once in --kv-memory, {asked.requests:,} asked for"
        return Replica("L1", one, 1, float(per_node), (Step("L1", one.fits, reason),))
    share = int(on.memory // one.needed.value)
    steps = [
        Step("L0", share >= 2, f"a replica needs {_gib(one.needed.value)} of {_gib(on.memory)}: {share} fit")
    ]
    if share >= 2:
        return Replica("L0", one, share, float(share * per_node), tuple(steps))
    steps.append(Step("L1", one.fits, _room(one, on)))
    if one.fits:
        return Replica("L1", one, 1, float(per_node), tuple(steps))
    best = one
    for tensor_size in range(2, per_node + 1):
        try:
            best = account(shape, on, asked, tensor_size)
        except PlanError:
            continue  # this many don't divide the heads
        if per_node % tensor_size == 0 and best.fits:
            steps.append(Step("L2", True, f"{tensor_size} GPUs: {_room(best, on)}{_over_pcie(on)}"))
            return Replica("L2", best, 0, float(per_node // tensor_size), tuple(steps))
    steps.append(
        Step(
            "L2",
            False,
            f"{best.tensor} of {per_node} GPUs of a node: {_room(best, on)}"
            if best.tensor > 1
            else f"no number of GPUs up to {per_node} divides the model's {shape.heads} heads",
        )
    )
    for stages in range(2, len(shape.layers) + 1):
        spread = account(shape, on, asked, best.tensor, stages)
        if spread.fits:
            steps.append(Step("L3", True, f"{best.tensor} GPUs × {stages} stages: {_room(spread, on)}"))
            return Replica("L3", spread, 0, per_node / spread.gpus, tuple(steps))
    raise PlanError(
        f"{asked.requests} requests of {asked.tokens:,} tokens have no room on any number of {on.name}: "
        "lower --concurrency or --context"
    )


def _given(shape: Shape, on: Gpu, asked: Asked, per_node: int, tensor: int, pipeline: int) -> Replica:
    if tensor > per_node:
        raise PlanError(
            f"--tp {tensor}: a node has {per_node} GPUs (--gpu-count-per-node); divide further by --pp"
        )
    found = account(shape, on, asked, tensor, pipeline)
    level = "L3" if pipeline > 1 else "L2" if tensor > 1 else "L1"
    step = Step(level, found.fits, f"asked for: {tensor} GPUs × {pipeline} stages: {_room(found, on)}")
    return Replica(level, found, 1 if level == "L1" else 0, per_node / found.gpus, (step,))


def fleet(found: Replica, replicas: int | None, nodes_there: int | None) -> tuple[Step, ...]:
    """The steps about how many. replicas: for the rate, null if none was given."""
    if replicas is None:
        return (Step("L4", None, "not asked: give --run and --rate"),)
    nodes = nodes_for(found, replicas)
    steps = [
        Step(
            "L4",
            nodes_there is None or nodes <= nodes_there,
            f"{replicas} replicas, {_number(found.per_node)} a node: {nodes} node{'s' if nodes > 1 else ''}"
            + ("; one node is enough, a second one survives its loss" if nodes == 1 else ""),
        )
    ]
    if nodes_there is not None and nodes > nodes_there:
        clusters = math.ceil(nodes / nodes_there)
        steps.append(Step("L5", True, f"{nodes} nodes, a cluster has {nodes_there}: {clusters} clusters"))
    return tuple(steps)


def nodes_for(found: Replica, replicas: int) -> int:
    """Whole nodes; a replica that spans nodes has its own."""
    if found.per_node >= 1:
        return math.ceil(replicas / int(found.per_node))
    return replicas * math.ceil(1 / found.per_node)


def _room(found: Account, on: Gpu) -> str:
    if found.most is not None and found.fits:
        return f"room for {found.most.value:,.0f} requests at once"
    where = f"{_gib(found.needed.value)} needed a GPU, {_gib(on.memory)} there"
    return where if found.fits else f"not enough: {where}"


def _gib(value: float) -> str:
    return f"{value / GIB:,.1f} GiB"


def _over_pcie(on: Gpu) -> str:
    return "" if on.link else "; these GPUs have no NVLink: all-reduces go over PCIe and cost latency"


def _number(value: float) -> str:
    return f"{value:g}" if value >= 1 else f"1/{1 / value:g}"
