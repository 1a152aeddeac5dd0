"""Work on many things at the same time, a few threads at once, that Ctrl-C ends at once.

``concurrent.futures`` waits for its threads when the interpreter ends, and these may wait for a host for a minute.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def each(work: Callable[[T], R], items: Sequence[T], most: int) -> list[R]:
    """``work`` of every item, in the order of the items, ``most`` at a time. ``work`` raises nothing."""
    results: dict[int, R] = {}
    left = itertools.count()

    def loop() -> None:
        # next() of a count is one step for the interpreter: no two threads get the same number.
        while (i := next(left)) < len(items):
            results[i] = work(items[i])

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(min(most, len(items)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[i] for i in range(len(items))]
