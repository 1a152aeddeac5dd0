"""Prompts for load: unique, repeatable from a seed, of a stated length distribution.

Length: log-normal, median 64 words, sigma 0.8 (so 95 % are under 240 words), clipped to 8-480 words. The
words are common English ones, at most 1.3 tokens each in the vocabularies of current models, so that the
longest prompt, the chat template and 64 new tokens stay under a context of 1,024 tokens.

Every prompt begins with 16 hexadecimal digits that no other prompt of the run has: a prefix cache finds
nothing to reuse but the template. Two runs with one seed send the same prompts; whoever wants a cold cache
in the second takes another seed (the default draws one).
"""

from __future__ import annotations

import hashlib
import math
import random

MEDIAN_WORDS = 64
SIGMA = 0.8
MIN_WORDS, MAX_WORDS = 8, 480

_VOCABULARY = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work number night point home water
room mother area money story fact month lot right study book eye job word business issue side kind
head house service friend father power hour game line end member law car city name team minute idea
body back parent face level office door health person art war history party result change morning
reason research girl guy moment air teacher force education foot boy age policy music market sense
nation plan college interest death course someone experience behind river mountain ship garden stone
small large old young early late long short high low new good great little own other different next
run walk read write build open close turn start show hear play move live believe bring happen carry
"""
_WORDS = _VOCABULARY.split()


class Prompts:
    """An endless sequence of prompts for one simulated user.

    seed: of the run. user: distinguishes the users of a run (also across worker processes); two with the
    same seed and user give the same sequence.
    """

    def __init__(self, seed: int, user: str) -> None:
        self._origin = f"{seed}/{user}"
        self._random = random.Random(self._origin)  # noqa: S311 - load, not secrets
        self._sent = 0

    def next(self) -> str:
        """The next prompt: prefix, 8-480 words, and what to do with them."""
        prefix = hashlib.sha256(f"{self._origin}/{self._sent}".encode()).hexdigest()[:16]
        self._sent += 1
        words = " ".join(self._random.choices(_WORDS, k=self._length()))
        return f"{prefix}: Tell a story in which these words occur: {words}."

    def tokens(self, low: int, high: int) -> int:
        """How many new tokens to ask for: uniform, both ends included."""
        return self._random.randint(low, high)

    def _length(self) -> int:
        drawn = self._random.lognormvariate(math.log(MEDIAN_WORDS), SIGMA)
        return max(MIN_WORDS, min(MAX_WORDS, round(drawn)))
