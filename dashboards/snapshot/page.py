"""The page around the boards: head, what is shown, tabs, styles and script. It asks nobody for anything.

A content security policy lets only this page's own script run, by its hash, and no request leave; so neither could
a label that slipped through.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from dashboards.snapshot.markup import esc, script_data
from dashboards.snapshot.span import Span
from dashboards.snapshot.take import Taken

_ANNOTATIONS = 30


def page(taken: Sequence[Taken], span: Span, prometheus: str, source: str, now: float) -> str:
    """One HTML document. prometheus: its address for people; now: Unix seconds of when this was taken."""
    files = resources.files("dashboards.snapshot")
    style = (files / "page.css").read_text(encoding="utf-8")
    script = (files / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    what = ", ".join(one.title for one in taken)
    begin, end = span.clock(span.start), span.clock(span.end, "%Y-%m-%d %H:%M:%S %Z (UTC%z)")
    facts = [
        ("Time", f"{begin} – {end}"),
        ("Prometheus", prometheus),
        ("Fleet", source),
        ("Points", f"every {span.step} s"),
        ("Taken", span.clock(now)),
    ]
    told = "".join(f"<div><dt>{esc(k)}</dt><dd>{esc(v)}</dd></div>" for k, v in facts)
    tabs = ""
    if len(taken) > 1:
        links = "".join(f'<a href="#{esc(one.name)}">{esc(one.title)}</a>' for one in taken)
        tabs = f'<nav class="tabs" aria-label="Boards">{links}</nav>'
    times = [span.clock(span.at(i)) for i in range(span.count)]
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f"<title>ExaServe {esc(what)}, {esc(begin)}</title>\n<style>\n{style}</style></head>\n<body>\n"
        f"<header><h1>ExaServe <small>snapshot</small></h1><dl>{told}</dl>{tabs}</header>\n<main>\n"
        + "\n".join(_section(one, span) for one in taken)
        + '\n</main>\n<div id="readout" hidden></div>\n'
        f'<script type="application/json" id="times">{script_data(times)}</script>\n'
        f"<script>{script}</script>\n</body></html>\n"
    )


def _section(taken: Taken, span: Span) -> str:
    chips = "".join(
        f'<span class="chip" title="{esc(value.note)}"><b>{esc(name)}</b> {esc(value.text)}'
        + (f" <small>{esc(value.note)}</small>" if value.note else "")
        + "</span>"
        for name, value in taken.values.items()
    )
    marks = [{"f": b.first, "l": b.last, "n": b.name, "c": b.colour} for b in taken.bands]
    return (
        f'<section id="{esc(taken.name)}"><h2>{esc(taken.title)}</h2><p class="lead">{esc(taken.description)}</p>'
        f'<p class="chips">{chips}</p>{_events(taken, span)}{taken.html}'
        f'<script type="application/json" class="bands">{script_data(marks)}</script></section>'
    )


def _events(taken: Taken, span: Span) -> str:
    """What annotations found, one line each, before the panels on which they are bands."""
    if not taken.bands and not taken.unknown:
        return ""
    rows = [f'<li class="error">{esc(why)}</li>' for why in taken.unknown]
    for band in taken.bands[:_ANNOTATIONS]:
        first, last = span.clock(span.at(band.first)), span.clock(span.at(band.last), "%H:%M:%S")
        until = f"{last}, still at the end" if band.last == span.count - 1 else last
        more = f" {esc(band.text)}" if band.text else ""
        rows.append(
            f'<li><i class="swatch block" style="--c:{band.colour}"></i><b>{esc(band.name)}</b>{more} '
            f"<time>{first} – {until}</time></li>"
        )
    left = len(taken.bands) - _ANNOTATIONS
    more = f"<li>and {left} more</li>" if left > 0 else ""
    return f'<ul class="events">{"".join(rows)}{more}</ul>'
