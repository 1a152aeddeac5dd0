"""One number, or a few side by side, on the colour of its threshold, with its course behind it; and bar gauges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboards.snapshot import colours, fields
from dashboards.snapshot.data import Result, Series
from dashboards.snapshot.fields import Field
from dashboards.snapshot.markup import SIDE, View, esc, nothing, x_of

#: Numbers, and bars, that a panel shows.
MOST = 40


def draw(panel: dict[str, Any], results: Sequence[Result], view: View) -> str:
    """The panel's inside."""
    found = _found(panel, results, view, "numbers")
    if not found:
        return (
            f'<div class="tiles"><div class="tile none"><b>{esc(fields.of(panel, "").empty)}</b></div></div>'
        )
    options = panel.get("options", {})
    named = len(found) > 1 or options.get("textMode") in ("value_and_name", "name")
    graph = options.get("graphMode", "area") != "none"
    tiles = []
    for series, look in found:
        value = series.last or 0.0
        name = f"<span>{esc(look.name or series.name)}</span>" if named and series.name else ""
        course = _course(series, view) if graph and len(found) <= 6 else ""
        back = colours.fill(look.threshold(value))
        tiles.append(
            f'<div class="tile" style="--c:{back}">{course}{name}<b>{esc(look.text(value))}</b></div>'
        )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def draw_bars(panel: dict[str, Any], results: Sequence[Result], view: View) -> str:
    """A bar gauge's inside: a bar for each series, as long as its share of the highest."""
    found = _found(panel, results, view, "bars")
    if not found:
        return nothing(fields.of(panel, "").empty)
    highest = max(s.last or 0.0 for s, _ in found)
    rows = []
    for series, look in found:
        value = series.last or 0.0
        low = look.low or 0.0
        high = look.high if look.high is not None else highest
        share = min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.0
        name = look.threshold(value)
        rows.append(
            f'<div class="who">{esc(look.name or series.name)}</div>'
            f'<div class="bar"><i style="width:{share:.1%};--c:{colours.css(name)}"></i></div>'
            f'<div class="amount" style="color:{colours.css(name)}">{esc(look.text(value))}</div>'
        )
    return f'<div class="bars">{"".join(rows)}</div>'


def _found(
    panel: dict[str, Any], results: Sequence[Result], view: View, what: str
) -> list[tuple[Series, Field]]:
    found = [(s, fields.of(panel, s.name, r.ref)) for r in results for s in r.series if s.last is not None]
    if len(found) > MOST:
        view.notes.append(f"{len(found) - MOST} of {len(found)} {what} are left out: the lowest")
        found = sorted(found, key=lambda pair: -(pair[0].last or 0.0))[:MOST]
    return found


def _course(series: Series, view: View) -> str:
    """The series' line behind the number; nothing where it has no course."""
    there = [(i, v) for i, v in enumerate(series.values) if v is not None]
    if len(there) < 2:
        return ""
    low, high = min(v for _, v in there), max(v for _, v in there)
    low = min(low, 0.0) if low <= high * 0.5 else low
    size = (high - low) or 1.0
    points = "L".join(f"{x_of(i, view.span):g} {SIDE - (v - low) / size * SIDE * 0.9:.0f}" for i, v in there)
    first, last = x_of(there[0][0], view.span), x_of(there[-1][0], view.span)
    return (
        f'<svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="M{first:g} {SIDE}L{points}L{last:g} {SIDE}z"/></svg>'
    )
