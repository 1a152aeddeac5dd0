"""The memory account of one GPU: what is there whatever is asked, and what the requests' cache takes.

    needed = 1.3 × (weights + activations + CUDA graphs + framework + NCCL + KV cache of the requests)

Weights and cache are counted; activations follow from the sizes of one step's tensors; graphs, framework and NCCL are
assumptions, said so in their formulas. The factor covers what they miss: fragmentation, peaks, the driver's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from . import cache, weights
from .number import GIB, Number, PlanError, size
from .shape import Shape

SAFETY = 1.3
#: vLLM's default --gpu-memory-utilization (0.32): what the engine itself will take.
UTILIZATION = 0.92
#: Assumed, in bytes; vLLM's log says what it was ("Graph capturing finished … took").
GRAPHS, FRAMEWORK, NCCL = 1.0 * GIB, 1.0 * GIB, 0.5 * GIB
#: A vLLM 0.32 CPU replica of 1.8 GB less its weights and cache; it has neither graphs nor NCCL.
CPU_FRAMEWORK = 1.2 * GIB


@dataclass(frozen=True)
class Gpu:
    """memory in bytes; bandwidth, link in bytes a second; block: tokens of a KV block."""

    name: str
    memory: float
    bandwidth: float
    link: float
    block: int

    @property
    def cpu(self) -> bool:
        return self.name == "CPU"


def gpus() -> dict[str, Gpu]:
    read: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "gpus.yaml").read_text())
    return {
        name: Gpu(name, r["memory_mib"] * 2.0**20, r["bandwidth"] * 1e9, r["link"] * 1e9, r.get("block", 16))
        for name, r in read.items()
    }


def gpu(name: str, memory: str | None) -> Gpu:
    """Raises PlanError for an unknown name. memory: instead of the table's."""
    table = {k.lower(): v for k, v in gpus().items()}
    found = table.get(name.lower())
    if found is None:
        close = [v.name for k, v in table.items() if k.startswith(name.lower())]
        raise PlanError(
            f"--gpu {name}: "
            + (f"did you mean {' or '.join(close)}" if close else f"known: {', '.join(gpus())}")
            + "; for another one give the most similar with --memory"
        )
    if memory is None:
        return found
    return Gpu(found.name, float(size(memory, "--memory")), found.bandwidth, found.link, found.block)


@dataclass(frozen=True)
class Asked:
    """tokens: of prompt and answer together; requests: at once on one replica; step: tokens computed at once."""

    precision: str
    kv_precision: str
    tokens: int
    requests: int
    step: int
    block: int
    kv_memory: int | None


@dataclass(frozen=True)
class Account:
    """One way to divide the model, on its fullest GPU. needed has the safety factor in it.

    read: bytes of cache that one step of all requests reads.

    blocks, most: KV blocks that there is room for and requests that fit into them; null where requests keep nothing.
    """

    tensor: int
    pipeline: int
    parts: tuple[Number, ...]
    fixed: Number
    token: Number
    request: Number
    wanted: Number
    read: float
    needed: Number
    room: Number
    blocks: Number | None
    most: Number | None
    fits: bool

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline


def account(shape: Shape, on: Gpu, asked: Asked, tensor: int = 1, pipeline: int = 1) -> Account:
    """Raises PlanError where the model can't be divided so, or a precision is not known."""
    pack = weights.packing(shape, asked.precision)
    parts = weights.on_gpu(shape, pack, tensor, pipeline)
    parts += _rest(shape, on, asked, tensor, pipeline)
    fixed = Number("fixed", sum(p.value for p in parts), " + ".join(p.name for p in parts))
    kv_precision = kv_dtype(shape, asked)
    held = cache.on_gpu(shape, kv_precision, asked.block, tensor, pipeline)
    request = held.request(asked.tokens, asked.step)
    wanted = Number(
        "KV cache of all requests",
        asked.requests * request.value,
        f"{asked.requests:,} × {request.value:,.0f} B",
    )
    needed = Number(
        "needed",
        SAFETY * (fixed.value + wanted.value),
        f"{SAFETY} × ({fixed.value / GIB:.2f} + {wanted.value / GIB:.2f} GiB)",
    )
    if asked.kv_memory is not None:
        room = Number("room for KV cache", float(asked.kv_memory), "--kv-memory, for one GPU")
    else:
        room = Number(
            "room for KV cache",
            max(0.0, on.memory / SAFETY - fixed.value),
            f"{on.memory / GIB:.2f} GiB ÷ {SAFETY} - {fixed.value / GIB:.2f} GiB",
        )
    blocks = most = None
    if held.page:
        made = held.blocks_in(room.value)
        blocks = Number(
            "KV blocks",
            made,
            f"{room.value:,.0f} B ÷ {held.page:,} B a block of {asked.block} tokens, rounded down",
        )
        each = held.blocks_of(asked.tokens, asked.step)
        usable = max(0, made - 1)
        most = Number(
            "requests at once",
            usable // each,
            f"({made:,} blocks - 1 that vLLM keeps empty) ÷ {each:,} a request",
        )
    fits = (
        needed.value <= on.memory if asked.kv_memory is None else most is None or most.value >= asked.requests
    )
    return Account(
        tensor,
        pipeline,
        tuple(parts),
        fixed,
        held.token,
        request,
        wanted,
        asked.requests * held.read(asked.tokens),
        needed,
        room,
        blocks,
        most,
        fits,
    )


def kv_dtype(shape: Shape, asked: Asked) -> str:
    """``auto``: that of the computation, as in vLLM: 16 bits for what is quantised."""
    if asked.kv_precision != "auto":
        return asked.kv_precision
    if asked.precision in cache.KV_PRECISIONS and asked.precision != "fp8":
        return asked.precision
    quantised = bool(shape.quantization) or asked.precision not in ("auto", *cache.KV_PRECISIONS)
    if quantised or asked.precision == "fp8" or shape.precision not in cache.KV_PRECISIONS:
        return "bfloat16"
    return shape.precision


def _rest(shape: Shape, on: Gpu, asked: Asked, tensor: int, pipeline: int) -> list[Number]:
    hidden, wide = shape.hidden, shape.widest
    width = 4 * hidden + 3 * wide / tensor
    logits = 0 if shape.kind == "encoder" else 2 * asked.requests * shape.vocabulary * 4
    found = [
        Number(
            "activations",
            asked.step * width * 2 + logits,
            f"{asked.step:,} tokens of a step × (4 × {hidden:,} + 3 × {wide:,}{f' ÷ {tensor}' if tensor > 1 else ''}) "
            f"× 2 B" + (f" + 2 × {asked.requests:,} × {shape.vocabulary:,} logits × 4 B" if logits else ""),
        )
    ]
    if on.cpu:
        how = "measured: a CPU replica of 1.8 GB less its weights and cache"
        return [*found, Number("framework", CPU_FRAMEWORK, how)]
    found.append(Number("CUDA graphs", GRAPHS, "assumed; 0 with --enforce-eager"))
    found.append(Number("framework", FRAMEWORK, "assumed: CUDA context, PyTorch, kernels"))
    if tensor * pipeline > 1:
        found.append(Number("NCCL", NCCL, f"assumed, for {tensor * pipeline} GPUs"))
    return found
