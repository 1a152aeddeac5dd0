"""Consistent hashing with bounded load: a session's requests go where its prefix is cached, unless that is full.

A replica is full with more than 1.25 times the pool's mean of requests in flight; the key then goes on to the
next on the ring (Mirrokni, Thorup, Zadimoghaddam 2018, "Consistent hashing with bounded loads"), which is always
the same one too. Requests without a session take the better of two.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import getrandbits
from typing import TYPE_CHECKING

from serving.router.policies import Request
from serving.router.policies.eligible import FAILED_REQUESTS
from serving.router.policies.least_work import EXACT, LEAST_WEIGHT, least
from serving.router.policies.power_of_two import less_of_two
from serving.router.policies.ring import OWNER_MASK, Ring, accepts

if TYPE_CHECKING:
    from serving.fleet.replica import Replica
    from serving.router.policies.eligible import Eligible

#: Times the mean of requests in flight that a replica may have; recent failures count as requests.
FACTOR = 1.25
#: A replica is never full with fewer than this many requests: on an idle fleet the mean is nearly 0.
FLOOR = 4
#: Points of the ring that one choice looks at before it takes any replica by least work.
POINTS_LOOKED_AT = 32
#: A sampled load moves the mean by this share.
RATE = 1 / 64


class Policy:
    """See the module."""

    name = "consistent_hash"

    def __init__(self, settings: object = None) -> None:
        """Has no settings."""
        self._ring = Ring()
        self._members: Sequence[Replica] | None = None
        self._mean = 0.0
        self._top = 1.0

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        """The ring holds all of the pool, whatever their state, so that a key returns with its replica. It is
        brought up to date when a key is looked for."""
        self._members = list(replicas)
        self._top = max((r.base_weight for r in replicas), default=1.0)

    def choose(self, exchange: Request, eligible: Eligible, tried: Collection[Replica]) -> Replica | None:
        """The first on the ring that may take it and is not full; the one with the least work if none is near."""
        key = exchange.session
        if not key:
            return less_of_two(eligible, tried)
        ring = self._ring
        if self._members is not None:
            ring.update(self._members)
            self._members = None
        points = ring.points
        n = len(points)
        if not n or not eligible.items:
            return least(eligible, tried, exchange.work)
        limit = self._limit(eligible)
        positions = eligible.positions
        owners = ring.owners
        i = ring.start(key)
        for _ in range(POINTS_LOOKED_AT):
            seat = points[i] & OWNER_MASK
            r = owners[seat]
            i += 1
            if i == n:
                i = 0
            if r not in positions or r in tried:
                continue
            assert r is not None
            weight = r.weight
            if weight < self._top and not accepts(key, ring.salts[seat], weight / self._top):
                continue
            if len(r.attempts) + r.others + r.penalty * FAILED_REQUESTS < limit * weight:
                return r
        return least(eligible, tried, exchange.work)

    def _limit(self, eligible: Eligible) -> float:
        """Requests in flight with which a replica of weight 1 is full. Of many replicas the mean is kept by sampling."""
        items = eligible.items
        n = len(items)
        if n <= EXACT:
            total = 0.0
            for r in items:
                total += len(r.attempts) + r.others
            mean = total / n
        else:
            r = items[getrandbits(30) % n]
            load = (len(r.attempts) + r.others) / (r.weight or LEAST_WEIGHT)
            self._mean += RATE * (load - self._mean)
            mean = self._mean
        limit = FACTOR * mean
        return limit if limit > FLOOR else FLOOR
