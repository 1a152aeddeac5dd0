"""A trace of the requests in audit files, for ``locust --trace``: when each came, its tokens, its intent. No prompts.

Names of tenants, models, replicas and request ids stay out: a trace may be given away. A record has the request's end
(``ts``, cut to milliseconds) and how long it took (``duration_s``, from its last byte); it came that much earlier. Format,
one JSON object a line::

    {"format": "exaserve-trace", "version": 1, "unit": "s", "start": "2026-11-30T08:00:00.120Z", "requests": 2, …}
    {"at": 0.0, "input_tokens": 812, "output_tokens": 64, "intent": "code"}
    {"at": 0.314, "input_tokens": 40, "output_tokens": 512}

Requests that were never sent to a replica have no tokens and are left out, as are those whose tokens nobody counted;
both are counted in the first line. Not here: reading the files (``reader``), the command (``cli``).
"""

from __future__ import annotations

import heapq
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from serving.audit.record import Line

VERSION = 1
#: Kept in memory while they are sorted, about 100 bytes each.
DEFAULT_LIMIT = 2_000_000
#: Busiest seconds of this length are the peak that is told.
PEAK_WINDOW = 60.0

#: Unix seconds, tokens in, tokens out, intent.
_Came = tuple[float, int, int, str]


class Export:
    """Takes records in any order; gives the trace in the order in which requests came. limit: the first so many."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._came: list[_Came] = []  # a heap with the latest on top: times are negative
        self.rejected = self.without_tokens = self.beyond_limit = 0

    def add(self, line: Line) -> None:
        """Count a record in, or count why not."""
        if line.outcome == "rejected":
            self.rejected += 1
        elif line.input_tokens is None or line.output_tokens is None or line.duration_s is None:
            self.without_tokens += 1
        else:
            ended = datetime.fromisoformat(line.ts).timestamp()
            entry = (-(ended - line.duration_s), line.input_tokens, line.output_tokens, line.intent or "")
            if len(self._came) < self._limit:
                heapq.heappush(self._came, entry)
            else:
                self.beyond_limit += 1
                heapq.heappushpop(self._came, entry)

    @property
    def requests(self) -> int:
        return len(self._came)

    def lines(self) -> Iterator[str]:
        """The trace, without newlines; nothing but its first line if there is no request."""
        came = sorted((-at, given, got, intent) for at, given, got, intent in self._came)
        start = came[0][0] if came else 0.0
        head: dict[str, object] = {"format": "exaserve-trace", "version": VERSION, "unit": "s"}
        if came:
            head["start"] = datetime.fromtimestamp(start, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
            head["seconds"] = round(came[-1][0] - start, 3)
            head["peak_per_second"] = round(peak([at for at, *_ in came]), 4)
        head |= {"requests": len(came), "left_out": self.left_out()}
        yield json.dumps(head)
        for at, given, got, intent in came:
            row: dict[str, object] = {"at": round(at - start, 3), "input_tokens": given, "output_tokens": got}
            if intent:
                row["intent"] = intent
            yield json.dumps(row, ensure_ascii=False)

    def left_out(self) -> dict[str, int]:
        """How many records are not in it, by why."""
        return {
            "rejected": self.rejected,
            "without_tokens": self.without_tokens,
            "beyond_limit": self.beyond_limit,
        }

    def left_out_words(self) -> str:
        """The same in words; "" if all are in it."""
        return ", ".join(f"{n} {why.replace('_', ' ')}" for why, n in self.left_out().items() if n)

    def write(self, path: Path | None) -> None:
        """Into a file that is there whole or not at all; None: standard output. Raises OSError."""
        if path is None:
            sys.stdout.writelines(f"{line}\n" for line in self.lines())
            return
        part = path.with_name(path.name + ".part")
        with part.open("w", encoding="utf-8") as out:
            out.writelines(f"{line}\n" for line in self.lines())
        part.replace(path)


def peak(times: list[float], window: float = PEAK_WINDOW) -> float:
    """Requests a second in the busiest ``window`` seconds of ascending times."""
    most, first = 0, 0
    for last, at in enumerate(times):
        while at - times[first] >= window:
            first += 1
        most = max(most, last - first + 1)
    return most / window
