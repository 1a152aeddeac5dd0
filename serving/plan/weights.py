"""Bytes of a model's weights on the GPU that holds most of them.

Tensor parallelism (as in Megatron-LM and vLLM) divides matrices evenly, K and V at most by KV heads; norms, routers
and the low-rank down projections of MLA are on every GPU. Pipeline parallelism divides layers; the first stage has
the embeddings, the last one the output head.
"""

from __future__ import annotations

import math
from typing import Any

from .number import Number, PlanError
from .shape import Matrix, Shape

#: Bytes of a number.
PRECISIONS = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "mxfp4": 0.5,
}
#: Numbers that share a scale, where the checkpoint does not say (AWQ's and GPTQ's usual one; MXFP4's standard).
_GROUP = {"int4": 128, "mxfp4": 32}


class Packing:
    """How linear layers are stored. experts_only: as in gpt-oss, the rest stays in 16 bits."""

    def __init__(self, precision: str, plain: str, config: dict[str, Any]) -> None:
        self.precision, self.plain = precision, PRECISIONS[plain]
        block = config.get("weight_block_size")
        sizes = (
            isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)
        )
        self.block: list[int] | None = block if sizes else None
        group = config.get("group_size")
        self.group = group if isinstance(group, int) and group > 0 else _GROUP.get(precision, 0)
        self.experts_only = precision == "mxfp4"
        #: Int4 groups have a zero point of 4 bits beside a scale of 16, unless quantisation is symmetric.
        self.zeros = (
            precision == "int4" and not config.get("sym") and config.get("zero_point", True) is not False
        )

    def packed(self, matrix: Matrix) -> bool:
        packs = self.precision in ("fp8", "int8", "int4", "mxfp4")
        return packs and matrix.linear and (matrix.expert or not self.experts_only)

    def bytes(self, matrix: Matrix) -> tuple[float, float]:
        """(weights and biases, scales and zero points) of all copies, undivided."""
        numbers = matrix.copies * matrix.rows * matrix.columns
        biases = matrix.copies * matrix.bias * self.plain
        if not self.packed(matrix):
            return numbers * self.plain + biases, 0.0
        if self.block:
            blocks = math.ceil(matrix.rows / self.block[0]) * math.ceil(matrix.columns / self.block[1])
            scales = 4.0 * matrix.copies * blocks
        elif self.group:
            groups = matrix.copies * matrix.rows * math.ceil(matrix.columns / self.group)
            scales = groups * (1.0 if self.precision == "mxfp4" else 2.0 + 0.5 * self.zeros)
        else:
            scales = 4.0 * matrix.copies * matrix.rows  # one a row, the usual for fp8 and int8
        return numbers * PRECISIONS[self.precision] + biases, scales


def packing(shape: Shape, precision: str) -> Packing:
    """``auto``: as the checkpoint is. Raises PlanError for a quantisation that is not known here."""
    config = shape.quantization
    plain = shape.precision if shape.precision in ("float32", "bfloat16", "float16") else ""
    if precision != "auto":
        if precision not in PRECISIONS:
            raise PlanError(f"--precision {precision}: auto, {', '.join(PRECISIONS)}")
        small = precision in ("fp8", "int8", "int4", "mxfp4")
        own = config if small and config and _method(shape) == precision else {}
        return Packing(precision, "bfloat16" if small else precision, own)
    if config:
        method = _method(shape)
        if method is None:
            raise PlanError(
                f"{shape.name}: quantization_config has quant_method {config.get('quant_method')!r} with bits "
                f"{config.get('bits')!r}, which is not known here; give --precision {', '.join(PRECISIONS)}"
            )
        return Packing(method, "bfloat16" if plain in ("", "float32") else plain, config)
    if not plain:
        raise PlanError(
            f"{shape.name}: its dtype is {shape.precision!r}; give --precision {', '.join(PRECISIONS)}"
        )
    return Packing(plain, plain, {})


def _method(shape: Shape) -> str | None:
    """The name in PRECISIONS of the checkpoint's quantisation, None if it is not known here."""
    method, bits = str(shape.quantization.get("quant_method", "")).lower(), shape.quantization.get("bits")
    if method in ("fp8", "mxfp4"):
        return method
    if method in ("awq", "gptq") and bits in (None, 4, 8):
        return "int8" if bits == 8 else "int4"
    return None


