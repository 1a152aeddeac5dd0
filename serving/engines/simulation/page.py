"""The simulated replica's metrics page in Prometheus' text format, with vLLM's own names and labels.

What is counted is in ``metrics.py``. Held to a real page by ``tests/serving/test_engines_simulated.py``.
ExaServe's own metrics are not here but in ``exporters/catalog.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import accumulate

from .metrics import Histogram, Metrics
from .scheduler import Engine

_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


def render(metrics: Metrics, engine: Engine) -> bytes:
    """The whole page."""
    return ("\n".join(_lines(metrics, engine)) + "\n").encode()


def _lines(metrics: Metrics, engine: Engine) -> Iterator[str]:
    base, waiting = metrics.labels, float(len(engine.waiting))
    yield from _process(metrics.started)
    yield from _family(
        "vllm:num_requests_running",
        "gauge",
        "Number of requests in model execution batches.",
        {base: float(len(engine.running))},
    )
    yield from _family(
        "vllm:num_requests_waiting",
        "gauge",
        "Number of requests waiting to be processed.",
        {base: waiting},
    )
    yield from _family(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "Number of waiting requests by reason.",
        {f'{base},reason="capacity"': waiting, f'{base},reason="deferred"': 0.0},
    )
    yield from _family(
        "vllm:engine_sleep_state",
        "gauge",
        "Engine sleep state; awake = 1 means engine is awake.",
        {
            f'{base},sleep_state="{state}"': float(state == "awake")
            for state in ("awake", "weights_offloaded", "discard_all")
        },
    )
    yield from _family(
        "vllm:kv_cache_usage_perc",
        "gauge",
        "KV-cache usage. 1 means 100 percent usage.",
        {base: engine.kv_usage},
    )
    yield from _counters(metrics)
    yield from _histograms(metrics)
    yield from _cache_config(engine)
    yield from _family(
        "http_requests_total",
        "counter",
        "Total number of requests by method, status and handler.",
        {
            f'handler="{handler}",method="{method}",status="{status}"': float(count)
            for (handler, method, status), count in metrics.http.items()
        },
    )
    yield from _head("http_request_duration_highr_seconds", "histogram", "Latency with many buckets.")
    yield from _buckets(metrics.http_seconds, "http_request_duration_highr_seconds", ("", ""))


def _counters(metrics: Metrics) -> Iterator[str]:
    base, prompt = metrics.labels, float(metrics.prompt_tokens)
    simple = {
        # No prefix cache: every prompt is asked for there and none is found.
        "prefix_cache_queries": ("Prefix cache queries, in terms of number of queried tokens.", prompt),
        "prefix_cache_hits": ("Prefix cache hits, in terms of number of cached tokens.", 0.0),
        "external_prefix_cache_queries": ("External prefix cache queries from KV connector.", 0.0),
        "external_prefix_cache_hits": ("External prefix cache hits from KV connector.", 0.0),
        "num_preemptions": ("Cumulative number of preemption from the engine.", float(metrics.preemptions)),
        "prompt_tokens": ("Number of prefill tokens processed.", prompt),
        "prompt_tokens_cached": ("Number of cached prompt tokens (local + external).", 0.0),
        "generation_tokens": ("Number of generation tokens processed.", float(metrics.generation_tokens)),
    }
    for name, (text, value) in simple.items():
        yield from _family(f"vllm:{name}_total", "counter", text, {base: value})
    yield from _family(
        "vllm:prompt_tokens_by_source_total",
        "counter",
        "Number of prompt tokens by source.",
        {
            f'{base},source="{source}"': prompt if source == "local_compute" else 0.0
            for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
        },
    )
    yield from _family(
        "vllm:request_success_total",
        "counter",
        "Count of successfully processed requests.",
        {
            f'engine="0",finished_reason="{reason}",{metrics.model_label}': float(count)
            for reason, count in metrics.success.items()
        },
    )
    yield from _family(
        "vllm:admission_rejections_total",
        "counter",
        "Number of admission attempts rejected by a queue limit, by reason.",
        {
            f'{metrics.model_label},reason="{reason}"': 0.0
            for reason in ("max_num_queued_reqs", "max_num_queued_tokens")
        },
    )


def _histograms(metrics: Metrics) -> Iterator[str]:
    for name, text, histogram in (
        ("request_prompt_tokens", "Number of prefill tokens processed.", metrics.request_prompt_tokens),
        (
            "request_generation_tokens",
            "Number of generation tokens processed.",
            metrics.request_generation_tokens,
        ),
        ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", metrics.step_tokens),
        (
            "request_max_num_generation_tokens",
            "Histogram of maximum number of requested generation tokens.",
            metrics.max_generation_tokens,
        ),
        ("request_params_n", "Histogram of the n request parameter.", metrics.params_n),
        (
            "request_params_max_tokens",
            "Histogram of the max_tokens request parameter.",
            metrics.params_max_tokens,
        ),
        ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", metrics.ttft),
        ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", metrics.itl),
        (
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            metrics.time_per_token,
        ),
        ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", metrics.e2e),
        ("request_queue_time_seconds", "Time spent in WAITING phase for request.", metrics.queue),
        ("request_inference_time_seconds", "Time spent in RUNNING phase for request.", metrics.inference),
        ("request_prefill_time_seconds", "Time spent in PREFILL phase for request.", metrics.prefill),
        ("request_decode_time_seconds", "Time spent in DECODE phase for request.", metrics.decode),
        (
            "request_num_preemptions",
            "Histogram of the number of times a request was preempted.",
            metrics.request_preemptions,
        ),
        (
            "request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill.",
            metrics.prefill_computed,
        ),
    ):
        yield from _head(f"vllm:{name}", "histogram", text)
        yield from _buckets(histogram, f"vllm:{name}", ('engine="0",', f",{metrics.model_label}"))


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _family(name: str, kind: str, text: str, samples: dict[str, float]) -> Iterator[str]:
    yield from _head(name, kind, text)
    for labels, value in samples.items():
        yield f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"


def _process(started: float) -> Iterator[str]:
    times = os.times()
    with open("/proc/self/statm", "rb") as f:
        resident = int(f.read().split()[1]) * _PAGE_SIZE
    for name, kind, text, value in (
        ("resident_memory_bytes", "gauge", "Resident memory size in bytes.", float(resident)),
        ("start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", started),
        (
            "cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent in seconds.",
            times[0] + times[1],
        ),
    ):
        yield from _family(f"process_{name}", kind, text, {"": value})


def _cache_config(engine: Engine) -> Iterator[str]:
    settings = engine.settings
    tokens = settings.kv_blocks * settings.block_size
    # Every label that vLLM 0.32 gives this metric; only the sizes are meant here.
    labels = {
        "_block_size_resolved": "True",
        "block_size": settings.block_size,
        "cache_dtype": "auto",
        "cache_hit_alignment_tokens": None,
        "effective_attention_block_size": settings.block_size,
        "enable_mamba_shared_prefix_checkpoint": "False",
        "enable_prefix_caching": "False",
        "engine": "0",
        "gpu_memory_utilization": "0.92",
        "hash_block_size": None,
        "is_attention_free": "False",
        "kv_cache_dtype_skip_layers": "[]",
        "kv_cache_layout": None,
        "kv_cache_max_concurrency": tokens / settings.max_model_len,
        "kv_cache_memory_bytes": None,
        "kv_cache_size_tokens": tokens,
        "kv_offloading_backend": "native",
        "kv_offloading_size": None,
        "kv_sharing_fast_prefill": "False",
        "mamba_block_size": None,
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_page_size_padded": None,
        "mamba_ssm_cache_dtype": "auto",
        "num_cpu_blocks": None,
        "num_gpu_blocks": settings.kv_blocks,
        "num_gpu_blocks_override": None,
        "prefix_cache_retention_interval": "0",
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": None,
        "replayssm_buffer_len": "16",
        "skip_page_size_padded": None,
        "sliding_window": None,
        "swa_bounded_replay": "True",
        "use_kda_recoverssm": "False",
        "use_replayssm": "False",
        "user_specified_block_size": "True",
    }
    rendered = ",".join(f'{name}="{value}"' for name, value in labels.items())
    yield from _family(
        "vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", {rendered: 1.0}
    )


def _buckets(histogram: Histogram, name: str, labels: tuple[str, str]) -> Iterator[str]:
    # labels: what stands before and after `le`, which prometheus_client sorts in by its name.
    before, after = labels
    total = 0
    for bound, total in zip((*histogram.bounds, "+Inf"), accumulate(histogram.counts), strict=True):
        yield f'{name}_bucket{{{before}le="{bound}"{after}}} {float(total)}'
    whole = f"{{{before}{after.lstrip(',')}}}" if before else ""
    yield f"{name}_count{whole} {float(total)}"
    yield f"{name}_sum{whole} {histogram.sum}"
