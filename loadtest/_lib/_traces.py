"""Traces of real traffic: when requests came, how many tokens they brought and got. No prompts are in them.

Four formats, each with its own unit of time; the format is always named, never guessed from the figures (ExaServe's own
says in its first line what it is, so it needs no naming). What is asked at those times is made in ``_trace_prompts``.

========  ===================================================================================================
mooncake  JSON lines ``{"timestamp": ms, "input_length", "output_length", "hash_ids": [one a 512 tokens]}``
azure     CSV ``TIMESTAMP`` (date and time), ``ContextTokens``, ``GeneratedTokens``
burstgpt  CSV ``Timestamp`` (seconds), ``Request tokens``, ``Response tokens``, further columns
exaserve  JSON lines, the first ``{"format": "exaserve-trace", …}``; made by ``exaserve audit export-trace``
========  ===================================================================================================

Rows need not be in order; they are sorted by time. Errors are TraceError with file, line and column.
"""

from __future__ import annotations

import csv
import json
import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import gevent

#: Of a Mooncake trace: what one hash id stands for (FAST '25 paper, section 4.1).
BLOCK_TOKENS = 512
MAX_TOKENS = 4_000_000  # of one request; a larger number is a wrong column
DEFAULT_ROWS = 2_000_000  # read at most; 80 MB in each process, five times that while it is read
_MAX_LINE = 1 << 20
_MAX_IDS = MAX_TOKENS // BLOCK_TOKENS + 1
#: Rows after which others get their turn: a worker that sends no heartbeat while it reads counts as lost.
_TURN = 1000
#: Shares of a second in a unit of time.
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


class TraceError(ValueError):
    """What is wrong, where, and what belongs there; one line."""


@dataclass(slots=True)
class Trace:
    """Requests in the order in which they came.

    at: seconds since the first. input, output: tokens. hashes: of each request, the ids of its blocks (requests that
    share a prefix share ids); None where the format has none. intents: names by number, intent: of each its number.
    """

    path: str
    format: str
    unit: str
    at: array[float] = field(default_factory=lambda: array("d"))
    input: array[int] = field(default_factory=lambda: array("L"))
    output: array[int] = field(default_factory=lambda: array("L"))
    hashes: list[tuple[int, ...]] | None = None
    intents: list[str | None] = field(default_factory=lambda: [None])
    intent: array[int] = field(default_factory=lambda: array("L"))

    def __len__(self) -> int:
        return len(self.at)

    @property
    def seconds(self) -> float:
        """From the first request to the last."""
        return self.at[-1] if self.at else 0.0

    def words(self) -> str:
        """What was read, with the unit spelled out, so that a wrong one is seen."""
        rate = f", {len(self) / self.seconds:.4g} requests/s" if self.seconds else ""
        return (
            f"{self.path}: {len(self):,} requests over {self.seconds:,.1f} s{rate}, {self.format} format (time in "
            f"{self.unit}), {sum(self.input) / len(self):,.0f} tokens in and {sum(self.output) / len(self):,.0f} out "
            "on average"
        )


#: One row: time in seconds (of any origin), tokens in, tokens out, hash ids, intent.
_Row = tuple[float, int, int, tuple[int, ...], str | None]


def read(
    path: str | Path,
    kind: str = "",
    unit: str = "",
    begin: float = 0.0,
    seconds: float = math.inf,
    limit: int = DEFAULT_ROWS,
) -> Trace:
    """The trace, from ``begin`` seconds after its first request, ``seconds`` long, of at most ``limit`` requests.

    kind: a name of the table above; "" only for ExaServe's own. unit: s, ms or us, where the file deviates from its
    format. A longer file is read as far as ``limit`` in the order of its lines. Raises TraceError.
    """
    where = Path(path)
    try:
        with where.open(encoding="utf-8", newline="") as file:
            first = file.readline(_MAX_LINE)
            own = '"exaserve-trace"' in first
            if kind and kind not in FORMATS:
                raise TraceError(f"{kind!r} is no format of traces; there are {', '.join(FORMATS)}")
            if own and kind not in ("", "exaserve"):
                raise TraceError(f"{where}: is an ExaServe trace, not {kind}; leave --trace-format out")
            if not kind and not own:
                raise TraceError(
                    f"{where}: what format? --trace-format {', '.join(k for k in FORMATS if k != 'exaserve')} "
                    "(each has its unit of time, so it is not guessed)"
                )
            file.seek(0)
            format_ = FORMATS[kind or "exaserve"]
            scale = UNITS[unit or format_.unit] / UNITS[format_.unit]
            rows = list(islice(format_.rows(_Lines(where, file)), limit))
    except OSError as error:
        raise TraceError(f"{where}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{where}: is no UTF-8 text; unpack it first if it is packed") from None
    if not rows:
        raise TraceError(f"{where}: no request in it")
    rows.sort(key=lambda row: row[0])
    trace = Trace(str(path), kind or "exaserve", unit or format_.unit)
    origin = rows[0][0]
    numbers: dict[str | None, int] = {None: 0}
    shared = any(row[3] for row in rows)
    trace.hashes = [] if shared else None
    for number, (moment, given, got, hashes, intent) in enumerate(rows):
        if number % _TURN == 0:
            gevent.sleep(0)
        at = (moment - origin) * scale - begin
        if at < 0:
            continue
        if at >= seconds:
            break
        trace.at.append(at)
        trace.input.append(given)
        trace.output.append(got)
        if trace.hashes is not None:
            trace.hashes.append(hashes)
        if intent not in numbers:
            numbers[intent] = len(trace.intents)
            trace.intents.append(intent)
        trace.intent.append(numbers[intent])
    if not trace.at:
        whole = (rows[-1][0] - origin) * scale
        raise TraceError(f"{where}: no request from {begin:g} s on; it is {whole:g} s long")
    return trace


