"""Reads labelled texts: JSON lines with ``text``, ``label`` and, if known, ``lang``.

Every error names the file, the line and the key. Nothing else of the program reads these files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAX_LINE = 1 << 20
"""Bytes of one line. A longer one is no question of a person, and a file without line breaks must not be read whole."""


class Example(NamedTuple):
    """One labelled text; ``lang`` is what the file says, else ``language`` of the text."""

    text: str
    label: str
    lang: str


class LinesError(ValueError):
    """A file of labelled texts that cannot be used; the text is ``FILE:LINE: KEY: what is wrong``."""


def language(text: str) -> str:
    """``zh`` where a fifth of the letters or more are Chinese, else ``en``: two groups for a table, no more."""
    chinese = sum("\u3400" <= c <= "\u9fff" for c in text)
    return "zh" if chinese and chinese * 5 >= sum(c.isalpha() for c in text) else "en"


def read(path: Path) -> list[Example]:
    """All the examples of a file. Blank lines are passed over. Raises LinesError, also for a file without any."""
    examples = list(_examples(path))
    if not examples:
        raise LinesError(f"{path}: no examples in it; one a line, like " + '{"text": "…", "label": "…"}')
    return examples


def _examples(path: Path) -> Iterator[Example]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise LinesError(f"{path}:{number}: line of more than {MAX_LINE} bytes")
                if line.strip():
                    yield _example(line, f"{path}:{number}")
    except OSError as error:
        raise LinesError(f"{path}: {error.strerror or error}") from None


def _example(line: bytes, where: str) -> Example:
    try:
        found = json.loads(line.decode("utf-8-sig" if where.endswith(":1") else "utf-8"))
    except UnicodeDecodeError:
        raise LinesError(f"{where}: not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise LinesError(f"{where}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise LinesError(f"{where}: a JSON object with text and label is needed, not {type(found).__name__}")
    for key in ("text", "label"):
        value = found.get(key)
        if not isinstance(value, str) or not value.strip():
            said = "missing" if key not in found else "must be a string that is not empty"
            raise LinesError(f"{where}: {key}: {said}")
    label = found["label"].strip()
    if len(label) > 64 or not label.isprintable():
        raise LinesError(f"{where}: label: at most 64 printable characters")
    lang = found.get("lang", language(found["text"]))
    if not isinstance(lang, str) or not lang:
        raise LinesError(f"{where}: lang: must be a string like en or zh")
    try:
        found["text"].encode()
    except UnicodeEncodeError:
        raise LinesError(f"{where}: text: half a character (a lone surrogate)") from None
    return Example(found["text"], label, lang[:16])
