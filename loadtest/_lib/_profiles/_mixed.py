"""Several profiles at once, by shares of **requests** (``--mix``): as a fleet sees them, in one user class.

The requests carry the names of their own profiles. A conversation has several requests, so it is begun accordingly
more seldom.
"""

from __future__ import annotations

import random

from loadtest._lib._ask import Profile, Session
from loadtest._lib._profiles import (
    _batch,
    _chat,
    _code,
    _completion,
    _embedding,
    _intents,
    _long_document,
    _multi_turn,
    _overlong,
)
from loadtest._lib._profiles._settings import now

ABOUT = "several profiles by shares of requests (--mix chat=60,long_document=10,…)"
ASKS = 1.0
SIZES = (("unless --mix says otherwise", "chat 55 %, multi_turn 20 %, code 15 %, long_document 10 %"),)
#: What a mix may have: profile -> (its sessions, requests a session on average).
PARTS: dict[str, tuple[Profile, float]] = {
    "chat": (_chat.session, _chat.ASKS),
    "multi_turn": (_multi_turn.session, _multi_turn.ASKS),
    "long_document": (_long_document.session, _long_document.ASKS),
    "code": (_code.session, _code.ASKS),
    "completion": (_completion.session, _completion.ASKS),
    "embedding": (_embedding.session, _embedding.ASKS),
    "batch": (_batch.session, _batch.ASKS),
    "intents": (_intents.session, _intents.ASKS),
    "overlong": (_overlong.session, _overlong.ASKS),
}


def session(draw: random.Random, unique: str) -> Session:
    settings = now()
    names = list(settings.mix)
    low, high = settings.turns
    requests = [(low + high) / 2 if name == "multi_turn" else PARTS[name][1] for name in names]
    weights = [settings.mix[name] / asks for name, asks in zip(names, requests, strict=True)]
    name = draw.choices(names, weights)[0]
    return PARTS[name][0](draw, unique)
