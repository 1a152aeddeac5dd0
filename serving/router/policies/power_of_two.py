"""Power of two choices: of two replicas drawn at random, the one with fewer requests in flight for its weight."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import getrandbits
from typing import TYPE_CHECKING

from serving.router.policies import Request
from serving.router.policies.eligible import FAILED_REQUESTS
from serving.router.policies.least_work import LEAST_WEIGHT, first_untried

if TYPE_CHECKING:
    from serving.fleet.replica import Replica
    from serving.router.policies.eligible import Eligible


def less_of_two(eligible: Eligible, tried: Collection[Replica]) -> Replica | None:
    """See the module."""
    items = eligible.items
    n = len(items)
    if n < 2:
        return first_untried(eligible, tried)
    bits = getrandbits(40)
    i = bits % n
    j = (i + 1 + (bits >> 20) % (n - 1)) % n
    a, b = items[i], items[j]
    if tried and (a in tried or b in tried):
        if a not in tried:
            return a
        return b if b not in tried else first_untried(eligible, tried)
    first = (len(a.attempts) + a.others + a.penalty * FAILED_REQUESTS + 1) * (b.weight or LEAST_WEIGHT)
    second = (len(b.attempts) + b.others + b.penalty * FAILED_REQUESTS + 1) * (a.weight or LEAST_WEIGHT)
    return a if first <= second else b


class Policy:
    """See the module."""

    name = "power_of_two"

    def __init__(self, settings: object = None) -> None:
        """Has no settings."""

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        """Needs no list of its own."""

    def choose(self, exchange: Request, eligible: Eligible, tried: Collection[Replica]) -> Replica | None:
        """See ``less_of_two``."""
        return less_of_two(eligible, tried)
