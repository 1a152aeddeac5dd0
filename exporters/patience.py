"""Works through reads that the kernel may hold up, in a thread of its own, so that one that hangs costs only itself.

A read of /proc can wait for a lock that a stuck process never gives back, and no signal gets it out. Whoever waits
for a Job asks ``stuck`` and goes on with another one for the rest. Used for command lines
(``exporters/proctable.py``) and numa_maps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Job(Generic[K, V]):
    """``work(item)`` for one item after another, in a daemon thread that starts at once.

    found: what was given back so far; None is left out. work must not raise.
    """

    def __init__(self, name: str, items: Sequence[K], work: Callable[[K], V | None]) -> None:
        self.items = list(items)
        self.found: dict[K, V] = {}
        self._work = work
        self._at: tuple[K, float] | None = None
        self._given_up = False
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for item in self.items:
            self._at = item, time.monotonic()
            result = self._work(item)
            if self._given_up:
                return
            if result is not None:
                self.found[item] = result

    def done(self) -> bool:
        return not self.thread.is_alive()

    def stuck(self, seconds: float) -> K | None:
        """The item that it has been at for longer than ``seconds``; None if it gets on, or is done."""
        at = self._at
        return at[0] if at and not self.done() and time.monotonic() - at[1] > seconds else None

    def give_up(self) -> None:
        """Nothing that is found from now on counts, and the thread ends as soon as it can."""
        self._given_up = True
