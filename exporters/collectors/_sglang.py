"""SGLang's names (0.4 to 0.5.23, ``--enable-metrics``), and how they become the catalogue's.

Ranks: each scheduler writes its own lines, by dp_rank, tp_rank and pp_rank. The tensor- and pipeline-parallel ranks
of one engine all tell the same, so the lowest one speaks for it. With priority scheduling there is a line for each
class beside the total, whose priority is empty.

KV: SGLang counts tokens; its pages hold ``page_size`` tokens (mostly 1). Blocks here are its pages. Before 0.5.11
both stand only as labels of ``cache_config_info``; before that one, only the ratio is known. Cached prefixes that
nobody uses (evictable) do not count as used, as in vLLM.

Tokens and requests are counted when a request ends, and without a rank: what moves meanwhile is the use of the KV
cache and the throughput. Waiting are those in the queue, those whose grammar is compiled, and those
whose KV comes from elsewhere (disaggregation); vLLM counts the same. ``num_requests_total`` has aborted ones too.
"""

from __future__ import annotations

from collections.abc import Iterator

from exporters.collectors._page import (
    Cells,
    Labels,
    Lines,
    Page,
    Reading,
    Row,
    by_model,
    find,
    over_ranks,
    whole,
)
from exporters.registry import Sample

MAKE = "sglang"
PREFIX = b"sglang:"

_RUNNING = ("num_running_reqs",)
_PROMPT, _GENERATED = ("prompt_tokens_total",), ("generation_tokens_total",)
_ALL, _ABORTED = ("num_requests_total",), ("num_aborted_requests_total",)
_USAGE = ("token_usage",)
_USED = ("kv_used_tokens", "num_used_tokens")
_CAPACITY = ("max_total_num_tokens",)
_CONFIG = ("cache_config_info",)
_PAGES, _PAGE_SIZE = ("num_pages",), ("page_size",)
_CACHED = ("cached_tokens_total",)
#: Queues of requests that wait, by why they do.
_QUEUES = {
    "capacity": ("num_queue_reqs",),
    "grammar": ("num_grammar_queue_reqs",),
    "kv_bootstrap": ("num_prefill_bootstrap_queue_reqs", "num_prefill_prealloc_queue_reqs"),
    "kv_prealloc": ("num_decode_prealloc_queue_reqs",),
    "kv_transfer": ("num_decode_transfer_queue_reqs",),
}
_MILLI, _MEGA = 1e-3, 1e6
_BYTES, _SECONDS = "exaserve_kv_transfer_bytes_total", "exaserve_kv_transfer_seconds_total"
_TIMES, _FAILURES = "exaserve_kv_transfers_total", "exaserve_kv_transfer_failures_total"

ROWS = (
    Row("exaserve_engine_requests_running", _RUNNING),
    Row("exaserve_engine_preemptions_total", ("num_retracted_requests_total",)),
    Row("exaserve_engine_prompt_tokens_total", _PROMPT),
    Row("exaserve_engine_generation_tokens_total", _GENERATED),
    Row("exaserve_engine_requests_finished_total", _ABORTED, fixed=("abort",)),
    Row("exaserve_kv_prefix_queried_tokens_total", _PROMPT, fixed=("local",)),
    Row(_BYTES, ("load_back_bytes_total",), fixed=("offload", "load")),
    Row(_SECONDS, ("load_back_duration_seconds_sum",), fixed=("offload", "load")),
    Row(_TIMES, ("load_back_duration_seconds_count",), fixed=("offload", "load")),
    Row(_BYTES, ("hicache_backup_bytes_total",), fixed=("offload", "store")),
    Row(_SECONDS, ("hicache_backup_duration_seconds_sum",), fixed=("offload", "store")),
    Row(_TIMES, ("hicache_backup_duration_seconds_count",), fixed=("offload", "store")),
    Row(_BYTES, ("kv_transfer_total_mb_sum",), fixed=("disaggregation", "load"), factor=_MEGA),
    Row(_SECONDS, ("kv_transfer_latency_ms_sum",), fixed=("disaggregation", "load"), factor=_MILLI),
    Row(_TIMES, ("kv_transfer_latency_ms_count",), fixed=("disaggregation", "load")),
    Row(_FAILURES, ("num_transfer_failed_reqs_total",), fixed=("disaggregation", "load")),
)
_WAITING = tuple(_QUEUES.values())
#: What moves while a scheduler works. Not the counters of tokens: they are the front end's, for all ranks together.
_SIGNS = (("realtime_tokens_total",), ("gen_throughput",), _USED, _USAGE)

_NAMES = frozenset(
    {name for row in ROWS for name in row.theirs}
    | {
        name
        for names in (*_SIGNS, *_WAITING, _ALL, _CACHED, _CAPACITY, _CONFIG, _PAGES, _PAGE_SIZE)
        for name in names
    }
)
_WANTED = frozenset(PREFIX + name.encode() for name in _NAMES)
_RANKS = ("pp_rank", "tp_rank", "moe_ep_rank")


