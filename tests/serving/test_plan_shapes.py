"""Public models' sizes by the plan, against figures worked out by hand and the published numbers of parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.plan import cache, shape, weights
from serving.plan.number import PlanError


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("mistral-7b-v0.1", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gemma-3-1b", 999_885_952),
        ("gpt-oss-20b", 20_914_757_184),
        ("deepseek-v3", 671_026_419_200),
        ("smollm2-135m", 134_515_008),
        ("all-minilm-l6-v2", 22_713_216),
    ],
)
def test_parameters_are_those_that_were_published(name: str, parameters: int) -> None:
    assert weights.parameters(shape.load(name)) == parameters


def held(name: str, precision: str = "bfloat16", tensor: int = 1, block: int = 16) -> cache.Cache:
    return cache.on_gpu(shape.load(name), precision, block, tensor, 1)


def test_multi_head_attention_keeps_keys_and_values_of_every_head() -> None:
    """llama-2-7b: 32 layers × 2 × 32 heads × 128 × 2 B = 32 × 8,192 × 2 = 524,288 B; 4,096 tokens: 2 GiB."""
    found = held("llama-2-7b")
    assert found.token.value == 32 * 2 * 32 * 128 * 2 == 524_288
    assert found.request(4096, 4096).value == 4096 * 524_288 == 2 * 2**30


def test_grouped_queries_keep_kv_heads_alone() -> None:
    """llama-3.1-8b: 32 × 2 × 8 KV heads × 128 × 2 B = 131,072 B, a quarter; 5,000 tokens round up to 313 blocks."""
    found = held("llama-3.1-8b")
    assert found.token.value == 32 * 2 * 8 * 128 * 2 == 131_072
    assert found.request(5000, 2048).value == 313 * 16 * 131_072
    assert held("llama-3.1-8b", "fp8").token.value == 65_536
    assert held("llama-3.1-8b", tensor=4).token.value == 32_768
    # More GPUs than KV heads: each head is kept twice.
    assert held("llama-3.1-8b", tensor=16).token.value == 131_072 / 8


def test_latent_attention_keeps_latent_and_rope_once_on_every_gpu() -> None:
    """deepseek-v3: 61 × (512 + 64) × 2 B = 70,272 B; as heads it would be 61 × 128 × (192 + 128) × 2 B, 71 times that."""
    found = held("deepseek-v3")
    assert found.token.value == 61 * (512 + 64) * 2 == 70_272
    assert held("deepseek-v3", tensor=8).token.value == 70_272
    assert found.request(8192, 8192).value == 8192 * 70_272


def test_a_window_bounds_what_a_request_keeps() -> None:
    """mistral-7b-v0.1, step 2,048: (4,096 - 1 + 2,048) / 16 = 383.9 -> 384 blocks + 1, × 16 × 131,072 B."""
    found = held("mistral-7b-v0.1")
    assert found.token.value == 32 * 2 * 8 * 128 * 2 == 131_072
    assert found.request(32_768, 2048).value == 385 * 16 * 131_072
    assert found.request(32_768, 2048).value == found.request(16_384, 2048).value
    assert found.request(1000, 2048).value == 63 * 16 * 131_072
    assert found.read(32_768) == 4096 * 131_072


def test_layers_with_and_without_a_window_share_a_pool_in_groups() -> None:
    """gemma-3-1b: 4 full layers of 26, so groups of 4: 1 full and 22 / 4 -> 6 with a window of 512.

    8,192 tokens, step 1,024: 512 blocks + 6 × (ceil(1,535 / 16) + 1 = 97) = 1,094, of 4 × 2 × 256 × 2 B × 16 tokens.
    """
    found = held("gemma-3-1b")
    assert sorted(found.groups, key=str) == [512] * 6 + [None]
    assert found.page == 4 * 2 * 1 * 256 * 2 * 16 == 65_536
    assert found.request(8192, 1024).value == 1094 * 65_536
    half = held("gpt-oss-20b")
    assert sorted(half.groups, key=str) == [128, None]


def test_an_encoder_keeps_nothing() -> None:
    found = held("all-minilm-l6-v2", "float32")
    assert (found.token.value, found.page, found.request(512, 512).value, found.blocks_in(2**30)) == (
        0,
        0,
        0,
        0,
    )


def test_blocks_are_those_that_vllm_made() -> None:
    """Seen on CPU: 256M gave 91 blocks of 128 in bfloat16, 45 in float32."""
    assert held("smollm2-135m", block=128).blocks_in(2**28) == 91
    assert held("smollm2-135m", "float32", block=128).blocks_in(2**28) == 45


def sizes(name: str, precision: str = "auto", tensor: int = 1, pipeline: int = 1) -> dict[str, float]:
    made = shape.load(name)
    return {n.name: n.value for n in weights.on_gpu(made, weights.packing(made, precision), tensor, pipeline)}


def test_block_quantised_weights_have_a_scale_for_each_block() -> None:
    """deepseek-v3's experts: 58 layers × 256 × 3 × 7,168 × 2,048 B; a scale of 4 B for each 128 × 128."""
    found = sizes("deepseek-v3")
    assert found["experts"] == 58 * 256 * 3 * 7168 * 2048
    assert found["embeddings"] == 129_280 * 7168 * 2
    experts = 58 * 256 * 3 * 7168 * 2048 / 128**2 * 4
    shared = 58 * 3 * 7168 * 2048 / 128**2 * 4
    dense = 3 * 3 * 7168 * 18_432 / 128**2 * 4
    # 576 rows of the KV down projection are 4.5 blocks: 5 are kept.
    attention = 61 * 4 * (12 * 56 + 192 * 12 + 5 * 56 + 256 * 4 + 56 * 128)
    assert found["scales of quantised weights"] == experts + shared + dense + attention


