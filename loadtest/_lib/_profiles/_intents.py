"""Medical, legal and general questions, half of them in Chinese: for a router that sends them to different pools.

The label that a question was made for is in each record (``intent``), so that a report can set pool, speed and
failures of the three against each other. The question stands alone in the user message, as a classifier reads it;
what makes each prompt unique is in the system message before it.
"""

from __future__ import annotations

import random

from loadtest._lib._ask import Ask, Session
from loadtest._lib._profiles import _questions
from loadtest._lib._profiles._lengths import Lengths, Uniform
from loadtest._lib._profiles._settings import now

ABOUT = "medical, legal and general questions, English and Chinese, a third and a half each, streamed"
ASKS = 1.0
PROMPT: Lengths = Uniform(8, 75)
ANSWER: Lengths = Uniform(32, 96)
SIZES = (("question", PROMPT), ("answer", ANSWER))


def session(draw: random.Random, unique: str) -> Session:
    settings = now()
    label = draw.choice(_questions.LABELS)
    language = draw.choice(_questions.LANGUAGES)
    system = f"{settings.shared}\n\nSession {unique}." if settings.shared else f"Session {unique}."
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": _questions.question(draw, label, language)},
    ]
    answer = settings.answers(ANSWER).draw(draw)
    body = {"messages": messages, "max_tokens": answer, "temperature": 0}
    yield Ask("intents", body, intent=label)
