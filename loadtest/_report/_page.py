"""The page around a report's sections: it needs nothing else, and asks nobody for anything.

plotly's script stands in it. A content security policy lets only this page's own scripts run, by their hashes, and no
request leave, so that neither could a text that slipped through.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from loadtest._report import _plots, _sections
from loadtest._report import _words as words
from loadtest._report._gather import Gathered
from loadtest._report._html import esc, script_data
from loadtest._report._timelines import Clock


def page(found: Gathered, utc: bool, now: float) -> str:
    """One HTML document. utc: times in UTC, else in this machine's zone. now: Unix seconds of when it was made."""
    zone = UTC if utc else None
    start, end = _span(found)
    clock = Clock(_moment(zone), start, end)
    plots = _plots.Plots(clock)
    body = "\n".join(filter(None, _parts(found, plots)))
    files = resources.files("loadtest._report")
    style = (files / "page.css").read_text(encoding="utf-8")
    script = (files / "page.js").read_text(encoding="utf-8")
    library = _plotly()
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in (library, script))
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}; img-src data: blob:; font-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    title = f"Load test {found.run.name}"
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f"<title>{esc(title)}: {esc(words.verdict(found.summary)[1])}</title>\n<style>\n{style}</style></head>\n<body>\n"
        f"{_head(found, zone, now)}\n<main>\n{body}\n</main>\n"
        "<noscript><p>Plots are drawn by this page's own script; tables are all here without it.</p></noscript>\n"
        f'<script type="application/json" id="figures">{script_data(plots.figures)}</script>\n'
        f"<script>{library}</script>\n<script>{script}</script>\n</body></html>\n"
    )


def _parts(found: Gathered, plots: _plots.Plots) -> list[str]:
    of_replicas = "Which replica answered, by its own header."
    return [
        _sections.verdict(found),
        _sections.objectives(found),
        _sections.comparison(found),
        _plots.distributions(found, plots),
        _plots.over_time(found, plots),
        _sections.groups(
            found,
            "profiles",
            "profiles",
            "By profile",
            "What was played.",
            _plots.groups(found, "profiles", plots),
        ),
        _sections.groups(
            found,
            "intents",
            "intents",
            "By intent",
            "What requests were about, where the profile knows.",
            _plots.groups(found, "intents", plots),
        ),
        _sections.groups(
            found,
            "pools",
            "answered-pools",
            "By pool, as clients saw it",
            "Which pool of the router answered, by its own header.",
            _plots.groups(found, "pools", plots),
        ),
        _sections.groups(
            found,
            "replicas",
            "replicas",
            "By replica",
            of_replicas + _plots.spread(found),
            _plots.balance(found, plots),
        ),
        _plots.pools(found),
        _sections.failures(found),
        _sections.everything(found),
        _sections.settings(found),
    ]


def _span(found: Gathered) -> tuple[float, float]:
    """What the axes show."""
    start = found.times.start
    return start, max(start + len(found.times.at) * found.times.length, start + 1)


def _moment(zone: Any) -> Callable[[float], str]:
    def told(at: float) -> str:
        return (
            datetime.fromtimestamp(at, zone).replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
        )

    return told


def _head(found: Gathered, zone: Any, now: float) -> str:
    run = found.run.run

    def clock(at: Any) -> str:
        if not isinstance(at, int | float):
            return "unknown"
        return datetime.fromtimestamp(at, zone).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S %Z")

    ended = run.get("ended")
    facts = [
        ("Run", found.run.name),
        ("Profile", run.get("profile")),
        ("Address", run.get("host")),
        ("Model", run.get("model")),
        ("Began", clock(run.get("started"))),
        ("Ended", clock(ended) if ended else "it did not"),
        ("Baseline", found.baseline.name if found.baseline else None),
        ("Report made", clock(now)),
    ]
    told = "".join(f"<div><dt>{esc(k)}</dt><dd>{esc(v)}</dd></div>" for k, v in facts if v)
    return f"<header><h1>ExaServe <small>load test</small></h1><dl>{told}</dl></header>"


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
