"""What a model is made of, from its ``config.json`` in Hugging Face's layout.

Architectures are those of ``keys.py``; another one is refused, and so is a key of a known one that would change its
memory in a way that is not known here. Nothing is guessed from a name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .keys import BEYOND, FAMILIES, READ, WITHOUT_MEMORY
from .number import PlanError

MODELS = Path(__file__).parent / "models"
#: How a matrix is divided among the GPUs of a tensor-parallel group: by columns or rows, by KV heads, not at all.
Split = Literal["even", "kv_heads", "none"]


@dataclass(frozen=True)
class Matrix:
    """``copies`` matrices of rows × columns. bias: further numbers that stay in 16 bits. expert: one of many.

    linear: a quantised checkpoint quantises it (embeddings, norms and routers it leaves as they are).
    """

    name: str
    rows: int
    columns: int
    split: Split = "even"
    copies: int = 1
    bias: int = 0
    linear: bool = True
    expert: bool = False

    @property
    def parameters(self) -> int:
        return self.copies * (self.rows * self.columns + self.bias)


@dataclass(frozen=True)
class Layer:
    """cache: numbers that a token leaves in it (0: none); kv_heads: into how many parts those can be divided.

    window: tokens that it looks back at, null for all of them.
    """

    matrices: tuple[Matrix, ...]
    cache: int
    kv_heads: int
    window: int | None = None


@dataclass(frozen=True)
class Shape:
    """precision: of the checkpoint. widest: numbers inside of an MLP for one token. unknown: keys not known here.

    expert_share: of a mixture's experts, the share that one token goes to.
    """

    name: str
    architecture: str
    kind: Literal["attention", "mla", "encoder"]
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_size: int
    positions: int
    widest: int
    tied: bool
    precision: str
    layers: tuple[Layer, ...]
    outside: tuple[Matrix, ...]
    quantization: dict[str, Any] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    cache_formula: str = ""
    expert_share: float = 1.0


def bundled() -> list[str]:
    return sorted(p.stem for p in MODELS.glob("*.json"))


def load(model: str) -> Shape:
    """``model``: a folder with config.json, such a file, or a bundled shape's name. Raises PlanError."""
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    elif not path.exists() and model.lower() in bundled():
        path = MODELS / f"{model.lower()}.json"
    try:
        read = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise PlanError(
            f"--model {model}: no such folder, config.json or bundled shape; bundled: {', '.join(bundled())}"
        ) from None
    except RecursionError:
        raise PlanError(f"--model {path} is nested too deeply for a config.json") from None
    except (OSError, ValueError) as error:
        raise PlanError(f"--model {path} can't be read: {error}") from None
    if not isinstance(read, dict):
        raise PlanError(f"--model {path} is no JSON object")
    return parse(read, path.parent.name if path.name == "config.json" else path.stem)


class _Keys:
    """The configuration with its errors."""

    def __init__(self, read: dict[str, Any], name: str) -> None:
        self.read, self.name = read, name

    def number(self, key: str, default: int | None = None, most: int = 10**9) -> int:
        value = self.read.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            told = str(self.read.get(key))[:60]
            raise PlanError(f"{self.name}: {key} is {told}; a whole number up to {most:,} is needed there")
        return value


