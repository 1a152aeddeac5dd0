"""Every value of a run, in bounded memory: how many there were of each whole microsecond.

For exact quantiles and means of millions of gaps between chunks. What it costs grows with how many different
microseconds there were, not with how many values: 64 million gaps between 5 and 50 ms take 45,000 counts. Not here:
what is measured (``_stream``), which requests count (``_summary``).

Quantiles are by nearest rank: the smallest value of which at least q × n values are no greater. It is one that
occurred, never one between two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

_MICRO = 1_000_000
#: Values kept as they come before they are counted: sorting fewer at once costs more in all, more holds others up.
_PENDING = 1 << 16


class Exact:
    """Values of one kind, in seconds, kept to the microsecond. Negative ones count as 0."""

    def __init__(self) -> None:
        self._values: Ints = np.empty(0, np.int64)
        self._counts: Ints = np.empty(0, np.int64)
        self._pending: list[float] = []
        self._sum = 0  # microseconds

    def add(self, seconds: float) -> None:
        self._pending.append(seconds)
        if len(self._pending) >= _PENDING:
            self._settle()

    def add_many(self, seconds: Iterable[float]) -> None:
        self._pending.extend(seconds)
        if len(self._pending) >= _PENDING:
            self._settle()

    def add_array(self, seconds: np.ndarray) -> None:
        """Many at once, counted at once."""
        micros = np.rint(seconds * _MICRO).astype(np.int64)
        self._take(*np.unique(np.maximum(micros, 0), return_counts=True))

    def merge(self, other: Exact) -> None:
        other._settle()
        self._settle()
        self._take(other._values, other._counts)

    @property
    def count(self) -> int:
        return int(self._counts.sum()) + len(self._pending)

    @property
    def total(self) -> float:
        """Sum of all values, seconds."""
        self._settle()
        return self._sum / _MICRO

    @property
    def mean(self) -> float | None:
        count = self.count
        return self.total / count if count else None

    @property
    def min(self) -> float | None:
        self._settle()
        return int(self._values[0]) / _MICRO if len(self._values) else None

    @property
    def max(self) -> float | None:
        self._settle()
        return int(self._values[-1]) / _MICRO if len(self._values) else None

    def quantile(self, q: float) -> float | None:
        """Seconds; None without a value. Raises ValueError for a q outside of 0-1."""
        return self.quantiles((q,))[0]

    def quantiles(self, of: Sequence[float]) -> list[float | None]:
        """The same of several, in one go."""
        self._settle()
        if not len(self._values):
            for q in of:
                rank(q, 1)
            return [None] * len(of)
        upto = self._counts.cumsum()
        ranks = [rank(q, int(upto[-1])) for q in of]
        return [int(self._values[i]) / _MICRO for i in np.searchsorted(upto, ranks)]

    def values_and_counts(self) -> tuple[Ints, Ints]:
        """Different values in microseconds, ascending, and how many there are of each. Not to be written to."""
        self._settle()
        return self._values, self._counts

    def _settle(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, []
            self.add_array(np.asarray(pending, np.float64))

    def _take(self, values: Ints, counts: Ints) -> None:
        self._sum += int((values * counts).sum())
        if not len(self._values):
            self._values, self._counts = values, counts.astype(np.int64)
            return
        every = np.concatenate((self._values, values))
        self._values, where = np.unique(every, return_inverse=True)
        sums = np.zeros(len(self._values), np.int64)
        np.add.at(sums, where, np.concatenate((self._counts, counts)))
        self._counts = sums


def rank(q: float, count: int) -> int:
    """Which of ``count`` values in ascending order is the quantile: 1 to count. Raises ValueError for q outside 0-1."""
    if not 0 <= q <= 1:
        raise ValueError(f"{q} is no quantile: 0 to 1")
    # As people write it: 0.07 × 100 is 7, though as floats it is a little more, and would be the 8th.
    return max(1, math.ceil(Fraction(repr(q)) * count)) if q else 1
