"""Runs work that may hang (a lost GPU, a stuck driver) in a thread of its own, once at a time.

A task that hangs is left alone: it is not started again beside itself, so threads don't pile up, and its late
answer is thrown away, so that no old value passes for one of now. Used by collectors that read several devices,
one task each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Hung(Exception):
    """The work is not done in its time."""


class Task(Generic[T]):
    """One thing that is done again and again, each time in a daemon thread. Used by one thread at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._run: _Run[T] | None = None
        self._hung: _Run[T] | None = None

    @property
    def at_work(self) -> bool:
        """Whether a run is still at work, a hung one included."""
        return any(run is not None and run.thread.is_alive() for run in (self._run, self._hung))

    def start(self, work: Callable[[], T]) -> None:
        """Begin, unless an earlier run still hangs; ``result`` then says so at once."""
        if self.at_work:
            self._hung, self._run = self._hung or self._run, None
            return
        self._hung, self._run = None, _Run(work, self._name)

    def result(self, deadline: float) -> T:
        """What the work returned. Raises what it raised, or Hung at ``deadline`` (time.monotonic())."""
        if self._run is None:
            raise Hung(f"{self._name} still hangs")
        self._run.thread.join(max(0.0, deadline - time.monotonic()))
        if self._run.thread.is_alive():
            raise Hung(f"{self._name} does not answer")
        if self._run.error is not None:
            raise self._run.error
        return self._run.value[0]


class _Run(Generic[T]):
    def __init__(self, work: Callable[[], T], name: str) -> None:
        self.value: list[T] = []
        self.error: BaseException | None = None
        self._work = work
        self.thread = threading.Thread(target=self._do, name=name, daemon=True)
        self.thread.start()

    def _do(self) -> None:
        try:
            self.value.append(self._work())
        except BaseException as error:
            self.error = error
