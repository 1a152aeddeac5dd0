"""What holds for all profiles of a run: how many tokens the model takes, a shared prefix, turns, languages.

Set once a run in each process (``use``), read by sessions as they go (``now``). Not here: the options' words and
checks on the command line (``_profile_options``), lengths by profile (the profiles).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from loadtest._lib._profiles import _source, _text
from loadtest._lib._profiles._lengths import Lengths, Uniform

#: Assumed where /v1/models says nothing of max_model_len; the default model's on CPU.
CONTEXT = 1024
#: Least context with which every profile has room for something.
LEAST_CONTEXT = 256
#: Tokens that are neither text nor answer: SmolLM2's chat template puts 30 around one user message (21 are a default
#: system message); larger models' take 10 to 40.
TEMPLATE = 40
#: Tokens of 16 hexadecimal digits and the colon: 15 on average in SmolLM2's vocabulary, which has digits singly.
UNIQUE = 18
#: Share of a prompt's limit left free, because tokens are estimated (the errors in ``_text`` and ``_source``).
SLACK = 0.05


@dataclass(frozen=True, slots=True)
class Settings:
    """context: tokens of prompt and answer together. answer: bounds of max_tokens, None: each profile's own.

    shared: text put first, as the system message, in every chat of the run; shared_tokens: its length. turns: least
    and most of a conversation. think: mean seconds between an answer and the next turn. chinese: share of sessions of
    chat, multi_turn and long_document. document: median tokens of a document. mix: profile -> share of requests, adds
    up to 1. ratio: the model's tokens per token counted here, by kind of text (en, zh, python, javascript).
    """

    context: int = CONTEXT
    answer: tuple[int, int] | None = None
    shared: str = ""
    shared_tokens: int = 0
    turns: tuple[int, int] = (3, 8)
    think: float = 2.0
    chinese: float = 0.0
    document: int = 6000
    mix: Mapping[str, float] = field(
        default_factory=lambda: {"chat": 0.55, "multi_turn": 0.2, "code": 0.15, "long_document": 0.1}
    )
    ratio: Mapping[str, float] = field(default_factory=dict)

    def answers(self, own: Lengths) -> Lengths:
        """How many new tokens: those of --max-tokens, or a profile's own, which take at most a quarter of it all."""
        if self.answer is not None:
            return Uniform(*self.answer).within(self.context // 2)
        return own.within(self.context // 4)

    def room(self, answer: int, around: int = TEMPLATE + UNIQUE) -> int:
        """Tokens that a prompt's text may have beside an answer of ``answer`` tokens; at least 1."""
        left = self.context - answer - around - self.shared_tokens
        return max(1, int(left * (1 - SLACK)))

    def text(self, draw: random.Random, tokens: float, language: str) -> str:
        """Prose of about so many of the model's tokens."""
        return _text.text(draw, tokens / self.ratio.get(language, 1.0), language)

    def source(self, draw: random.Random, tokens: float, language: str) -> str:
        """Code of about so many of the model's tokens."""
        return _source.source(draw, tokens / self.ratio.get(language, 1.0), language)

    def language(self, draw: random.Random) -> str:
        return "zh" if draw.random() < self.chinese else "en"

    def messages(self, content: str) -> list[dict[str, str]]:
        """One user message, behind the shared prefix where there is one."""
        message = {"role": "user", "content": content}
        return [{"role": "system", "content": self.shared}, message] if self.shared else [message]


def use(settings: Settings) -> None:
    """These, from now on, for the sessions of this process. Makes their material ready: 50 ms or so, the first time."""
    _text.prepare()
    _source.prepare()
    _Current.settings = settings


def now() -> Settings:
    return _Current.settings


def shared_prefix(seed: int, tokens: int, ratio: Mapping[str, float]) -> str:
    """The same text in every process of a run with this seed."""
    draw = random.Random(f"{seed}/shared prefix")  # noqa: S311 - load, not secrets
    return _text.text(draw, tokens / ratio.get("en", 1.0)) if tokens else ""


def ratios(count: Callable[[str], int]) -> dict[str, float]:
    """The model's tokens per token counted here, for each kind of text, on 2,000 tokens of it.

    count: tokens of a text, by the server. Whatever it raises passes; ValueError for counts that can't be.
    """
    found = {}
    for kind in ("en", "zh", *_source.LANGUAGES):
        draw = random.Random(f"sample/{kind}")  # noqa: S311 - the same in every run: part of the code
        make = _source.source if kind in _source.LANGUAGES else _text.text
        found[kind] = count(make(draw, 2000, kind)) / 2000
        if not 0.05 <= found[kind] <= 20:
            raise ValueError(f"{found[kind] * 2000:.0f} tokens for a text of about 2,000")
    return found


class _Current:
    settings = Settings()
