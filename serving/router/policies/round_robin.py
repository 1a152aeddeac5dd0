"""Round robin: one after the other, whatever they have to do. A weight below 1 skips a share of the turns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import getrandbits
from typing import TYPE_CHECKING

from serving.router.policies import Request
from serving.router.policies.least_work import first_untried

if TYPE_CHECKING:
    from serving.fleet.replica import Replica
    from serving.router.policies.eligible import Eligible

#: Turns that one choice may skip before it takes any replica.
_SKIPS = 16


class Policy:
    """See the module."""

    name = "round_robin"

    def __init__(self, settings: object = None) -> None:
        """Has no settings. Starts anywhere, or all workers would start with the same replica."""
        self._turn = getrandbits(16)

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        """Needs no list of its own."""

    def choose(self, exchange: Request, eligible: Eligible, tried: Collection[Replica]) -> Replica | None:
        """The next one in turn."""
        items = eligible.items
        n = len(items)
        if n == 0:
            return None
        for _ in range(_SKIPS):
            self._turn += 1
            r = items[self._turn % n]
            if r in tried or (r.weight < 1.0 and getrandbits(16) >= r.weight * 65536):
                continue
            return r
        return first_untried(eligible, tried)
