"""Which collectors there are, read from their files without importing them: for ``--help`` and for checks.

Importing one may load a library (NVML, httpx), so that only those that are turned on are imported, by the
registry. A test holds what is read here equal to what the files register.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "collectors"
#: The first sentence of a module's docstring, up to its colon or full stop.
_SUMMARY = re.compile(r'"""(.{3,300}?)(?:[.;]\s|\.?""")', re.DOTALL)
_OPT_IN = re.compile(r"^register\([^)]*\bdefault=False\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class About:
    """summary: what the collector's file says it does, one line. default: on unless it is turned off."""

    summary: str
    default: bool


@cache
def collectors() -> dict[str, About]:
    """Every collector by its name (that of its file), sorted."""
    names = sorted(
        entry.name.removesuffix(".py")
        for entry in os.scandir(_FOLDER)
        if entry.name.endswith(".py") and not entry.name.startswith("_")
    )
    return {name: _about((_FOLDER / f"{name}.py").read_text()) for name in names}


def _about(source: str) -> About:
    found = _SUMMARY.match(source)
    said = " ".join(found[1].split()).replace("``", "") if found else ""
    said = said.partition(" collector: ")[2] or said
    return About(said[:1].upper() + said[1:], _OPT_IN.search(source) is None)


def unknown(names: Iterable[str]) -> str | None:
    """What is wrong with these names of collectors, with the names that there are; None if nothing is."""
    for name in names:
        if name not in collectors():
            close = difflib.get_close_matches(name, collectors(), n=1, cutoff=0.6)
            near = f"did you mean {close[0]}? " if close else ""
            return f"there is no collector {name}; {near}collectors: {', '.join(collectors())}"
    return None


def chosen(turned: Mapping[str, bool], defaults: bool = True) -> list[str]:
    """The collectors that run: those turned on, and those on by default (unless ``defaults`` is False) and not
    turned off."""
    return [name for name, about in collectors().items() if turned.get(name, defaults and about.default)]
