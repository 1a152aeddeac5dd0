"""SGLang's pages, old and new, one rank and several, become the catalogue's golden signals, number by number."""

from __future__ import annotations

from collections.abc import Callable

from exporters.collectors._page import Reading, Vital
from exporters.collectors._sglang import read
from tests.exporters.pages import values

Page = Callable[[str], bytes]


def reading(page: bytes) -> Reading:
    found = read(page, "r0")
    assert found is not None
    return found


def test_0_4_tells_no_blocks_but_how_full_the_cache_is(page: Page) -> None:
    found = reading(page("sglang-0.4.6-metrics.txt"))
    assert (found.make, found.version_at) == ("sglang", "/server_info")
    assert values(found.samples) == {
        "engine_requests_running": 162,
        "engine_requests_waiting": 2826,
        "engine_requests_waiting_by_reason": {("capacity",): 2826},
        "engine_prompt_tokens_total": {("0",): 8128902},
        "engine_generation_tokens_total": {("0",): 7557572},
        "engine_requests_finished_total": {("0", "finished"): 11228},
        "kv_prefix_queried_tokens_total": {("0", "local"): 8128902},
        "kv_utilisation_ratio": 0.28,
    }
    model = "meta-llama/Llama-3.1-8B-Instruct"
    assert found.vitals == {(model, "0"): Vital(162 + 2826, (86.5, 123859, 0.28))}


def test_pages_are_blocks_and_aborts_are_told_apart(page: Page) -> None:
    """4,000 tokens take 63 pages of 64 tokens; the page's size and number are labels in 0.5.6."""
    assert values(reading(page("sglang-0.5.6-metrics.txt")).samples) == {
        "engine_requests_running": 7,
        "engine_requests_waiting": 5,
        "engine_requests_waiting_by_reason": {("capacity",): 3, ("grammar",): 2},
        "engine_prompt_tokens_total": {("0",): 5000},
        "engine_generation_tokens_total": {("0",): 900},
        "engine_requests_finished_total": {("0", "finished"): 36, ("0", "abort"): 4},
        "kv_prefix_queried_tokens_total": {("0", "local"): 5000},
        "kv_prefix_hit_tokens_total": {("0", "local"): 1250},
        "kv_block_size_tokens": 64,
        "kv_blocks": 156,
        "kv_blocks_used": 63,
        "kv_utilisation_ratio": 0.4,
    }


def test_one_rank_speaks_for_its_tensor_parallel_group_and_a_total_for_its_priorities(page: Page) -> None:
    load, store, remote = ("0", "offload", "load"), ("0", "offload", "store"), ("0", "disaggregation", "load")
    found = reading(page("sglang-0.5.23-two-ranks-metrics.txt"))
    assert values(found.samples) == {
        "engine_requests_running": 5,
        "engine_requests_waiting": 7,
        "engine_requests_waiting_by_reason": {("capacity",): 5, ("grammar",): 0, ("kv_transfer",): 2},
        "engine_preemptions_total": {("0",): 6, ("1",): 1},
        "engine_prompt_tokens_total": {("0",): 4000},
        "engine_generation_tokens_total": {("0",): 70},
        "engine_requests_finished_total": {("0", "finished"): 9},
        "kv_prefix_queried_tokens_total": {("0", "local"): 4000},
        "kv_prefix_hit_tokens_total": {("0", "local"): 500, ("0", "external"): 250},
        "kv_block_size_tokens": 16,
        "kv_blocks": 200,
        "kv_blocks_used": 50 + 26,
        "kv_utilisation_ratio": 0.375,
        "kv_transfers_total": {load: 8, remote: 4},
        "kv_transfer_bytes_total": {load: 2e6, store: 6e6, remote: 12e6},
        "kv_transfer_seconds_total": {load: 0.5, remote: 0.25},
        "kv_transfer_failures_total": {remote: 2},
    }
    assert found.vitals == {("m", "0"): Vital(6, (800, 0.5)), ("m", "1"): Vital(6, (401, 0.25))}


def test_a_page_without_a_sample_of_sglang_is_none(page: Page) -> None:
    assert read(b"# HELP sglang:num_running_reqs The number\n", "r0") is None
    assert read(page("vllm-0.32.0-metrics.txt"), "r0") is None
