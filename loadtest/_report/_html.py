"""Small pieces of HTML: escaping, tables, explanations at hand. Everything that came from outside passes ``esc``."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any


def esc(text: object) -> str:
    return html.escape(str(text), quote=True)


def script_data(data: Any) -> str:
    """JSON for a script element: nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def table(
    heads: Sequence[str | tuple[str, str]], rows: Iterable[Sequence[str]], caption: str = "", kind: str = ""
) -> str:
    """heads: a title, or (title, what it means). rows: cells as HTML; the first of each is its head."""
    head = "".join(
        f'<th scope="col">{esc(one)}</th>'
        if isinstance(one, str)
        else f'<th scope="col"><abbr title="{esc(one[1])}">{esc(one[0])}</abbr></th>'
        for one in heads
    )
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    told = f"<caption>{esc(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table class="{esc(kind)}">{told}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def details(title: str, inside: str, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{esc(title)}</summary>{inside}</details>"


def section(name: str, title: str, inside: str, lead: str = "") -> str:
    told = f'<p class="lead">{lead}</p>' if lead else ""
    return f'<section id="{esc(name)}"><h2>{esc(title)}</h2>{told}{inside}</section>'


def tile(title: str, value: str, what: str = "", state: str = "") -> str:
    return (
        f'<div class="tile {esc(state)}" title="{esc(what)}"><span class="name">{esc(title)}</span>'
        f'<span class="value">{esc(value)}</span></div>'
    )
