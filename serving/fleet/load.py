"""A replica's load out of vLLM's metrics page, by finding the few lines that matter in its bytes.

``prometheus_client``'s parser takes 8 ms for the 50 KB page, this a few microseconds a line. The page itself is
asked for with the names of these lines only (PAGES[0]): vLLM 0.32 serves ``/metrics/`` through prometheus_client's
ASGI application, which knows ``name[]``, and answers about 1 KB, without collecting the other families. An engine
that has no such address gets the whole page asked for.

Other ways and why not: ``/load`` counts requests only (no KV usage, no queue apart from what runs), and only with
--enable-server-load-tracking. The ORCA header (``endpoint-load-metrics-format``) carries KV usage and the queue, not
what runs; vLLM collects all of its metrics and writes a log line for each answer that carries it.
tests/benchmarks/load_sweep.py measures them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from urllib.parse import quote

#: What is summed or compared: the five lines, and the name that one of them had before vLLM 0.11.
NAMES = (
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
)  # fmt: skip
#: Addresses of a page, the cheapest first. With the slash: without it vLLM's first route answers, the whole page.
#: A replica's constant numbers, asked for once.
CAPACITY_PAGE = "/metrics/?name[]=vllm:cache_config_info"
PAGES = ("/metrics/?" + "&".join(f"name[]={quote(n, safe=':')}" for n in NAMES), "/metrics")


@dataclass(slots=True)
class Load:
    """What the page says; None where it does not say it. kv_usage is 0-1, tokens counts prompt and answer."""

    running: int | None
    waiting: int | None
    kv_usage: float | None
    tokens: float | None

    @property
    def known(self) -> bool:
        return self.running is not None or self.waiting is not None or self.kv_usage is not None


def read(page: bytes) -> Load:
    """Values are summed over the page's engines, KV usage is the highest of them. Never raises."""
    running = _values(page, b"\nvllm:num_requests_running{")
    waiting = _values(page, b"\nvllm:num_requests_waiting{")
    usage = _values(page, b"\nvllm:kv_cache_usage_perc{") or _values(page, b"\nvllm:gpu_cache_usage_perc{")
    tokens = _values(page, b"\nvllm:prompt_tokens_total{") + _values(page, b"\nvllm:generation_tokens_total{")
    return Load(
        int(sum(running)) if running else None,
        int(sum(waiting)) if waiting else None,
        max(usage) if usage else None,
        sum(tokens) if tokens else None,
    )


def kv_tokens(page: bytes) -> int | None:
    """Tokens that the KV caches of the page's engines hold; None where it does not say so. Never raises.

    ``kv_cache_size_tokens`` (newer engines) is right for models with layers of several kinds too; else blocks are
    multiplied by their size.
    """
    total = 0
    for line in re.findall(rb"^vllm:cache_config_info\{(.*)\} \S+$", page, re.MULTILINE):
        labels = dict(re.findall(rb'(\w+)="([^"]*)"', line))
        size = labels.get(b"kv_cache_size_tokens", b"")
        if size.isdigit():
            total += int(size)
        else:
            blocks, block = labels.get(b"num_gpu_blocks", b""), labels.get(b"block_size", b"")
            if not (blocks.isdigit() and block.isdigit()):
                return None
            total += int(blocks) * int(block)
    return total or None


def _values(page: bytes, start: bytes) -> list[float]:
    values = []
    at = page.find(start)
    while at >= 0:
        end = page.find(b"\n", at + 1)
        line = page[at : end if end >= 0 else len(page)]
        try:
            value = float(line[line.rindex(b"}") + 1 :].split()[0])
        except (ValueError, IndexError):
            value = math.nan
        if math.isfinite(value):
            values.append(value)
        at = page.find(start, end) if end >= 0 else -1
    return values
