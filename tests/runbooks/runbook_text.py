"""What a runbook is made of: its sections, its code blocks, and the commands in them.

A block is commands if its first line begins with a program that runbooks use; any other block is a sample of output.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNBOOKS = {
    p.stem: p for p in sorted((ROOT / "runbooks").glob("*.md")) if p.stem not in ("README", "TEMPLATE")
}

#: Programs that commands of a runbook begin with, or that their output is piped into.
PROGRAMS = {"exaserve", "curl", "promtool", "dmesg", "ss", "ip", "ray"}
FILTERS = {"grep", "tail", "head", "sort", "uniq"}


@dataclass(frozen=True, slots=True)
class Block:
    """A code block. lead: the lines of text right above it; section: the heading that it stands under."""

    section: str
    lead: str
    lines: tuple[str, ...]

    @property
    def is_commands(self) -> bool:
        return bool(self.lines) and self.lines[0].split()[0] in PROGRAMS


def blocks(text: str) -> list[Block]:
    """Every code block in order. Raises ValueError if one is not closed."""
    found: list[Block] = []
    section, lead = "", ""
    inside: list[str] | None = None
    for line in text.splitlines():
        if line.startswith("```"):
            if inside is not None:
                found.append(Block(section, lead, tuple(inside)))
                lead = ""
            inside = [] if inside is None else None
        elif inside is not None:
            inside.append(line)
        elif line.startswith("#"):
            section = line.lstrip("# ")
        else:
            lead = f"{lead} {line}".strip() if line.strip() else ""
    if inside is not None:
        raise ValueError("a code block is not closed")
    return found


def command_lines(text: str, section: str = "") -> list[str]:
    """Each line of the blocks that are commands; of one section, or of all."""
    those = [b for b in blocks(text) if b.is_commands and section in ("", b.section)]
    return [line for block in those for line in block.lines if line.strip()]


def simple_commands(line: str) -> list[list[str]]:
    """The words of each program of a line: ``a x | b > f; c`` is [[a, x], [b], [c]]. Raises ValueError (quotes)."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;<>&")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    words = iter(lexer)
    for word in words:
        if re.fullmatch(r"[|;&]+", word):
            found.append([])
        elif re.fullmatch(r"[<>&]+", word):
            next(words)  # the file
        elif not (word == "2" and line.find(" 2>") > 0):
            found[-1].append(word)
    return [c for c in found if c]


def promql(line: str) -> list[str]:
    """The queries of a line's promtool commands. Raises ValueError for one of another shape."""
    found = []
    for words in simple_commands(line):
        if words[0] == "promtool":
            if words[1:3] != ["query", "instant"] or len(words) != 5:
                raise ValueError(f"not `promtool query instant URL 'QUERY'`: {line}")
            found.append(words[4])
    return found
