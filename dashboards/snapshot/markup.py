"""What all panels share on the page: the view, escaping, the plot with its axes, the data that the pointer shows.

A plot's SVG is stretched to the panel's width, so nothing in it has a shape of its own: texts stand beside it as HTML,
placed in percent, and keep their size on a telephone and on paper.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboards.snapshot import units
from dashboards.snapshot.span import Span, marks
from dashboards.snapshot.variables import Value

#: Edge of a plot's own coordinates.
SIDE = 1000


@dataclass(frozen=True)
class Band:
    """A time that an annotation marks; first, last: points of the span. It reaches half a step beyond both."""

    first: int
    last: int
    name: str
    colour: str
    text: str = ""


@dataclass
class View:
    """What panels of one board are drawn for. here: boards on the same page, whose links stay inside it."""

    span: Span
    bands: Sequence[Band] = ()
    here: frozenset[str] = frozenset()
    values: Mapping[str, Value] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def esc(value: object) -> str:
    """Text for HTML, also inside quotes."""
    return html.escape(str(value), quote=True)


def script_data(value: Any) -> str:
    """JSON that nothing in it can end the script element of."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def nothing(why: str) -> str:
    """What stands in a panel that has no data."""
    return f'<p class="nothing">{esc(why)}</p>'


def x_of(index: float, span: Span) -> float:
    """A point's place in plot coordinates."""
    return round(index / max(span.count - 1, 1) * SIDE, 1)


def extent(first: int, last: int, span: Span) -> tuple[float, float]:
    """Left edge and width in plot coordinates of what holds from one point to another, half a step beyond both."""
    left, right = max(0.0, x_of(first - 0.5, span)), min(float(SIDE), x_of(last + 0.5, span))
    return left, round(right - left, 1)


def plot(
    view: View,
    drawing: str,
    y_marks: Sequence[tuple[float, str]],
    height: int,
    width: int,
    data: dict[str, Any],
    label: str,
) -> str:
    """A plot. drawing: SVG in SIDE × SIDE; y_marks: (place from 0 at the bottom to 1, text); width: of Grafana's 24.

    data: what the pointer shows, of ``readout``. label: for who can't see it.
    """
    gutter = max((len(text) for _, text in y_marks), default=2) + 1
    grid = "".join(f"M0 {round(SIDE - at * SIDE, 1)}h{SIDE}" for at, _ in y_marks)
    bands = []
    for band in view.bands:
        left, wide = extent(band.first, band.last, view.span)
        bands.append(
            f'<rect class="band" x="{left}" y="0" width="{wide}" height="{SIDE}" style="fill:{band.colour}"/>'
            f'<rect class="cap" x="{left}" y="0" width="{wide}" height="14" style="fill:{band.colour}"/>'
        )
    ys = "".join(f'<span class="y" style="bottom:{at * 100:.1f}%">{esc(text)}</span>' for at, text in y_marks)
    xs = times(view.span, width)
    return (
        f'<div class="plot" style="--h:{height}px;--g:{gutter}ch"><div class="area" role="img" aria-label="{esc(label)}">'
        f'<svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="grid" d="{grid}"/>{"".join(bands)}{drawing}</svg>'
        f'<i class="cursor"></i>{ys}{xs}</div>'
        f'<script type="application/json">{script_data(data)}</script></div>'
    )


def times(span: Span, width: int) -> str:
    """The time axis' texts for a panel of that many of Grafana's 24 columns; every second one goes where it is tight."""
    return "".join(
        f'<span class="x{" second" if i % 2 else ""}" style="left:{at:.1%}">{esc(text)}</span>'
        for i, (at, text) in enumerate(marks(span, width * 0.75))
    )


def readout(
    rows: Sequence[tuple[str, str, units.Unit, Sequence[float | None]]], descending: bool
) -> dict[str, Any]:
    """What the pointer shows of (name, colour, unit, values) rows. descending: the highest first, else in order."""
    ladders: list[units.Unit] = []
    for _, _, unit, _ in rows:
        if unit not in ladders:
            ladders.append(unit)
    return {
        "n": [name for name, *_ in rows],
        "c": [colour for _, colour, *_ in rows],
        "u": [{"p": unit.prefix, "l": unit.ladder, "t": unit.moment} for unit in ladders],
        "s": [ladders.index(unit) for _, _, unit, _ in rows],
        "v": [[_short(v, 15 if unit.moment else 4) for v in values] for _, _, unit, values in rows],
        "d": descending,
    }


def _short(value: float | None, digits: int) -> float | int | None:
    if value is None:
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def height_of(panel: dict[str, Any]) -> int:
    """Pixels of a plot in a panel of that many of Grafana's rows, less what title and legend take."""
    return max(90, panel["gridPos"]["h"] * 30 - 90)


def axis(low: float, high: float, unit: units.Unit, most: int = 5) -> tuple[float, float, list[float]]:
    """Ends of an axis at round numbers, and its marks; where all values are the same, it reaches to 0 (or from 0 to 1)."""
    if not high > low:
        low, high = (min(low, 0.0), max(high, 0.0)) if low else (0.0, 1.0)
    step = _step((high - low) / most, unit.base, unit.ladder[0][1])
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return first * step, last * step, [i * step for i in range(first, last + 1)]


def log_axis(low: float, high: float) -> tuple[float, float, list[float]]:
    """Exponents of 10 of both ends of an axis, and its marks' values, one for each power or fewer."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    every = math.ceil((last - first) / 6)
    return float(first), float(last), [10.0**e for e in range(first, last + 1, every)]


def _step(least: float, base: int, divisor: float) -> float:
    if base == 60 and divisor == 1e-9 and least > 10:
        times = (15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
        return next((float(t) for t in times if t >= least), math.ceil(least / 86_400) * 86_400.0)
    if base == 2:
        return float(2.0 ** math.ceil(math.log2(least) - 1e-9))
    power = 10.0 ** math.floor(math.log10(least) + 1e-9)
    return next(f * power for f in (1, 2, 5, 10) if f * power >= least * (1 - 1e-9))


def swatch(colour: str, dashed: bool = False) -> str:
    """The mark before a name that says its line's colour."""
    return f'<i class="swatch{" dashed" if dashed else ""}" style="--c:{colour}"></i>'
