"""Least requests: the replica with the fewest requests in flight for its weight; all count the same.

Recent failures count as requests that are still open, here and wherever requests are counted: one that fails at
once would look free.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import getrandbits
from typing import TYPE_CHECKING

from serving.router.policies import Request
from serving.router.policies.eligible import FAILED_REQUESTS
from serving.router.policies.least_work import EXACT, LEAST_WEIGHT, first_untried

if TYPE_CHECKING:
    from serving.fleet.replica import Replica
    from serving.router.policies.eligible import Eligible

#: Of more replicas than EXACT, this many are looked at.
SAMPLE = 6


class Policy:
    """See the module. Of more than EXACT replicas, the least of a random SAMPLE of them."""

    name = "least_requests"

    def __init__(self, settings: object = None) -> None:
        """Has no settings."""

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        """Needs no list of its own."""

    def choose(self, exchange: Request, eligible: Eligible, tried: Collection[Replica]) -> Replica | None:
        """The one with the least after it got one more; of equal ones any."""
        items = eligible.items
        n = len(items)
        if n == 0:
            return None
        bits = getrandbits(40)
        i = bits % n
        stride, looks = (1, n) if n <= EXACT else (1 + (bits >> 20) % (n - 1), SAMPLE)
        best = None
        best_count = 0.0
        for _ in range(looks):
            r = items[i]
            count = (len(r.attempts) + r.others + r.penalty * FAILED_REQUESTS + 1) / (
                r.weight or LEAST_WEIGHT
            )
            if (best is None or count < best_count) and r not in tried:
                best, best_count = r, count
            i += stride
            if i >= n:
                i -= n
        return best or first_untried(eligible, tried)
