"""Least work: the replica with the fewest requests, by the router's own count and by what the engine reports."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from serving.fleet.replica import Replica

#: Above this many replicas a sample is looked at instead of all, so that the choice costs the same at 3,072
#: as here. The least loaded of a sample of d is within a small constant of the best (power of d choices).
SAMPLE = 12
#: A degraded replica counts as if it had this many requests more.
DEGRADED_WORK = 8


def work(replica: Replica) -> int:
    """Requests on the replica. Ours are exact, the engine's include ours and those of others but are older."""
    reported = (replica.running or 0) + (replica.waiting or 0)
    mine = len(replica.attempts)
    return (reported if reported > mine else mine) + (DEGRADED_WORK if replica.state == "degraded" else 0)


def choose(
    replicas: Sequence[Replica], tried: Collection[Replica], max_waiting: int, watermark: float
) -> Replica | None:
    """The replica for the next request, or None if none may take it.

    A replica is left out when it is not in rotation, was tried already, has more than ``max_waiting`` requests
    waiting, or uses more than ``watermark`` (0-1) of its KV blocks.
    """
    n = len(replicas)
    if n > SAMPLE:
        start = random.randrange(n)  # noqa: S311 - spreads load, guards nothing
        sample = [replicas[(start + i * (n // SAMPLE)) % n] for i in range(SAMPLE)]
        best = _least(sample, tried, max_waiting, watermark)
        if best is not None:
            return best
    return _least(replicas, tried, max_waiting, watermark)


def _least(
    replicas: Sequence[Replica], tried: Collection[Replica], max_waiting: int, watermark: float
) -> Replica | None:
    best: Replica | None = None
    best_work = 0
    n = len(replicas)
    start = random.randrange(n) if n else 0  # noqa: S311 - equal work: not always the first
    for i in range(n):
        r = replicas[(start + i) % n]
        if not r.in_rotation or (tried and r in tried):
            continue
        if (r.waiting or 0) > max_waiting or (r.kv_usage or 0.0) > watermark:
            continue
        w = work(r)
        # Equal work: what we sent ourselves is there now, what the engine reported may be over.
        if best is None or w < best_work or (w == best_work and len(r.attempts) < len(best.attempts)):
            best, best_work = r, w
    return best
