"""The time that a snapshot shows: its two ends, the step between points, and what Grafana's time variables become."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

#: Points of a line; more than a panel has pixels to tell apart.
POINTS = 240
#: Longest time shown, seconds.
LONGEST = 400 * 86_400
#: Shortest time shown, seconds.
SHORTEST = 60

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
#: Steps between points, and between marks of the time axis, in seconds.
_ROUND = (
    1,
    2,
    5,
    10,
    15,
    20,
    30,
    60,
    120,
    300,
    600,
    900,
    1200,
    1800,
    3600,
    7200,
    10_800,
    21_600,
    43_200,
    86_400,
)


@dataclass(frozen=True)
class Span:
    """The time shown. start, end: Unix seconds; step: seconds between points, the last of which is at ``end``.

    scrape: seconds between two scrapes of the Prometheus that is asked. zone: of the times on the page; None: the
    machine's.
    """

    start: float
    end: float
    step: int
    scrape: float
    zone: tzinfo | None = None

    @property
    def count(self) -> int:
        """Points of a series."""
        return int((self.end - self.start) / self.step + 1e-6) + 1

    def at(self, index: int) -> float:
        """Unix seconds of a point."""
        return self.end - (self.count - 1 - index) * self.step

    def clock(self, when: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
        """That time in the page's time zone."""
        return datetime.fromtimestamp(when, UTC).astimezone(self.zone).strftime(form)

    def offset(self, when: float) -> float:
        """Seconds that the page's time zone is ahead of UTC then."""
        ahead = datetime.fromtimestamp(when, UTC).astimezone(self.zone).utcoffset()
        return ahead.total_seconds() if ahead else 0.0

    def grafana(self) -> dict[str, str]:
        """Grafana's own variables. ``$__rate_interval`` is what it makes of step and scrape: 4 scrapes at least."""
        seconds = round(self.end - self.start)
        return {
            "__interval": f"{self.step}s",
            "__interval_ms": str(self.step * 1000),
            "__rate_interval": f"{math.ceil(max(self.step + self.scrape, 4 * self.scrape))}s",
            "__range": f"{seconds}s",
            "__range_s": str(seconds),
            "__range_ms": str(seconds * 1000),
            "__from": str(round(self.start * 1000)),
            "__to": str(round(self.end * 1000)),
        }


def span(start: float, end: float, scrape: float, zone: tzinfo | None = None) -> Span:
    """A span whose points are as close as POINTS and the scrape interval allow, at a round step."""
    least = max((end - start) / POINTS, scrape, 1)
    step = next((s for s in _ROUND if s >= least), math.ceil(least / 3600) * 3600)
    return Span(start, end, step, scrape, zone)


def moment(text: str, now: float, zone: tzinfo | None = None) -> float:
    """Unix seconds of ``now``, ``-90m``, ``now-1h30m``, ``2026-05-01T12:00`` (in ``zone``), or Unix seconds.

    Raises ValueError for anything else.
    """
    text = text.strip()
    if text == "now":
        return now
    if match := re.fullmatch(r"(?:now)?-((?:\d+(?:\.\d+)?[smhdw])+)", text):
        return now - duration(match[1])
    if re.fullmatch(r"\d{9,11}(\.\d+)?", text):
        return float(text)
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo or zone is None else when.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    raise ValueError(f"{text!r} is no time; like now, -1h, -1h30m, 2026-05-01T12:00 or Unix seconds")


def duration(text: str) -> float:
    """Seconds of ``1h30m``, ``15s``. Raises ValueError."""
    parts = _PART.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise ValueError(f"{text!r} is no duration")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def marks(of: Span, most: float) -> list[tuple[float, str]]:
    """(place from 0 to 1, text) of at most about ``most`` marks of the time axis, at round local times."""
    length = of.end - of.start
    if length > 86_400:
        # Texts with a day are longer.
        most /= 2
    days = [86_400 * n for n in (2, 7, 14, 30, 60, 90)]
    step = next((s for s in (*_ROUND, *days) if length / s <= most), days[-1])
    day = "%d %b" if step >= 86_400 else "%d %b %H:%M"
    form = "%H:%M:%S" if step < 60 else "%H:%M" if length <= 86_400 else day
    first = of.start + (-(of.start + of.offset(of.start))) % step
    times = [first + i * step for i in range(int((of.end - first) // step) + 1)]
    return [((t - of.start) / length, of.clock(t, form)) for t in times]
