"""A tiny GGUF file with everything that the default model's has."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest


def write_tiny_gguf(path: Path) -> None:
    """A Llama of one layer: hidden 32, 4 heads, 2 KV heads, 6 tokens; feed-forward in Q8_0."""
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(1)
    w.add_context_length(64)
    w.add_embedding_length(32)
    w.add_feed_forward_length(64)
    w.add_head_count(4)
    w.add_head_count_kv(2)
    w.add_rope_freq_base(100000.0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(6)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(["<|endoftext|>", "<|im_start|>", "a", "b", "ab", "Ġ"])
    w.add_token_types([3, 3, 1, 1, 1, 1])
    w.add_token_merges(["a b"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(0)
    w.add_chat_template("{{ messages }}")

    def rows(n: int) -> np.ndarray:
        return np.repeat(np.arange(n, dtype=np.float32)[:, None], 32, axis=1)

    ones = np.ones(32, np.float32)
    w.add_tensor("token_embd.weight", rows(6))
    w.add_tensor("output_norm.weight", ones)
    w.add_tensor("blk.0.attn_norm.weight", ones)
    w.add_tensor("blk.0.ffn_norm.weight", ones)
    w.add_tensor("blk.0.attn_q.weight", rows(32))
    w.add_tensor("blk.0.attn_k.weight", rows(16))
    w.add_tensor("blk.0.attn_v.weight", rows(16))
    w.add_tensor("blk.0.attn_output.weight", rows(32))
    q8 = gguf.GGMLQuantizationType.Q8_0
    for name, shape in (("ffn_gate", (64, 32)), ("ffn_up", (64, 32)), ("ffn_down", (32, 64))):
        w.add_tensor(
            f"blk.0.{name}.weight", gguf.quantize(np.full(shape, 127.0, np.float32), q8), raw_dtype=q8
        )
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_gguf(path)
    return path
