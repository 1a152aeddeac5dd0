"""Makes a profile's sessions from a seed, the same again for the same seed."""

from __future__ import annotations

import hashlib
import random

from loadtest._lib._ask import Profile, Session
from loadtest._lib._run import Run


class Sessions:
    """An endless row of sessions of one profile.

    origin: who plays them (worker, user), so that no two play the same. Words and lengths come from the run's seed: two
    runs with one seed draw the same. ``unique`` comes from the run's name too, so that the second run finds none of its
    prompts in a prefix cache.
    """

    def __init__(self, profile: Profile, run: Run, origin: str) -> None:
        self._profile = profile
        self._origin = f"{run.seed}/{origin}"
        self._name = run.name
        self._made = 0

    def next(self) -> Session:
        origin = f"{self._origin}/{self._made}"
        self._made += 1
        draw = random.Random(origin)  # noqa: S311 - load, not secrets
        unique = hashlib.sha256(f"{self._name}/{origin}".encode()).hexdigest()[:16]
        return self._profile(draw, unique)