def on_gpu(shape: Shape, pack: Packing, tensor: int, pipeline: int) -> list[Number]:
    """Bytes by part on the GPU with most. Raises PlanError where the model can't be divided so."""
    if tensor > 1 and shape.heads % tensor:
        fits = ", ".join(str(d) for d in range(1, shape.heads + 1) if shape.heads % d == 0)
        raise PlanError(f"--tp {tensor}: the {shape.heads} attention heads can be divided by {fits}")
    if shape.kind == "attention" and shape.kv_heads % tensor and tensor % shape.kv_heads:
        raise PlanError(
            f"--tp {tensor}: the {shape.kv_heads} KV heads can neither be divided by it nor it by them"
        )
    if pipeline > len(shape.layers):
        raise PlanError(f"--pp {pipeline}: the model has {len(shape.layers)} layers, give at most that")
    per_stage = math.ceil(len(shape.layers) / pipeline)
    # The stages in which layers are heaviest: mixtures often begin with some dense ones.
    weights = [sum(sum(pack.bytes(m)) for m in layer.matrices) for layer in shape.layers]
    starts = range(0, len(weights), per_stage)
    start = max(starts, key=lambda i: sum(weights[i : i + per_stage]))
    found: list[Number] = []
    parts: dict[str, list[tuple[Matrix, int]]] = {}
    for layer in shape.layers[start : start + per_stage]:
        for m in layer.matrices:
            parts.setdefault(_part(m), []).append((m, _divided(m, tensor, shape.kv_heads)))
    scales = 0.0
    for name, matrices in parts.items():
        total = sum(pack.bytes(m)[0] / d for m, d in matrices)
        scales += sum(pack.bytes(m)[1] / d for m, d in matrices)
        numbers = sum(m.parameters for m, _ in matrices)
        stage = f" of {per_stage} layers" if pipeline > 1 else ""
        found.append(Number(name, total, f"{numbers:,} parameters{stage}{_told(matrices, pack, tensor)}"))
    outside = [m for m in shape.outside if pipeline == 1 or m.name == "embeddings"]
    for m in outside:
        divided = _divided(m, tensor, shape.kv_heads)
        tied = " (also the output head: tied)" if m.name == "embeddings" and shape.tied else ""
        found.append(
            Number(
                m.name,
                pack.bytes(m)[0] / divided,
                f"{m.parameters:,} × {pack.plain:g} B{_over(divided)}{tied}",
            )
        )
    if scales:
        unit = (
            f"a block of {pack.block[0]} × {pack.block[1]}" if isinstance(pack.block, list)
            else f"{pack.group} numbers" if pack.group else "a row"
        )  # fmt: skip
        found.append(Number("scales of quantised weights", scales, f"one for each {unit}{_over(tensor)}"))
    return found


def _part(matrix: Matrix) -> str:
    for word in ("attention", "expert", "MLP", "shared"):
        if matrix.name.startswith(word):
            return {"attention": "attention", "expert": "experts", "MLP": "MLP", "shared": "shared experts"}[
                word
            ]
    return "norms, routers"


def _divided(matrix: Matrix, tensor: int, kv_heads: int) -> int:
    return {"even": tensor, "kv_heads": min(tensor, kv_heads), "none": 1}[matrix.split]


def _over(divided: int) -> str:
    return f" ÷ {divided}" if divided > 1 else ""


def _told(matrices: list[tuple[Matrix, int]], pack: Packing, tensor: int) -> str:
    sizes = sorted({PRECISIONS[pack.precision] if pack.packed(m) else pack.plain for m, _ in matrices})
    each = " or ".join(f"{s:g}" for s in sizes)
    divided = {d for _, d in matrices}
    shared = (
        _over(tensor)
        if divided == {tensor}
        else f" ÷ {tensor} (some parts less)"
        if tensor > 1 and divided != {1}
        else ""
    )
    return f" × {each} B{shared}"


def parameters(shape: Shape) -> int:
    return sum(m.parameters for layer in shape.layers for m in layer.matrices) + sum(
        m.parameters for m in shape.outside
    )
