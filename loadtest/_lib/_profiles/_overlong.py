"""Requests at and beyond the model's limit: the right answer to most is a clear 400, at once; to some it is 200.

===============  ======================================================================  ========
kind             what                                                                    expected
===============  ======================================================================  ========
far over         a chat of 1.5 to 3 times the context                                    400
one over         a completion whose prompt has one token more than the context           400
just inside      a completion whose prompt leaves room for one token, asks for one       200
near             a chat of about 9/10 of the context, asks for one token                 200
answer over      a short chat that asks for one token more than the context              400
===============  ======================================================================  ========

"one over" and "just inside" are exact: they send token numbers, not text. A prompt of exactly the context is not sent:
vLLM 0.32 refuses it with words about max_tokens ("must be at least 1, got 0"), which help nobody. A 400 is clear when its body is OpenAI-shaped
and its message names a limit (``_refusal``). Anything else counts as failed: 413, 500, a 200 that cut the prompt in
silence, no answer.
"""

from __future__ import annotations

import random

from loadtest._lib._ask import COMPLETIONS, Ask, Session
from loadtest._lib._profiles import _text
from loadtest._lib._profiles._settings import TEMPLATE, UNIQUE, now

ABOUT = "at and beyond the model's context: a clear 400, or 200 just inside; all else counts as failed"
ASKS = 1.0
SIZES = (("prompt", "1.5 to 3 times the context; one token more; one less; 9/10 of it"),)
KINDS = ("far over", "one over", "just inside", "near", "answer over")
#: Token numbers that are words or parts of words in every common vocabulary (32,000 and more).
_TOKENS = range(1_000, 30_000)


def session(draw: random.Random, unique: str) -> Session:
    settings = now()
    context = settings.context
    kind = draw.choice(KINDS)
    if kind in ("one over", "just inside"):
        # The unique text has no place here; numbers drawn for this session alone do as well.
        count = context + 1 if kind == "one over" else context - 1
        prompt = draw.choices(_TOKENS, k=count)
        expect = 400 if kind == "one over" else 200
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
        yield Ask("overlong", body, COMPLETIONS, stream=False, expect=expect)
        return
    if kind == "answer over":
        text, answer = _text.question(draw), context + 1
    elif kind == "near":
        text, answer = settings.text(draw, context * 0.9 - TEMPLATE - UNIQUE, "en"), 1
    else:
        text, answer = settings.text(draw, context * draw.uniform(1.5, 3.0), "en"), 1
    message = {"role": "user", "content": f"{unique}: {text}"}
    body = {"messages": [message], "max_tokens": answer, "temperature": 0}
    yield Ask("overlong", body, stream=False, expect=200 if kind == "near" else 400)
