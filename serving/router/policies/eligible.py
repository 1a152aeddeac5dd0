"""The replicas of one pool that may take a request now, kept up to date so that no choice has to look for them.

Who is in is decided by the caller: in rotation, queue and KV cache below their limits. It calls ``add`` when
that becomes true and after every load report of a replica that stays in, ``discard`` when it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving.fleet.replica import Replica

#: Work (token equivalents) that one request counts for about which only its number is known: those that an
#: engine reports beyond ours, and those by which a degraded replica is held to be busier.
REQUEST_WORK = 256
#: A degraded replica answers, but its probes are slow: as if it had this many requests more.
DEGRADED_REQUESTS = 8
#: A replica's penalty, the work of requests that failed on it lately, counts this many times. It fades in seconds:
#: counted once, one that fails at once would still get half of the traffic of a quiet pool of four.
FAILED = 8
#: The same where requests are counted.
FAILED_REQUESTS = FAILED / REQUEST_WORK
#: From this share of the KV cache on, its use counts as work; near 1 the engine preempts.
PRESSURE_FROM = 0.7
#: Work that a full KV cache counts for.
PRESSURE_WORK = 16 * REQUEST_WORK


#: One object for all: what is often read lies close together.
NOTHING = 0.0


class Eligible:
    """A set with positions: ``items[i]`` are the replicas in no particular order, ``extra[i]`` their extra work.

    ``positions`` maps a replica to its i. All three are read by policies and written here only. extra: token
    equivalents that come from the engine's report and the replica's state, not from our own requests.
    """

    __slots__ = ("_foreign", "extra", "items", "positions")

    def __init__(self) -> None:
        self.items: list[Replica] = []
        self.extra: list[float] = []
        self.positions: dict[Replica, int] = {}
        # By replica: which report was looked at, what was in it beyond ours, and what of that counts.
        self._foreign: dict[Replica, tuple[object, int, int]] = {}

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Replica]:
        """In no particular order. Not to be changed meanwhile."""
        return iter(self.items)

    def __contains__(self, replica: object) -> bool:
        return replica in self.positions

    def add(self, replica: Replica) -> None:
        """Let it in, or take over its new load report and state if it is in. O(1)."""
        at = self.positions.get(replica)
        if at is None:
            self.positions[replica] = len(self.items)
            self.items.append(replica)
            self.extra.append(self._extra(replica))
        else:
            self.extra[at] = self._extra(replica)

    def discard(self, replica: Replica) -> None:
        """Take it out; one that is not in is no error. O(1): the last takes its place."""
        at = self.positions.pop(replica, None)
        if at is None:
            return
        last, extra = self.items.pop(), self.extra.pop()
        self._foreign.pop(replica, None)
        if last is not replica:
            self.items[at] = last
            self.extra[at] = extra
            self.positions[last] = at

    def _extra(self, replica: Replica) -> float:
        """Extra work of the replica as of now."""
        work = float(REQUEST_WORK * self._foreign_requests(replica))
        if replica.state == "degraded":
            work += REQUEST_WORK * DEGRADED_REQUESTS
        usage = replica.kv_usage
        if usage is not None and usage > PRESSURE_FROM:
            work += PRESSURE_WORK * (usage - PRESSURE_FROM) / (1.0 - PRESSURE_FROM)
        return work if work else NOTHING

    def _foreign_requests(self, replica: Replica) -> int:
        """Requests that the engine has beyond those that we count ourselves: of clients that go there directly.

        They count only if two reports in a row have them. Report and counts are not of the same moment: a
        request that has just ended is in one and not in the other.
        """
        running = replica.running
        if running is None and replica.waiting is None:
            return 0
        before = self._foreign.get(replica)
        report = (replica.tokens, running)
        if before is not None and before[0] == report:
            return before[2]  # not a new report
        excess = max(0, (running or 0) + (replica.waiting or 0) - len(replica.attempts) - replica.others)
        counts = 0 if before is None else min(excess, before[1])
        self._foreign[replica] = (report, excess, counts)
        return counts
