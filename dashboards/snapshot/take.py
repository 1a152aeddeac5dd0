"""Takes snapshots of boards: asks for everything that their panels show, then draws them panel by panel."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from dashboards.snapshot import colours, data, heatmap, stat, states, table, timeseries, variables, words
from dashboards.snapshot.data import Result, legend
from dashboards.snapshot.markup import Band, View, esc
from dashboards.snapshot.prometheus import Prometheus, QueryError
from dashboards.snapshot.span import Span

#: Queries at a time: a snapshot is no reason for an alert's evaluation to wait.
AT_ONCE = 4
#: Characters of a page's panels; what comes after them says that it was left out.
LARGEST = 16 * 2**20
#: Annotations that a board shows.
_BANDS = 200

_DRAW: dict[str, Callable[[dict[str, Any], Sequence[Result], View], str]] = {
    "timeseries": timeseries.draw,
    "heatmap": heatmap.draw,
    "state-timeline": states.draw,
    "stat": stat.draw,
    "gauge": stat.draw,
    "bargauge": stat.draw_bars,
    "table": table.draw,
    "text": words.draw,
}


@dataclass
class Taken:
    """A board as HTML. failed: queries without an answer, of ``asked``; bands: what its annotations found."""

    name: str
    title: str
    description: str
    values: dict[str, variables.Value]
    bands: list[Band] = field(default_factory=list)
    #: Annotations that could not be had, and why: without them no band doesn't mean that nothing happened.
    unknown: list[str] = field(default_factory=list)
    html: str = ""
    asked: int = 0
    failed: int = 0
    #: Panels that have data, by whether they have (text and rows are not counted).
    panels: dict[bool, list[str]] = field(default_factory=lambda: {True: [], False: []})


def take(
    boards: Mapping[str, Mapping[str, Any]],
    given: Mapping[str, Sequence[str]],
    prometheus: Prometheus,
    span: Span,
    tell: Callable[[str], None],
) -> list[Taken]:
    """Every board, in order. tell: gets a line for each board.

    Raises ValueError for variables that a board can't have so, and QueryError if no value of a variable can be had.
    """
    taken, size = [], 0
    for name, board in boards.items():
        values = variables.chosen(board, given, prometheus, span)
        one = Taken(name, _title(board), str(board.get("description") or ""), values)
        results, marks = _answers(board, values, prometheus, span)
        every = [*results.values(), *(r for _, r in marks)]
        one.asked, one.failed = len(every), sum(bool(r.error) for r in every)
        one.unknown = [f"{a['name']}: {r.error}" for a, r in marks if r.error]
        one.bands = _bands(board, marks, span)
        view = View(span, one.bands, frozenset(boards), values)
        one.html = _board(board, one, results, view, LARGEST - size)
        size += len(one.html)
        taken.append(one)
        empty = f", {len(one.panels[False])} without data" if one.panels[False] else ""
        failed = f", {one.failed} of {one.asked} queries failed" if one.failed else ""
        tell(f"{name}: {len(one.panels[True])} panels{empty}{failed}")
    return taken


def _title(board: Mapping[str, Any]) -> str:
    return str(board["title"]).rsplit(" / ", 1)[-1]


def panels(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every panel, those of folded rows after their row."""
    found = []
    for panel in board["panels"]:
        found += [panel, *panel.get("panels", ())]
    return found


def _answers(
    board: Mapping[str, Any],
    values: Mapping[str, variables.Value],
    prometheus: Prometheus,
    span: Span,
) -> tuple[dict[tuple[int, str], Result], list[tuple[Mapping[str, Any], Result]]]:
    """Results by (panel, target), and each annotation with its result."""

    def ask(target: Mapping[str, Any], instant: bool) -> Result:
        ref, expr = str(target.get("refId", "")), variables.in_query(str(target["expr"]), values, span)
        try:
            answer = prometheus.instant(expr, span.end) if instant else prometheus.over(expr, span)
            return data.result(ref, expr, str(target.get("legendFormat") or ""), answer, span)
        except QueryError as error:
            return Result(ref, expr, error=str(error))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = {
            (panel["id"], str(target["refId"])): pool.submit(ask, target, bool(target.get("instant")))
            for panel in panels(board)
            for target in panel.get("targets", ())
        }
        annotations = (board.get("annotations") or {}).get("list") or ()
        marks = [
            (a, pool.submit(ask, a, False)) for a in annotations if a.get("enable", True) and a.get("expr")
        ]
        return {key: f.result() for key, f in asked.items()}, [(a, f.result()) for a, f in marks]


