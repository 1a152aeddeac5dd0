"""When requests are due: schedules as seeded iterators of offsets in seconds, the same in every process.

Pure arithmetic. Who plays a schedule is ``_dispatch``, who divides it among processes ``_conduct``; traces bring
their own times (``_traces``).

Each schedule is a process of mean rate 1 (``units``), stretched by the rate as it changes over time (``schedule``): the
n-th arrival comes where the area under the rate reaches the n-th value of the unit process. So a stage of constant
arrivals has rate × seconds of them exactly, and a ramp of Poisson arrivals is a Poisson process at each moment.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

#: Requests a second, all processes together; more than any client here can send.
MAX_RATE = 1e6
MAX_SECONDS = 30 * 86_400.0
#: Beyond it a gamma process is one burst now and then, and its mean says nothing about a run.
MAX_CV = 10.0
_PARTS = 1000
#: Of an arrival: rounding must not put one more at the very end of a stage.
_EDGE = 1e-9


@dataclass(frozen=True, slots=True)
class Stage:
    """Requests a second at its start and at its end (in between linear), and seconds; inf is until stopped."""

    start: float
    end: float
    seconds: float

    @property
    def area(self) -> float:
        """Arrivals expected in it."""
        return (self.start + self.end) / 2 * self.seconds if self.start or self.end else 0.0

    def when(self, area: float) -> float:
        """Seconds into the stage at which ``area`` arrivals are expected."""
        if self.start == self.end:
            return area / self.start
        slope = (self.end - self.start) / self.seconds
        root = math.sqrt(max(0.0, self.start * self.start + 2 * slope * area))
        return 2 * area / (self.start + root) if area else 0.0

    def text(self) -> str:
        """As it is typed: ``50x60``, ``10-100x60``."""
        rate = f"{self.start:g}" if self.start == self.end else f"{self.start:g}-{self.end:g}"
        return rate if math.isinf(self.seconds) else f"{rate}x{self.seconds:g}"


def units(kind: str, cv: float, seed: int | str) -> Iterator[float]:
    """An endless ascending process with one arrival a unit: ``constant``, ``poisson`` or ``gamma``.

    cv: of gamma's intervals, their standard deviation ÷ their mean; 1 is Poisson, 2 comes in bursts, 0 is constant.
    (``vllm bench serve`` calls 1 ÷ cv² burstiness.) constant begins at 0, the others with an interval.
    """
    if kind == "constant" or (kind == "gamma" and cv == 0):
        yield from map(float, count())
    draw = random.Random(f"arrivals/{seed}")  # noqa: S311 - load, not secrets
    now, square = 0.0, cv * cv
    while True:
        now += draw.expovariate(1.0) if kind == "poisson" else draw.gammavariate(1 / square, square)
        yield now


def schedule(stages: Iterable[Stage], process: Iterator[float]) -> Iterator[tuple[float, int]]:
    """Offset in seconds from the start, and number of its stage, of each arrival; ends where the stages do."""
    begin, done = 0.0, 0.0
    value = next(process)
    for number, stage in enumerate(stages):
        area = stage.area
        while value - done < area - _EDGE:
            yield begin + stage.when(value - done), number
            value = next(process)
        begin += stage.seconds
        done += area


def peak(offsets: Sequence[float], window: float = 60.0) -> float:
    """Requests a second in the busiest ``window`` seconds of ascending offsets (shorter ones: of what there is)."""
    most, first = 0, 0
    for last, offset in enumerate(offsets):
        while offset - offsets[first] >= window:
            first += 1
        most = max(most, last - first + 1)
    return most / window


def parse_stages(text: str) -> list[Stage]:
    """``10x60,10-100x120,100x5m``: rate × seconds, a ramp from one rate to another, a pause (0x30).

    Raises ValueError that names the part and says how one looks.
    """
    parts = text.split(",")
    if len(parts) > _PARTS:
        raise ValueError(f"{len(parts)} stages are too many (at most {_PARTS})")
    stages = []
    for number, part in enumerate(parts, 1):
        rates, x, span = part.strip().partition("x")
        try:
            low, dash, high = rates.partition("-")
            start = _rate(low)
            stage = Stage(start, _rate(high) if dash else start, seconds(span))
        except ValueError as error:
            how = "is not RATExSECONDS, like 50x60, nor a ramp, like 10-100x60"
            raise ValueError(f"stage {number}, {part.strip()!r}: {error if x else how}") from None
        stages.append(stage)
    if not any(stage.area for stage in stages):
        raise ValueError("no stage has a rate above 0")
    return stages


def parse_rate(text: str) -> tuple[float, bool]:
    """``120``, ``1.5x80`` (1.5 times 80 a second), ``1.5xpeak``; the second value is True if it is times a trace's peak.

    Raises ValueError that says how one looks.
    """
    factor, x, of = text.strip().partition("x")
    if not x:
        rate, of_peak = _rate(factor), False
    elif of == "peak":
        rate, of_peak = _rate(factor), True
    else:
        rate, of_peak = _rate(factor) * _rate(of), False
    if not 0 < rate <= MAX_RATE:
        raise ValueError(f"{text!r} is not a rate above 0, at most {MAX_RATE:g} a second")
    return rate, of_peak


def seconds(text: str) -> float:
    """``90``, ``90s``, ``2m``, ``1h`` as seconds above 0. Raises ValueError."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)?", text.strip(), re.ASCII)
    value = float(found[1]) * {"ms": 0.001, "m": 60, "h": 3600}.get(found[2], 1) if found else 0.0
    if not 0 < value <= MAX_SECONDS:
        raise ValueError(f"{text.strip()!r} is not a number of seconds above 0, like 60, 90s or 2m")
    return value


def _rate(text: str) -> float:
    found = re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?|\.[0-9]{1,9}", text.strip(), re.ASCII)
    value = float(text) if found else math.inf
    if value > MAX_RATE:
        raise ValueError(f"{text.strip()!r} is not a rate like 50 or 0.5, at most {MAX_RATE:g}")
    return value
