"""Lines over time, stacked or not, with dashed thresholds and a legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.snapshot import colours, fields, units
from dashboards.snapshot.data import Result, Series
from dashboards.snapshot.fields import Field
from dashboards.snapshot.markup import (
    SIDE,
    View,
    axis,
    esc,
    height_of,
    log_axis,
    nothing,
    plot,
    readout,
    swatch,
    x_of,
)

#: Lines that a panel draws; Grafana's own boards stay below.
MOST = 40
#: Lines of a legend above which those that are 0 all the time share one.
_LEGEND = 5
_CALCS = {"lastNotNull": "last", "last": "last", "max": "max", "min": "min", "mean": "mean"}


@dataclass
class _Line:
    series: Series
    look: Field
    colour: str
    #: What is drawn: the series' own values, or with those below added.
    shown: list[float | None]

    @property
    def name(self) -> str:
        return self.look.name or self.series.name


def draw(panel: dict[str, Any], results: Sequence[Result], view: View) -> str:
    """The panel's inside."""
    lines = _lines(panel, results, view)
    if not lines:
        return nothing(fields.of(panel, "").empty)
    base = fields.of(panel, "")
    low, place, marks = _scale(lines, base)
    if not marks:
        return nothing(base.empty)
    # Lines are drawn over areas, thresholds over lines.
    below = [_area(line, lines, place, low, view) for line in lines]
    above = [_stroke(line, place, view) for line in sorted(lines, key=lambda line: line.look.dashed)]
    rows = [(line.name, line.colour, line.look.unit, line.series.values) for line in lines]
    sort = (panel.get("options", {}).get("tooltip") or {}).get("sort")
    y_marks = [(place(value) or 0.0, units.text(value, base.unit)) for value in marks]
    width = panel["gridPos"]["w"]
    image = plot(
        view,
        "".join(below + above),
        y_marks,
        height_of(panel),
        width,
        readout(rows, sort == "desc"),
        f"{panel['title']}: {len(lines)} lines",
    )
    return image + _legend(panel, lines)


def _lines(panel: dict[str, Any], results: Sequence[Result], view: View) -> list[_Line]:
    found = []
    for result in results:
        for series in result.series:
            look = fields.of(panel, series.name, result.ref)
            if not look.hidden and series.last is not None:
                found.append((series, look))
    if len(found) > MOST:
        ranked = sorted(found, key=lambda pair: (not pair[1].dashed, -(pair[0].highest or 0.0)))
        kept = {id(series) for series, _ in ranked[:MOST]}
        view.notes.append(f"{len(found) - MOST} of {len(found)} lines are left out: the lowest")
        found = [pair for pair in found if id(pair[0]) in kept]
    lines: list[_Line] = []
    free, stack = 0, [0.0] * view.span.count
    for series, look in found:
        colour = look.colour
        if colour is None:
            colour, free = colours.line(free), free + 1
        shown = series.values
        if look.stacked:
            stack = [below + (value or 0.0) for below, value in zip(stack, series.values, strict=True)]
            pairs = zip(stack, series.values, strict=True)
            shown = [total if value is not None else None for total, value in pairs]
        lines.append(_Line(series, look, colour, shown))
    return lines


def _scale(lines: Sequence[_Line], base: Field) -> tuple[float, Any, list[float]]:
    """(lowest, place of a value from 0 to 1 or None where it has none, marks)."""
    values = [v for line in lines for v in line.shown if v is not None]
    if base.log:
        values = [v for v in values if v > 0]
        if not values:
            return 0, None, []
        low, high, marks = log_axis(min(values), max(values))

        def by_power(value: float) -> float | None:
            return (math.log10(value) - low) / (high - low) if value > 0 else None

        return low, by_power, marks
    least = min(values) if base.low is None else base.low
    most = max(values) if base.high is None else base.high
    low, high, marks = axis(min(least, most), most, base.unit)
    if base.high is not None:
        high = base.high
        marks = [mark for mark in marks if mark <= high * (1 + 1e-9)]

    def linear(value: float) -> float:
        return min(1.0, max(0.0, (value - low) / (high - low)))

    return low, linear, marks


