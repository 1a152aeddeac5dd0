"""TensorRT-LLM's page becomes the catalogue's golden signals, number by number."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from exporters.collectors._page import Vital
from exporters.collectors._tensorrt_llm import read
from tests.exporters.pages import values

Page = Callable[[str], bytes]


def test_every_signal_and_http_errors_by_whose_fault_they_are(page: Page) -> None:
    """400 is the client's, 429 a refusal, 500 and 504 the engine's."""
    found = read(page("tensorrt-llm-1.3-metrics.txt"), "r0")
    assert found is not None
    assert (found.make, found.version_at) == ("tensorrt_llm", "/version")
    assert values(found.samples) == {
        "engine_requests_running": 6,
        "engine_requests_waiting": 3,
        "engine_prompt_tokens_total": {("0",): 2000},
        "engine_generation_tokens_total": {("0",): 640},
        "engine_requests_finished_total": {("0", "stop"): 20, ("0", "abort"): 2, ("0", "error"): 3},
        "engine_admission_rejections_total": {("0", "http_429"): 4},
        "kv_prefix_queried_tokens_total": {("0", "local"): 2000},
        "kv_prefix_hit_tokens_total": {("0", "local"): 512},
        "kv_transfer_bytes_total": {("0", "offload", "load"): 5e6, ("0", "offload", "store"): 9e6},
        "kv_block_size_tokens": 32,
        "kv_blocks": 400,
        "kv_blocks_used": 100,
        "kv_utilisation_ratio": 0.25,
    }
    assert found.vitals == {("m", "0"): Vital(9, (2000, 640, 0.25, 100, 0.0125))}


def test_without_iteration_statistics_levels_and_blocks_are_absent(page: Page) -> None:
    text = b"\n".join(
        line
        for line in page("tensorrt-llm-1.3-metrics.txt").split(b"\n")
        if b"kv_cache" not in line and b"trtllm_num_" not in line
    )
    found = read(text, "r0")
    assert found is not None
    assert not found.vitals
    assert not [s.name for s in found.samples if "kv_blocks" in s.name or "running" in s.name]


def test_the_json_of_its_other_page_is_none() -> None:
    assert read(b'[{"gpuMemUsage": 1, "kvCacheStats": {"usedNumBlocks": 3}}]', "r0") is None


@pytest.mark.parametrize(("said", "ratio"), [(b"-1", None), (b"1.5", None), (b"1", 1.0), (b"0", 0.0)])
def test_a_use_of_the_cache_that_is_no_ratio_is_absent(said: bytes, ratio: float | None) -> None:
    found = read(b'trtllm_kv_cache_utilization{model_name="m"} ' + said, "r0")
    assert found is not None
    assert values(found.samples).get("kv_utilisation_ratio") == ratio
