"""The default: sessions and shared prefixes go where they are cached while that is worth it, the rest by least work.

The place of a key is found by consistent hashing. How loaded it may be is bounded by what the cache saves: the
request goes there as long as its work, less the prompt that need not be computed, is not above the work of the
best of a sample. Otherwise it goes to the next on the ring by the same rule, then to that best one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from serving.router.policies import Request
from serving.router.policies.eligible import FAILED, REQUEST_WORK
from serving.router.policies.least_work import LEAST_WEIGHT, least
from serving.router.policies.ring import OWNER_MASK, Ring

if TYPE_CHECKING:
    from serving.fleet.replica import Replica
    from serving.router.policies.eligible import Eligible

#: Eligible replicas of the ring that a key may go to. 4 are no better than 2 (tests/benchmarks/policies.py).
PLACES = 2
#: Size of the sample that a key's replica is compared with.
SAMPLE = 4
#: Points of the ring that one choice looks at: replicas that are out, and neighbours of one owner, take some.
POINTS_LOOKED_AT = 16


class Policy:
    """See the module. Weights count in the work of a replica, not on the ring."""

    name = "hybrid"

    def __init__(self, settings: object = None) -> None:
        """Has no settings."""
        self._ring = Ring()
        self._members: Sequence[Replica] | None = None

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        """The ring holds all of the pool, whatever their state, so that a key returns with its replica.

        It is brought up to date when a key is looked for: many changes at once cost one update, and a pool
        without sessions none.
        """
        self._members = list(replicas)

    def choose(self, exchange: Request, eligible: Eligible, tried: Collection[Replica]) -> Replica | None:
        """See the module."""
        key = exchange.session
        own = exchange.work
        if not key:
            return least(eligible, tried, own)
        ring = self._ring
        if self._members is not None:
            ring.update(self._members)
            self._members = None
        points = ring.points
        n = len(points)
        if not n:
            return least(eligible, tried, own)
        positions = eligible.positions
        extra = eligible.extra
        owners = ring.owners
        # One request's work more, or short questions of a session would be scattered by the least difference.
        saved = own - exchange.output_tokens + REQUEST_WORK
        best = None
        limit = 0.0
        i = ring.start(key)
        places = 0
        last = None
        for _ in range(POINTS_LOOKED_AT):
            r = owners[points[i] & OWNER_MASK]
            i += 1
            if i == n:
                i = 0
            if r is None or r is last or r in tried:
                continue
            at = positions.get(r)
            if at is None:
                continue
            work = r.work + r.others_work + FAILED * r.penalty + extra[at] - saved
            if work <= 0.0:
                return r  # no replica can be better, so none is looked for
            if best is None:
                best = least(eligible, tried, own, SAMPLE)
                if best is None:
                    return None
                limit = (
                    best.work + best.others_work + FAILED * best.penalty + extra[positions[best]] + own
                ) / (best.weight or LEAST_WEIGHT)
            if work + own <= limit * r.weight:
                return r
            places += 1
            if places == PLACES:
                return best
            last = r
        return best or least(eligible, tried, own)
