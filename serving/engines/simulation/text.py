"""Text of the simulated model: how a prompt is cut into tokens, what is answered, an embedding.

All of it follows from the seed and the prompt alone: the same request gets the same answer on every replica
of one seed. None of it means anything.
"""

from __future__ import annotations

import math
import random
import re
import zlib
from collections.abc import Sequence

VOCABULARY = 49152
EMBEDDING_SIZE = 384

# Roughly as coarse as a byte-pair encoding: a word with its blank (long ones in pieces), a digit, a sign.
_PIECE = re.compile(r" ?[^\W\d]{1,8}|\d| ?[^\w\s]|\s+|_")
_WORDS = re.findall(
    "[a-z]+",
    "the a of to and in is that it for as with was on are by this be from or at which has its not but one "
    "river town bridge water stone light morning people house road garden winter story city market field",
)


def tokenize(text: str) -> list[int]:
    """Token numbers (0 … VOCABULARY-1) of ``text``, one a piece; the same piece has the same number."""
    return [zlib.crc32(piece.encode()) % VOCABULARY for piece in _PIECE.findall(text)]


class Answer:
    """An endless answer to a prompt, word by word, and where it would end by itself.

    length: tokens until the model would stop (32 to 128).
    """

    __slots__ = ("_state", "length")

    def __init__(self, seed: int, prompt: Sequence[int]) -> None:
        digest = zlib.crc32(b",".join(b"%d" % token for token in (seed, *prompt)))
        self._state = digest or 1
        self.length = 32 + digest % 97

    def word(self, position: int) -> str:
        """The text of token ``position`` (0, 1, …): a word with the blank before it, except the first."""
        # A multiplicative hash: position i is the same however often it is asked for.
        mixed = (self._state * (2 * position + 1) * 2654435761) & 0xFFFFFFFF
        word = _WORDS[(mixed >> 8) % len(_WORDS)]
        return " " + word if position else word.capitalize()


def embedding(seed: int, tokens: Sequence[int]) -> list[float]:
    """A unit vector of EMBEDDING_SIZE numbers that follows from seed and tokens."""
    source = random.Random(zlib.crc32(b",".join(b"%d" % token for token in (seed, *tokens))))  # noqa: S311
    values = [source.gauss(0.0, 1.0) for _ in range(EMBEDDING_SIZE)]
    norm = math.sqrt(sum(value * value for value in values))
    return [value / norm for value in values]