def test_four_bit_weights_have_a_scale_and_a_zero_point_for_each_group() -> None:
    found = sizes("llama-3.1-8b", "int4")
    assert found["MLP"] == 32 * 3 * 4096 * 14_336 / 2
    assert found["embeddings"] == found["output head"] == 128_256 * 4096 * 2
    linear = 32 * (3 * 4096 * 14_336 + 4096 * (2 * 4096 + 2 * 1024))
    assert found["scales of quantised weights"] == linear / 128 * 2.5


def test_mxfp4_packs_experts_alone() -> None:
    found = sizes("gpt-oss-20b")
    assert found["experts"] == 24 * 32 * (3 * 2880 * 2880 / 2 + (2 * 2880 + 2880) * 2)
    assert found["attention"] > 24 * 2 * 2880 * 4096 * 2
    assert found["scales of quantised weights"] == 24 * 32 * 3 * 2880 * 2880 / 32


def test_tied_embeddings_are_there_once() -> None:
    assert "output head" not in sizes("smollm2-135m")
    assert sizes("smollm2-135m")["embeddings"] == 49_152 * 576 * 2


def test_gpus_share_matrices_and_stages_share_layers() -> None:
    one, four = sizes("llama-3.1-70b"), sizes("llama-3.1-70b", tensor=4)
    assert four["MLP"] == one["MLP"] / 4
    assert four["norms, routers"] == one["norms, routers"]
    staged = sizes("llama-3.1-70b", tensor=4, pipeline=3)
    assert staged["MLP"] == four["MLP"] * 27 / 80
    assert "output head" not in staged


BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 100, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architectures is MambaForCausalLM, whose memory is not known"),
        ({"architectures": None}, "architectures is (none)"),
        ({"vision_config": {"x": 1}}, "vision_config of LlamaForCausalLM takes memory in a way that is not known"),
        ({"hidden_size": "64"}, "hidden_size is 64; a whole number up to 1,000,000,000 is needed"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide num_attention_heads 4"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; a whole number up to 1,000 is needed"),
        ({"num_attention_heads": 10**6}, "num_attention_heads is 1000000; a whole number up to 100,000 is needed"),
        ({"vocab_size": 0}, "must be above 0"),
        ({"quantization_config": 4}, "quantization_config is 4; an object"),
        ({"architectures": ["Gemma3ForCausalLM"], "sliding_window": 8}, "sliding_window without layer_types"),
        ({"architectures": ["GptOssForCausalLM"], "sliding_window": 8, "layer_types": ["x"] * 2}, "layer_types has"),
        ({"architectures": ["GptOssForCausalLM"], "sliding_window": 8, "layer_types": [[], []]}, "layer_types has"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError) as refused:
        shape.parse(BASE | changes, "mine")
    assert said in str(refused.value)


def test_keys_that_are_not_known_are_named() -> None:
    made = shape.parse(BASE | {"rope_theta": 1.0, "shortcut_rank": 5, "another": 1}, "mine")
    assert made.unknown == ("another", "shortcut_rank")


def test_an_unknown_quantisation_is_refused() -> None:
    made = shape.parse(BASE | {"quantization_config": {"quant_method": "aqlm"}}, "mine")
    with pytest.raises(PlanError, match=r"quant_method 'aqlm' .* is not known here; give --precision"):
        weights.packing(made, "auto")
    assert weights.packing(made, "int4").group == 128


@pytest.mark.parametrize("block", [[0, 0], [128, "x"], "x", [128]])
def test_a_size_of_blocks_that_can_not_be_is_one_scale_a_row(block: object) -> None:
    matrix = shape.Matrix("m", 4, 256)
    odd, none = (weights.Packing("fp8", "bfloat16", {"weight_block_size": b}) for b in (block, None))
    assert odd.bytes(matrix) == none.bytes(matrix) == (1024.0, 16.0)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '{"a":' * 100_000])
def test_a_broken_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(PlanError, match="--model"):
        shape.load(str(tmp_path))


def test_a_folder_and_a_file_are_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    assert shape.load(str(tmp_path)) == shape.load(str(tmp_path / "config.json"))