def parse(read: dict[str, Any], name: str) -> Shape:
    """Raises PlanError for what is missing, contradictory or not known."""
    architectures = read.get("architectures") or []
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else "(none)"
    if architecture not in FAMILIES:
        raise PlanError(
            f"{name}: architectures is {architecture}, whose memory is not known here; known: {', '.join(FAMILIES)}"
        )
    beyond = [key for key in BEYOND if read.get(key)]
    if beyond:
        raise PlanError(f"{name}: {beyond[0]} of {architecture} takes memory in a way that is not known here")
    unknown = tuple(sorted(set(read) - READ - WITHOUT_MEMORY))
    keys, family = _Keys(read, name), FAMILIES[architecture]
    hidden, heads = keys.number("hidden_size"), keys.number("num_attention_heads", most=100_000)
    layers, vocabulary = keys.number("num_hidden_layers", most=1000), keys.number("vocab_size")
    if not hidden or not heads or not layers or not vocabulary:
        raise PlanError(
            f"{name}: hidden_size, num_attention_heads, num_hidden_layers, vocab_size must be above 0"
        )
    kv_heads = keys.number("num_key_value_heads", heads)
    head_size = keys.number("head_dim", hidden // heads)
    if not kv_heads or heads % kv_heads:
        raise PlanError(f"{name}: num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    precision = str(read.get("dtype") or read.get("torch_dtype") or "float32").removeprefix("torch.")
    quantization = read.get("quantization_config") or {}
    if not isinstance(quantization, dict):
        raise PlanError(f"{name}: quantization_config is {quantization!r}; an object is needed there")
    tied = bool(read.get("tie_word_embeddings", family.get("tied", False)))
    made: tuple[Layer, ...]
    outside: tuple[Matrix, ...]
    if family.get("encoder"):
        made = tuple(_encoder_layer(hidden, keys.number("intermediate_size")) for _ in range(layers))
        words = vocabulary + keys.number("max_position_embeddings") + keys.number("type_vocab_size", 0)
        outside = (
            Matrix("embeddings", words, hidden, bias=2 * hidden, linear=False),
            Matrix("pooler", hidden, hidden, "none", bias=hidden, linear=False),
        )
        kind: Literal["attention", "mla", "encoder"] = "encoder"
        formula = "0: an encoder keeps nothing between requests"
    else:
        kind = "mla" if family.get("mla") else "attention"
        windows = _windows(keys, family, layers)
        made = tuple(
            _layer(keys, family, i, hidden, heads, kv_heads, head_size, windows[i]) for i in range(layers)
        )
        outside = (Matrix("embeddings", vocabulary, hidden, linear=False),)
        if not tied:
            outside += (Matrix("output head", vocabulary, hidden, linear=False),)
        outside += (Matrix("last norm", 1, hidden, "none", linear=False),)
        formula = (
            f"{layers} layers × (latent {keys.number('kv_lora_rank')} + rope {keys.number('qk_rope_head_dim')})"
            if kind == "mla"
            else f"{layers} layers × 2 (K, V) × {kv_heads} KV heads × {head_size}"
        )
    widest = max(_width(keys, layer) for layer in made)
    return Shape(
        name, architecture, kind, hidden, vocabulary, heads, kv_heads, head_size,
        keys.number("max_position_embeddings", 0), widest, tied, precision, made, outside, quantization, unknown,
        formula, _expert_share(keys, family),
    )  # fmt: skip


def _expert_share(keys: _Keys, family: dict[str, Any]) -> float:
    experts = keys.number(family["experts"], 0) if "experts" in family else 0
    return min(1.0, keys.number("num_experts_per_tok", experts) / experts) if experts else 1.0


def _width(keys: _Keys, layer: Layer) -> int:
    """Numbers between the matrices of an MLP, for one token: of a mixture those of all experts that it goes to."""
    dense = sum(
        m.rows for m in layer.matrices if m.name.startswith(("MLP gate", "MLP up", "shared experts gate"))
    )
    experts = keys.number("num_experts_per_tok", 1)
    return dense + experts * max((m.rows for m in layer.matrices if m.name == "expert gate, up"), default=0)


def _windows(keys: _Keys, family: dict[str, Any], layers: int) -> list[int | None]:
    """How far each layer looks back."""
    read = keys.read
    window = read.get("sliding_window")
    switch = family.get("window_switch")
    if not window or (switch and not read.get(switch)):
        return [None] * layers
    window = keys.number("sliding_window")
    types = read.get("layer_types")
    if types is not None:
        known = {"full_attention": None, "sliding_attention": window}
        if not isinstance(types, list) or len(types) != layers or any(str(t) not in known for t in types):
            raise PlanError(
                f"{keys.name}: layer_types has to name full_attention or sliding_attention {layers} times, not {types}"
            )
        return [known[t] for t in types]
    pattern = read.get("sliding_window_pattern")
    if pattern is not None:
        every = keys.number("sliding_window_pattern")
        return [None if every and (i + 1) % every == 0 else window for i in range(layers)]
    if read.get("architectures", [""])[0] not in ("MistralForCausalLM", "MixtralForCausalLM"):
        raise PlanError(
            f"{keys.name}: sliding_window without layer_types: which layers have it is not known here"
        )
    return [window] * layers


def _layer(
    keys: _Keys,
    family: dict[str, Any],
    index: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    size: int,
    window: int | None,
) -> Layer:
    matrices: list[Matrix] = [Matrix("norms", family["norms"], hidden, "none", linear=False)]
    if family.get("mla"):
        latent, rope = keys.number("kv_lora_rank"), keys.number("qk_rope_head_dim")
        nope, out = keys.number("qk_nope_head_dim"), keys.number("v_head_dim")
        rank = keys.number("q_lora_rank", 0)
        if rank:
            matrices.append(Matrix("attention Q down", rank, hidden, "none", bias=rank))
        matrices += [
            Matrix("attention Q", heads * (nope + rope), rank or hidden),
            Matrix("attention KV down", latent + rope, hidden, "none", bias=latent),
            Matrix("attention KV up", heads * (nope + out), latent),
            Matrix("attention out", hidden, heads * out),
        ]
        cache, parts = latent + rope, 1
    else:
        bias = bool(keys.read.get("attention_bias"))
        qkv = bias or bool(family.get("qkv_bias"))
        wide, narrow = heads * size, kv_heads * size
        matrices += [
            Matrix("attention Q", wide, hidden, bias=wide * qkv),
            Matrix("attention K, V", narrow, hidden, "kv_heads", 2, narrow * qkv),
            Matrix("attention out", hidden, wide, bias=hidden * bias),
        ]
        if family.get("qk_norm"):
            matrices.append(Matrix("Q and K norms", 2, size, "none", linear=False))
        if family.get("sinks"):
            matrices.append(Matrix("attention sinks", 1, heads, linear=False))
        cache, parts = 2 * kv_heads * size, kv_heads
    return Layer((*matrices, *_mlp(keys, family, index, hidden)), cache, parts, window)


def _mlp(keys: _Keys, family: dict[str, Any], index: int, hidden: int) -> list[Matrix]:
    """Gate, up and down; of a mixture for each expert, with the router and what is shared."""
    experts = keys.number(family["experts"], 0) if "experts" in family else 0
    read = keys.read
    sparse = experts and index >= keys.number("first_k_dense_replace", 0)
    if sparse and (index + 1) % max(1, keys.number("decoder_sparse_step", 1)):
        sparse = False
    if sparse and index % max(1, keys.number("moe_layer_freq", 1)):
        sparse = False
    dense = read.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise PlanError(f"{keys.name}: mlp_only_layers is {dense!r}; a list of layers is needed there")
    if index in dense:
        sparse = False
    if not sparse:
        wide = keys.number("intermediate_size")
        bias = bool(read.get("mlp_bias"))
        return [
            Matrix("MLP gate, up", wide, hidden, "even", 2, wide * bias),
            Matrix("MLP down", hidden, wide, bias=hidden * bias),
        ]
    wide = keys.number("moe_intermediate_size", keys.number("intermediate_size", 0))
    biased = bool(family.get("sinks"))
    matrices = [
        Matrix("router", experts, hidden, "none", bias=experts * (biased or read.get("topk_method") == "noaux_tc"),
               linear=False),
        Matrix("expert gate, up", wide, hidden, "even", 2 * experts, wide * biased, expert=True),
        Matrix("expert down", hidden, wide, "even", experts, hidden * biased, expert=True),
    ]  # fmt: skip
    shared = keys.number("n_shared_experts", 0)
    if shared:
        matrices += [
            Matrix("shared experts gate, up", wide * shared, hidden, "even", 2),
            Matrix("shared experts down", hidden, wide * shared),
        ]
    return matrices


def _encoder_layer(hidden: int, wide: int) -> Layer:
    return Layer(
        (
            Matrix("attention Q, K, V, out", hidden, hidden, "even", 4, hidden),
            Matrix("MLP up", wide, hidden, bias=wide),
            Matrix("MLP down", hidden, wide, bias=hidden),
            Matrix("norms", 4, hidden, "none", linear=False),
        ),
        0,
        1,
    )