def _bands(
    board: Mapping[str, Any], marks: Sequence[tuple[Mapping[str, Any], Result]], span: Span
) -> list[Band]:
    found = []
    for annotation, result in marks:
        colour = colours.css(str(annotation.get("iconColor") or "red"))
        for series in result.series:
            title = legend(str(annotation.get("titleFormat") or ""), series.labels)
            title = f"{annotation['name']}: {title}"
            text = (
                legend(str(annotation["textFormat"]), series.labels) if annotation.get("textFormat") else ""
            )
            first = None
            for i, value in enumerate([*series.values, None]):
                if value and first is None:
                    first = i
                elif not value and first is not None:
                    found.append(Band(first, i - 1, title, colour, text))
                    first = None
    return sorted(found, key=lambda band: (band.first, band.name))[:_BANDS]


def _board(
    board: Mapping[str, Any],
    taken: Taken,
    results: Mapping[tuple[int, str], Result],
    view: View,
    room: int,
) -> str:
    """The board's panels, row by row. room: characters that the page still takes."""
    rows: list[tuple[int, list[str]]] = []
    for panel in panels(board):
        panel = {**panel, "title": variables.in_text(str(panel.get("title") or ""), taken.values, view.span)}
        place = panel["gridPos"]
        if panel["type"] == "row":
            rows.append((place["y"], [f'<h3 style="grid-column:1/-1">{esc(panel["title"])}</h3>']))
            continue
        own = [results[panel["id"], str(t["refId"])] for t in panel.get("targets", ())]
        if panel["type"] != "text":
            taken.panels[any(s.last is not None for r in own for s in r.series)].append(panel["title"])
        if room > 0:
            html = _panel(panel, own, view, taken)
        else:
            html = _shell(panel, '<p class="error">left out: the page is as large as it may be</p>', "")
        room -= len(html)
        if not rows or rows[-1][0] != place["y"]:
            rows.append((place["y"], []))
        rows[-1][1].append(html)
    return "\n".join(f'<div class="row">{"".join(cells)}</div>' for _, cells in rows)


def _panel(panel: dict[str, Any], results: Sequence[Result], view: View, taken: Taken) -> str:
    view.notes = [f"{r.more} series are not read" for r in results if r.more]
    if panel["type"] == "text":
        content = variables.in_text(str(panel["options"].get("content") or ""), taken.values, view.span)
        panel = {**panel, "options": {**panel["options"], "content": content}}
    errors = {r.error for r in results if r.error}
    inside = ""
    if not results or len([r for r in results if r.error]) < len(results):
        draw = _DRAW.get(panel["type"])
        try:
            inside = draw(panel, results, view) if draw else ""
        except Exception as error:
            # In an incident the rest of the page matters more than one panel.
            errors.add(f"the panel can't be drawn: {type(error).__name__}: {error}")
        if draw is None:
            errors.add(f"panels of the kind {panel['type']} are not drawn; see the queries")
    notes = [*view.notes, *sorted({f"Prometheus warns: {w}" for r in results for w in r.warnings})]
    below = "".join(f'<p class="error">{esc(e)}</p>' for e in sorted(errors))
    below += "".join(f'<p class="note">{esc(n)}</p>' for n in notes)
    return _shell(panel, inside + below, _about(panel, results, view))


def _shell(panel: Mapping[str, Any], inside: str, about: str) -> str:
    place = panel["gridPos"]
    tip = esc(panel.get("description") or "")
    head = f'<summary title="{tip}"><h4>{esc(panel["title"])}</h4></summary>'
    return (
        f'<article class="panel kind-{esc(panel["type"])}" style="--x:{place["x"] + 1};--w:{place["w"]};--r:{place["h"]}">'
        f"<details>{head}{about}</details>{inside}</article>"
    )


def _about(panel: Mapping[str, Any], results: Sequence[Result], view: View) -> str:
    """What opens under the title: description, links, queries."""
    parts = [f"<p>{esc(panel['description'])}</p>"] if panel.get("description") else []
    parts += [f"<p>{link(one, view)}</p>" for one in panel.get("links", ()) if isinstance(one, dict)]
    parts += [f"<pre>{esc(result.expr)}</pre>" for result in results]
    return f'<div class="about">{"".join(parts)}</div>'


def link(of: Mapping[str, Any], view: View) -> str:
    """A panel's link: to a board of this page, to an address, or, where that needs a Grafana or a folder, its words."""
    url, title = str(of.get("url") or ""), esc(of.get("title") or "")
    board = re.search(r"/d/exaserve-([\w-]+)", url)
    if board and board[1] in view.here:
        return f'<a href="#{esc(board[1])}">{title}</a>'
    if url.startswith(("http://", "https://")):
        url = variables.in_address(url, view.values, view.span)
        return f'<a href="{esc(url)}" rel="noreferrer">{title}</a>'
    runbook = re.search(r"runbooks/(\w+)\.md$", url)
    return f"{title} (<code>exaserve runbook {esc(runbook[1])}</code>)" if runbook else title
