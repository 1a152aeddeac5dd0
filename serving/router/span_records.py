"""A sampled request as plain data: what ``tracing.py`` records and ``span_export.py`` delivers."""

from __future__ import annotations

import msgspec

Attributes = dict[str, str | bool | int | float]


class Event(msgspec.Struct, array_like=True):
    """Something that happened at ``at_ns`` (Unix time)."""

    name: str
    at_ns: int
    attributes: Attributes


class Attempt(msgspec.Struct, array_like=True):
    """One try on one replica. end_ns: 0 while it is open. error: "" or what went wrong."""

    span_id: bytes
    replica: str
    host: str
    port: int
    start_ns: int
    end_ns: int = 0
    status: int = 0
    error: str = ""


class Record(msgspec.Struct, array_like=True):
    """A sampled request that has ended. Ids are lower-case hex; parent_id b"" = the trace begins here."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    tracestate: bytes
    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    error: str
    events: list[Event]
    attempts: list[Attempt]

    @property
    def spans(self) -> int:
        return 1 + len(self.attempts)
