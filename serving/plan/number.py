"""A number with the way it came about, so that no figure of a plan has to be believed."""

from __future__ import annotations

import re
from dataclasses import dataclass

GIB = 2**30
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


class PlanError(Exception):
    """What was asked can't be planned; the message names the option or the key and the cure."""


@dataclass(frozen=True)
class Number:
    """value in bytes unless its name says otherwise; how: the formula with its numbers put in."""

    name: str
    value: float
    how: str


def size(text: str, option: str) -> int:
    """Bytes of ``256M``, ``80G``, ``1.5G``; upper-case units are powers of 1024, lower-case ones of 1000, as in vLLM."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTkmgt]?)", text)
    if not found or not float(found[1]):
        raise PlanError(f"{option} {text}: a size like 256M or 80G")
    return int(float(found[1]) * _UNITS.get(found[2], 1))


def told(value: float) -> str:
    """Bytes in the unit that suits them."""
    for unit, factor in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= factor:
            return f"{value / factor:,.2f} {unit}"
    return f"{value:,.0f} B"


def count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"
