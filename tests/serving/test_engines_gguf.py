"""GGUF to Hugging Face: names, row order, rounding, the safetensors file."""

from __future__ import annotations

import json
from pathlib import Path

import gguf as gguf_package
import numpy as np
import pytest

from serving.engines import gguf, tokenizer


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
        ("blk.29.ffn_down.weight", "model.layers.29.mlp.down_proj.weight"),
        ("blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
    ],
)
def test_tensors_get_hugging_face_names(name: str, expected: str) -> None:
    assert gguf.hugging_face_name(name) == expected


@pytest.mark.parametrize(
    "name", ["blk.x.attn_q.weight", "blk.0.attn_q.bias", "rope_freqs.weight", "blk.0", ""]
)
def test_an_unknown_tensor_is_named_in_the_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"GGUF tensor {name}$"):
        gguf.hugging_face_name(name)


def test_unpermute_undoes_llama_cpps_row_order() -> None:
    """Two heads of four rows: llama.cpp pairs rows 0,2 and 1,3 of a head; the halves come back."""
    original = np.arange(16, dtype=np.float32).reshape(8, 2)
    permuted = original.reshape(2, 2, 2, 2).swapaxes(1, 2).reshape(8, 2)
    assert permuted[:, 0].tolist() == [0, 4, 2, 6, 8, 12, 10, 14]
    assert gguf.unpermute(permuted, 2).tolist() == original.tolist()


@pytest.mark.parametrize(("rows", "heads"), [(8, 3), (6, 2), (8, 0)])
def test_unpermute_refuses_rows_that_do_not_divide(rows: int, heads: int) -> None:
    with pytest.raises(ValueError, match=f"{rows} rows can't be split among {heads} heads"):
        gguf.unpermute(np.zeros((rows, 1), np.float32), heads)


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (-2.0, 0xC000),
        (1.00390625, 0x3F80),  # halfway between 0x3F80 and 0x3F81: to the even one
        (1.01171875, 0x3F82),  # halfway between 0x3F81 and 0x3F82: to the even one
        (1.0040, 0x3F81),
        (0.0, 0x0000),
    ],
)
def test_bfloat16_rounds_to_nearest_even(value: float, bits: int) -> None:
    assert gguf.to_bfloat16(np.array([value], np.float32)).tolist() == [bits]


def test_safetensors_hold_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    gguf.write_safetensors(path, {"a": np.array([[1, 2]], np.uint16), "b": np.array([3], np.uint16)})
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    assert (8 + size) % 8 == 0
    assert header["a"] == {"dtype": "BF16", "shape": [1, 2], "data_offsets": [0, 4]}
    assert header["b"] == {"dtype": "BF16", "shape": [1], "data_offsets": [4, 6]}
    assert np.frombuffer(raw[8 + size :], "<u2").tolist() == [1, 2, 3]


def test_a_quantised_file_becomes_config_and_weights(tiny_gguf: Path, tmp_path: Path) -> None:
    source = gguf.GgufFile(tiny_gguf)
    config = gguf.config(source)
    assert (config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]) == (32, 4, 2)
    assert (config["rope_theta"], config["rms_norm_eps"]) == (100000.0, 1e-05)
    assert config["tie_word_embeddings"] is True
    tensors = dict(source.tensors())
    assert tensors["model.layers.0.self_attn.k_proj.weight"].shape == (16, 32)
    # Row 2 of a head of 8 comes from row 4 of the file: pairs (0,1) (2,3) … become halves.
    assert tensors["model.layers.0.self_attn.q_proj.weight"][:8, 0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert tensors["model.layers.0.mlp.up_proj.weight"].tolist() == np.full((64, 32), 127.0).tolist()


def test_the_tokeniser_splits_digits_and_keeps_special_tokens(tiny_gguf: Path) -> None:
    source = gguf.GgufFile(tiny_gguf)
    built = tokenizer.tokenizer(source)
    assert built["model"]["merges"] == [["a", "b"]]
    assert built["model"]["vocab"]["ab"] == 4
    assert built["pre_tokenizer"]["pretokenizers"][0] == {"type": "Digits", "individual_digits": True}
    assert [t["content"] for t in built["added_tokens"]] == ["<|endoftext|>", "<|im_start|>"]
    config = tokenizer.tokenizer_config(source)
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|endoftext|>")
    assert config["chat_template"] == "{{ messages }}"


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = gguf_package.GGUFWriter(path, "gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"other\.gguf holds a gpt2 model"):
        gguf.GgufFile(path)


def test_a_missing_key_is_named(tiny_gguf: Path) -> None:
    with pytest.raises(ValueError, match=r"no llama\.nothing"):
        gguf.GgufFile(tiny_gguf).need("llama.nothing")
