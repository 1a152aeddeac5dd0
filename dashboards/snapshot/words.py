"""A text panel's Markdown as HTML. Pictures are left out: a page that asks nobody for anything can't have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt

from dashboards.snapshot.data import Result
from dashboards.snapshot.markup import View

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")


def draw(panel: dict[str, Any], results: Sequence[Result], view: View) -> str:
    """The panel's inside."""
    return f'<div class="words">{_MARKDOWN.render(str(panel.get("options", {}).get("content") or ""))}</div>'
