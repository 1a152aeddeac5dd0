"""TensorRT-LLM's names (``trtllm-serve``, 1.0 and newer), and how they become the catalogue's.

They stand at ``/prometheus/metrics`` (with ``return_perf_metrics``); the levels, KV blocks and waiting requests
come only with ``enable_iter_perf_stats``. ``/metrics`` is another thing there: JSON, and reading it takes away what
it tells. 1.0 has no prefix yet for some names; those are not told apart from other programs' and are not read.

Tokens are counted when a request ends; what moves meanwhile is the use of the KV cache and the duration of an
iteration. A request that ended in an HTTP error is not among ``request_success_total``.
"""

from __future__ import annotations

from collections.abc import Iterator

from exporters.collectors._page import Labels, Page, Reading, Row, find
from exporters.registry import Sample

MAKE = "tensorrt_llm"
PREFIX = b"trtllm_"
PATH = "/prometheus/metrics"

_RUNNING, _WAITING = ("num_requests_running",), ("num_requests_waiting",)
_PROMPT, _GENERATED = ("prompt_tokens_total",), ("generation_tokens_total",)
_FINISHED, _ERRORS = ("request_success_total",), ("request_error_total",)
_USAGE = ("kv_cache_utilization",)
#: What vLLM and the catalogue call it.
_REASONS = {"cancelled": "abort"}
_BYTES = "exaserve_kv_transfer_bytes_total"

ROWS = (
    Row("exaserve_engine_requests_running", _RUNNING),
    Row("exaserve_engine_requests_waiting", _WAITING),
    Row("exaserve_engine_prompt_tokens_total", _PROMPT),
    Row("exaserve_engine_generation_tokens_total", _GENERATED),
    Row("exaserve_kv_prefix_queried_tokens_total", _PROMPT, fixed=("local",)),
    Row("exaserve_kv_prefix_hit_tokens_total", ("prompt_cached_tokens_total",), fixed=("local",)),
    Row(_BYTES, ("kv_cache_onboard_bytes_total",), fixed=("offload", "load")),
    Row(_BYTES, ("kv_cache_offload_bytes_total",), fixed=("offload", "store")),
    Row("exaserve_kv_blocks", ("kv_cache_max_blocks",)),
    Row("exaserve_kv_blocks_used", ("kv_cache_used_blocks",)),
    Row("exaserve_kv_block_size_tokens", ("kv_cache_tokens_per_block",)),
)
_SIGNS = (
    _PROMPT, _GENERATED, _USAGE,
    ("kv_cache_used_blocks",), ("iteration_latency_seconds",), ("num_requests_completed_total",),
)  # fmt: skip
_WANTED = frozenset(
    PREFIX + name.encode()
    for names in (*(row.theirs for row in ROWS), *_SIGNS, _FINISHED, _ERRORS)
    for name in names
)  # fmt: skip


def read(page: bytes, replica: str) -> Reading | None:
    """What the page says of ``replica``, by model; None if it has no sample of TensorRT-LLM. What it lacks is absent."""
    found = find(page, PREFIX, _WANTED)
    if not found:
        return None
    lines = Page(found, _rank)
    samples = lines.samples(ROWS, replica)
    samples += _ended(lines, replica)
    samples += _usage(lines, replica)
    return Reading(MAKE, samples, lines.vitals((_RUNNING, _WAITING), _SIGNS), "/version")


def _usage(page: Page, replica: str) -> Iterator[Sample]:
    """Of a model; anything that is no ratio is no data."""
    for (model, _), value in page.cells(*_USAGE).items():
        if 0 <= value <= 1:
            yield Sample("exaserve_kv_utilisation_ratio", (replica, model), value)


def _rank(_: Labels) -> str:
    return "0"


def _ended(page: Page, replica: str) -> Iterator[Sample]:
    """By how they ended. A 5xx is the engine's error, 429 and 503 a refusal; any other 4xx is the client's own."""
    ended, refused = "exaserve_engine_requests_finished_total", "exaserve_engine_admission_rejections_total"
    sums: dict[tuple[str, ...], float] = {}
    for (model, rank, reason), value in page.cells(*_FINISHED, by="finished_reason").items():
        sums[ended, model, rank, _REASONS.get(reason, reason)] = value
    for (model, rank, code), value in page.cells(*_ERRORS, by="http_code").items():
        if code in ("429", "503"):
            sums[refused, model, rank, f"http_{code}"] = value
        elif code.startswith("5"):
            key = (ended, model, rank, "error")
            sums[key] = sums.get(key, 0.0) + value
    for (name, *labels), value in sums.items():
        yield Sample(name, (replica, *labels), value)
