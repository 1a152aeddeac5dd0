"""Questions with a little prose to work on, answered as a stream. Nothing repeats: prefix caches stay cold."""

from __future__ import annotations

import random

from loadtest._lib._ask import Ask, Session
from loadtest._lib._profiles import _text
from loadtest._lib._profiles._lengths import Lengths, LogNormal, Uniform
from loadtest._lib._profiles._settings import now

ABOUT = "short questions, streamed, no two alike"
ASKS = 1.0
#: Chosen, not measured: most are short, one in a hundred is ten times as long.
PROMPT: Lengths = LogNormal(90, 0.8, 16, 600)
ANSWER: Lengths = Uniform(16, 64)
SIZES = (("prompt", PROMPT), ("answer", ANSWER))


def session(draw: random.Random, unique: str) -> Session:
    settings = now()
    language = settings.language(draw)
    answer = settings.answers(ANSWER).draw(draw)
    tokens = PROMPT.within(settings.room(answer)).draw(draw)
    question = _text.question(draw, language)
    story = settings.text(draw, max(1, tokens - _text.estimate(question, language)), language)
    content = f"{unique}: {story}\n\n{question}"
    yield Ask(
        "chat",
        {"messages": settings.messages(content), "max_tokens": answer, "temperature": 0},
    )
