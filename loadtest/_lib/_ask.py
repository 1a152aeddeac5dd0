"""What one request asks for, and how profiles hand requests out: plain data between profiles and whoever sends.

A profile is a function that makes sessions. A session is a generator of asks: it gets back what was answered, so
that a conversation can grow; a profile without conversations makes sessions of one ask::

    def session(draw: random.Random, unique: str) -> Session:
        yield Ask("chat", {"messages": [...], "max_tokens": 64})

``draw`` is seeded by the run's seed, worker, user and number of the session, so that a seed draws the same again;
``unique`` is a text that no other session of any run has, also of one with the same seed (put first in a prompt, it keeps
prefix caches cold).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from loadtest._lib._record import Record

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"


@dataclass(slots=True)
class Ask:
    """One request. body: all of it but the model and what streaming needs, which the sender puts in.

    profile: a value of the label ``profile``. stream: read it as an event stream. headers: beside the sender's own.
    intent: what it is about, where the profile knows; think: seconds that a user of a closed loop waits before it.
    expect: the status that is right; where that is an error, only a clear one counts as ok (``_refusal``).
    step, phase: of its record, where the schedule knows better than the run's warm-up (``_dispatch``).
    """

    profile: str
    body: dict[str, Any]
    path: str = CHAT
    stream: bool = True
    headers: dict[str, str] = field(default_factory=dict)
    session: str | None = None
    intent: str | None = None
    think: float = 0.0
    expect: int = 200
    step: int | None = None
    phase: str | None = None


@dataclass(slots=True)
class Answer:
    """What came back, for the session's next ask.

    text: all content of asks with a ``session``; empty for others and where it failed. record: all that is kept of it.
    """

    good: bool
    text: str = ""
    record: Record | None = None


Session = Generator[Ask, Answer, None]
Profile = Callable[[random.Random, str], Session]
