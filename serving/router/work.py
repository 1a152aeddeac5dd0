"""What a request weighs before it is sent: input tokens, output tokens, and one number of both, its work.

The unit of work is the token equivalent: what one output token costs a busy engine. An input token costs
1 / ``prefill_speed`` of that. Bytes per token and usual answer lengths are learnt from the usage that engines
report. Which replica gets the request is the policies' business; this module knows of none but to count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: Input tokens that an engine computes in the time of one output token, both at full batches. vLLM 0.32 on a
#: CPU core with SmolLM2-135M: 600 prompt tokens/s, and 340 output tokens/s of 16 requests, so 1.8. A GPU is at 4 to
#: 8, but there too a low value routes better: a prompt under way delays the first token of whoever comes after
#: it, an answer under way hardly does (tests/benchmarks/policies.py --prefill-speed).
PREFILL_SPEED = 2.0
#: Bytes of a request body per input token before an engine has reported any; English text has a little more.
BYTES_PER_TOKEN = 4.0
#: Output tokens expected before any answer has ended, where the client sets no limit.
OUTPUT_TOKENS = 256.0
#: A report moves an average by this share, once there were 1 / RATE of them; before, all count the same.
RATE = 0.02
#: Bytes per token outside of this are not text (images as base64): nothing is learnt from them.
LEAST_BYTES, MOST_BYTES = 1.0, 16.0
#: Work of holding as many tokens as a replica's KV cache has below the watermark. Small beside computing them
#: (160,000 tokens: 80,000): it decides between replicas that are alike, or whose caches are small.
MEMORY_WORK = 8192.0


class _Average:
    """Running average: plain at first, then exponential."""

    __slots__ = ("count", "value")

    def __init__(self, value: float) -> None:
        self.value = value
        self.count = 0

    def add(self, value: float) -> None:
        self.count += 1
        rate = 1.0 / self.count if self.count * RATE < 1.0 else RATE
        self.value += rate * (value - self.value)


class _Model:
    """What is known of a model. Body bytes and input tokens are averaged apart: long bodies count for more.

    outputs: usual answer lengths by intent, of the intents that were seen; ``output`` of all of them.
    """

    __slots__ = ("body_bytes", "input_tokens", "input_work", "output", "output_work", "outputs", "per_byte")

    def __init__(self, per_input: float) -> None:
        self.body_bytes = _Average(0.0)
        self.input_tokens = _Average(0.0)
        self.per_byte = 1.0 / BYTES_PER_TOKEN
        self.output = _Average(OUTPUT_TOKENS)
        self.outputs: dict[str, _Average] = {}
        self.input_work = per_input
        self.output_work = 1.0


class Estimator:
    """Estimates for the models and intents that were named to it; all others share one entry.

    Nothing that a client sends adds an entry. One per worker; not thread-safe.
    """

    __slots__ = ("_intents", "_models", "_other", "per_input")

    def __init__(
        self, models: Iterable[str] = (), intents: Iterable[str] = (), prefill_speed: float = PREFILL_SPEED
    ) -> None:
        """Raises ValueError if ``prefill_speed`` is not above 0."""
        if not prefill_speed > 0:
            raise ValueError(f"prefill_speed must be above 0, got {prefill_speed:g}")
        self._intents = frozenset(intents)
        #: Work of one input token.
        self.per_input = 1.0 / prefill_speed
        self._other = _Model(self.per_input)
        self._models: dict[str | None, _Model] = {}
        self.set_models(models)

    def set_models(self, models: Iterable[str]) -> None:
        """The names that replicas serve now. What is known of a name that stays is kept, the rest forgotten."""
        old = self._models
        self._models = {name: old.get(name) or _Model(self.per_input) for name in models}

    def set_capacity(self, model: str | None, kv_tokens: int | None, watermark: float = 0.85) -> None:
        """How many tokens the KV cache of one replica of the model holds; None or 0: unknown, not counted."""
        usable = (kv_tokens or 0) * watermark
        held = MEMORY_WORK / usable if usable > 0 else 0.0
        known = self._models.get(model, self._other)
        known.input_work = self.per_input + held
        known.output_work = 1.0 + held

    def estimate(
        self, model: str | None, intent: str, body_bytes: int, max_tokens: int | None, n: int | None
    ) -> tuple[int, int, int]:
        """(input tokens, output tokens, work) of a request; work is at least 1.

        max_tokens, n: as the client sent them, None where it did not (n counts as 1, and at most 128).
        """
        known = self._models.get(model, self._other)
        input_tokens = int(body_bytes * known.per_byte) + 1
        output: float = (known.outputs.get(intent) or known.output).value
        if max_tokens is not None and max_tokens < output:
            output = float(max_tokens)
        if n is not None and n > 1:
            output *= float(n if n < 128 else 128)
        # Whole numbers, so that what is added to a replica's count and taken off again leaves exactly 0.
        return (
            input_tokens,
            int(output),
            int(output * known.output_work + input_tokens * known.input_work) + 1,
        )

    def learn(
        self, model: str | None, intent: str, body_bytes: int, prompt_tokens: int, completion_tokens: int
    ) -> None:
        """Take over the usage that an engine reported of a finished answer. 0 tokens teach nothing.

        An answer that was cut off by max_tokens counts with its length; averages are then a little low.
        """
        known = self._models.get(model, self._other)
        if prompt_tokens > 0 and LEAST_BYTES <= body_bytes / prompt_tokens <= MOST_BYTES:
            known.body_bytes.add(body_bytes)
            known.input_tokens.add(prompt_tokens)
            known.per_byte = known.input_tokens.value / known.body_bytes.value
        if completion_tokens > 0:
            known.output.add(completion_tokens)
            if intent in self._intents:
                average = known.outputs.get(intent)
                if average is None:
                    average = known.outputs[intent] = _Average(OUTPUT_TOKENS)
                average.add(completion_tokens)

    def prefill_part(self, exchange: Any) -> int:
        """The part of the exchange's work that is done when its first token arrives."""
        part = int(exchange.input_tokens * self.per_input)
        return part if part < exchange.work else int(exchange.work)
