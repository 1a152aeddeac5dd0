"""The watchdog: a replica that sends no byte at all though it is asked something is frozen.

A probe waits its whole time limit before it says so; this is sooner, and doesn't mistake a busy replica for a
frozen one: even its full event loop answers a load read in the end, or streams a token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from serving.fleet.replica import Replica


class Silence:
    """Looks at replicas now and then (``look``, a few times a second).

    asked: when the question that is open at a replica was sent (time.monotonic()).
    matters(replica): whether anybody minds its silence. on_silent(replica, seconds): it has been silent so long.
    """

    def __init__(
        self,
        asked: Mapping[Replica, float],
        matters: Callable[[Replica], bool],
        on_silent: Callable[[Replica, float], None],
    ) -> None:
        self.asked = asked
        self.matters = matters
        self.on_silent = on_silent
        self._last: dict[Replica, tuple[int, float]] = {}  # pieces heard, and when the last of them came
        self._looked = time.monotonic()

    def add(self, replica: Replica) -> None:
        self._last[replica] = (replica.heard, time.monotonic())

    def remove(self, replica: Replica) -> None:
        self._last.pop(replica, None)

    def look(self, now: float, limit: float, interval: float) -> None:
        """``limit``: seconds of silence; ``interval``: seconds between two load reads of a replica."""
        stalled, self._looked = now - self._looked > limit / 2, now
        last, asked_at = self._last, self.asked
        if stalled:
            # It was us who stood still (stopped, suspended): what they said meanwhile is still unread.
            for replica in last:
                last[replica] = (replica.heard, now)
            return
        # Silence counts from the last byte heard, though the question comes up to an interval after it: a
        # request that arrives as the replica freezes waits no longer than the limit.
        least_asked = limit - min(interval, limit / 2)
        silent = []
        for replica, (heard, when) in last.items():
            asked = asked_at.get(replica)
            if replica.heard != heard or asked is None:
                last[replica] = (replica.heard, now)
            elif now - when >= limit and now - asked >= least_asked and self.matters(replica):
                silent.append((replica, now - when))
        for replica, seconds in silent:
            if not self.matters(replica):
                continue
            last[replica] = (replica.heard, now)
            self.on_silent(replica, seconds)
