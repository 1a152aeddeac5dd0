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
# Every one of them is one piece. Their number is prime: whatever the stride, an answer goes through all.
_WORDS = tuple(
    re.findall(
        "[a-z]+",
        "the a of to and in is that it for as with was on are by this be from or at which has its not but one "
        "river town bridge water stone light morning people house road garden winter story city",
    )
)
#: A prompt: pieces of text, or token numbers as the client gave them.
Prompt = list[str] | list[int]


def pieces(text: str) -> list[str]:
    """``text`` cut into pieces, a token each. The rest of the simulation takes pieces as they are."""
    return _PIECE.findall(text)


def number(piece: str | int) -> int:
    """Token number (0 … VOCABULARY-1) of a piece; the same piece has the same number."""
    return piece if isinstance(piece, int) else zlib.crc32(piece.encode("utf-8", "replace")) % VOCABULARY


def tokenize(text: str) -> list[int]:
    """Token numbers of ``text``."""
    return [number(piece) for piece in pieces(text)]


class Answer:
    """An endless answer to a prompt, word by word, and where it would end by itself.

    length: tokens until the model would stop (32 to 128).
    """

    __slots__ = ("_start", "_stride", "length")

    def __init__(self, seed: int, prompt: Sequence[str | int]) -> None:
        # Two prompts of one length that differ, differ near their end almost always; a long one is not read whole.
        end = "\0".join(map(str, prompt[-256:]))
        digest = zlib.crc32(f"{seed} {len(prompt)} {end}".encode("utf-8", "replace"))
        self._start = digest % len(_WORDS)
        self._stride = 1 + (digest >> 8) % (len(_WORDS) - 1)
        self.length = 32 + (digest >> 16) % 97

    def word(self, position: int) -> str:
        """The text of token ``position`` (0, 1, …): a word with the blank before it, except the first.

        Letters and blanks only: in JSON it is written as it is.
        """
        word = _WORDS[(self._start + position * self._stride) % len(_WORDS)]
        return " " + word if position else word.capitalize()

    def words(self, start: int, end: int) -> list[str]:
        """Tokens ``start`` up to but not including ``end``."""
        return [self.word(position) for position in range(start, end)]


def embedding(seed: int, tokens: Sequence[str | int]) -> list[float]:
    """A unit vector of EMBEDDING_SIZE numbers that follows from seed and tokens."""
    numbers = (seed, *map(number, tokens))
    source = random.Random(zlib.crc32(b",".join(b"%d" % token for token in numbers)))  # noqa: S311
    values = [source.gauss(0.0, 1.0) for _ in range(EMBEDDING_SIZE)]
    norm = math.sqrt(sum(value * value for value in values))
    return [value / norm for value in values]
