"""A plan as text, and as JSON with every formula."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from .ladder import NAMES, Replica, Step, nodes_for
from .measured import Measured
from .memory import SAFETY, UTILIZATION, Asked, Gpu
from .number import GIB, Number, count, told
from .shape import Shape
from .weights import parameters

_NO_WEIGHTS = ("activations", "CUDA graphs", "framework", "NCCL")


@dataclass(frozen=True)
class Plan:
    """All that was found out. fleet: steps L4 and L5."""

    shape: Shape
    gpu: Gpu
    asked: Asked
    gpus_per_node: int
    kv_precision: str
    replica: Replica
    fleet: tuple[Step, ...]
    measured: Measured | None
    notes: tuple[str, ...]


def decode_bound(plan: Plan) -> Number | None:
    """Output tokens a second that a replica can't exceed at this length: a step reads weights and cache once.

    None on CPU, for encoders, and for pipelines (their stages overlap).
    """
    account, gpu = plan.replica.account, plan.gpu
    if plan.shape.kind == "encoder" or not gpu.bandwidth or account.pipeline > 1:
        return None
    # Of a mixture a step reads at most the experts that its tokens go to.
    experts = min(1.0, plan.asked.requests * plan.shape.expert_share)
    weights = sum(
        p.value * (experts if p.name == "experts" else 1.0)
        for p in account.parts
        if p.name not in _NO_WEIGHTS and (p.name != "embeddings" or plan.shape.tied)
    )
    read = weights + account.read
    return Number(
        "output tokens a second, at most",
        plan.asked.requests * gpu.bandwidth / read,
        f"{plan.asked.requests} requests ÷ ({read / GIB:.2f} GiB weights and full cache ÷ {gpu.bandwidth / 1e9:,.0f} GB/s)",
    )


def plain(plan: Plan) -> dict[str, Any]:
    """For JSON. Bytes are bytes; every number comes with its formula."""
    account = plan.replica.account
    bound = decode_bound(plan)
    rate = plan.measured
    replicas = int(rate.replicas.value) if rate else None
    return {
        "version": 1,
        "model": {
            "name": plan.shape.name,
            "architecture": plan.shape.architecture,
            "parameters": parameters(plan.shape),
            "unknown_keys": list(plan.shape.unknown),
        },
        "gpu": asdict(plan.gpu) | {"a_node": plan.gpus_per_node},
        "asked": asdict(plan.asked) | {"kv_precision_used": plan.kv_precision},
        "memory": {
            "parts": [asdict(p) for p in account.parts],
            "kv_token": asdict(account.token),
            "kv_request": asdict(account.request),
            "kv_wanted": asdict(account.wanted),
            "needed": asdict(account.needed),
            "room": asdict(account.room),
            "blocks": asdict(account.blocks) if account.blocks else None,
            "most_requests": asdict(account.most) if account.most else None,
            "fits": account.fits,
        },
        "replica": {
            "level": plan.replica.level,
            "name": NAMES[plan.replica.level],
            "tensor_parallel": account.tensor,
            "pipeline_parallel": account.pipeline,
            "per_gpu": plan.replica.per_gpu or None,
            "per_node": plan.replica.per_node,
            "output_tokens_per_second_bound": asdict(bound) if bound else None,
        },
        "ladder": [asdict(s) | {"name": s.name} for s in (*plan.replica.steps, *plan.fleet)],
        "fleet": {
            "per_replica": asdict(rate.per_replica),
            "replicas": asdict(rate.replicas),
            "nodes": nodes_for(plan.replica, replicas),
            "requests_of_the_run": rate.tokens,
            "notes": list(rate.notes),
        }
        if rate and replicas is not None
        else None,
        "notes": list(plan.notes),
    }


def show(plan: Plan, console: Console, explain: bool) -> None:
    account, shape, asked = plan.replica.account, plan.shape, plan.asked
    console.print(
        f"{shape.name} ({shape.architecture}, {parameters(shape):,} parameters) on {plan.gpu.name}"
        + (f" with {told(plan.gpu.memory)}" if plan.gpu.memory else ""),
        style="bold",
        markup=False,
    )
    console.print(
        f"{asked.requests} requests at once of {asked.tokens:,} tokens (prompt and answer), cache in {plan.kv_precision}\n",
        markup=False,
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    if explain:
        table.add_column(style="dim")

    def line(number: Number, shown: str, style: str = "") -> None:
        table.add_row(number.name, shown, *([number.how] if explain else []), style=style)

    where = "" if account.gpus == 1 else f" (each of {account.gpus} GPUs, the fullest)"
    table.add_row(f"memory{where}", "", *([""] if explain else []), style="bold")
    for part in account.parts:
        line(part, told(part.value))
    line(account.token, told(account.token.value))
    line(account.request, told(account.request.value))
    line(account.wanted, told(account.wanted.value))
    line(
        Number(f"needed, × {SAFETY}", account.needed.value, account.needed.how),
        told(account.needed.value),
        "bold" if account.fits else "bold red",
    )
    line(account.room, told(account.room.value))
    for number in (account.blocks, account.most, decode_bound(plan)):
        if number is not None:
            line(number, count(round(number.value)))
    console.print(table)
    if plan.gpu.memory and asked.kv_memory is None and not plan.gpu.cpu:
        console.print(
            f"vLLM itself takes {UTILIZATION:g} of the GPU: give it --kv-cache-memory-bytes {int(account.room.value)}, "
            "or it plans without the reserve",
            markup=False,
            style="dim",
        )
    _ladder(plan, console)
    if plan.measured is not None:
        _fleet(plan, plan.measured, console, explain)
    for note in plan.notes:
        console.print(f"note: {note}", markup=False, style="yellow")


def _ladder(plan: Plan, console: Console) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for step in (*plan.replica.steps, *plan.fleet):
        word = {True: "enough", False: "no", None: "–"}[step.enough]
        table.add_row(step.level, step.name, word, step.reason)
    console.print()
    console.print(table)
    if plan.gpu.cpu:
        return
    per_node = plan.replica.per_node
    account = plan.replica.account
    on_node = (
        f"{int(per_node)} replica{'s' if int(per_node) > 1 else ''} a node"
        if per_node >= 1
        else f"{math.ceil(1 / per_node)} nodes a replica"
    )
    per_gpu = f"{plan.replica.per_gpu} replicas a GPU, " if plan.replica.per_gpu > 1 else ""
    console.print(
        f"{plan.replica.level}: {account.gpus} GPU{'s' if account.gpus > 1 else ''} a replica "
        f"(--tensor-parallel-size {account.tensor} --pipeline-parallel-size {account.pipeline}), {per_gpu}{on_node} of "
        f"{plan.gpus_per_node} GPUs",
        markup=False,
        style="bold",
    )


def _fleet(plan: Plan, found: Measured, console: Console, explain: bool) -> None:
    replicas = int(found.replicas.value)
    console.print(
        f"\n{replicas} replicas on {nodes_for(plan.replica, replicas)} nodes (a replica did {found.per_replica.value:.4g}/s; "
        f"{found.tokens})",
        markup=False,
        style="bold",
    )
    if explain:
        for number in (found.per_replica, found.replicas):
            console.print(f"{number.name}: {number.how}", markup=False, style="dim")
    for note in found.notes:
        console.print(f"- {note}", markup=False)
