"""Text to go on with, through /v1/completions: no chat template, streamed."""

from __future__ import annotations

import random

from loadtest._lib._ask import COMPLETIONS, Ask, Session
from loadtest._lib._profiles._lengths import Lengths, LogNormal, Uniform
from loadtest._lib._profiles._settings import UNIQUE, now

ABOUT = "text to go on with, /v1/completions, streamed"
ASKS = 1.0
PROMPT: Lengths = LogNormal(120, 0.7, 16, 600)
ANSWER: Lengths = Uniform(16, 96)
SIZES = (("prompt", PROMPT), ("answer", ANSWER))


def session(draw: random.Random, unique: str) -> Session:
    settings = now()
    answer = settings.answers(ANSWER).draw(draw)
    tokens = PROMPT.within(settings.room(answer, UNIQUE)).draw(draw)
    shared = f"{settings.shared}\n\n" if settings.shared else ""
    prompt = f"{shared}{unique}: {settings.text(draw, tokens, 'en')}"
    yield Ask("completion", {"prompt": prompt, "max_tokens": answer, "temperature": 0}, COMPLETIONS)
