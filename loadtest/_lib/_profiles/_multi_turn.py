"""Conversations: each turn sends all that was said before and a new message, so a prefix cache finds it again.

A session begins with words that no other has. It ends after its turns, when the next one would not fit into the
model's context, or when a request fails: whoever got no answer asks no further.
"""

from __future__ import annotations

import random

from loadtest._lib._ask import Ask, Session
from loadtest._lib._profiles import _text
from loadtest._lib._profiles._lengths import Lengths, LogNormal, Uniform
from loadtest._lib._profiles._settings import SLACK, TEMPLATE, UNIQUE, now

ABOUT = "conversations with a growing prefix, streamed, with time to think between turns (--turns, --think)"
ASKS = 5.5
MESSAGE: Lengths = LogNormal(40, 0.6, 8, 200)
ANSWER: Lengths = Uniform(16, 64)
SIZES = (("each message", MESSAGE), ("answer", ANSWER), ("turns", Uniform(3, 8)))
#: Tokens of the template around a message and its answer (SmolLM2).
_AROUND = 10


def session(draw: random.Random, unique: str) -> Session:
    settings = now()
    language = settings.language(draw)
    messages: list[dict[str, str]] = []
    used = TEMPLATE + UNIQUE + settings.shared_tokens
    for turn in range(draw.randint(*settings.turns)):
        answer = settings.answers(ANSWER).draw(draw)
        tokens = MESSAGE.within(settings.room(answer)).draw(draw)
        think = draw.expovariate(1 / settings.think) if turn and settings.think else 0.0
        content = settings.text(draw, tokens, language) + "\n" + _text.question(draw, language)
        used += int(settings.ratio.get(language, 1.0) * _text.estimate(content, language)) + answer + _AROUND
        if turn and used > settings.context * (1 - SLACK):
            return
        if turn:
            messages.append({"role": "user", "content": content})
        else:
            messages = settings.messages(f"{unique}: {content}")
        body = {"messages": list(messages), "max_tokens": answer, "temperature": 0}
        got = yield Ask("multi_turn", body, session=unique, think=think)
        if not got.good:
            return
        messages.append({"role": "assistant", "content": got.text})
