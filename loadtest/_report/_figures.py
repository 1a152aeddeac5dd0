"""Distributions and comparisons of groups, as plotly's figures: data in, dictionaries out. Not here: plots over time
(``_timelines``); colours of axes and of the page (``page.js``).

Only what is drawn is thinned out here: a distribution becomes a few hundred of its exact quantiles.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from loadtest._lib._exact import Exact
from loadtest._report import _words as words
from loadtest._report._definitions import LATENCIES

Figure = dict[str, Any]
Trace = dict[str, Any]

#: Readable on white and on near black.
BLUE, ORANGE, GREEN, RED, VIOLET, TEAL, PINK, GREY = (
    "#3b82f6",
    "#e08a1e",
    "#16a34a",
    "#e5484d",
    "#8b5cf6",
    "#0d9488",
    "#d6409f",
    "#8b93a1",
)
CYCLE = (BLUE, ORANGE, GREEN, VIOLET, TEAL, PINK, RED, GREY)
#: Points of a distribution's line, bins of its histogram.
_POINTS, _BINS = 300, 60
#: Groups of a plot of ranges.
_GROUPS = 40


def distribution(latency: str, run: Exact, baseline: Exact | None, limit: float | None) -> Figure | None:
    """Histogram, and share of the requests that took longer, both over a logarithmic time; None without values."""
    if not run.count and not (baseline and baseline.count):
        return None
    sets = [("run", run, BLUE, "solid")]
    if baseline is not None and baseline.count:
        sets.append(("baseline", baseline, GREY, "dash"))
    sets = [one for one in sets if one[1].count]
    low = max(min(exact.min or 0.0 for _, exact, _, _ in sets), 1e-6)
    high = max(max(exact.max or 0.0 for _, exact, _, _ in sets), low * 1.01)
    edges = np.geomspace(low * 0.999, high * 1.001, _BINS + 1)
    data: list[Trace] = []
    for name, exact, colour, dash in sets:
        values, counts = exact.values_and_counts()
        numbers, _ = np.histogram(np.maximum(values / 1e6, low), edges, weights=counts)
        share = numbers / counts.sum()
        at, slower = _tail(values, counts)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "legendgroup": name,
                "x": np.repeat(edges, 2)[1:-1].tolist(),
                "y": np.repeat(share, 2).tolist(),
                "line": {"color": colour, "width": 1, "dash": dash, "shape": "linear"},
                "fill": "tozeroy" if name == "run" else "none",
                "hovertemplate": "%{x:.4~s}s: %{y:.2%}",
            }
        )
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "legendgroup": name,
                "showlegend": False,
                "xaxis": "x2",
                "yaxis": "y2",
                "x": at,
                "y": slower,
                "line": {"color": colour, "width": 2, "dash": dash, "shape": "vh"},
                "hovertemplate": "%{y:.3%} took over %{x:.4~s}s",
            }
        )
    title = LATENCIES[latency].title
    x = {"type": "log", "title": {"text": f"{title} (log)"}, **ticks(low, high)}
    span = [float(np.log10(low * 0.9)), float(np.log10(high * 1.1))]
    layout = {
        "height": 300,
        "xaxis": {**x, "range": span, "domain": [0, 0.46]},
        "xaxis2": {**x, "range": span, "domain": [0.56, 1], "anchor": "y2"},
        "yaxis": {"title": {"text": "share"}, "tickformat": ".0%", "rangemode": "tozero"},
        "yaxis2": {
            "type": "log",
            "title": {"text": "share slower (log)"},
            "tickformat": "~%",
            "anchor": "x2",
            "dtick": 1,
        },
        "shapes": [_upright(limit, axis) for axis in ("x", "x2") if limit],
    }
    return {"data": data, "layout": layout}


def ticks(low: float, high: float) -> dict[str, Any]:
    """Marks of a logarithmic axis of seconds, at round times: few over decades, more within one."""
    decades = math.log10(high / low) if high > low > 0 else 0.0
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if decades < 0.7 else (1, 2, 5) if decades < 2.5 else (1,)
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    shown = [value for value in values if low * 0.85 <= value <= high * 1.15] or [low]
    return {"tickmode": "array", "tickvals": shown, "ticktext": [words.seconds(value) for value in shown]}


def _tail(values: np.ndarray, counts: np.ndarray) -> tuple[list[float], list[float]]:
    """Times, and the share of values above each: exact ones, chosen evenly over the logarithm of that share."""
    upto = counts.cumsum()
    number = int(upto[-1])
    ranks = np.unique(
        np.concatenate(
            (
                np.linspace(1, number, _POINTS // 3).astype(np.int64),
                number + 1 - np.geomspace(1, number, _POINTS).astype(np.int64),
            )
        ).clip(1, number)
    )
    where = np.unique(np.searchsorted(upto, ranks))
    where = where[upto[where] < number]  # above the greatest there is none, and a logarithm has no 0
    at, slower = values[where] / 1e6, 1 - upto[where] / number
    if not len(where):
        return [float(values[-1]) / 1e6], [1 / number]
    return [*at.tolist(), float(values[-1]) / 1e6], [*slower.tolist(), float(slower[-1])]


def _upright(at: float, axis: str) -> dict[str, Any]:
    line = {"color": RED, "width": 1.5, "dash": "dot"}
    return {
        "type": "line",
        "xref": axis,
        "yref": "paper",
        "x0": at,
        "x1": at,
        "y0": 0,
        "y1": 1,
        "line": line,
    }


def ranges(
    groups: Mapping[str, Mapping[str, Any]],
    baseline: Mapping[str, Mapping[str, Any]],
    latency: str,
) -> Figure | None:
    """p50 to p99 of one latency in each group, beside the baseline's; None without any."""
    shown = {
        name: group["latency"][latency]
        for name, group in list(groups.items())[:_GROUPS]
        if ((group.get("latency") or {}).get(latency) or {}).get("count")
    }
    if not shown:
        return None
    data: list[Trace] = []
    sets = (("baseline", baseline, GREY), ("run", groups, BLUE))
    for name, of, colour in sets:
        rows = [
            (group, of[group]["latency"][latency])
            for group in shown
            if ((of.get(group, {}).get("latency") or {}).get(latency) or {}).get("count")
        ]
        if not rows:
            continue
        x: list[float | None] = []
        y: list[str | None] = []
        for group, values in rows:
            x += [values["p50"], values.get("p90", values["p99"]), values["p99"], None]
            y += [html.escape(group)] * 3 + [None]
        symbols = ["circle", "line-ns-open", "diamond", "circle"] * len(rows)
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": x,
                "y": y,
                "line": {"color": colour, "width": 3 if name == "run" else 8},
                "opacity": 1 if name == "run" else 0.4,
                "marker": {"symbol": symbols, "size": 9, "color": colour},
                "hovertemplate": "%{y}: %{x:.4~s}s",
            }
        )
    known = [one for trace in data for one in trace["x"] if one]
    title = f"{LATENCIES[latency].title}: p50 ● p90 | p99 ◆ (log)"
    layout = {
        "height": 90 + 26 * len(shown),
        "xaxis": {"type": "log", "title": {"text": title}, **ticks(min(known), max(known))},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
    }
    return {"data": data, "layout": layout}


def bars(groups: Mapping[str, Mapping[str, Any]], key: str, title: str) -> Figure | None:
    """One number of each group, the first _GROUPS; None where none has it."""
    rows = [(name, group.get(key)) for name, group in list(groups.items())[:_GROUPS]]
    if not any(value for _, value in rows):
        return None
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "x": [value for _, value in rows],
            "y": [html.escape(name) for name, _ in rows],
            "marker": {"color": BLUE},
            "hovertemplate": "%{y}: %{x:,}",
            "showlegend": False,
        }
    ]
    layout = {
        "height": 90 + 26 * len(rows),
        "xaxis": {"title": {"text": title}, "tickformat": "~s", "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
    }
    return {"data": data, "layout": layout}
