"""A Llama model in a GGUF file, turned into the files that vLLM loads.

Reads the file with the ``gguf`` package, dequantises with numpy, undoes llama.cpp's reordering of the query
and key projections, and writes bfloat16 safetensors and config.json under Hugging Face's names. The tokeniser
is in ``tokenizer.py``; where the file comes from and how the folder is kept is in ``model.py``.

Source: the tensor names and metadata keys of the GGUF specification, and llama.cpp's ``convert_hf_to_gguf.py``
(class LlamaModel), whose steps are taken backwards here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_BLOCK = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


class GgufFile:
    """A GGUF file opened for reading; its tensors stay on disk (memory-mapped) until asked for.

    Raises ValueError if it is no GGUF file, or holds another architecture than ``llama``.
    """

    def __init__(self, path: Path) -> None:
        self._reader = gguf.GGUFReader(path)
        architecture = self.get("general.architecture")
        if architecture != "llama":
            raise ValueError(f"{path.name} holds a {architecture} model; only llama can be converted")

    def get(self, key: str, default: Any = None) -> Any:
        """The metadata value of that key as plain Python, or ``default`` where the file has none."""
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()

    def need(self, key: str) -> Any:
        """Like ``get``; raises ValueError that names the key where the file has none."""
        value = self.get(key)
        if value is None:
            raise ValueError(f"the GGUF file has no {key}")
        return value

    @property
    def tensor_names(self) -> list[str]:
        """Hugging Face names, in the file's order."""
        return [hugging_face_name(t.name) for t in self._reader.tensors]

    def tensors(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Each tensor by its Hugging Face name, float32, rows first (shape [out, in] for a projection)."""
        heads = int(self.need("llama.attention.head_count"))
        kv_heads = int(self.get("llama.attention.head_count_kv", heads))
        for tensor in self._reader.tensors:
            values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            # GGUF lists dimensions innermost first.
            values = values.reshape(tuple(int(n) for n in reversed(tensor.shape)))
            if tensor.name.endswith(".attn_q.weight"):
                values = unpermute(values, heads)
            elif tensor.name.endswith(".attn_k.weight"):
                values = unpermute(values, kv_heads)
            yield hugging_face_name(tensor.name), values


def hugging_face_name(name: str) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``. Raises ValueError if unknown."""
    if name in _TOP:
        return _TOP[name]
    head, _, rest = name.partition(".")
    block, _, kind = rest.partition(".")
    if head == "blk" and block.isdigit() and kind in _IN_BLOCK:
        return f"model.layers.{block}.{_IN_BLOCK[kind]}"
    raise ValueError(f"no Hugging Face name is known for the GGUF tensor {name}")


def unpermute(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo llama.cpp's row order of a query or key projection.

    weight: [heads * head_size, in]. llama.cpp rotates neighbouring rows (0,1), (2,3), … of a head; Hugging
    Face rotates row i with row i + head_size/2. Raises ValueError if the rows don't divide among the heads.
    """
    rows = weight.shape[0]
    if heads < 1 or rows % (2 * heads):
        raise ValueError(f"{rows} rows can't be split among {heads} heads with an even head size")
    pairs = weight.reshape(heads, rows // heads // 2, 2, *weight.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of each value as bfloat16, rounded to nearest, ties to even (as torch does). Finite input."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype(
        np.uint16
    )


def write_safetensors(path: Path, tensors: dict[str, npt.NDArray[np.uint16]]) -> None:
    """Write bfloat16 bit patterns as one safetensors file (8 bytes header length, JSON header, data)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, bits in tensors.items():
        header[name] = {
            "dtype": "BF16",
            "shape": list(bits.shape),
            "data_offsets": [offset, offset + bits.nbytes],
        }
        offset += bits.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # readers want the data on a multiple of 8
    with path.open("wb") as f:
        f.write(len(text).to_bytes(8, "little"))
        f.write(text)
        for bits in tensors.values():
            f.write(np.ascontiguousarray(bits, dtype="<u2").data)


def write_weights(source: GgufFile, path: Path) -> None:
    """All tensors of ``source`` as bfloat16 safetensors; needs their size in memory (269 MB for 135M)."""
    write_safetensors(path, {name: to_bfloat16(values) for name, values in source.tensors()})


def config(source: GgufFile) -> dict[str, Any]:
    """config.json of a ``LlamaForCausalLM`` with the file's sizes."""
    hidden = int(source.need("llama.embedding_length"))
    heads = int(source.need("llama.attention.head_count"))
    # Kept as float32 in the file: 9.999999747378752e-06 is 1e-05.
    epsilon = float(str(np.float32(source.need("llama.attention.layer_norm_rms_epsilon"))))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": int(source.need("tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(source.need("tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(source.get("tokenizer.ggml.padding_token_id", 0)),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": int(source.need("llama.feed_forward_length")),
        "max_position_embeddings": int(source.need("llama.context_length")),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": int(source.need("llama.block_count")),
        "num_key_value_heads": int(source.get("llama.attention.head_count_kv", heads)),
        "rms_norm_eps": epsilon,
        "rope_theta": float(source.get("llama.rope.freq_base", 10000.0)),
        # A file without an output tensor uses the embedding for both.
        "tie_word_embeddings": "lm_head.weight" not in source.tensor_names,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": int(source.need("llama.vocab_size")),
    }
