"""Finds the few lines that matter on a vLLM metrics page, old or new, and gives them as catalogue samples.

The page has 430 samples in 50 KB; a full parser takes 8 ms for it, searching the bytes well under 0.2 ms.
Pages of vLLM 0.6 to 0.32 (V0 and V1 engines): ``gpu_cache_usage_perc`` was renamed ``kv_cache_usage_perc``; both
are ratios 0-1 in spite of their names. The V1 engine keeps one block for itself (28 of 44 is what a page with
num_gpu_blocks 45 shows), so usage x blocks is not always whole; it keeps used / blocks equal to the engine's ratio.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from exporters.registry import Sample

_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")

#: Catalogue name -> vLLM's names for it, newest first; the values of all engines on a page are added.
_SUMMED = {
    "exaserve_engine_requests_running": (b"vllm:num_requests_running",),
    "exaserve_engine_requests_waiting": (b"vllm:num_requests_waiting",),
    "exaserve_engine_preemptions_total": (b"vllm:num_preemptions_total", b"vllm:num_preemptions"),
}
_USAGE = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
_CONFIG = b"vllm:cache_config_info"

_Labels = dict[str, str]


def samples_of(page: bytes, replica: str) -> list[Sample]:
    """Samples of one replica's page, by model; empty if the page names no vLLM model.

    Several engines (data parallel) on one page are added up. What the page lacks, or gives as no number, is
    absent from the answer, never 0: used blocks need every engine's usage and block count.
    """
    # A line is found by the newline before it; the first one has none.
    page = b"\n" + page
    samples: list[Sample] = []
    models: dict[str, str] = {}  # engine -> model, where usage or the info line can't say it
    for ours, theirs in _SUMMED.items():
        sums: dict[str, float] = {}
        for labels, value in _newest(page, theirs):
            model = labels.get("model_name", "")
            models[labels.get("engine", "")] = model
            sums[model] = sums.get(model, 0.0) + value
        samples += [Sample(ours, (replica, model), value) for model, value in sums.items() if model]
    return samples + list(_kv(page, replica, models))


def _kv(page: bytes, replica: str, models: dict[str, str]) -> Iterator[Sample]:
    usage: dict[str, float] = {}
    for labels, value in _newest(page, _USAGE):
        engine = labels.get("engine", "")
        models.setdefault(engine, labels.get("model_name", ""))
        if 0 <= value <= 1:
            usage[engine] = value
    config = {labels.get("engine", ""): labels for labels, _ in _lines(page, _CONFIG)}
    for model in sorted({m for m in models.values() if m}):
        engines = [e for e, m in models.items() if m == model]
        # Old pages have one info line without the label engine; it holds for every engine.
        infos = [config.get(e) or config.get("") or {} for e in engines]
        blocks = [_whole(info.get("num_gpu_blocks")) for info in infos]
        sizes = {_whole(info.get("block_size")) for info in infos}
        size = sizes.pop() if len(sizes) == 1 else None
        if size is not None:
            yield Sample("exaserve_kv_block_size_tokens", (replica, model), size)
        known = [b for b in blocks if b is not None]
        if len(known) < len(engines):
            continue
        yield Sample("exaserve_kv_blocks", (replica, model), float(sum(known)))
        if all(e in usage for e in engines):
            used = sum(usage[e] * b for e, b in zip(engines, known, strict=True))
            yield Sample("exaserve_kv_blocks_used", (replica, model), used)


def _newest(page: bytes, names: tuple[bytes, ...]) -> list[tuple[_Labels, float]]:
    """The lines of the first name that the page has; a page in transition has both, and both mean the same."""
    for name in names:
        found = list(_lines(page, name))
        if found:
            return found
    return []


def _lines(page: bytes, name: bytes) -> Iterator[tuple[_Labels, float]]:
    """Labels and value of every sample of exactly that name; lines that are no sample are passed over."""
    start = page.find(b"\n" + name)
    while start >= 0:
        begin = start + 1 + len(name)
        end = page.find(b"\n", begin)
        line = page[begin : end if end >= 0 else len(page)]
        # The name goes on (num_requests_waiting_by_reason) unless labels or the value follow.
        if line[:1] in (b"{", b" "):
            labels, _, rest = line.rpartition(b"}")
            value = _number(rest)
            if value is not None:
                yield _labels(labels), value
        start = page.find(b"\n" + name, begin)


def _labels(raw: bytes) -> _Labels:
    return {
        key.decode(): _ESCAPED.sub(lambda m: "\n" if m[1] == "n" else m[1], value.decode(errors="replace"))
        for key, value in _LABEL.findall(raw)
    }


def _number(rest: bytes) -> float | None:
    """The value at the start of ``rest`` (a timestamp may follow); None if it is not finite."""
    try:
        value = float(rest.split(None, 1)[0])
    except (ValueError, IndexError):
        return None
    return value if math.isfinite(value) else None


def _whole(text: str | None) -> float | None:
    """A positive whole number out of a label; None for ``None`` and anything else."""
    return (
        float(text)
        if text and text.isascii() and text.isdigit() and 0 < len(text) < 16 and int(text)
        else None
    )
