"""Where the runbooks are, which one a name means, and which of its code blocks are commands.

The runbooks are in ``runbooks/`` (Markdown, no code); how they look is in its TEMPLATE.md. Showing them is
``runbook_cli.py``'s.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

_FENCE = re.compile(r"^(```+|~~~+)\s*(\w*)\s*$")
#: What a paragraph starts with that stands before a command's output (TEMPLATE.md).
_OUTPUT = re.compile(r"(good|bad)\b", re.I)
#: Languages of blocks that are nothing to run.
_NOT_RUN = {"text", "console", "yaml", "json", "promql", "python", "ini", "toml"}


def folder() -> Path:
    """The folder of runbooks: in a checkout or as installed. Raises FileNotFoundError if it is not there."""
    spec = importlib.util.find_spec("runbooks")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for place in (*places, Path(__file__).parents[1] / "runbooks"):
        if (place / "TEMPLATE.md").is_file():
            return place
    raise FileNotFoundError("the runbooks are not installed beside dashboards")


def found(place: Path) -> dict[str, Path]:
    """Runbooks by name, in order; the template is none."""
    return {path.stem: path for path in sorted(place.glob("*.md")) if path.stem not in ("TEMPLATE", "README")}


def named(name: str, runbooks: Mapping[str, Path]) -> Path | None:
    """The runbook that ``name`` means: case, ``.md``, ``-`` and ``_`` don't matter, nor a leading ExaServe."""
    by_short = {_short(known): path for known, path in runbooks.items()}
    return runbooks.get(name) or by_short.get(_short(name))


def near(name: str, names: list[str]) -> list[str]:
    """At most three names that ``name`` may have meant, best first."""
    by_short = {_short(known): known for known in names}
    short = _short(name)
    inside = [known for key, known in by_short.items() if short and short in key]
    close = [by_short[key] for key in get_close_matches(short, by_short, n=3, cutoff=0.6)]
    return list(dict.fromkeys((*close, *inside)))[:3]


def summary(text: str) -> str:
    """The first paragraph below the title, on one line."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return next((part for part in paragraphs if part and not part.startswith("#")), "")


def commands(text: str) -> list[tuple[str, str]]:
    """(heading, commands) of each code block that is to be run, in order.

    A block after a paragraph that starts with "good" or "bad" shows an output, as TEMPLATE.md has it.
    """
    blocks: list[tuple[str, str]] = []
    heading, paragraph, blank = "", "", True
    block: list[str] | None = None
    fence, run = "", False
    for line in text.splitlines():
        opened = _FENCE.match(line)
        if block is not None:
            if opened and opened[1].startswith(fence) and not opened[2]:
                if run and any(part.strip() for part in block):
                    blocks.append((heading, "\n".join(block)))
                block, paragraph, blank = None, "", True
            else:
                block.append(line)
        elif opened:
            block, fence = [], opened[1]
            run = not _OUTPUT.match(paragraph) and opened[2].lower() not in _NOT_RUN
        elif line.startswith("## "):
            heading, paragraph, blank = line[3:].strip(), "", True
        elif not line.strip():
            blank = True
        else:
            paragraph = line.strip() if blank else f"{paragraph} {line.strip()}"
            blank = False
    return blocks


def _short(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", name.lower().removesuffix(".md"))
    return plain.removeprefix("exaserve") or plain
