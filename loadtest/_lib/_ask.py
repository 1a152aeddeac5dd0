"""What one request asks for, and how profiles hand requests out: plain data between profiles and whoever sends.

A profile is a function that makes sessions. A session is a generator of asks: it gets back what was answered, so
that a conversation can grow; a profile without conversations makes sessions of one ask::

    def session(draw: random.Random, unique: str) -> Session:
        yield Ask("chat", {"messages": [...], "max_tokens": 64})

``draw`` is seeded by run, worker and number of the session, ``unique`` is a text that no other session of any run
has (put first in a prompt, it keeps prefix caches cold).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"


@dataclass(slots=True)
class Ask:
    """One request. body: all of it but the model and what streaming needs, which the sender puts in.

    profile: a value of the label ``profile``. stream: read it as an event stream. headers: beside the sender's own.
    intent: what it is about, where the profile knows; think: seconds that a user of a closed loop waits before it.
    """

    profile: str
    body: dict[str, Any]
    path: str = CHAT
    stream: bool = True
    headers: dict[str, str] = field(default_factory=dict)
    session: str | None = None
    intent: str | None = None
    think: float = 0.0


@dataclass(slots=True)
class Answer:
    """What came back, for the session's next ask. text: all content; empty where it failed."""

    good: bool
    text: str = ""


Session = Generator[Ask, Answer, None]
Profile = Callable[[random.Random, str], Session]
