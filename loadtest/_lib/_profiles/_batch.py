"""Work that nobody waits for: longer answers, not streamed, marked as batch for the router's pools.

The mark is the header ``x-exaserve-pool: batch``. A pool takes such requests where its configuration says so
(``pools: {batch: {match: {headers: {x-exaserve-pool: batch}}, priority: 9}}``); elsewhere it means nothing.
"""

from __future__ import annotations

import random

from loadtest._lib._ask import Ask, Session
from loadtest._lib._profiles import _text
from loadtest._lib._profiles._lengths import Lengths, LogNormal, Uniform
from loadtest._lib._profiles._settings import now

ABOUT = "longer answers, not streamed, with the header x-exaserve-pool: batch for a pool of low priority"
ASKS = 1.0
PROMPT: Lengths = LogNormal(200, 0.6, 32, 600)
ANSWER: Lengths = Uniform(128, 512)
SIZES = (("prompt", PROMPT), ("answer", ANSWER))
HEADERS = {"x-exaserve-pool": "batch"}


def session(draw: random.Random, unique: str) -> Session:
    settings = now()
    answer = settings.answers(ANSWER).draw(draw)
    tokens = PROMPT.within(settings.room(answer)).draw(draw)
    order = _text.question(draw)
    content = f"{unique}: {settings.text(draw, max(1, tokens - _text.estimate(order)), 'en')}\n\n{order}"
    yield Ask(
        "batch",
        {"messages": settings.messages(content), "max_tokens": answer, "temperature": 0},
        stream=False,
        headers=dict(HEADERS),
    )
