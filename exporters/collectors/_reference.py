"""The file that ``exaserve intent reference save`` writes: the mix of intents that is normal. Read here.

Written by ``serving/intent/reference.py``; a test holds the two to each other. One JSON object::

    {"format": "exaserve intent reference", "version": 1, "counts": {"general": 5210, "legal": 804},
     "from": unix seconds or null, "to": unix seconds, "model": "default" or null, "source": "…",
     "exaserve": "0.1.0"}
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT, VERSION = "exaserve intent reference", 1
#: 64 intents take some 5 KB.
MAX_BYTES = 256 * 1024
#: As many as a model of `exaserve intent train` has at most.
MAX_INTENTS = 64


@dataclass(frozen=True, slots=True)
class Reference:
    """counts: requests by intent. until: unix time of the last one."""

    counts: dict[str, float]
    until: float


class ReferenceFile:
    """A reference that is read again when its file changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._reference: Reference | None = None

    def read(self) -> Reference:
        """Raises ValueError that names the file and what is wrong with it."""
        try:
            stat = os.stat(self._path)
            seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if self._reference is None or seen != self._seen:
                # Not a FIFO or a device, whose reading never ends.
                if not self._path.is_file():
                    raise ValueError(f"{self._path}: not a file")
                with self._path.open("rb") as f:
                    self._reference = parse(f.read(MAX_BYTES + 1))
                self._seen = seen
        except OSError as error:
            self._reference = None
            raise ValueError(f"{self._path}: {error.strerror}") from None
        except ValueError as error:
            self._reference = None
            raise ValueError(f"{self._path}: {error}") from None
        return self._reference


def parse(data: bytes) -> Reference:
    """Raises ValueError that says what is wrong."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"longer than {MAX_BYTES} bytes")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError("not a file of `exaserve intent reference save`")
    if found.get("version") != VERSION:
        raise ValueError(f"of version {found.get('version')!r}, this reads {VERSION}; save it again")
    counts = found.get("counts")
    if not isinstance(counts, dict) or not 1 <= len(counts) <= MAX_INTENTS:
        raise ValueError(f"counts: 1 to {MAX_INTENTS} intents and how often each came")
    if not all(_is_count(n) for n in counts.values()) or not sum(counts.values()) > 0:
        raise ValueError("counts: numbers that are not negative, and not all 0")
    until: Any = found.get("to")
    if not _is_count(until):
        raise ValueError("to: a unix time in seconds")
    return Reference({intent: float(n) for intent, n in counts.items()}, float(until))


def _is_count(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value < 1e15
        and math.isfinite(value)
    )
