"""Plots over a run's time, as plotly's figures: what the client saw, and what the fleet said, on one axis."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loadtest._report._figures import BLUE, CYCLE, ORANGE, RED, Figure, Trace
from loadtest._report._times import Times

_HEIGHT = 250
#: Lines that one plot can carry and be read.
_MOST = 8


class Clock:
    """Times for the axes. moment: Unix seconds to a text that plotly takes as a date; end of what is drawn."""

    def __init__(self, moment: Callable[[float], str], start: float, end: float) -> None:
        self.moment, self.start, self.end = moment, start, end

    def axis(self) -> dict[str, Any]:
        return {"type": "date", "range": [self.moment(self.start), self.moment(self.end)]}


#: (name of the line, its values, colour, dash).
Line = tuple[str, Sequence[float | None], str, str]
#: (from, to, colour, what it is), Unix seconds.
Band = tuple[float, float, str, str]


def over_time(
    at: Sequence[float],
    lines: Sequence[Line],
    clock: Clock,
    unit: str,
    limit: float | None = None,
    bands: Sequence[Band] = (),
) -> Figure | None:
    """Lines on the run's time axis; None where no line has a value. limit: drawn across."""
    moments = [clock.moment(one) for one in at]
    shown = [line for line in lines if any(value is not None for value in line[1])]
    if not shown:
        return None
    suffix = {"s": "s", "ratio": "", "reqps": "/s", "tokps": " tok/s"}.get(unit, "")
    number = ".1%" if unit == "ratio" else ".4~s"
    data: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": html.escape(name),
            "x": moments,
            "y": [None if value is None else float(f"{value:.5g}") for value in values],
            "line": {"color": colour, "width": 1.6, "dash": dash},
            "connectgaps": False,
            "hovertemplate": f"%{{y:{number}}}{suffix}",
        }
        for name, values, colour, dash in shown
    ]
    for trace in data:
        # A value alone between two gaps makes no line.
        values = [None, *trace["y"], None]
        alone = any(
            v is not None and values[i] is None and values[i + 2] is None for i, v in enumerate(trace["y"])
        )
        if alone:
            trace["mode"] = "lines+markers"
            trace["marker"] = {"size": 4}
    y: dict[str, Any] = {"rangemode": "tozero", "ticksuffix": suffix}
    y |= {"tickformat": ".0%"} if unit == "ratio" else {"tickformat": "~s"}
    layout: dict[str, Any] = {
        "height": _HEIGHT,
        "xaxis": clock.axis(),
        "yaxis": y,
        "hovermode": "x unified",
        "shapes": [_band(band, clock) for band in bands],
    }
    if limit:
        line = {"color": RED, "width": 1.5, "dash": "dot"}
        across = {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": limit,
            "y1": limit,
            "line": line,
        }
        layout["shapes"] = [*layout["shapes"], across]
    return {"data": data, "layout": layout}


def _band(band: Band, clock: Clock) -> dict[str, Any]:
    start, end, colour, what = band
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": clock.moment(start),
        "x1": clock.moment(max(end, start + (clock.end - clock.start) / 300)),
        "y0": 0,
        "y1": 1,
        "fillcolor": colour,
        "opacity": 0.12,
        "line": {"width": 0},
        "layer": "below",
        "label": {"text": html.escape(what), "textposition": "top left", "font": {"size": 10}},
    }


def of_client(times: Times, name: str, colours: Sequence[str] = (BLUE, ORANGE, RED)) -> list[Line]:
    """p50, p95, p99 of one latency."""
    found: list[Line] = []
    for q, colour in zip(("p50", "p95", "p99"), colours, strict=True):
        found.append((q, times.lines.get(f"{name}_{q}", []), colour, "solid"))
    return found


def of_fleet(fleet: Mapping[str, Any], keys: Mapping[str, str], total: bool = False) -> list[Line]:
    """Lines of some of the fleet's signals. keys: of the signal -> what its name begins with. total: added up."""
    found: list[Line] = []
    for key, prefix in keys.items():
        signal = (fleet.get("signals") or {}).get(key)
        if not signal:
            continue
        dash = "solid" if prefix in ("", "p99", "running", "requests") else "dot"
        series = signal["series"]
        if total:
            found.append((prefix, _summed([one["values"] for one in series]), CYCLE[len(found) % 8], "solid"))
            continue
        for i, one in enumerate(_strongest(series)):
            name = f"{prefix} {label(one['labels'])}".strip()
            found.append((name, one["values"], CYCLE[i % len(CYCLE)], dash))
    return found


def _strongest(series: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those with the greatest mean, in the order of their names."""

    def mean(one: Mapping[str, Any]) -> float:
        known = [value for value in one["values"] if value is not None]
        return sum(known) / len(known) if known else -1.0

    return sorted(sorted(series, key=mean)[-_MOST:], key=lambda one: label(one["labels"]))


def _summed(series: Sequence[Sequence[float | None]]) -> list[float | None]:
    found: list[float | None] = []
    for values in zip(*series, strict=True):
        known = [value for value in values if value is not None]
        found.append(sum(known) if known else None)
    return found


def label(labels: Mapping[str, str]) -> str:
    """The shortest that tells it apart: replica, else pool, else model."""
    for key in ("replica", "pool", "model"):
        if labels.get(key):
            return str(labels[key])
    return "/".join(labels.values())
