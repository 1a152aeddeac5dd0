"""One sequence in the simulated engine, and who is told of what happens to sequences.

What happens when is decided in ``scheduler.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .text import Answer, Prompt


class Request:
    """One sequence.

    prompt: its tokens. max_tokens: 0 for a request that ends with its prompt (an embedding). on_word: called
    with (request, word) for every token but the last; None if nobody wants to know. on_end: called with
    (request, last word, finish_reason, stop_reason). Times are of ``time.monotonic()``.
    """

    __slots__ = (
        "answer", "arrived", "blocks", "cached", "computed", "first_token", "generated", "hashes", "index",
        "known", "last_token", "limit", "max_tokens", "on_end", "on_word", "preemptions", "prompt", "reason",
        "room", "scheduled", "shared", "stop", "text",
    )  # fmt: skip

    def __init__(
        self,
        prompt: Prompt,
        max_tokens: int,
        answer: Answer,
        on_word: Callable[[Request, str], None] | None,
        on_end: Callable[[Request, str, str, str | None], None],
        ignore_eos: bool = False,
        stop: tuple[str, ...] = (),
        index: int = 0,
    ) -> None:
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.answer = answer
        self.on_word = on_word
        self.on_end = on_end
        self.stop = stop
        self.index = index
        # The token that ends it, and why it does. The model's own end is a token too, without a text.
        ends = max_tokens > answer.length and not ignore_eos
        self.limit = answer.length if ends else max_tokens
        self.reason = "stop" if ends or not max_tokens else "length"
        self.known = len(prompt)  # tokens to be in the KV cache before the next one
        self.computed = 0  # tokens in the KV cache
        self.generated = 0
        self.blocks = 0
        self.room = 0  # tokens that its blocks hold
        self.shared: list[int] = []  # hashes of those of its blocks that others may share
        self.hashes: list[int] | None = None  # of its full blocks
        self.cached = 0  # prompt tokens that were in the cache when it came
        self.preemptions = 0
        self.text = ""
        self.arrived = time.monotonic()
        self.scheduled = self.first_token = self.last_token = 0.0


class Observer:
    """What the engine tells of its work; the metrics page is one (``metrics.py``)."""

    def admitted(self, request: Request) -> None:
        """``request`` runs for the first time; ``request.cached`` of its prompt tokens need no computing."""

    def step(self, prompt_tokens: int, tokens: int) -> None:
        """A step has ended: computed tokens of the prompts that were completed in it, and those with the tokens
        that came out."""

    def first_token(self, request: Request, now: float) -> None:
        """The prompt of ``request`` is through: it has its first token, or (an embedding) its vector."""

    def tokens(self, count: int, seconds: float) -> None:
        """``count`` requests got a token, each ``seconds`` after its last one."""

    def finished(self, request: Request, now: float) -> None:
        """``request`` has ended by itself, for ``request.reason``."""

    def preempted(self) -> None:
        """A running request was put back."""
