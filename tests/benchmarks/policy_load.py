"""The requests of tests/benchmarks/policies.py: short chats, long documents, sessions, long system prompts.

Sessions have several turns that share a prefix with the turns before; single questions come under one of many
system prompts. Arrivals are Poisson; a turn follows the answer to the one before, so it is the run's to place.
"""

from __future__ import annotations

import math
import random
from typing import Any

KINDS = ("chat", "document", "session", "system")
#: Share of requests that begin something, by kind; a session goes on with more turns by itself.
SHARES = (0.58, 0.10, 0.12, 0.20)
MEAN_TURNS = 5
APPS = 200


class Talk:
    """A conversation: its key, its application's system prompt, and (user tokens, answer tokens) of its turns."""

    __slots__ = ("app", "app_tokens", "context", "key", "turns")


def lognormal(rng: random.Random, median: float, sigma: float, low: int, high: int) -> int:
    return min(high, max(low, int(rng.lognormvariate(math.log(median), sigma))))


class Load:
    """All that arrives by itself, made before the policy is known: (time, kind, sizes)."""

    def __init__(self, seed: int, rate: float, seconds: float) -> None:
        rng = random.Random(seed)
        weights = [1 / (i + 1) for i in range(APPS)]  # few applications are much used, most a little
        app_tokens = [rng.randrange(600, 3200) for _ in range(APPS)]
        # rate counts requests: a session is MEAN_TURNS of them.
        per_beginning = sum(SHARES) + SHARES[2] * (MEAN_TURNS - 1)
        self.arrivals: list[tuple[float, str, Any]] = []
        now = 0.0
        while True:
            now += rng.expovariate(rate / per_beginning)
            if now > seconds:
                break
            kind = rng.choices(KINDS, SHARES)[0]
            app = rng.choices(range(APPS), weights)[0]
            answer = lognormal(rng, 160, 0.7, 4, 1024)
            if kind == "chat":
                sizes: Any = (lognormal(rng, 150, 0.9, 10, 3000), answer, 0, 0)
            elif kind == "document":
                sizes = (lognormal(rng, 6000, 0.5, 2500, 20000), lognormal(rng, 250, 0.5, 16, 1024), 0, 0)
            elif kind == "system":
                sizes = (app_tokens[app] + lognormal(rng, 100, 0.6, 10, 1000), answer, app, app_tokens[app])
            else:
                talk = Talk()
                talk.key = rng.getrandbits(63) | 1
                talk.app, talk.app_tokens = app, app_tokens[app]
                first = lognormal(rng, 120, 0.6, 10, 800)
                if rng.random() < 0.3:  # begins with a text that all turns are about
                    first += lognormal(rng, 2500, 0.4, 500, 8000)
                count = 1
                while rng.random() > 1 / MEAN_TURNS and count < 30:
                    count += 1
                talk.turns = [
                    (lognormal(rng, 60, 0.7, 5, 800), lognormal(rng, 180, 0.6, 4, 1024)) for _ in range(count)
                ]
                talk.turns[0] = (first, talk.turns[0][1])
                talk.context = talk.app_tokens
                sizes = talk
            self.arrivals.append((now, kind, sizes))
        self.seed = seed
