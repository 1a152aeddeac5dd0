"""vLLM's names (0.6 to 0.32; V0 and V1 engines; under Ray), and how its KV cache is counted.

Names by version: ``gpu_cache_usage_perc`` is ``kv_cache_usage_perc`` since 0.11, ``gpu_prefix_cache_*`` lost its
``gpu_`` before 0.10, the V0 engine's swap names went with it in 0.11. Both usages are ratios 0-1 in spite of their
names. Ray puts ``ray_`` before a name, makes ``:`` an underscore and adds the labels WorkerId and ReplicaId.

Blocks: V1 keeps one block for itself that no request gets (the null block, ``vllm/v1/core/block_pool.py``), and
counts usage over the others. So on V1 the blocks here are ``num_gpu_blocks`` - 1, and used = usage x that is whole
and used / blocks is the engine's own ratio: 28 of 44 on a page with num_gpu_blocks 45. (Up to 0.9 V1 counted the
null block as used: one block too many there.) V0 has no such block; its pages have no label ``engine``.

Offload and KV transfer: the counters are there from the first transfer on. ``kv_offload_total_*`` are their names
before 0.2x, by transfer_type. NIXL's are written by the engine that reads the blocks (decode), hence "load".
Seconds are copy time, added up over the workers, without queueing.
"""

from __future__ import annotations

from collections.abc import Iterator

from exporters.collectors._page import Cells, Labels, Page, Reading, Row, by_model, find, whole
from exporters.registry import Sample

MAKE = "vllm"
PREFIX, RAY_PREFIX = b"vllm:", b"ray_vllm_"

_RUNNING, _WAITING = ("num_requests_running",), ("num_requests_waiting",)
_PROMPT, _GENERATED = (
    ("prompt_tokens_total", "prompt_tokens"),
    ("generation_tokens_total", "generation_tokens"),
)
_FINISHED = ("request_success_total", "request_success")
_PREEMPTED = ("num_preemptions_total", "num_preemptions")
_QUERIES = ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total", "prefix_cache_queries")
_HITS = ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total", "prefix_cache_hits")
_FAR_QUERIES = ("external_prefix_cache_queries_total", "external_prefix_cache_queries")
_FAR_HITS = ("external_prefix_cache_hits_total", "external_prefix_cache_hits")
_REFUSED = ("admission_rejections_total", "admission_rejections")
_USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")
_CONFIG = ("cache_config_info",)
_SLEEP = ("engine_sleep_state",)
#: Levels of vLLM's sleep mode by its label sleep_state.
_SLEEP_LEVELS = {"awake": 0.0, "weights_offloaded": 1.0, "discard_all": 2.0}

_BYTES, _SECONDS = "exaserve_kv_transfer_bytes_total", "exaserve_kv_transfer_seconds_total"
_TIMES, _FAILURES = "exaserve_kv_transfers_total", "exaserve_kv_transfer_failures_total"

ROWS = (
    Row("exaserve_engine_requests_running", _RUNNING),
    Row("exaserve_engine_requests_waiting", _WAITING),
    Row("exaserve_engine_requests_waiting_by_reason", ("num_requests_waiting_by_reason",), by="reason"),
    Row("exaserve_engine_requests_swapped", ("num_requests_swapped",)),
    Row("exaserve_engine_preemptions_total", _PREEMPTED),
    Row("exaserve_engine_prompt_tokens_total", _PROMPT),
    Row("exaserve_engine_generation_tokens_total", _GENERATED),
    Row("exaserve_engine_requests_finished_total", _FINISHED, by="finished_reason"),
    Row("exaserve_engine_admission_rejections_total", _REFUSED, by="reason"),
    Row("exaserve_kv_prefix_queried_tokens_total", _QUERIES, fixed=("local",)),
    Row("exaserve_kv_prefix_hit_tokens_total", _HITS, fixed=("local",)),
    Row("exaserve_kv_prefix_queried_tokens_total", _FAR_QUERIES, fixed=("external",)),
    Row("exaserve_kv_prefix_hit_tokens_total", _FAR_HITS, fixed=("external",)),
    Row(_TIMES, ("nixl_xfer_time_seconds_count",), fixed=("nixl", "load")),
    Row(_SECONDS, ("nixl_xfer_time_seconds_sum",), fixed=("nixl", "load")),
    Row(_BYTES, ("nixl_bytes_transferred_sum",), fixed=("nixl", "load")),
    Row(_FAILURES, ("nixl_num_failed_transfers_total", "nixl_num_failed_transfers"), fixed=("nixl", "load")),
    Row(
        _FAILURES,
        ("kv_offload_allocation_failure_total", "kv_offload_allocation_failure"),
        fixed=("offload", "store"),
    ),
)
#: Ours, vLLM's since it has a name for each direction, and the one before with a label for it.
_OFFLOAD = (
    (_BYTES, "kv_offload_{}_bytes", "kv_offload_total_bytes"),
    (_SECONDS, "kv_offload_{}_time", "kv_offload_total_time"),
    (_TIMES, "kv_offload_{}_size_count", "kv_offload_size_count"),
)
_DIRECTIONS = {"load": "CPU_to_GPU", "store": "GPU_to_CPU"}

