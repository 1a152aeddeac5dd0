"""How many fall into each bucket over time: the darker, the more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboards.snapshot import fields, units
from dashboards.snapshot.data import Result, Series
from dashboards.snapshot.markup import SIDE, View, esc, extent, height_of, nothing, plot, readout

#: Rows that have a text at their edge.
_TEXTS = 8
#: Steps of darkness.
_LEVELS = 12
#: Buckets that are drawn.
MOST = 60


def draw(panel: dict[str, Any], results: Sequence[Result], view: View) -> str:
    """The panel's inside; the series are cumulative buckets by ``le``."""
    options = panel.get("options", {})
    edges = units.unit((options.get("yAxis") or {}).get("unit") or "none")
    counts = units.unit((options.get("cellValues") or {}).get("unit") or "none")
    buckets = _filled(_buckets([s for result in results for s in result.series]))
    peak = max((v for _, _, values in buckets for v in values if v), default=0.0)
    if not buckets or not peak:
        return nothing(fields.of(panel, "").empty)
    if len(buckets) > MOST:
        view.notes.append(f"{len(buckets) - MOST} of {len(buckets)} buckets are left out: the highest")
        buckets = buckets[:MOST]
    exponent = float((options.get("color") or {}).get("exponent") or 0.5)
    tall = SIDE / len(buckets)
    paths = [""] * (_LEVELS + 1)
    for row, (_, _, values) in enumerate(buckets):
        y = SIDE - (row + 1) * tall
        for first, last, level in _runs(values, peak, exponent):
            left, wide = extent(first, last, view.span)
            paths[level] += f"M{left:g} {y:.1f}h{wide:g}v{tall:.1f}h{-wide:g}z"
    drawing = "".join(
        f'<path class="cell" d="{path}" style="fill-opacity:{(0.12 + 0.88 * level / _LEVELS):.2f}"/>'
        for level, path in enumerate(paths)
        if path
    )
    every = -(-len(buckets) // _TEXTS)
    lowest = buckets[0][0]
    y_marks = [] if lowest is None else [(0.0, units.text(lowest, edges))]
    y_marks += [
        ((row + 1) / len(buckets), units.text(high, edges))
        for row, (_, high, _) in enumerate(buckets)
        if (row + 1) % every == 0
    ]
    rows = [
        (_name(low, high, edges), "var(--heat)", counts, values) for low, high, values in reversed(buckets)
    ]
    label = f"{panel['title']}: {len(buckets)} buckets"
    image = plot(
        view, drawing, y_marks, height_of(panel) + 40, panel["gridPos"]["w"], readout(rows, False), label
    )
    most = esc(units.text(peak, counts))
    return f'{image}<p class="scale"><span>0</span><i></i><span>{most} in a bucket</span></p>'


def _buckets(series: Sequence[Series]) -> list[tuple[float | None, float, list[float | None]]]:
    """(lower edge, upper edge, what lies between) from the lowest, of cumulative series; None: no lower edge."""
    cumulative = []
    for one in series:
        try:
            cumulative.append((float(one.labels.get("le", "")), one.values))
        except ValueError:
            continue
    cumulative.sort(key=lambda pair: pair[0])
    found: list[tuple[float | None, float, list[float | None]]] = []
    low: float | None = None
    before: list[float | None] | None = None
    for high, values in cumulative:
        below = before or [0.0] * len(values)
        pairs = zip(values, below, strict=True)
        found.append((low, high, [None if v is None else max(0.0, v - (b or 0.0)) for v, b in pairs]))
        low, before = high, values
    return found


def _filled(
    buckets: list[tuple[float | None, float, list[float | None]]],
) -> list[tuple[float | None, float, list[float | None]]]:
    """Without the empty buckets above and below all that there is, but one at each end."""
    used = [i for i, (_, _, values) in enumerate(buckets) if any(v and v > 1e-9 for v in values)]
    return buckets[max(0, used[0] - 1) : used[-1] + 2] if used else []


def _runs(values: Sequence[float | None], peak: float, exponent: float) -> list[tuple[int, int, int]]:
    """(first point, last point, level) of neighbours that look the same; empty ones are left out."""
    runs: list[tuple[int, int, int]] = []
    for i, value in enumerate(values):
        if not value or value <= 1e-9:
            continue
        level = max(1, round((value / peak) ** exponent * _LEVELS))
        if runs and runs[-1][1] == i - 1 and runs[-1][2] == level:
            runs[-1] = (runs[-1][0], i, level)
        else:
            runs.append((i, i, level))
    return runs


def _name(low: float | None, high: float, unit: units.Unit) -> str:
    if low is None:
        return f"up to {units.text(high, unit)}"
    return (
        f"above {units.text(low, unit)}"
        if high == float("inf")
        else f"{units.text(low, unit)} – {units.text(high, unit)}"
    )