def _runs(line: _Line, place: Any, view: View) -> list[list[tuple[int, float]]]:
    """(point, place) without gaps, a list for each piece."""
    runs: list[list[tuple[int, float]]] = []
    gap = True
    for i, value in enumerate(line.shown):
        at = None if value is None else place(value)
        if at is None:
            gap = True
            continue
        if gap:
            runs.append([])
        gap = False
        runs[-1].append((i, at))
    return runs


def _points(run: Sequence[tuple[int, float]], view: View) -> str:
    return "L".join(f"{x_of(i, view.span):g} {SIDE - at * SIDE:.1f}" for i, at in run)


def _stroke(line: _Line, place: Any, view: View) -> str:
    # A single point is a line without length, whose round ends make a dot.
    path = "".join(
        f"M{_points(run, view)}" + ("h0" if len(run) == 1 else "") for run in _runs(line, place, view)
    )
    kind = "dashed" if line.look.dashed else "dots" if line.look.style == "points" else ""
    width = max(1.25, line.look.width * 1.25)
    return f'<path class="line {kind}" d="{path}" style="stroke:{line.colour};stroke-width:{width:g}"/>'


def _area(line: _Line, lines: Sequence[_Line], place: Any, low: float, view: View) -> str:
    plain = sum(not other.look.dashed for other in lines)
    if line.look.dashed or not line.look.fill or (plain > 3 and not line.look.stacked):
        return ""
    floor = f"{SIDE - (place(max(0.0, low)) or 0.0) * SIDE:.1f}"
    parts = []
    for run in _runs(line, place, view):
        first, last = x_of(run[0][0], view.span), x_of(run[-1][0], view.span)
        if not line.look.stacked:
            parts.append(f"M{first:g} {floor}L{_points(run, view)}L{last:g} {floor}z")
            continue
        own = line.series.values
        under = [(i, place((line.shown[i] or 0.0) - (own[i] or 0.0)) or 0.0) for i, _ in reversed(run)]
        parts.append(f"M{_points(run, view)}L{_points(under, view)}z")
    return f'<path class="fill" d="{"".join(parts)}" style="fill:{line.colour};fill-opacity:{line.look.fill:g}"/>'


def _legend(panel: dict[str, Any], lines: Sequence[_Line]) -> str:
    options = panel.get("options", {}).get("legend") or {}
    if options.get("showLegend") is False or options.get("displayMode") == "hidden":
        return ""
    calcs = [c for c in options.get("calcs", ()) if c in _CALCS]
    silent = [line for line in lines if not line.look.dashed and not any(line.series.values)]
    # A counter with many labels has a line for each, most of which say that nothing happened.
    folded = silent if len(lines) > _LEGEND and len(silent) > 2 else []
    rows = []
    for line in lines:
        if line in folded:
            continue
        name = f'{swatch(line.colour, line.look.dashed)}<span class="name">{esc(line.name)}</span>'
        cells = "".join(f"<td>{esc(line.look.text(_calc(c, line.series)))}</td>" for c in calcs)
        rows.append(f"<tr><th scope=row>{name}</th>{cells}</tr>")
    if folded:
        names = esc(", ".join(line.name for line in folded))
        rows.append(f'<tr><td class="folded" colspan="{len(calcs) + 1}">0 all the time: {names}</td></tr>')
    head = "".join(f"<th scope=col>{_CALCS[c]}</th>" for c in calcs)
    head = f"<thead><tr><th></th>{head}</tr></thead>" if calcs else ""
    return f'<div class="legend" tabindex="0"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def _calc(name: str, series: Series) -> float | None:
    there = [v for v in series.values if v is not None]
    if not there:
        return None
    return {"max": max(there), "min": min(there), "mean": sum(there) / len(there)}.get(name, there[-1])