class _Lines:
    """Lines of a file with their numbers, and errors that name them."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        while line := self._file.readline(_MAX_LINE + 1):
            self.number += 1
            if len(line) > _MAX_LINE:
                raise self.wrong("", "is longer than 1 MiB")
            if self.number % _TURN == 0:
                gevent.sleep(0)
            yield line

    def wrong(self, column: str, why: str) -> TraceError:
        named = f", column {column!r}" if column else ""
        return TraceError(f"{self._path}: line {self.number}{named}: {why}")

    def tokens(self, column: str, value: Any) -> int:
        """A number of tokens from 0 to MAX_TOKENS (text or number)."""
        try:
            found = float(value)
        except (TypeError, ValueError):
            found = -1.0
        if isinstance(value, bool) or not 0 <= found <= MAX_TOKENS or found != int(found):
            raise self.wrong(column, f"{_short(value)} is not a whole number of tokens, 0 to {MAX_TOKENS:,}")
        return int(found)

    def number_of(self, column: str, value: Any) -> float:
        try:
            found = float(value)
        except (TypeError, ValueError):
            found = math.nan
        if isinstance(value, bool) or not math.isfinite(found):
            raise self.wrong(column, f"{_short(value)} is not a number")
        return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"


def _objects(lines: _Lines) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.isspace():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise lines.wrong("", "is no JSON") from None
        if not isinstance(found, dict):
            raise lines.wrong("", "is no JSON object")
        yield found


def _key(lines: _Lines, row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise lines.wrong(name, f"is missing; there are {', '.join(map(str, list(row)[:8])) or 'none'}")
    return row[name]


def _mooncake(lines: _Lines) -> Iterator[_Row]:
    for row in _objects(lines):
        hashes = row.get("hash_ids") or []
        if not isinstance(hashes, list) or len(hashes) > _MAX_IDS or not all(type(h) is int for h in hashes):
            raise lines.wrong("hash_ids", f"{_short(hashes)} is not a list of whole numbers")
        yield (
            lines.number_of("timestamp", _key(lines, row, "timestamp")) * UNITS["ms"],
            lines.tokens("input_length", _key(lines, row, "input_length")),
            lines.tokens("output_length", _key(lines, row, "output_length")),
            tuple(hashes),
            None,
        )


def _own(lines: _Lines) -> Iterator[_Row]:
    rows = _objects(lines)
    head = next(rows, {})
    if head.get("format") != "exaserve-trace" or head.get("version") != 1 or head.get("unit") != "s":
        raise lines.wrong("", 'is not {"format": "exaserve-trace", "version": 1, "unit": "s", …}')
    for row in rows:
        intent = row.get("intent")
        if intent is not None and not (isinstance(intent, str) and len(intent) <= 64):
            raise lines.wrong("intent", f"{_short(intent)} is no short text")
        yield (
            lines.number_of("at", _key(lines, row, "at")),
            lines.tokens("input_tokens", _key(lines, row, "input_tokens")),
            lines.tokens("output_tokens", _key(lines, row, "output_tokens")),
            (),
            intent,
        )


def _columns(lines: _Lines, names: tuple[str, ...]) -> Iterator[list[str]]:
    """The named columns of a CSV file with a header, found by name whatever their order and case."""
    reader = csv.reader(lines)
    try:
        head = [name.strip().lstrip("\ufeff") for name in next(reader, [])]
        lower = [name.lower() for name in head]
        for name in names:
            if name.lower() not in lower:
                raise lines.wrong(name, f"is missing; the header has {', '.join(head)[:200] or 'nothing'}")
        at = [lower.index(name.lower()) for name in names]
        for row in reader:
            if not row:
                continue
            if len(row) <= max(at):
                raise lines.wrong(
                    head[max(at)], f"is missing: the line has {len(row)} of {len(head)} columns"
                )
            yield [row[i] for i in at]
    except csv.Error as error:
        raise lines.wrong("", f"is no CSV ({error})") from None


def _azure(lines: _Lines) -> Iterator[_Row]:
    names = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    for moment, given, got in _columns(lines, names):
        try:
            when = datetime.fromisoformat(moment.strip())
        except ValueError:
            raise lines.wrong(
                names[0], f"{_short(moment)} is no date and time like 2023-11-16 18:17:03.97"
            ) from None
        at = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        yield at, lines.tokens(names[1], given), lines.tokens(names[2], got), (), None


def _burstgpt(lines: _Lines) -> Iterator[_Row]:
    names = ("Timestamp", "Request tokens", "Response tokens")
    for moment, given, got in _columns(lines, names):
        at = lines.number_of(names[0], moment)
        yield at, lines.tokens(names[1], given), lines.tokens(names[2], got), (), None


@dataclass(frozen=True, slots=True)
class Format:
    """How the lines of one format are read; rows have seconds if its times are in ``unit``."""

    unit: str
    rows: Callable[[_Lines], Iterator[_Row]]


FORMATS = {
    "mooncake": Format("ms", _mooncake),
    "azure": Format("s", _azure),
    "burstgpt": Format("s", _burstgpt),
    "exaserve": Format("s", _own),
}
