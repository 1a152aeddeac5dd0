"""What one metric of the catalogue is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]

#: What a series about one replica is told apart by.
REPLICA_LABELS = ("replica", "model")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    name: full name as Prometheus stores it (counters with ``_total``, histograms without a suffix).
    labels: label names in the order in which values are given.
    unit: base unit, or "" where the quantity has none (a count, a state).
    source: who measures it and where.
    buckets: upper bounds, for histograms only.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    source: str = ""
    buckets: tuple[float, ...] = ()
