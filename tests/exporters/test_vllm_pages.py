"""vLLM's pages, 0.6 to 0.32, V0 and V1, alone and under Ray, become the catalogue's golden signals, number by number."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from exporters.catalog import metric
from exporters.collectors._page import Reading, Vital
from exporters.collectors._vllm import FILTER, read
from exporters.registry import Sample
from tests.exporters.pages import values

Page = Callable[[str], bytes]


def reading(page: bytes, ray: bool = False) -> Reading:
    found = read(page, "r0", ray)
    assert found is not None
    return found


def test_a_page_of_the_real_0_32_gives_every_signal(page: Page) -> None:
    """Captured from a CPU server under load. 28 of 44 blocks: num_gpu_blocks is 45, one is the null block."""
    found = reading(page("vllm-0.32.0-metrics.txt"))
    assert (found.make, found.version_at) == ("vllm", "/version")
    assert values(found.samples) == {
        "engine_requests_running": 14,
        "engine_requests_waiting": 4,
        "engine_requests_waiting_by_reason": {("capacity",): 4, ("deferred",): 0},
        "engine_preemptions_total": {("0",): 0},
        "engine_prompt_tokens_total": {("0",): 4190},
        "engine_generation_tokens_total": {("0",): 1021},
        "engine_requests_finished_total": {
            ("0", "stop"): 5,
            ("0", "length"): 23,
            ("0", "abort"): 0,
            ("0", "error"): 0,
            ("0", "repetition"): 0,
        },
        "engine_admission_rejections_total": {
            ("0", "max_num_queued_reqs"): 0,
            ("0", "max_num_queued_tokens"): 0,
        },
        "engine_sleep_level": 0,
        "kv_prefix_queried_tokens_total": {("0", "local"): 4190, ("0", "external"): 0},
        "kv_prefix_hit_tokens_total": {("0", "local"): 0, ("0", "external"): 0},
        "kv_block_size_tokens": 128,
        "kv_blocks": 44,
        "kv_blocks_used": 28,
        "kv_utilisation_ratio": 28 / 44,
    }
    assert found.vitals == {("smollm2-135m", "0"): Vital(18, (4190, 1021, 4190, 28 / 44))}
    assert {len(metric(s.name).labels) - len(s.labels) for s in found.samples} == {0}


def test_0_10_has_old_and_new_names_at_once_and_none_counts_twice(page: Page) -> None:
    assert values(reading(page("vllm-0.10.2-metrics.txt")).samples) == {
        "engine_requests_running": 2,
        "engine_requests_waiting": 5,
        "engine_preemptions_total": {("0",): 4},
        "engine_prompt_tokens_total": {("0",): 900},
        "engine_generation_tokens_total": {("0",): 1200},
        "engine_requests_finished_total": {("0", "stop"): 3, ("0", "length"): 8, ("0", "abort"): 1},
        "kv_prefix_queried_tokens_total": {("0", "local"): 900},
        "kv_prefix_hit_tokens_total": {("0", "local"): 300},
        "kv_block_size_tokens": 16,
        "kv_blocks": 1000,
        "kv_blocks_used": 750,
        "kv_utilisation_ratio": 0.75,
    }


def test_the_v0_engine_has_no_null_block_and_tells_what_is_swapped_out(page: Page) -> None:
    found = reading(page("vllm-0.6-metrics.txt"))
    assert values(found.samples) == {
        "engine_requests_running": 3,
        "engine_requests_waiting": 1,
        "engine_requests_swapped": 0,
        "engine_preemptions_total": {("0",): 7},
        "kv_block_size_tokens": 16,
        "kv_blocks": 27898,
        "kv_blocks_used": 13949,
        "kv_utilisation_ratio": 0.5,
    }
    assert {s.labels[1] for s in found.samples} == {"facebook/opt-125m"}


def test_levels_of_two_engines_are_added_up_and_counters_keep_their_rank(page: Page) -> None:
    """So that the restart of one of them is a reset of its own counter, not a jump of the sum."""
    text = page("vllm-v1-two-engines-metrics.txt")
    assert values(reading(text).samples) == {
        "engine_requests_running": 5,
        "engine_requests_waiting": 4,
        "engine_requests_waiting_by_reason": {("capacity",): 100, ("deferred",): 100},
        "engine_preemptions_total": {("0",): 0, ("1",): 2},
        "kv_block_size_tokens": 128,
        "kv_blocks": 1536,
        "kv_blocks_used": 512 + 64,
        "kv_utilisation_ratio": (512 + 64) / 1536,
    }
    restarted = text.replace(
        b'preemptions_total{engine="1",model_name="smollm2-135m"} 2.0',
        b'preemptions_total{engine="1",model_name="smollm2-135m"} 0.0',
    )
    assert values(reading(restarted).samples)["engine_preemptions_total"] == {("0",): 0, ("1",): 0}


def test_kv_copies_to_host_memory_and_between_engines(page: Page) -> None:
    found = values(reading(page("vllm-kv-transfers-metrics.txt")).samples)
    load, store, nixl = ("0", "offload", "load"), ("0", "offload", "store"), ("0", "nixl", "load")
    assert found == {
        "engine_requests_running": 1,
        "kv_transfers_total": {load: 2, store: 4, nixl: 5},
        "kv_transfer_bytes_total": {load: 3e6, store: 8e6, nixl: 1e7},
        "kv_transfer_seconds_total": {load: 0.25, store: 0.5, nixl: 0.01},
        "kv_transfer_failures_total": {store: 3, nixl: 1},
    }


def test_the_deprecated_names_of_kv_copies_say_the_same(page: Page) -> None:
    text = page("vllm-kv-transfers-metrics.txt")
    old = b"\n".join(
        line for line in text.split(b"\n") if b"offload_load" not in line and b"_store" not in line
    )
    for name in ("kv_transfers_total", "kv_transfer_bytes_total", "kv_transfer_seconds_total"):
        assert values(reading(old).samples)[name] == values(reading(text).samples)[name]


def test_under_ray_each_worker_is_a_rank(page: Page) -> None:
    found = reading(page("ray-vllm-metrics.txt"), ray=True)
    assert values(found.samples) == {
        "engine_requests_running": 4,
        "engine_requests_waiting": 2,
        "engine_preemptions_total": {("0:aaaaaaaa",): 9},
        "engine_generation_tokens_total": {("0:aaaaaaaa",): 700, ("0:bbbbbbbb",): 50},
        "engine_requests_finished_total": {("0:aaaaaaaa", "stop"): 6},
        "kv_block_size_tokens": 16,
        "kv_blocks": 200,
        "kv_blocks_used": 75,
        "kv_utilisation_ratio": 0.375,
    }
    assert found.version_at == ""  # the page is Ray's, not the engine's server's
    assert read(page("ray-vllm-metrics.txt"), "r0") is None


@pytest.mark.parametrize(("state", "level"), [("awake", 0), ("weights_offloaded", 1), ("discard_all", 2)])
def test_the_deepest_sleep_counts(state: str, level: int) -> None:
    line = 'vllm:engine_sleep_state{engine="%d",model_name="m",sleep_state="%s"} %d\n'
    text = line % (0, "awake", 1) + line % (1, "awake", state == "awake") + line % (1, state, 1)
    assert values(reading(text.encode()).samples)["engine_sleep_level"] == level


RUNNING = b'vllm:num_requests_running{model_name="m"} 1\n'
INFO = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'
USAGE = b'vllm:kv_cache_usage_perc{model_name="m"} '


@pytest.mark.parametrize(
    ("text", "kv"),
    [
        (RUNNING, {}),
        (RUNNING + INFO, {"kv_blocks": 100, "kv_block_size_tokens": 16}),
        (RUNNING + INFO + USAGE + b"NaN\n", {"kv_blocks": 100, "kv_block_size_tokens": 16}),
        (RUNNING + INFO + USAGE + b"42\n", {"kv_blocks": 100, "kv_block_size_tokens": 16}),
        (RUNNING + USAGE + b"0.25\n", {"kv_utilisation_ratio": 0.25}),
        (RUNNING + INFO.replace(b'"100"', b'"None"'), {"kv_block_size_tokens": 16}),
        (RUNNING + INFO.replace(b'"100"', b'"-1"'), {"kv_block_size_tokens": 16}),
        (
            INFO + USAGE + b"0.5\n",
            {"kv_blocks": 100, "kv_blocks_used": 50, "kv_utilisation_ratio": 0.5, "kv_block_size_tokens": 16},
        ),
    ],
)
def test_what_the_page_lacks_is_absent_and_not_0(text: bytes, kv: dict[str, float]) -> None:
    found = values(reading(text).samples)
    running = {"engine_requests_running": 1} if RUNNING in text else {}
    assert found == {**kv, **running}


def test_used_blocks_are_absent_if_one_of_two_engines_has_no_usage(page: Page) -> None:
    text = page("vllm-v1-two-engines-metrics.txt").replace(b'_usage_perc{engine="1"', b'_usage_x{engine="1"')
    found = values(reading(text).samples)
    assert "kv_blocks_used" not in found
    assert "kv_utilisation_ratio" not in found
    assert found["kv_blocks"] == 1536


@pytest.mark.parametrize(
    "text", [b"", b"vllm:\nvllm:num_requests_running", b"\xff\x00}}}{{{\nvllm:num_requests_running{ x", b"# vllm:x"]
)  # fmt: skip
def test_a_page_without_a_sample_of_vllm_is_none(text: bytes) -> None:
    assert read(text, "r0") is None


def test_a_line_of_no_model_is_of_the_only_one_there_is() -> None:
    text = b'vllm:num_requests_running{model_name="m"} 2\nvllm:num_requests_waiting 3\n'
    samples = reading(text).samples
    assert Sample("exaserve_engine_requests_waiting", ("r0", "m"), 3) in samples


def test_the_filter_names_everything_that_is_read_from_vllm_itself(page: Page) -> None:
    """A page that the server cut down to the names of FILTER says the same as the whole one."""
    asked = {part.removeprefix("name[]=").encode() for part in FILTER.removeprefix("/?").split("&")}
    for name in ("vllm-0.32.0", "vllm-0.10.2", "vllm-0.6", "vllm-kv-transfers", "vllm-v1-two-engines"):
        whole = page(f"{name}-metrics.txt")
        cut = b"\n".join(line for line in whole.split(b"\n") if line.partition(b"{")[0] in asked)
        assert reading(cut) == reading(whole)
