"""A band for each series whose value is a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboards.snapshot import colours, fields
from dashboards.snapshot.data import Result
from dashboards.snapshot.markup import SIDE, View, esc, extent, nothing, times

#: Bands that a panel draws.
MOST = 50
#: Changes of state that a band draws.
_CHANGES = 120


def draw(panel: dict[str, Any], results: Sequence[Result], view: View) -> str:
    """The panel's inside."""
    found = [(s, fields.of(panel, s.name, r.ref)) for r in results for s in r.series if s.last is not None]
    if not found:
        return nothing(fields.of(panel, "").empty)
    if len(found) > MOST:
        view.notes.append(f"{len(found) - MOST} of {len(found)} bands are left out")
    rows, seen = [], {}
    for series, look in found[:MOST]:
        pieces = []
        for first, last, value in _runs(series.values)[:_CHANGES]:
            left, wide = extent(first, last, view.span)
            word, colour = look.text(value), look.threshold(value)
            seen[word] = colours.fill(colour)
            at = f"{view.span.clock(view.span.at(first))} – {view.span.clock(view.span.at(last))}"
            shown = esc(word) if wide > 14 * len(word) else ""
            pieces.append(
                f'<span style="left:{left / SIDE:.2%};width:{wide / SIDE:.2%};--c:{colours.fill(colour)}"'
                f' title="{esc(series.name)}: {esc(word)}, {at}">{shown}</span>'
            )
        rows.append(f'<div class="who">{esc(series.name)}</div><div class="states">{"".join(pieces)}</div>')
    xs = times(view.span, panel["gridPos"]["w"])
    words = "".join(
        f'<span><i class="swatch block" style="--c:{c}"></i>{esc(w)}</span>' for w, c in seen.items()
    )
    return f'<div class="timeline">{"".join(rows)}<div></div><div class="times">{xs}</div></div><p class="key">{words}</p>'


def _runs(values: Sequence[float | None]) -> list[tuple[int, int, float]]:
    """(first point, last point, value) of each time that the value stays the same."""
    runs: list[tuple[int, int, float]] = []
    for i, value in enumerate(values):
        if value is None:
            continue
        if runs and runs[-1][1] == i - 1 and runs[-1][2] == value:
            runs[-1] = (runs[-1][0], i, value)
        else:
            runs.append((i, i, value))
    return runs
