"""Reads every replica's load once an interval, spread over it, without a task per replica.

A question that is open when its replica's turn comes again is left open: how long it has been is what the watchdog
(health.py) goes by. Whether a replica is in rotation is not decided here.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from itertools import count

from serving.fleet import load
from serving.fleet.ask import Asker, Question, was_refused
from serving.fleet.replica import Replica

TICK_SECONDS = 0.02


class Sweep:
    """``on_load(replica)`` when it is busy or its numbers are others than before, ``on_refused(replica)`` when nobody listens.

    interval, patience: seconds between two reads of a replica, and after which an open one is given up.
    asked: when the open question of a replica was sent (time.monotonic()).
    """

    def __init__(
        self,
        asker: Asker,
        interval: float,
        patience: float,
        on_load: Callable[[Replica], None],
        on_refused: Callable[[Replica], None],
    ) -> None:
        self.asker = asker
        self.interval = interval
        self.patience = patience
        self.on_load = on_load
        self.on_refused = on_refused
        self.asked: dict[Replica, float] = {}
        self._open: dict[Replica, Question] = {}
        self._due: list[tuple[float, int, Replica]] = []
        self._turn: dict[Replica, int] = {}  # the one valid entry of _due, or 0 while a question is open
        self._numbers = count(1)
        self._page: dict[Replica, int] = {}  # which of load.PAGES it answers
        self._questions: dict[Replica, tuple[int, bytes]] = {}

    def add(self, replica: Replica, delay: float = 0.0) -> None:
        self._turn[replica] = 0
        self._push(replica, time.monotonic() + delay)

    def remove(self, replica: Replica) -> None:
        question = self._open.pop(replica, None)
        if question is not None:
            question.cancel()
        for known in (self._turn, self._page, self._questions, self.asked):
            known.pop(replica, None)

    def ask_anew(self) -> None:
        """The headers of questions are others now."""
        self._questions.clear()

    async def run(self) -> None:
        """For ever, until cancelled."""
        try:
            while True:
                self.turn(time.monotonic())
                await asyncio.sleep(TICK_SECONDS)
        finally:
            for question in self._open.values():
                question.cancel()
            self._open.clear()

    def turn(self, now: float) -> None:
        """Asks whom it is time to ask; gives up what was asked too long ago."""
        due = self._due
        while due and due[0][0] <= now:
            _, number, replica = heapq.heappop(due)
            if self._turn.get(replica) == number:
                self._begin(replica, now)
        while self.asked:
            replica, since = next(iter(self.asked.items()))  # the oldest, dicts keep their order
            if now - since < self.patience:
                break
            del self.asked[replica]
            self._open.pop(replica).cancel()
            self._push(replica, now)

    def _push(self, replica: Replica, when: float) -> None:
        number = next(self._numbers)
        self._turn[replica] = number
        heapq.heappush(self._due, (when, number, replica))

    def _begin(self, replica: Replica, now: float) -> None:
        if replica.refused:  # the probe will find it when it is back
            self._push(replica, now + self.interval)
            return
        self._turn[replica] = 0
        page = self._page.get(replica, 0)
        known = self._questions.get(replica)
        if known is None or known[0] != page:
            known = self._questions[replica] = (
                page, self.asker.question(replica, "GET", load.PAGES[page])
            )  # fmt: skip

        def then(status: int, body: bytes, error: Exception | None) -> None:
            del self.asked[replica], self._open[replica]
            # Its place in the interval stays; one that answered late is asked again at once.
            self._push(replica, max(now + self.interval, time.monotonic()))
            self._answered(replica, status, body, error)

        self.asked[replica] = now
        self._open[replica] = self.asker.begin(replica, known[1], then)

    def _answered(self, replica: Replica, status: int, body: bytes, error: Exception | None) -> None:
        if error is not None:
            # Of anything else the probe and the watchdog judge.
            if was_refused(error):
                self.on_refused(replica)
            return
        seen = load.read(body) if status == 200 else None
        if seen is None or not seen.known:
            # Not this page: the other one next time, in turn for those that have none.
            self._page[replica] = 1 - self._page.get(replica, 0)
            if seen is None:
                return
        changed = (replica.running, replica.waiting, replica.kv_usage) != (
            seen.running, seen.waiting, seen.kv_usage
        )  # fmt: skip
        replica.tokens = seen.tokens
        if changed or replica.running or replica.waiting:
            # A busy one each time: what it has beyond our requests counts only if two reports in a row have it.
            replica.running, replica.waiting, replica.kv_usage = seen.running, seen.waiting, seen.kv_usage
            self.on_load(replica)
