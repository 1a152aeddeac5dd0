"""Bytes of KV cache: of a token, of a request, and how many blocks and requests fit. Counted as vLLM 0.32 does.

vLLM keeps the cache in blocks of some tokens. Layers that look at everything need ceil(tokens / block) of them;
layers with a window hold the last window - 1 tokens, those of one step, and one block more, because a window seldom
begins with a block (vllm/v1/kv_cache_interface.py, SlidingWindowSpec). Where a model has both kinds, layers are put
into groups of equal size that share one pool (vllm/v1/core/kv_cache_utils.py), the last group being filled up.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from .number import Number, PlanError
from .shape import Layer, Shape

#: Bytes of a number in the cache, by vLLM's --kv-cache-dtype.
KV_PRECISIONS = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}


@dataclass(frozen=True)
class Cache:
    """On one GPU. page: bytes of one block of all layers of a group; groups: window (null: none) of each group.

    layers: bytes that a token has in each, and its window.
    """

    page: int
    groups: tuple[int | None, ...]
    block: int
    token: Number
    layers: tuple[tuple[int, int | None], ...] = ()

    def blocks_of(self, tokens: int, step: int) -> int:
        """Blocks that a request of ``tokens`` holds at most, while ``step`` tokens are computed at once."""
        return sum(self._blocks(window, tokens, step) for window in self.groups)

    def _blocks(self, window: int | None, tokens: int, step: int) -> int:
        if window is None:
            return math.ceil(tokens / self.block)
        return min(math.ceil(min(window - 1 + step, tokens) / self.block) + 1, math.ceil(tokens / self.block))

    def read(self, tokens: int) -> float:
        """Bytes that one step of one request reads once its ``tokens`` are there."""
        return float(sum(each * min(tokens, window or tokens) for each, window in self.layers))

    def blocks_in(self, memory: float) -> int:
        """Blocks that vLLM makes of this much memory (its num_gpu_blocks; one of them is never used)."""
        return int(memory // self.page) if self.page else 0

    def request(self, tokens: int, step: int) -> Number:
        blocks = self.blocks_of(tokens, step)
        how = f"{blocks:,} blocks × {self.page:,} B for {tokens:,} tokens"
        if any(w is not None for w in self.groups):
            windows = sorted({w for w in self.groups if w is not None})
            how += f" (layers with a window hold {windows[0]:,} - 1 + {step:,} at most, and a block more)"
        return Number(
            "KV cache of a request",
            float(blocks * self.page),
            how if self.page else "an encoder keeps nothing",
        )


def on_gpu(shape: Shape, precision: str, block: int, tensor: int, pipeline: int) -> Cache:
    """The cache of the fullest GPU. Raises PlanError for an unknown precision."""
    if precision not in KV_PRECISIONS:
        raise PlanError(f"--kv-dtype {precision}: auto, {', '.join(KV_PRECISIONS)}")
    each = KV_PRECISIONS[precision]
    layers = shape.layers[: math.ceil(len(shape.layers) / pipeline)]
    if not any(layer.cache for layer in layers):
        return Cache(0, (), block, Number("KV cache of a token", 0.0, shape.cache_formula))
    numbers = sum(_share(layer, tensor) for layer in layers)
    whole = shape.cache_formula + f" × {each} B"
    short = [layer.window for layer in layers if layer.window is not None]
    if short:
        whole += f"; {len(short)} of the layers keep the last {max(short):,} tokens only"
    divided = (
        "" if tensor == pipeline == 1 else f"; on one of {tensor} × {pipeline} GPUs {numbers:,} × {each} B"
    )
    token = Number("KV cache of a token", float(numbers * each), whole + divided)
    counts = Counter(layer.window for layer in layers)
    fewest, most = min(counts.values()), max(counts.values())
    group = most if most < fewest * 1.5 else fewest
    groups = tuple(w for w, n in counts.items() for _ in range(math.ceil(n / group)))
    page = group * _share(layers[0], tensor) * each * block
    kept = tuple((_share(layer, tensor) * each, layer.window) for layer in layers)
    return Cache(page, groups, block, token, kept)


def _share(layer: Layer, tensor: int) -> int:
    """Numbers of a token and layer on one GPU: K and V are divided by KV heads, MLA's latent is on every GPU."""
    return layer.cache // min(tensor, layer.kv_heads)
