"""A worker's numbers as plain data, on their way to the master. What counts them is ``metrics.py``."""

from __future__ import annotations

import msgspec

Labels = tuple[str, ...]


class SeriesRow(msgspec.Struct, array_like=True):
    """A series as data. Histograms are (counts, sum) in the order duration, first, gap, queue.

    cut: answers that broke off after they had begun.
    """

    labels: Labels
    codes: dict[int, int]
    histograms: list[tuple[list[int], float]]
    cut: int = 0


class Snapshot(msgspec.Struct, array_like=True):
    """A worker's numbers since its start: absolute values, of ``series`` only what changed since the last one."""

    series: list[SeriesRow]
    overheads: dict[str, tuple[list[int], float]]
    lag: tuple[list[int], float]
    counters: list[tuple[str, Labels, float]]
    gauges: list[tuple[str, Labels, float]]
