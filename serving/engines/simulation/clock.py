"""One timer for everything that a process of simulated replicas waits for.

Thousands of engines each with a timer of their own on the event loop cost more than what they do when it
fires; here what is due lies in one heap, and one timer of the loop waits for the earliest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

# uvloop's timers have whole milliseconds: what is due within this (seconds) is served now.
_EARLY = 0.0005
# Serving goes on for at most this long (seconds) before sockets get their turn.
_SLICE = 0.02


class Clock:
    """Calls back at moments of ``time.monotonic()``, on the running loop. Nothing is ever cancelled: whoever
    is called looks whether it still wants to be."""

    __slots__ = ("_armed", "_heap", "_loop", "_number", "_timer")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._number = 0
        self._timer: asyncio.Handle | None = None
        self._armed = 0.0

    def at(self, due: float, callback: Callable[[Any], None], argument: Any = None) -> None:
        """Call ``callback(argument)`` at ``due`` (monotonic seconds), up to half a millisecond early."""
        self._number += 1
        heappush(self._heap, (due, self._number, callback, argument))
        if self._timer is None:
            self._arm(due)
        elif due < self._armed - _EARLY:
            self._timer.cancel()
            self._arm(due)

    def _arm(self, due: float) -> None:
        self._armed = due
        self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._serve)

    def _serve(self) -> None:
        heap, start = self._heap, time.monotonic()
        now, until = start, start + _SLICE
        # While this runs nobody arms the timer: it is armed once, at the end, for what is then the earliest.
        self._armed = 0.0
        served = 0
        while heap and heap[0][0] <= now + _EARLY:
            _, _, callback, argument = heappop(heap)
            try:
                callback(argument)
            except Exception as error:  # a fault of one replica must not stop the others
                self._loop.call_exception_handler({"message": "simulated replica", "exception": error})
            served += 1
            if not served % 16:
                now = time.monotonic()
                if now > until:
                    break
        self._timer = None
        if heap:
            self._arm(heap[0][0])
