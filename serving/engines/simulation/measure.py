"""A profile measured from a running vLLM: what its steps take, seen from a client.

Prompts of several lengths alone (time to first token), answers in batches of several sizes (time between tokens),
prompts beside an answer (the gap that they tear into it), an answer after a long prompt. The file's format is in
``profile.py``, the client in ``timing.py``.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from .profile import Profile, ProfileError, increasing
from .timing import AskError, Client, Timed, prompt

_SHORT = 8  # tokens of a prompt that is not what is measured
_BASE_AT = 64  # prompt tokens of the step that shows what mixed steps have only once
_LENGTHS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
_TRIES = 3  # batches of which no two requests were at it together, until that is believed
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class CannotMeasure(Exception):
    """The engine can't be measured; the message says why."""


async def measure(
    url: str,
    model: str | None,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    description: str = "",
    seconds: float = 60.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Profile:
    """Measure the replica at ``url``, which should have nobody else to serve.

    max_num_seqs, max_num_batched_tokens: as the engine was started; it does not tell. seconds: about how long it
    may take on an engine that is not too slow for it; each point is measured at least twice. Raises CannotMeasure.
    """
    try:
        run = _Run(url, max_num_batched_tokens, seconds, progress)
        try:
            await run.look(model)
            decode = await run.decode(max_num_seqs)
            prefill = await run.prefill()
            gap = await run.beside()
            context = await run.context(decode[1])
        finally:
            run.client.close()
    except AskError as error:
        raise CannotMeasure(str(error)) from None
    request = max(0.0, prefill[1] - decode[1])
    steps = {length: max(0.1, ttft - request) for length, ttft in prefill.items()}
    pieces = _pieces(run.long, max_num_batched_tokens)
    short = {length: ms for length, ms in steps.items() if length <= max_num_batched_tokens}
    fitted = increasing(
        {length: ms for length, ms in short.items() if length in _LENGTHS or length == pieces[0][0]}
    )
    profile = Profile(
        description=description or f"vLLM at {url}, model {run.model}",
        measured=f"{time.strftime('%Y-%m-%d')}, from a client on the same machine",
        model=run.model,
        max_model_len=run.max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_blocks=run.kv_blocks,
        block_size=run.block_size,
        prefix_caching=run.prefix_caching,
        request_ms=_digits(request),
        base_step_ms=_digits(
            min(max(0.0, decode[1] + _at(fitted, run.base_at) - gap), *decode.values(), *fitted.values())
        ),
        decode_step_ms={n: _digits(ms) for n, ms in increasing(decode).items()},
        decode_context_us=_digits(context * 1e3),
        prefill_step_ms={n: _digits(ms) for n, ms in fitted.items()},
        prefill_context_us=_digits(_pairs_us(steps[run.long], pieces, fitted)),
        jitter=_digits(run.jitter),
    )
    try:
        profile.check()
    except ProfileError as error:
        raise CannotMeasure(f"what was measured makes no profile: {error}") from None
    return profile


class _Run:
    """The measuring itself. Times are milliseconds, medians of several."""

    def __init__(self, url: str, batched: int, seconds: float, progress: Callable[[str], None]) -> None:
        self.client = Client(url)
        self.jitter = 0.0
        self._url = url
        self._batched = batched
        self._seconds = seconds
        self._progress = progress
        self._random = random.Random()  # noqa: S311  nothing that a prefix cache holds from an earlier run
        self._long_seconds = 0.0

    async def look(self, model: str | None) -> None:
        """What the engine says of itself, and how fast it is roughly."""
        try:
            card = json.loads(await self.client.get("/v1/models"))["data"][0]
            self.model: str = model or card["id"]
            self.max_model_len = int(card["max_model_len"])
        except (ValueError, KeyError, IndexError, TypeError):
            raise CannotMeasure(f"{self._url}/v1/models is not vLLM's") from None
        page = (await self.client.get("/metrics")).decode(errors="replace")
        config = next((x for x in page.splitlines() if x.startswith("vllm:cache_config_info{")), "")
        labels = dict(re.findall(r'(\w+)="([^"]*)"', config))
        try:
            self.kv_blocks, self.block_size = int(labels["num_gpu_blocks"]), int(labels["block_size"])
        except (KeyError, ValueError):
            raise CannotMeasure(f"{self._url}/metrics has no vllm:cache_config_info") from None
        self.prefix_caching = labels.get("enable_prefix_caching") != "False"
        self.long = min(3 * self._batched + self._batched // 2, self.max_model_len - 32)
        self.base_at = min(_BASE_AT, self._batched // 2)
        if self.long <= self._batched:
            raise CannotMeasure(
                f"--max-num-batched-tokens {self._batched} is above the model's length: give the engine's"
            )
        await self._ask(_SHORT, 4)
        long = await self._ask(self.long, 2)
        self._long_seconds = long.total
        self._progress(
            f"{self.model}: {self.kv_blocks} KV blocks, the longest prompt takes {long.total:.1f} s"
        )

    def _repeats(self, seconds: float) -> int:
        """How often to measure a point that takes so long: about thirty of them share the time."""
        return int(min(15, max(2, self._seconds / 30 / max(seconds, 0.001))))

    async def decode(self, largest: int) -> dict[int, float]:
        """Batch size -> milliseconds of a step."""
        found = {}
        for size in [n for n in _BATCHES if n < largest] + [largest]:
            steps: list[float] = []
            rounds, began = 0, time.monotonic()
            while not steps or time.monotonic() - began < self._seconds / 15:
                together = await asyncio.gather(*(self._apart(_SHORT, 20) for _ in range(size)))
                # The steps in which all of them decode.
                first = max(t.started + t.ttft for t in together)
                last = min(t.started + t.total for t in together)
                for timed in together:
                    at = [timed.started + x for x in timed.tokens]
                    steps += [b - a for a, b in pairwise(at) if first <= a and b <= last]
                rounds += 1
                # Once may be chance: this machine stood still, and what was sent meanwhile came all at once.
                if not steps and rounds == _TRIES:
                    raise CannotMeasure(
                        f"{size} requests never ran together: give the engine's --max-num-seqs"
                    )
            found[size] = statistics.median(steps) * 1e3
            if size == 1:
                cut = statistics.quantiles(steps, n=20)
                self.jitter = min(0.3, (cut[16] - cut[2]) / 2 / statistics.median(steps))
            self._progress(f"decode, {size} at once: {found[size]:.1f} ms a step")
        return found

    async def prefill(self) -> dict[int, float]:
        """Prompt tokens -> milliseconds to the first token, alone."""
        found = {}
        lengths = [n for n in _LENGTHS if n < self._batched] + [self._batched, self.long]
        for length in lengths:
            first = await self._ask(length, 1)
            again = [await self._ask(length, 1) for _ in range(self._repeats(first.total) - 1)]
            times = [timed.ttft for timed in (first, *again)]
            found[length] = statistics.median(times) * 1e3
            self._progress(f"prefill, {length} tokens: first token after {found[length]:.1f} ms")
        return found

    async def beside(self) -> float:
        """Milliseconds of a step that computes a prompt beside one answer."""
        gaps: list[float] = []
        began = time.monotonic()
        while len(gaps) < 3 or time.monotonic() - began < self._seconds / 15:
            answer = asyncio.create_task(self._apart(_SHORT, 12))
            await asyncio.sleep(0)
            other = Client(self._url)
            try:
                await other.stream(self.model, prompt(self._random, 1), 3)  # by then the answer is under way
                await other.stream(self.model, prompt(self._random, self.base_at), 1)
            finally:
                other.close()
            gaps.append(max((await answer).steps))
        gap = statistics.median(gaps) * 1e3
        self._progress(f"{self.base_at} prompt tokens beside an answer: {gap:.1f} ms")
        return gap

    async def context(self, short: float) -> float:
        """Milliseconds that a step takes longer for every token that its request has before it."""
        steps = [
            x
            for _ in range(self._repeats(self._long_seconds))
            for x in (await self._ask(self.long, 12)).steps
        ]
        long = statistics.median(steps) * 1e3
        self._progress(f"decode after {self.long} tokens: {long:.1f} ms a step")
        return max(0.0, (long - short) / self.long)

    async def _ask(self, length: int, tokens: int) -> Timed:
        return await self.client.stream(self.model, prompt(self._random, length), tokens)

    async def _apart(self, length: int, tokens: int) -> Timed:
        """The same on a connection of its own."""
        client = Client(self._url)
        try:
            return await client.stream(self.model, prompt(self._random, length), tokens)
        finally:
            client.close()


def _pieces(length: int, largest: int) -> list[tuple[int, int]]:
    """(tokens, tokens before) of each step of a prompt."""
    return [(min(largest, length - start), start) for start in range(0, length, largest)]


def _at(table: dict[int, float], x: int) -> float:
    """The table's value at ``x``, on a straight line between its neighbours."""
    places = sorted(table)
    below = max((p for p in places if p <= x), default=places[0])
    above = min((p for p in places if p >= x), default=places[-1])
    if below == above:
        return table[below]
    return table[below] + (table[above] - table[below]) * (x - below) / (above - below)


def _pairs_us(whole: float, pieces: Sequence[tuple[int, int]], table: dict[int, float]) -> float:
    """Microseconds for a thousand pairs of a prompt token and one before its piece: what a long prompt takes beyond
    its pieces (milliseconds)."""
    pairs = sum(tokens * before for tokens, before in pieces)
    beyond = whole - sum(_at(table, tokens) for tokens, _ in pieces)
    return max(0.0, beyond * 1e3 / (pairs / 1e3)) if pairs else 0.0


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
