"""Texts to embed, several a request, through /v1/embeddings: as when documents are indexed, or questions looked up.

Needs a model that embeds; a chat model's server answers 400 or 404, and each such request counts as failed.
"""

from __future__ import annotations

import random

from loadtest._lib._ask import EMBEDDINGS, Ask, Session
from loadtest._lib._profiles._lengths import Lengths, LogNormal, Uniform
from loadtest._lib._profiles._settings import UNIQUE, now

ABOUT = "1 to 16 texts a request to /v1/embeddings; needs a model that embeds"
ASKS = 1.0
TEXT: Lengths = LogNormal(80, 0.7, 8, 400)
INPUTS: Lengths = Uniform(1, 16)
SIZES = (("each text", TEXT), ("texts", INPUTS))


def session(draw: random.Random, unique: str) -> Session:
    settings = now()
    lengths = TEXT.within(settings.room(1, UNIQUE - settings.shared_tokens))
    texts = []
    for number in range(INPUTS.draw(draw)):
        text = settings.text(draw, lengths.draw(draw), settings.language(draw))
        texts.append(f"{unique}/{number}: {text}")
    yield Ask("embedding", {"input": texts}, EMBEDDINGS, stream=False)
