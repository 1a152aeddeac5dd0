"""Prose of a wanted number of tokens, English or Chinese, made of the sentences of ``_english`` and ``_chinese``.

Not here: code (``_code``), questions with a subject (``_questions``), how long a text shall be (``_lengths``).

How tokens are counted without a tokenizer: an English word or sign is 1, a Chinese character or sign 1, 2 or 3 as
``_chinese`` lists them. That is SmolLM2-135M-Instruct's own count within ERROR, for texts of 100 tokens and more
(tests/loadtest/test_profile_texts.py). Other vocabularies have larger pieces of Chinese; where the server has
``/tokenize``, a run asks it once and divides by what it says (``_settings``).
"""

from __future__ import annotations

import random
import re
from functools import cache
from itertools import accumulate

from loadtest._lib._profiles import _chinese, _english

#: Largest relative error over texts of 100 tokens and more, that tokenizer, rounded up.
ERROR = {"en": 0.02, "zh": 0.07}
#: Sentences made once a process. Prefix caches find none of them again: what goes before differs.
_POOL = 2000
_WORD = re.compile(r"\w+|[^\w\s]")
_AN = re.compile(r" a (?=[aeiou])")


def text(draw: random.Random, tokens: float, language: str = "en") -> str:
    """Sentences of about ``tokens`` tokens in all (at least one word), cut in the last sentence.

    language: en or zh. Costs about 0.1 µs a token: sentences are made once, and only picked here.
    """
    sentences, sizes = _pool(language)
    found: list[str] = []
    left = tokens
    while left > 0:
        index = draw.randrange(_POOL)
        size = sizes[index]
        found.append(sentences[index] if size <= left else _cut(sentences[index], left, language))
        left -= size
    return (" " if language == "en" else "").join(found)


def prepare() -> None:
    """Make the sentences, so that no request has to wait for it."""
    for language in ("en", "zh"):
        _pool(language)


def question(draw: random.Random, language: str = "en") -> str:
    """A short question or order, 7 to 25 tokens of English or up to 60 of Chinese."""
    words = _chinese if language == "zh" else _english
    return _filled(draw, draw.choice(words.QUESTIONS), words)


def estimate(text: str, language: str = "en") -> float:
    """Tokens of a text of ours, as counted here (SmolLM2's vocabulary)."""
    return sum(map(_chinese.cost, text)) if language == "zh" else len(_WORD.findall(text))


@cache
def _pool(language: str) -> tuple[list[str], list[float]]:
    words = _chinese if language == "zh" else _english
    draw = random.Random(f"sentences/{language}")  # noqa: S311 - the same in every run: part of the code
    sentences = [_filled(draw, draw.choice(words.SENTENCES), words) for _ in range(_POOL)]
    return sentences, [estimate(sentence, language) for sentence in sentences]


def _filled(draw: random.Random, template: str, words: object) -> str:
    lists: dict[str, list[str]] = {
        "place": words.PLACES,  # type: ignore[attr-defined]
        "person": words.PEOPLE,  # type: ignore[attr-defined]
        "thing": words.THINGS,  # type: ignore[attr-defined]
        "quality": words.QUALITIES,  # type: ignore[attr-defined]
        "deed": words.DEEDS,  # type: ignore[attr-defined]
        "time": words.TIMES,  # type: ignore[attr-defined]
    }
    chosen = {name: draw.choice(values) for name, values in lists.items()}
    for name in ("place", "person", "thing"):
        chosen[f"{name}2"] = draw.choice(lists[name])
    chosen["Time"] = chosen["time"].capitalize()
    return _AN.sub(" an ", template.format(**chosen))


def _cut(sentence: str, tokens: float, language: str) -> str:
    if language == "zh":
        sizes = accumulate(map(_chinese.cost, sentence))
        return sentence[: max(1, sum(size <= tokens for size in sizes))]
    pieces = list(_WORD.finditer(sentence))
    return sentence[: pieces[max(1, round(tokens)) - 1].end()]
