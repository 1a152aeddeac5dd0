"""Prompts for the requests of a trace: of its token counts, unlike each other but for the prefixes that it says are shared.

Words are common English ones that are one token each, with the space before them, in the vocabularies of current models;
so n words are n tokens. What the server counted is in the records (``input_tokens``) beside what the trace asked for.

A Mooncake trace names the blocks of 512 tokens of each prompt: one id is always the same text, so a prefix cache finds
what it would have found in the real traffic. The other formats don't say what was shared: each prompt begins with a
text of its own and nothing can be reused.
"""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache
from typing import Any

from loadtest._lib._ask import Ask
from loadtest._lib._profiles import _english
from loadtest._lib._traces import BLOCK_TOKENS, Trace

#: What a chat template adds around one user message; SmolLM2's has 8 with the roles, Qwen's and Llama's up to 20 more.
TEMPLATE_TOKENS = 8
#: Sixteen hexadecimal digits and a colon: about so many tokens.
_UNIQUE_TOKENS = 14
#: Each is one token in SmolLM2's vocabulary (tests/loadtest/test_profile_texts.py).
_WORDS = [*_english.PLACES, *_english.PEOPLE, *_english.THINGS, *_english.QUALITIES, *_english.DEEDS]
_POOL = 1 << 16
_PROFILE = "trace"


class TracePrompts:
    """Asks for the requests of a trace. seed: the same one makes the same prompts, in every process.

    clip: longer inputs are cut to it (a smaller model than the trace's); 0 for none. until_end: answers end where the
    model ends them, not at the trace's length (which needs vLLM's ``ignore_eos``).
    """

    def __init__(self, trace: Trace, seed: int, clip: int = 0, until_end: bool = False) -> None:
        self._trace, self._seed, self._clip, self._until_end = trace, seed, clip, until_end
        draw = random.Random(f"trace/{seed}")  # noqa: S311 - load, not secrets
        self._pool = draw.choices(_WORDS, k=_POOL)
        self._block = lru_cache(maxsize=4096)(self._new_block)

    def clipped(self) -> int:
        """How many inputs are longer than ``clip``."""
        return sum(n > self._clip for n in self._trace.input) if self._clip else 0

    def ask(self, number: int) -> Ask:
        """The request of that number (of Trace.at)."""
        trace = self._trace
        tokens = trace.input[number]
        if self._clip:
            tokens = min(tokens, self._clip)
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": self.prompt(number, tokens)}],
            "max_tokens": max(1, trace.output[number]),
            "temperature": 0,
        }
        if not self._until_end:
            body["ignore_eos"] = True
        return Ask(_PROFILE, body, intent=trace.intents[trace.intent[number]])

    def prompt(self, number: int, tokens: int) -> str:
        """About ``tokens`` tokens with the template's; never less than its own beginning and one word."""
        wanted = max(1, tokens - TEMPLATE_TOKENS)
        hashes = self._trace.hashes[number] if self._trace.hashes is not None else ()
        if hashes:
            blocks = [self._block(h) for h in hashes[: -(-wanted // BLOCK_TOKENS)]]
            last = wanted - (len(blocks) - 1) * BLOCK_TOKENS
            if last <= BLOCK_TOKENS:
                blocks[-1] = " ".join(blocks[-1].split(" ")[:last])
                return " ".join(blocks)
            # More tokens than blocks: what no id stands for belongs to this prompt alone.
            return " ".join([*blocks, self._unique(number, last - BLOCK_TOKENS)])
        return self._unique(number, wanted)

    def _unique(self, number: int, tokens: int) -> str:
        digest = hashlib.sha256(f"{self._seed}/{number}".encode()).hexdigest()
        words, begin = max(1, tokens - _UNIQUE_TOKENS), int(digest[16:24], 16) % _POOL
        chosen = self._pool[begin : begin + words]
        while len(chosen) < words:
            chosen += self._pool[: words - len(chosen)]
        return f"{digest[:16]}: {' '.join(chosen)}"

    def _new_block(self, number: int) -> str:
        draw = random.Random(f"block/{self._seed}/{number}")  # noqa: S311 - load, not secrets
        return " ".join(draw.choices(self._pool, k=BLOCK_TOKENS))
