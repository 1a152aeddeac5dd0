"""Weighted least work: the replica that has the least left to do for its weight. Looks at few, never at all.

Work is in token equivalents (``router/work.py``): what we sent and is not done, what other workers sent, a
penalty after failures, and what the engine reports beyond that (``eligible.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import getrandbits
from typing import TYPE_CHECKING

from serving.router.policies import Request
from serving.router.policies.eligible import FAILED

if TYPE_CHECKING:
    from serving.fleet.replica import Replica
    from serving.router.policies.eligible import Eligible

#: Up to this many replicas all are looked at.
EXACT = 12
#: Of more this many: the least loaded of a sample of d is within a small constant of the best of all (power of
#: d choices), and a small sample keeps workers, who know of each other with a delay, from all taking the same
#: one. 12 are worse than 6 with 4 workers (tests/benchmarks/policies.py).
SAMPLE = 6
#: Stands for a weight of 0: such a replica is taken only when there is no other.
LEAST_WEIGHT = 1e-6


def least(eligible: Eligible, tried: Collection[Replica], own: float, looks: int = SAMPLE) -> Replica | None:
    """The replica with the least work after it got ``own`` more; of equal ones any. ``looks``: size of a sample."""
    items = eligible.items
    extra = eligible.extra
    n = len(items)
    if n == 0:
        return None
    bits = getrandbits(40)
    best = None
    best_work = 0.0
    if n <= EXACT:
        start = bits % n
        for i in range(start - n, start):
            r = items[i]
            work = (r.work + r.others_work + FAILED * r.penalty + extra[i] + own) / (r.weight or LEAST_WEIGHT)
            if (best is None or work < best_work) and r not in tried:
                best, best_work = r, work
        return best
    # A random place and a random stride: any two replicas meet in some sample, or groups would drift apart.
    i = bits % n
    stride = 1 + (bits >> 20) % (n - 1)
    for _ in range(looks):
        r = items[i]
        work = (r.work + r.others_work + FAILED * r.penalty + extra[i] + own) / (r.weight or LEAST_WEIGHT)
        if (best is None or work < best_work) and r not in tried:
            best, best_work = r, work
        i += stride
        if i >= n:
            i -= n
    return best or first_untried(eligible, tried)


def first_untried(eligible: Eligible, tried: Collection[Replica]) -> Replica | None:
    """Any replica that was not tried, from a random place on. For the rare case that a sample had none."""
    items = eligible.items
    n = len(items)
    start = getrandbits(20) % n if n else 0
    for i in range(start - n, start):
        if items[i] not in tried:
            return items[i]
    return None


class Policy:
    """See the module."""

    name = "least_work"

    def __init__(self, settings: object = None) -> None:
        """Has no settings."""

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        """Needs no list of its own."""

    def choose(self, exchange: Request, eligible: Eligible, tried: Collection[Replica]) -> Replica | None:
        """See ``least``."""
        return least(eligible, tried, exchange.work)
