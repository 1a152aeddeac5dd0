"""Reads a run's ``requests.jsonl`` once, in pieces: columns of what is plotted, and how long gaps were.

A million requests take about 120 MiB as columns, however many gaps they have: those are counted by the microsecond
(``_exact``). A line that can't be read is counted, and costs the others nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadtest._lib._exact import Exact

_PIECE = 20_000
#: Examples of each reason of failure.
EXAMPLES = 3

OUTCOMES = {"ok": 0, "failed": 1, "unsent": 2, "open": 3}


class Line(msgspec.Struct):
    """What of a Record (``_record.py``) is read here."""

    profile: str
    phase: str
    outcome: str
    worker: int = 0
    number: int = 0
    due: float | None = None
    sent: float | None = None
    first: float | None = None
    last: float | None = None
    ended: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    gaps: list[float] = []
    status: int | None = None
    replica: str | None = None
    reason: str | None = None
    detail: str | None = None
    request_id: str | None = None


TIMES = ("due", "sent", "first", "last", "ended")
SPANS = ("ttft", "tpot", "e2e")


@dataclass(slots=True)
class Requests:
    """Columns have a place a request, in the order of the file; NaN where there is no value.

    outcome: as in OUTCOMES. measured: of that phase. gap_windows: gaps' lengths by ``window``. broken: lines that are
    no requests, and the number of the first.
    """

    columns: dict[str, np.ndarray] = field(default_factory=dict)
    outcome: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))
    measured: np.ndarray = field(default_factory=lambda: np.empty(0, np.bool_))
    gaps: Exact = field(default_factory=Exact)
    gap_windows: dict[int, Exact] = field(default_factory=dict)
    window: float = 1.0
    start: float = 0.0
    end: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    broken: int = 0
    first_broken: int = 0

    def __len__(self) -> int:
        return len(self.outcome)

    def ok(self, name: str) -> np.ndarray:
        """Values of a span over completed requests of the measured phase."""
        column = self.columns[name][(self.outcome == 0) & self.measured]
        return column[~np.isnan(column)]


def read(
    file: Path, start: float, window: float, said: Callable[[int], None] = lambda bytes_read: None
) -> Requests:
    """start, window: of the plots over time, seconds. said: gets how much of the file has been read.

    Without the file there are no requests. Raises OSError.
    """
    found = Requests(window=window, start=start)
    pieces: list[dict[str, np.ndarray]] = []
    if not file.exists():
        return _joined(found, pieces)
    decoder = msgspec.json.Decoder(Line)
    number = 0
    with file.open("rb") as lines:
        while piece := list(islice(lines, _PIECE)):
            good = list(_decoded(piece, decoder, number, found))
            number += len(piece)
            if good:
                pieces.append(_columns(good, found))
            said(lines.tell())
    return _joined(found, pieces)


def _decoded(
    piece: list[bytes], decoder: msgspec.json.Decoder[Line], number: int, found: Requests
) -> Iterator[Line]:
    for at, line in enumerate(piece, number + 1):
        try:
            yield decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            if line.strip():
                found.broken += 1
                found.first_broken = found.first_broken or at


def _columns(lines: list[Line], found: Requests) -> dict[str, np.ndarray]:
    piece = {name: np.array([getattr(line, name) for line in lines], np.float64) for name in (*TIMES, *SPANS)}
    piece["outcome"] = np.array([OUTCOMES.get(line.outcome, 1) for line in lines], np.int8)
    piece["measured"] = np.array([line.phase == "measured" for line in lines], np.bool_)
    for line in lines:
        if line.outcome == "failed" and line.phase == "measured":
            _failure(line, found)
    _gaps(lines, piece, found)
    return piece


def _failure(line: Line, found: Requests) -> None:
    reason = line.reason or "other"
    found.reasons[reason] += 1
    kept = found.examples.setdefault(reason, [])
    if len(kept) < EXAMPLES and all(line.detail != one["detail"] for one in kept):
        kept.append(
            {
                "detail": line.detail,
                "status": line.status,
                "replica": line.replica,
                "request_id": line.request_id,
                "at": line.ended or line.sent or line.due,
                "profile": line.profile,
            }
        )


def _gaps(lines: list[Line], piece: dict[str, np.ndarray], found: Requests) -> None:
    """Every gap of completed requests: its length, and into which window it fell (its end)."""
    chosen = [i for i, line in enumerate(lines) if line.gaps and line.outcome == "ok"]
    if not chosen:
        return
    counts = np.array([len(lines[i].gaps) for i in chosen])
    seconds = np.array([gap for i in chosen for gap in lines[i].gaps], np.float64) / 1000
    since = seconds.cumsum()
    offsets = np.repeat(np.concatenate(([0], counts.cumsum()[:-1])), counts)
    before = np.concatenate(([0.0], since))[offsets]
    at = np.repeat(piece["first"][chosen], counts) + since - before
    with np.errstate(invalid="ignore"):
        windows = np.where(np.isnan(at), 0, (at - found.start) // found.window).astype(np.int64)
    measured = np.repeat(piece["measured"][chosen], counts)
    found.gaps.add_array(seconds[measured])
    order = windows.argsort(kind="stable")
    windows, seconds = windows[order], seconds[order]
    for part in np.split(np.arange(len(windows)), np.flatnonzero(np.diff(windows)) + 1):
        exact = found.gap_windows.setdefault(int(windows[part[0]]), Exact())
        exact.add_array(seconds[part])


def _joined(found: Requests, pieces: list[dict[str, np.ndarray]]) -> Requests:
    empty = np.empty(0)

    def joined(name: str) -> np.ndarray:
        return np.concatenate([piece.pop(name) for piece in pieces]) if pieces else empty

    found.columns = {name: joined(name) for name in (*TIMES, *SPANS)}
    found.outcome = joined("outcome").astype(np.int8)
    found.measured = joined("measured").astype(np.bool_)
    moments = [column[~np.isnan(column)] for column in (found.columns[name] for name in TIMES)]
    found.end = max((float(column.max()) for column in moments if len(column)), default=found.start)
    return found
