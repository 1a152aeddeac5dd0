"""The simulated engine: continuous batching over a KV cache of blocks, in steps that take time.

As vLLM's scheduler does it: requests run first come, first served, up to ``max_num_seqs`` at once and while
there are KV blocks; a step gives every running request a token, and spends what is left of its token budget
on prompts, in pieces; when the blocks run out, the youngest running request is put back and computed again
later. How long a step takes: 1 / tokens_per_second if anyone decodes, plus the prompt tokens of the step /
prefill_tokens_per_second. An idle engine costs nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .text import Answer

# A step that ended later than this (seconds) after it was due is not made up for.
_LATEST = 0.05


@dataclass(frozen=True, slots=True)
class Settings:
    """What the simulated replica is like.

    tokens_per_second: of one request, however many run beside it.
    prefill_tokens_per_second: of the whole engine.
    kv_blocks: in all; as in vLLM one of them is never used.
    block_size: tokens a block.
    """

    model: str = "smollm2-135m"
    tokens_per_second: float = 50.0
    prefill_tokens_per_second: float = 5000.0
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 2048
    max_model_len: int = 1024
    kv_blocks: int = 728
    block_size: int = 16
    seed: int = 0


@dataclass(eq=False, slots=True)
class Request:
    """One sequence. ``on_token(text, finish_reason, stop_reason)`` is called for each token.

    prompt: token numbers. max_tokens: 0 for a request that ends with its prompt (an embedding), which calls
    ``on_token("", "stop", None)`` once. Times are of ``time.monotonic()``.
    """

    prompt: list[int]
    max_tokens: int
    on_token: Callable[[str, str | None, str | None], None]
    answer: Answer
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    arrived: float = field(default_factory=time.monotonic)
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    preemptions: int = 0
    text: str = ""

    @property
    def known(self) -> int:
        """Tokens to be in the KV cache before the next one: the prompt and what has been generated."""
        return len(self.prompt) + self.generated


class Observer:
    """What the engine tells of its work; the metrics page is one (``metrics.py``)."""

    def step(self, prompt_tokens: int, tokens: int) -> None:
        """A step has ended: prompt tokens newly computed in it, and all its tokens."""

    def token(self, request: Request, now: float, previous: float) -> None:
        """``request`` has a new token; ``previous`` is when it got the one before (0.0: this is the first)."""

    def finished(self, request: Request, reason: str, now: float) -> None:
        """``request`` has ended by itself, with ``stop`` or ``length``."""

    def preempted(self) -> None:
        """A running request was put back."""


class Engine:
    """One engine on the running event loop. Not thread-safe; nothing here blocks."""

    def __init__(self, settings: Settings, observer: Observer) -> None:
        """Raises ValueError if the KV cache can't hold one request of max_model_len."""
        needed = -(-settings.max_model_len // settings.block_size) + 1
        if settings.kv_blocks < needed:
            raise ValueError(
                f"{settings.kv_blocks} KV blocks of {settings.block_size} tokens can't hold one request of "
                f"{settings.max_model_len} tokens; at least {needed} are needed"
            )
        self.settings = settings
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.free_blocks = settings.kv_blocks - 1
        #: Steps take this many times longer; set by a fault.
        self.slowdown = 1.0
        #: Does nothing more while True; set by a fault.
        self.stuck = False
        self._observer = observer
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # when the step under way ends; 0 when idle
        self._ending = False

    @property
    def kv_usage(self) -> float:
        """Share of the usable KV blocks that is in use, 0 to 1."""
        return 1.0 - self.free_blocks / (self.settings.kv_blocks - 1)

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)
        self.wake()

    def abort(self, request: Request) -> None:
        """Forget a request at once and free its blocks; one that has ended already is no error."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._free(request)

    def wake(self) -> None:
        """Go on if there is work and no step under way."""
        if self._timer is None and not self._ending and not self.stuck and (self.waiting or self.running):
            self._begin_step()

    def _begin_step(self) -> None:
        budget = self.settings.max_num_batched_tokens
        work: list[tuple[Request, int]] = []
        at_start = list(self.running)
        for request in at_start:
            if budget == 0:
                break
            if request not in self.running:  # put back a moment ago, for an older one
                continue
            tokens = min(budget, max(1, request.known - request.computed))
            if self._grow(request, tokens):
                work.append((request, tokens))
                budget -= tokens
        if len(self.running) < len(at_start):
            budget = 0  # as in vLLM: nobody is let in during a step that put somebody back
        while budget and self.waiting and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting[0]
            tokens = min(budget, request.known)
            if not self._take(request, tokens):
                break
            self.waiting.popleft()
            self.running.append(request)
            if not request.scheduled:
                request.scheduled = time.monotonic()
            work.append((request, tokens))
            budget -= tokens
        decodes = any(request.generated and tokens == 1 for request, tokens in work)
        prefill = sum(tokens for request, tokens in work if not (request.generated and tokens == 1))
        seconds = prefill / self.settings.prefill_tokens_per_second
        if decodes:
            seconds += 1.0 / self.settings.tokens_per_second
        # From when the last step was due, not from when it was served: the rate stays right though timers
        # come late (uvloop's have whole milliseconds).
        loop = asyncio.get_running_loop()
        now = loop.time()
        start = self._due if 0.0 <= now - self._due < _LATEST else now
        self._due = start + seconds * self.slowdown
        self._timer = loop.call_at(self._due, self._end_step, work)

    def _end_step(self, work: list[tuple[Request, int]]) -> None:
        self._timer = None
        if self.stuck:  # the step never ends; its work is done again when the engine comes back
            return
        self._ending = (
            True  # who gets a token may abort or add requests: no new step before this one is counted
        )
        now = time.monotonic()
        prompt_tokens = tokens = 0
        for request, count in work:
            if not request.blocks:  # aborted while the step ran
                continue
            fresh = max(0, min(count, len(request.prompt) - request.computed))
            prompt_tokens += fresh
            request.computed += count
            if request.computed >= request.known:
                tokens += 1
                self._emit(request, now)
        self._observer.step(prompt_tokens, prompt_tokens + tokens)
        self._ending = False
        self.wake()
        if self._timer is None:
            self._due = 0.0

    def _emit(self, request: Request, now: float) -> None:
        previous, request.last_token = request.last_token, now
        if request.max_tokens == 0:
            request.first_token = now
            self._end(request, "stop", now)
            request.on_token("", "stop", None)
            return
        word = request.answer.word(request.generated)
        request.generated += 1
        if request.generated == 1:
            request.first_token = now
        self._observer.token(request, now, previous)
        reason: str | None = None
        stop_reason: str | None = None
        if request.stop:
            before = len(request.text)
            request.text += word
            for wanted in request.stop:
                found = request.text.find(wanted, max(0, before - len(wanted)))
                if found >= 0:
                    reason, stop_reason, word = "stop", wanted, request.text[before:found]
                    break
        if reason is None and request.generated >= request.max_tokens:
            reason = "length"
        elif reason is None and not request.ignore_eos and request.generated >= request.answer.length:
            reason, word = "stop", ""  # the last token is the one that says stop
        if reason:
            self._end(request, reason, now)
        request.on_token(word, reason, stop_reason)

    def _end(self, request: Request, reason: str, now: float) -> None:
        self.running.remove(request)
        self._free(request)
        self._observer.finished(request, reason, now)

    def _take(self, request: Request, tokens: int) -> bool:
        """Get the blocks that ``tokens`` more tokens of ``request`` need; False if there are not so many."""
        needed = -(-(request.computed + tokens) // self.settings.block_size) - request.blocks
        if needed > self.free_blocks:
            return False
        self.free_blocks -= needed
        request.blocks += needed
        return True

    def _grow(self, request: Request, tokens: int) -> bool:
        """``_take``, putting back younger requests until it goes; False if ``request`` itself was put back."""
        while not self._take(request, tokens):
            youngest = self.running.pop()
            self._free(youngest)
            youngest.computed = 0
            youngest.preemptions += 1
            self.waiting.appendleft(youngest)
            self._observer.preempted()
            if youngest is request:
                return False
        return True

    def _free(self, request: Request) -> None:
        self.free_blocks += request.blocks
        request.blocks = 0
