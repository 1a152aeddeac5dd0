"""The workers' numbers, asked for when somebody scrapes and kept when a worker dies."""

from __future__ import annotations

import asyncio

from serving.router import channel as messages
from serving.router.merge import Numbers, Totals
from serving.router.workers import Workers

ANSWER_SECONDS = 1.0  # a worker that does not send its numbers within this is shown with its last ones


class Collect:
    """Numbers of all workers of ``workers``, which are told to ``take`` and ``died``."""

    def __init__(self, workers: Workers) -> None:
        self.totals = Totals()
        self._workers = workers
        self._asked = 0
        self._awaited: dict[int, set[int]] = {}
        self._answered = asyncio.Event()

    def take(self, worker: int, message: messages.Numbers) -> None:
        """A worker's snapshot, asked for or not."""
        self.totals.take(worker, message.snapshot)
        for number, awaited in self._awaited.items():
            if number <= message.number:
                awaited.discard(worker)
        self._answered.set()

    def died(self, worker: int) -> None:
        """Its counters stay, its gauges go, and nobody waits for it."""
        self.totals.retire(worker)
        for awaited in self._awaited.values():
            awaited.discard(worker)
        self._answered.set()

    async def fresh(self) -> Numbers:
        """The sum of all workers as they are now, or as they last were where one is late. A new object."""
        self._asked += 1
        number = self._asked
        asked = {p.number for p in self._workers.serving() if p.channel is not None}
        awaited = self._awaited[number] = asked
        self._workers.send(messages.Ask(number))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while awaited:
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            pass
        finally:
            del self._awaited[number]
        return self.totals.sum()
