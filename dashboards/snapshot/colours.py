"""Grafana's colour names as the page's own colours, which differ in light and dark.

Only names and #hex of a board get into the page's styles; anything else becomes the first line's colour.
"""

from __future__ import annotations

import re

_NAMED = ("green", "red", "orange", "yellow", "blue", "purple", "text", "gray")
_SHADE = {"super-light": "white 45%", "light": "white 25%", "semi-dark": "black 12%", "dark": "black 30%"}
#: How many colours of lines the page has.
LINES = 12
NEUTRAL = "var(--muted)"


def css(name: str) -> str:
    """A colour for lines and text."""
    if re.fullmatch(r"#(?:[0-9a-fA-F]{3,4}|[0-9a-fA-F]{6}|[0-9a-fA-F]{8})", name):
        return name
    shade, base = _split(name)
    if base == "transparent":
        return "transparent"
    if base not in _NAMED:
        return line(0)
    return f"color-mix(in srgb, var(--{base}), {_SHADE[shade]})" if shade else f"var(--{base})"


def fill(name: str) -> str:
    """A colour that white text can be read on, the same in light and dark."""
    _, base = _split(name)
    if base in _NAMED:
        return f"var(--{'gray' if base == 'text' else base}-fill)"
    return css(name) if name.startswith("#") else "var(--gray-fill)"


def line(index: int) -> str:
    """The colour of the line of that number."""
    return f"var(--l{index % LINES})"


def _split(name: str) -> tuple[str, str]:
    for shade in _SHADE:
        if name.startswith(f"{shade}-"):
            return shade, name[len(shade) + 1 :]
    return "", name
