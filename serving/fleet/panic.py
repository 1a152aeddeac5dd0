"""Panic: when probes and ejections have taken out every replica of a pool, any that may listen is better than none.

If all replicas fail their probes at once, the cause is more often common to them (the network, the probe itself,
a load that none of them can take) than a death of each, and refusing every request makes an outage of it. Where
nobody listens no request is sent, nor to draining or starting replicas; and a pool whose fallback serves has no need of
it. Which pools panic is decided here; which replica then gets a request is the business of who sends it
(``Replica.reachable``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from serving.fleet.replica import Replica


class _Pool:
    """How many of the members are in rotation, and how many are reachable though they are not.

    Counted along: in an outage thousands change at once, and looking through all for each would take seconds.
    """

    def __init__(self, members: Sequence[Replica]) -> None:
        self.seen: dict[Replica, tuple[bool, bool]] = dict.fromkeys(members, (False, False))
        self.in_rotation = self.reachable = 0
        for replica in self.seen:
            self.count(replica)

    def count(self, replica: Replica) -> None:
        was_in, was_reachable = self.seen[replica]
        self.seen[replica] = now_in, now_reachable = replica.in_rotation, replica.reachable
        self.in_rotation += now_in - was_in
        self.reachable += now_reachable - was_reachable

    def should_panic(self) -> bool:
        if self.in_rotation or not self.reachable:
            return False
        # A single frozen one: nothing points to a common cause, and its requests would only wait.
        return not (len(self.seen) == 1 and next(iter(self.seen)).state == "frozen")


class Panic:
    """``on_panic(pool, on)`` when a pool goes into panic or comes out of it; ``pools`` are those in it."""

    def __init__(self, allowed: bool, on_panic: Callable[[str, bool], None]) -> None:
        self.allowed = allowed
        self.on_panic = on_panic
        self.pools: set[str] = set()
        self._known: dict[str, _Pool] = {}
        self._pools_of: dict[Replica, list[str]] = {}
        self._fallback: dict[str, str] = {}

    def set_pools(
        self, pools: Mapping[str, Sequence[Replica]], fallbacks: Mapping[str, str] | None = None
    ) -> None:
        """fallbacks: pool -> the one that takes what it can't."""
        self.pools &= set(pools)  # a pool that is gone needs no word
        self._fallback = {name: other for name, other in (fallbacks or {}).items() if other in pools}
        self._known = {name: _Pool(members) for name, members in pools.items()}
        self._pools_of = {}
        for name, pool in self._known.items():
            for replica in pool.seen:
                self._pools_of.setdefault(replica, []).append(name)
        self._look(list(self._known))

    def allow(self, allowed: bool) -> None:
        self.allowed = allowed
        self._look(list(self._known))

    def look(self, replica: Replica) -> None:
        """Its state is another now."""
        names = self._pools_of.get(replica, [])
        for name in names:
            self._known[name].count(replica)
        self._look([*names, *(name for name, other in self._fallback.items() if other in names)])

    def _look(self, names: Sequence[str]) -> None:
        for name in names:
            other = self._known.get(self._fallback.get(name, ""))
            served = other is not None and other.in_rotation > 0
            on = self.allowed and not served and self._known[name].should_panic()
            if on != (name in self.pools):
                if on:
                    self.pools.add(name)
                else:
                    self.pools.discard(name)
                self.on_panic(name, on)
