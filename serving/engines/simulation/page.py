"""The simulated replica's metrics page in Prometheus' text format, with vLLM's own names and labels.

What is counted is in ``metrics.py``. Held to a real page by ``tests/serving/test_engines_simulated_page.py``.
ExaServe's own metrics are not here but in ``exporters/catalog/``. A router reads the pages of thousands of
replicas every second: all that does not change is rendered once for all replicas of one profile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from itertools import accumulate

from .metrics import HISTOGRAMS, HTTP, Histogram, Metrics, bounds
from .profile import Profile
from .scheduler import Engine

_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


class Page:
    """The page of any replica of one profile and model name."""

    def __init__(self, profile: Profile, model: str) -> None:
        self._profile = profile
        self._label = f'model_name="{_escape(model)}"'
        self._base = f'engine="0",{self._label}'
        self._head = self._gauges_and_counters()
        # Per histogram its name, its lines with a %s for every value, and the lines of one without values.
        self._histograms: list[tuple[str, str, str]] = []
        for name, (theirs, text, _) in HISTOGRAMS.items():
            around = ('engine="0",', f",{self._label}")
            lines = _histogram(f"vllm:{theirs}", text, bounds(name, profile.max_model_len), around)
            self._histograms.append((name, lines, lines % ((0.0,) * lines.count("%s"))))
        self._config = _cache_config(profile)
        self._http = _histogram("http_request_duration_highr_seconds", "Latency with many buckets.", HTTP)
        self._process = (0.0, 0.0, 0.0)  # when it was read, bytes, CPU seconds

    def render(self, metrics: Metrics, engine: Engine) -> bytes:
        """The page of the replica with this engine."""
        waiting = float(len(engine.waiting))
        resident, cpu = self._process_numbers()
        cached, computed = float(metrics.prompt_cached), float(metrics.prompt_computed)
        parts = [
            self._head
            % (
                *(resident, metrics.started, cpu, float(len(engine.running)), waiting, waiting),
                *(engine.blocks.usage, float(metrics.prefix_queries), float(metrics.prefix_hits)),
                *(float(metrics.preemptions), computed + cached, cached, float(metrics.generation_tokens)),
                *(computed, cached, *map(float, metrics.success.values())),
            )
        ]
        made = metrics.histograms
        for name, lines, empty in self._histograms:
            parts.append(lines % _values(made[name]) if name in made else empty)
        parts.append(self._config)
        parts.append(
            _head("http_requests_total", "counter", "Total number of requests by method, status and handler.")
        )
        parts += [
            f'http_requests_total{{handler="{handler}",method="{method}",status="{status}"}} {float(count)}\n'
            for (handler, method, status), count in metrics.http.items()
        ]
        parts.append(self._http % _values(metrics.http_seconds))
        return "".join(parts).encode()

    def _process_numbers(self) -> tuple[float, float]:
        read, resident, cpu = self._process
        if time.monotonic() - read > 1.0:
            times = os.times()
            with open("/proc/self/statm", "rb") as f:
                resident = float(int(f.read().split()[1]) * _PAGE_SIZE)
            cpu = times[0] + times[1]
            self._process = (time.monotonic(), resident, cpu)
        return resident, cpu

    def _gauges_and_counters(self) -> str:
        base = self._base
        states = ((s, float(s == "awake")) for s in ("awake", "weights_offloaded", "discard_all"))
        families: list[tuple[str, str, str, list[tuple[str, object]]]] = [
            ("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", [("", "%s")]),
            (
                "process_start_time_seconds",
                "gauge",
                "Start time of the process since unix epoch in seconds.",
                [("", "%s")],
            ),
            (
                "process_cpu_seconds_total",
                "counter",
                "Total user and system CPU time spent in seconds.",
                [("", "%s")],
            ),
            (
                "vllm:num_requests_running",
                "gauge",
                "Number of requests in model execution batches.",
                [(base, "%s")],
            ),
            (
                "vllm:num_requests_waiting",
                "gauge",
                "Number of requests waiting to be processed.",
                [(base, "%s")],
            ),
            (
                "vllm:num_requests_waiting_by_reason",
                "gauge",
                "Number of waiting requests by reason.",
                [(f'{base},reason="capacity"', "%s"), (f'{base},reason="deferred"', 0.0)],
            ),
            (
                "vllm:engine_sleep_state",
                "gauge",
                "Engine sleep state; awake = 1 means engine is awake.",
                [(f'{base},sleep_state="{state}"', value) for state, value in states],
            ),
            (
                "vllm:kv_cache_usage_perc",
                "gauge",
                "KV-cache usage. 1 means 100 percent usage.",
                [(base, "%s")],
            ),
        ]
        for name, text, value in (
            ("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", "%s"),
            ("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", "%s"),
            ("external_prefix_cache_queries", "External prefix cache queries from KV connector.", 0.0),
            ("external_prefix_cache_hits", "External prefix cache hits from KV connector.", 0.0),
            ("num_preemptions", "Cumulative number of preemption from the engine.", "%s"),
            ("prompt_tokens", "Number of prefill tokens processed.", "%s"),
            ("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", "%s"),
            ("generation_tokens", "Number of generation tokens processed.", "%s"),
        ):
            families.append((f"vllm:{name}_total", "counter", text, [(base, value)]))
        families += [
            (
                "vllm:prompt_tokens_by_source_total",
                "counter",
                "Number of prompt tokens by source.",
                [(f'{base},source="{s}"', 0.0 if s == "external_kv_transfer" else "%s") for s in _SOURCES],
            ),
            (
                "vllm:request_success_total",
                "counter",
                "Count of successfully processed requests.",
                [
                    (f'engine="0",finished_reason="{reason}",{self._label}', "%s")
                    for reason in ("stop", "length", "abort", "error", "repetition")
                ],
            ),
            (
                "vllm:admission_rejections_total",
                "counter",
                "Number of admission attempts rejected by a queue limit, by reason.",
                [
                    (f'{self._label},reason="{reason}"', 0.0)
                    for reason in ("max_num_queued_reqs", "max_num_queued_tokens")
                ],
            ),
        ]
        # A model's name may have a percent sign.
        return "".join(
            _head(name, kind, text).replace("%", "%%")
            + "".join(
                f"{name}{{{labels.replace('%', '%%')}}} {value}\n" if labels else f"{name} {value}\n"
                for labels, value in samples
            )
            for name, kind, text, samples in families
        )


def some_families(page: bytes, names: Collection[str]) -> bytes:
    """The samples with one of these names, below their families' comments; as prometheus_client's ``name[]`` has it.

    Found by their bytes: a router asks thousands of replicas each second.
    """
    found = []
    for name in dict.fromkeys(names):
        start = b"\n" + name.encode()
        about = -1
        at = page.find(start)
        while at >= 0:
            end = page.find(b"\n", at + 1)
            if page[at + len(start) : at + len(start) + 1] in (b"{", b" "):
                if about < 0:
                    about = page.rfind(b"# HELP ", 0, at)
                    found.append(page[about : page.find(b"\n", page.find(b"# TYPE ", about)) + 1])
                found.append(page[at + 1 : end + 1])
            at = page.find(start, end)
    return b"".join(found)


def _escape(value: str) -> str:
    """A label value as the text format wants it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _head(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _values(histogram: Histogram) -> tuple[float, ...]:
    """What ``_histogram`` has places for."""
    totals = tuple(map(float, accumulate(histogram.counts)))
    return (*totals, totals[-1], histogram.sum)


def _histogram(name: str, text: str, limits: tuple[float, ...], labels: tuple[str, str] = ("", "")) -> str:
    """The lines of a histogram with a %s for each value. labels: what stands before and after ``le``, which
    prometheus_client sorts in by its name."""
    before, after = (part.replace("%", "%%") for part in labels)
    lines = [f'{name}_bucket{{{before}le="{bound}"{after}}} %s\n' for bound in (*limits, "+Inf")]
    whole = f"{{{before}{after.lstrip(',')}}}" if before else ""
    head = _head(name, "histogram", text).replace("%", "%%")
    return head + "".join(lines) + f"{name}_count{whole} %s\n{name}_sum{whole} %s\n"


def _cache_config(profile: Profile) -> str:
    tokens = profile.kv_blocks * profile.block_size
    # Every label that vLLM 0.32 gives this metric; only the sizes are meant here.
    labels = {
        "_block_size_resolved": "True",
        "block_size": profile.block_size,
        "cache_dtype": "auto",
        "cache_hit_alignment_tokens": None,
        "effective_attention_block_size": profile.block_size,
        "enable_mamba_shared_prefix_checkpoint": "False",
        "enable_prefix_caching": profile.prefix_caching,
        "engine": "0",
        "gpu_memory_utilization": "0.92",
        "hash_block_size": None,
        "is_attention_free": "False",
        "kv_cache_dtype_skip_layers": "[]",
        "kv_cache_layout": None,
        "kv_cache_max_concurrency": tokens / profile.max_model_len,
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
        "num_gpu_blocks": profile.kv_blocks,
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
    name = "vllm:cache_config_info"
    return _head(name, "gauge", "Information of the LLMEngine CacheConfig") + f"{name}{{{rendered}}} 1.0\n"
