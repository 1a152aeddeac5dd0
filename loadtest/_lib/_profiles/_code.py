"""Code to explain, complete or repair: one function, or a file of which a part is shown around it.

Lengths are those of real code, measured once with SmolLM2's tokenizer: the 5,977 functions and 610 files of this
project's own Python, November 2026.
"""

from __future__ import annotations

import random

from loadtest._lib._ask import Ask, Session
from loadtest._lib._profiles import _source
from loadtest._lib._profiles._lengths import Empirical, Lengths, Uniform
from loadtest._lib._profiles._settings import now

ABOUT = "functions (7 in 10) and whole files to explain, complete or repair, streamed"
ASKS = 1.0
FUNCTION: Lengths = Empirical(
    ((0, 11), (0.05, 30), (0.1, 38), (0.25, 63), (0.5, 117), (0.75, 199), (0.9, 310), (0.95, 407), (1, 651))
)
FILE: Lengths = Empirical(
    ((0, 29), (0.05, 302), (0.1, 522), (0.25, 909), (0.5, 1616), (0.75, 2609), (0.9, 3649), (1, 5916))
)
ANSWER: Lengths = Uniform(32, 192)
SIZES = (("function", FUNCTION), ("file", FILE), ("answer", ANSWER))
_FILES = 0.3
_ORDERS = (
    "Explain what this code does, step by step.",
    "Complete this code. Answer with code only.",
    "Find the fault in this code and correct it.",
    "Write unit tests for this code.",
    "Rewrite this code so that it is shorter and still readable.",
    "Add types and documentation to this code.",
)
#: Tokens of the order and of the fences around the code.
_AROUND = 24


def session(draw: random.Random, unique: str) -> Session:
    settings = now()
    language = draw.choice(_source.LANGUAGES)
    answer = settings.answers(ANSWER).draw(draw)
    lengths = FILE if draw.random() < _FILES else FUNCTION
    tokens = lengths.within(max(1, settings.room(answer) - _AROUND)).draw(draw)
    code = settings.source(draw, tokens, language)
    content = f"{unique}: {draw.choice(_ORDERS)}\n\n```{language}\n{code}\n```"
    yield Ask("code", {"messages": settings.messages(content), "max_tokens": answer, "temperature": 0})
