"""The timeline of a run, drawn: how requests ended, how long they waited, what replicas and alerts did; over the seconds
since the injection, with a mark for each moment that a figure speaks of."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from chaos.run.figures import Figures, Record, Seen, is_good, is_refused

#: How a request ended, in the order in which they are stacked, with its colour (told apart by people who see red as green).
OUTCOMES = {
    "good": "#4c78a8",
    "late": "#f2c14e",
    "refused": "#9d9d9d",
    "cut": "#e45756",
    "lost": "#7b2d43",
}
_STATES = {"ready": "#4c78a8", "degraded": "#f2c14e", "unknown": "#bdbdbd"}
_OUT = "#e45756"
_MARKS = {
    "injected": "#7b4fa3",
    "proven": "#7b4fa3",
    "undone": "#7b4fa3",
    "detection": "#333333",
    "reroute": "#333333",
    "slo_recovery": "#2a7f3e",
    "capacity_recovery": "#2a7f3e",
}
_MOST_POINTS = 3000


def figure(seen: Seen, figures: Figures) -> go.Figure:
    """Four panels over one axis."""
    rows = ("How requests ended", "Time to first token", "Replicas", "Alerts")
    alerts = sorted({a.name for a in seen.timeline.alerts})
    replicas = sorted({c.replica for c in seen.timeline.changes})
    plot = make_subplots(
        rows=4,
        shared_xaxes=True,
        subplot_titles=rows,
        vertical_spacing=0.06,
        row_heights=[0.36, 0.26, 0.12 + 0.02 * len(replicas), 0.08 + 0.02 * len(alerts)],
    )
    plot.update_annotations(x=0, xanchor="left", font={"size": 13})
    _outcomes(plot, seen)
    _latency(plot, seen)
    _states(plot, seen, replicas)
    _alerts(plot, seen)
    plot.update_layout(
        barmode="stack",
        bargap=0.05,
        height=820 + 22 * (len(replicas) + len(alerts)),
        margin={"l": 90, "r": 30, "b": 50},
        legend={"orientation": "h", "y": -0.06},
        template="plotly_white",
        hovermode="closest",
    )
    _marks(plot, seen, figures)
    plot.update_xaxes(range=[seen.begun - seen.injected, seen.ended - seen.injected])
    plot.update_xaxes(title_text="seconds since the injection", row=4, col=1)
    plot.update_yaxes(title_text=f"requests in {seen.window:g} s", row=1, col=1)
    plot.update_yaxes(title_text="seconds", type="log", row=2, col=1)
    return plot


def outcome(record: Record, seen: Seen) -> str:
    """One of OUTCOMES."""
    if record.get("outcome") == "ok":
        return "good" if is_good(record, seen.objective) else "late"
    if is_refused(record):
        return "refused"
    return "lost" if record.get("first") is None else "cut"


def _outcomes(plot: go.Figure, seen: Seen) -> None:
    counted: dict[str, dict[int, int]] = {name: {} for name in OUTCOMES}
    for record in seen.records:
        at = record.get("ended") or seen.ended
        cell = math.floor((at - seen.injected) / seen.window)
        found = counted[outcome(record, seen)]
        found[cell] = found.get(cell, 0) + 1
    for name, cells in counted.items():
        if cells:
            x = [(i + 0.5) * seen.window for i in cells]
            plot.add_bar(
                x=x,
                y=list(cells.values()),
                name=name,
                marker_color=OUTCOMES[name],
                width=seen.window,
                row=1,
                col=1,
            )


def _latency(plot: go.Figure, seen: Seen) -> None:
    step = max(1, len(seen.records) // _MOST_POINTS)
    by: dict[str, tuple[list[float], list[float]]] = {}
    for record in seen.records[::step]:
        if record.get("ttft") is not None and record.get("first") is not None:
            x, y = by.setdefault(str(record.get("replica") or "nobody"), ([], []))
            x.append(round(record["first"] - seen.injected, 4))
            y.append(max(1e-3, record["ttft"]))
    for name, (x, y) in sorted(by.items()):
        plot.add_scatter(
            x=x, y=y, mode="markers", name=name, marker={"size": 4, "opacity": 0.7}, row=2, col=1
        )
    if seen.objective.ttft:
        plot.add_hline(y=seen.objective.ttft, line_dash="dash", line_color="#777777", row=2, col=1)


def _states(plot: go.Figure, seen: Seen, replicas: list[str]) -> None:
    for replica in reversed(replicas):
        changes = [c for c in seen.timeline.changes if c.replica == replica]
        for change, following in zip(changes, [*changes[1:], None], strict=True):
            start = max(change.at, seen.begun)
            end = following.at if following is not None else seen.ended
            if end > start:
                told = f"{change.state}{': ' + change.reason if change.reason else ''}"
                _bar(
                    plot,
                    replica,
                    start - seen.injected,
                    end - start,
                    _STATES.get(change.state, _OUT),
                    told,
                    3,
                )


def _alerts(plot: go.Figure, seen: Seen) -> None:
    for alert in seen.timeline.alerts:
        start = max(alert.at, seen.begun)
        told = ", ".join(f"{k}={v}" for k, v in sorted(alert.labels.items()) if k != "alertname")
        quiet = alert.labels.get("severity") == "info"
        _bar(
            plot,
            alert.name,
            start - seen.injected,
            (alert.until or seen.ended) - start,
            "#bdbdbd" if quiet else _OUT,
            told,
            4,
        )


def _bar(plot: go.Figure, name: str, start: float, length: float, colour: str, told: str, row: int) -> None:
    plot.add_bar(
        y=[name],
        x=[length],
        base=[start],
        orientation="h",
        marker_color=colour,
        hovertemplate=f"{name}<br>{told}<br>from {start:.2f} s for {length:.2f} s<extra></extra>",
        showlegend=False,
        row=row,
        col=1,
    )


def marks(seen: Seen, figures: Figures) -> dict[str, float]:
    """Moment -> seconds since the injection."""
    found = {"injected": 0.0, "proven": seen.proven - seen.injected, "undone": seen.undone - seen.injected}
    for name in ("detection", "reroute", "slo_recovery", "capacity_recovery"):
        value = figures.values.get(name)
        if value:
            found[name] = value
    return found


def _marks(plot: go.Figure, seen: Seen, figures: Figures) -> None:
    """Each word on a line of its own above the plot, as moments lie close together."""
    found = sorted(marks(seen, figures).items(), key=lambda pair: -pair[1])
    for i, (name, at) in enumerate(found):
        plot.add_vline(
            x=at, line_width=1.4, line_color=_MARKS[name], line_dash="solid" if name == "injected" else "dot"
        )
        plot.add_annotation(
            x=at,
            y=1.0,
            yshift=16 * (i + 1),
            xref="x",
            yref="paper",
            text=f"{name.replace('_', ' ')} {at:.2f} s" if at else name,
            showarrow=False,
            font={"size": 11, "color": _MARKS[name]},
            xanchor="left",
        )
    plot.update_layout(margin_t=30 + 18 * len(found))


def html(plot: go.Figure) -> str:
    """The plot with plotly's own script in it."""
    text: Any = plot.to_html(
        full_html=False, include_plotlyjs=True, config={"displaylogo": False, "responsive": True}
    )
    return str(text)