#: What moves while an engine works: KV usage too, because a long prefill yields no token for minutes. Not requests
#: that ended: those that clients give up end in the front end.
_SIGNS = (_PROMPT, _GENERATED, _QUERIES, _USAGE)

_OFFLOAD_NAMES = {
    f"{name}{end}"
    for _, new, old in _OFFLOAD
    for name in (new.format("load"), new.format("store"), old)
    for end in ("", "_total")
    if not (name.endswith("_count") and end)
}
NAMES = frozenset(
    {name for row in ROWS for name in row.theirs}
    | {name for names in (*_SIGNS, _CONFIG, _SLEEP) for name in names}
    | _OFFLOAD_NAMES
)
_WANTED = {prefix: frozenset(prefix + name.encode() for name in NAMES) for prefix in (PREFIX, RAY_PREFIX)}

#: What is appended to the address of the page so that vLLM collects and sends these names only. With the slash:
#: ``/metrics/`` is prometheus_client's own application, which knows ``name[]``; without it vLLM's first route
#: answers, the whole page. Only names that vLLM itself has had since 0.10: each one costs it a look.
FILTER = "/?" + "&".join(
    f"name[]=vllm:{name}"
    for name in sorted(NAMES)
    if name.endswith(("_total", "_count", "_sum", "_info", "_perc", "_state", "_reason"))
    or name in (*_RUNNING, *_WAITING, "num_requests_swapped")
)


def read(page: bytes, replica: str, ray: bool = False) -> Reading | None:
    """What a vLLM page says of ``replica``, by model; None if it has no sample of vLLM.

    What the page lacks, or gives as no number, is absent, never 0: used blocks need the usage and the block count
    of each engine of the model.
    """
    prefix = RAY_PREFIX if ray else PREFIX
    found = find(page, prefix, _WANTED[prefix])
    if not found:
        return None
    lines = Page(found, _ray_rank if ray else _rank)
    samples = lines.samples(ROWS, replica)
    samples += _offload(lines, replica)
    samples += _asleep(lines, replica)
    samples += _kv(lines, replica)
    return Reading(MAKE, samples, lines.vitals((_RUNNING, _WAITING), _SIGNS), "" if ray else "/version")


def _rank(labels: Labels) -> str:
    return labels.get("engine", "0")


def _ray_rank(labels: Labels) -> str:
    """Ray shows all the workers of a node on one page, each with an engine 0."""
    return f"{labels.get('engine', '0')}:{labels.get('WorkerId', '')[:8]}"


def _offload(page: Page, replica: str) -> Iterator[Sample]:
    for ours, new, old in _OFFLOAD:
        for direction, transfer_type in _DIRECTIONS.items():
            name = new.format(direction)
            cells = page.cells(f"{name}_total", name)
            if not cells:
                older = page.cells(f"{old}_total", old, by="transfer_type")
                cells = {key[:2]: value for key, value in older.items() if key[2] == transfer_type}
            for key, value in cells.items():
                yield Sample(ours, (replica, *key, "offload", direction), value)


def _asleep(page: Page, replica: str) -> Iterator[Sample]:
    """The deepest sleep of the model's engines."""
    levels: dict[str, float] = {}
    for (model, _, state), value in page.cells(*_SLEEP, by="sleep_state").items():
        if value == 1 and state in _SLEEP_LEVELS:
            levels[model] = max(levels.get(model, 0.0), _SLEEP_LEVELS[state])
    for model, level in levels.items():
        yield Sample("exaserve_engine_sleep_level", (replica, model), level)


def _kv(page: Page, replica: str) -> Iterator[Sample]:
    usage: Cells = {k: v for k, v in page.cells(*_USAGE).items() if 0 <= v <= 1}
    engines = {(key[0], key[1]): None for names in (_RUNNING, _WAITING, _USAGE) for key in page.cells(*names)}
    v1 = any("engine" in labels for labels, _ in page.lines(*_USAGE))
    infos = {page.engine(labels)[1]: labels for labels, _ in page.lines(*_CONFIG)}
    # V0 has one info line without the label engine; it holds for every engine.
    everybody = next((labels for labels, _ in page.lines(*_CONFIG) if "engine" not in labels), {})
    for model, ranks in by_model(engines).items():
        at = (replica, model)
        configs = [infos.get(rank, everybody) for rank in ranks]
        sizes = {whole(config.get("block_size")) for config in configs}
        size = sizes.pop() if len(sizes) == 1 else None
        if size is not None:
            yield Sample("exaserve_kv_block_size_tokens", at, size)
        totals = [whole(config.get("num_gpu_blocks")) for config in configs]
        blocks = [t - 1.0 if v1 else t for t in totals if t is not None]
        shares = [usage[model, rank] for rank in ranks if (model, rank) in usage]
        total = float(sum(blocks)) if len(blocks) == len(ranks) else 0.0
        if total:
            yield Sample("exaserve_kv_blocks", at, total)
        if len(shares) < len(ranks):
            continue
        ratio = sum(shares) / len(shares)
        if total:
            used = sum(round(share * n) for share, n in zip(shares, blocks, strict=True))
            yield Sample("exaserve_kv_blocks_used", at, float(used))
            ratio = sum(share * n for share, n in zip(shares, blocks, strict=True)) / total
        yield Sample("exaserve_kv_utilisation_ratio", at, ratio)
