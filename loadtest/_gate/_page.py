"""The verdict as one self-contained page: a forest plot, the table, and what each word means. Loads nothing."""

from __future__ import annotations

from html import escape
from typing import Any

from ._compare import FAIL, INCONCLUSIVE, PASS, REFUSED, Result, Row
from ._text import HEADS, cells, headline, remarks

_COLOURS = {PASS: "#2e7d32", FAIL: "#c62828", INCONCLUSIVE: "#b26a00", REFUSED: "#777777"}
_STYLE = """
:root { color-scheme: light } body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem;
padding: 0 1rem; color: #222; background: #fff } h1 { padding: .6rem 1rem; color: #fff; font-size: 1.3rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .3rem .5rem; border-bottom: 1px solid #ddd; text-align: left } td:nth-child(n+2):nth-child(-n+6) {
text-align: right; white-space: nowrap } dt { font-weight: 600 } dd { margin: 0 0 .5rem 1rem }
"""
_WORDS = {
    "ttft": "From when a request was due to its first token of any kind (a role-only chunk is none).",
    "tpot": "(last token - first token) / (output tokens - 1).",
    "e2e": "From when a request was due to its last token.",
    "itl": "Gaps between chunks with tokens, as they came.",
    "P50, P99, P999": "Exact quantiles of one run: the smallest value that the share of all lies at or below.",
    "change": "Geometric mean of the candidate's runs / that of the baseline's - 1; for shares their difference.",
    "bounds": "From the spread between runs (Welch's t on logarithms); each holds with 95 %.",
    "pass": "The upper bound lies below the margin.",
    "fail": "Slower for certain (Holm over all metrics, 5 %), and not shown to be within the margin.",
    "inconclusive": "Neither; the number of runs is an estimate from the spread seen, with a power of 80 %.",
    "refused": "Too few requests a run for this quantile: 6 for P50, 368 for P99, 3,688 for P999.",
    "not completed": "1 - completed / offered. A candidate with a larger share than the baseline never passes.",
    "attainment": "Requests that met every objective / offered ones.",
}


def page(result: Result) -> str:
    rows = "\n".join(
        "<tr>"
        + "".join(
            f'<td style="color:{_COLOURS[r.status]}">{escape(c)}</td>' if i == 6 else f"<td>{escape(c)}</td>"
            for i, c in enumerate(cells(r))
        )
        + "</tr>"
        for r in result.rows
    )
    heads = "".join(f"<th>{escape(h)}</th>" for h in HEADS)
    said = "".join(f"<li>{escape(r)}</li>" for r in remarks(result))
    words = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in _WORDS.items())
    settings = "".join(
        f"<tr><td>{escape(str(k))}</td><td>{escape(str(v))}</td></tr>" for k, v in result.settings.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,">'
        f"<title>Gate: {result.verdict}</title><style>{_STYLE}</style></head><body>"
        f'<h1 style="background:{_COLOURS[result.verdict]}">{escape(headline(result))}</h1>'
        f"{_forest(result.rows)}<table><tr>{heads}</tr>{rows}</table><ul>{said}</ul>"
        + (f"<h2>Asked for</h2><table>{settings}</table>" if settings else "")
        + f"<h2>What the words mean</h2><dl>{words}</dl></body></html>"
    )


def _forest(rows: list[Row]) -> str:
    """Change with its bounds, a line a metric, and the margin as a mark; metrics without bounds are left out."""
    shown = [
        r for r in rows if r.quantile and r.low is not None and r.high is not None and r.change is not None
    ]
    if not shown:
        return "<p>No metric has bounds: that needs two usable runs a side.</p>"
    import plotly.graph_objects as go

    figure: Any = go.Figure()
    for status in (FAIL, INCONCLUSIVE, PASS):
        part = [r for r in shown if r.status == status]
        if part:
            figure.add_trace(
                go.Scatter(
                    name=status,
                    mode="markers",
                    x=[100 * (r.change or 0) for r in part],
                    y=[r.label for r in part],
                    marker={"color": _COLOURS[status], "size": 9},
                    error_x={
                        "type": "data",
                        "symmetric": False,
                        "array": [100 * ((r.high or 0) - (r.change or 0)) for r in part],
                        "arrayminus": [100 * ((r.change or 0) - (r.low or 0)) for r in part],
                    },
                    hovertext=[r.why for r in part],
                )
            )
    figure.add_trace(
        go.Scatter(
            name="margin",
            mode="markers",
            x=[100 * (r.margin or 0) for r in shown],
            y=[r.label for r in shown],
            marker={"symbol": "line-ns-open", "size": 14, "color": "#222"},
            hoverinfo="skip",
        )
    )
    figure.add_vline(x=0, line_width=1, line_color="#888")
    figure.update_layout(
        template="plotly_white",
        height=140 + 26 * len(shown),
        margin={"l": 10, "r": 10, "t": 30, "b": 40},
        xaxis={"title": "slower than the baseline, %", "zeroline": False},
        yaxis={
            "categoryorder": "array",
            "categoryarray": [r.label for r in reversed(shown)],
            "automargin": True,
        },
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    )
    return str(
        figure.to_html(
            full_html=False, include_plotlyjs=True, config={"displayModeBar": False, "responsive": True}
        )
    )