def read(page: bytes, replica: str) -> Reading | None:
    """What an SGLang page says of ``replica``, by model; None if it has no sample of SGLang. What it lacks is absent."""
    found = find(page, PREFIX, _WANTED)
    if not found:
        return None
    lines = Page({name: _of_lowest_rank(name, each) for name, each in found.items()}, _rank)
    samples = lines.samples(ROWS, replica)
    samples += _waiting(lines, replica)
    samples += _finished(lines, replica)
    samples += _cached(lines, replica)
    samples += _kv(lines, replica)
    return Reading(MAKE, samples, lines.vitals((_RUNNING, *_WAITING), _SIGNS), "/server_info")


def _rank(labels: Labels) -> str:
    return labels.get("dp_rank") or "0"


def _of_lowest_rank(name: str, lines: Lines) -> Lines:
    """The lines of each data-parallel rank's first other rank; of a gauge by priority, the total only."""
    if len(lines) == 1:
        return lines
    if not name.endswith("_total") and any(labels.get("priority") == "" for labels, _ in lines):
        lines = [line for line in lines if line[0].get("priority") == ""]
    lowest: dict[str, tuple[int, ...]] = {}
    for labels, _ in lines:
        dp, place = _rank(labels), _place(labels)
        lowest[dp] = min(lowest.get(dp, place), place)
    return [line for line in lines if _place(line[0]) == lowest[_rank(line[0])]]


def _place(labels: Labels) -> tuple[int, ...]:
    return tuple(int(whole(labels.get(name)) or 0) for name in _RANKS)


def _waiting(page: Page, replica: str) -> Iterator[Sample]:
    total: Cells = {}
    for reason, names in _QUEUES.items():
        for (model,), value in over_ranks(page.cells(*names)).items():
            total[(model,)] = total.get((model,), 0.0) + value
            yield Sample("exaserve_engine_requests_waiting_by_reason", (replica, model, reason), value)
    for (model,), value in total.items():
        yield Sample("exaserve_engine_requests_waiting", (replica, model), value)


def _finished(page: Page, replica: str) -> Iterator[Sample]:
    """SGLang doesn't say why a request ended, but for an abort: the others are "finished"."""
    aborted = page.cells(*_ABORTED)
    for key, value in page.cells(*_ALL).items():
        at = (replica, *key, "finished")
        yield Sample("exaserve_engine_requests_finished_total", at, max(0.0, value - aborted.get(key, 0.0)))


def _cached(page: Page, replica: str) -> Iterator[Sample]:
    """Prompt tokens from the cache: on the device (or from an unknown place), or from host memory and storage."""
    sums: Cells = {}
    for (model, rank, source), value in page.cells(*_CACHED, by="cache_source").items():
        where = "external" if source.startswith(("host", "storage")) else "local"
        sums[model, rank, where] = sums.get((model, rank, where), 0.0) + value
    for key, value in sums.items():
        yield Sample("exaserve_kv_prefix_hit_tokens_total", (replica, *key), value)


def _kv(page: Page, replica: str) -> Iterator[Sample]:
    usage = {k: v for k, v in page.cells(*_USAGE).items() if 0 <= v <= 1}
    used, capacity = page.cells(*_USED), page.cells(*_CAPACITY)
    pages, sizes = dict(page.cells(*_PAGES)), dict(page.cells(*_PAGE_SIZE))
    for labels, _ in page.lines(*_CONFIG):
        for cells, name in ((pages, "num_pages"), (sizes, "page_size")):
            value = whole(labels.get(name))
            if value is not None:
                cells.setdefault(page.engine(labels), value)
    engines = {(key[0], key[1]): None for cells in (usage, used) for key in cells}
    for model, ranks in by_model(engines).items():
        at = (replica, model)
        mine = [(model, rank) for rank in ranks]
        # Older versions write these once for all data-parallel ranks.
        size = [sizes.get(key) or sizes.get((model, "0")) for key in mine]
        known = [s for s in size if s]
        blocks = [
            pages.get(key) or (capacity[key] // s if s and key in capacity else None)
            for key, s in zip(mine, size, strict=True)
        ]
        total = sum(b for b in blocks if b)
        counted = len(known) == len(mine) and all(blocks) and all(key in used for key in mine)
        if len(known) == len(mine) and len(set(known)) == 1:
            yield Sample("exaserve_kv_block_size_tokens", at, known[0])
        if counted:
            inside = sum(-(-used[key] // s) for key, s in zip(mine, known, strict=True))
            yield Sample("exaserve_kv_blocks", at, total)
            yield Sample("exaserve_kv_blocks_used", at, min(inside, total))
        if all(key in usage for key in mine):
            yield Sample("exaserve_kv_utilisation_ratio", at, sum(usage[key] for key in mine) / len(mine))
