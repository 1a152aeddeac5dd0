"""One audit record: its fields, and how it becomes a line.

The router gives a plain tuple in this order (``Record``); the file has one JSON object a line with the same
names (``Line``). Never prompts, answers or keys.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

#: In the order of ``Line``: ts is Unix time in seconds, request_id bytes; "" and None both mean unknown.
Record: TypeAlias = tuple[
    float, bytes, str | None, str, str | None, str | None, str | None, str | None, str | None, str | None,
    str | None, float | None, str, int, int | None, int | None, bool, float | None, float | None, float | None,
    int, str,
]  # fmt: skip

#: Values of ``outcome``.
OUTCOMES = ("ok", "error", "cut", "aborted", "rejected")
MAX_TEXT = 256  # characters of a name; what a client may choose must not fill the disk


class Line(msgspec.Struct, gc=False):
    """A record as the file has it. null is unknown, never 0. Defaults are for reading lines of other versions.

    ts: RFC 3339, UTC, milliseconds: the end of the request. route: name of the router's route.
    base_revision, adapter, adapter_revision: of the model that answered. intent, confidence: its class (0-1).
    decision: ``admitted``, or the reason of the refusal. status: HTTP status towards the client.
    input_tokens, output_tokens: as the engine counted; estimates where tokens_estimated is true.
    ttft_s, duration_s, queue_s: seconds from the request's last byte to the answer's first and last byte, and
    waiting for a replica. retries: attempts after the first. outcome: ok; error (5xx from the replica); cut
    (broke off); aborted (the client went away); rejected (never sent to a replica).
    """

    ts: str
    request_id: str
    tenant: str | None = None
    route: str = ""
    model: str | None = None
    base_revision: str | None = None
    adapter: str | None = None
    adapter_revision: str | None = None
    replica: str | None = None
    pool: str | None = None
    intent: str | None = None
    confidence: float | None = None
    decision: str = ""
    status: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens_estimated: bool = False
    ttft_s: float | None = None
    duration_s: float | None = None
    queue_s: float | None = None
    retries: int = 0
    outcome: str = ""


class Lost(msgspec.Struct, gc=False):
    """A line that says that records are missing here: the disk took none and the queue was full."""

    ts: str
    lost: int


FIELDS = Line.__struct_fields__
_encoder = msgspec.json.Encoder()
_MILLISECONDS = [f"{i:03d}Z" for i in range(1000)]


class Encoder:
    """Turns records into lines. Keeps the text of the second it is in."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""
        self.broken = 0  # records that were no records: a fault of the caller, counted and left out

    def timestamp(self, ts: float) -> str:
        """``2026-11-30T08:35:18.123Z``, cut to the millisecond."""
        if not self._second <= ts < self._second + 1:
            self._second = int(ts // 1)
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(self._second))
        return self._text + _MILLISECONDS[int((ts - self._second) * 1000.0)]

    def lines(self, records: Sequence[Record]) -> bytes:
        """One line for each, each with its newline."""
        try:
            return _encoder.encode_lines([self._line(r) for r in records])
        except Exception:
            # One bad record must not cost the others.
            return b"".join(self._alone(r) for r in records)

    def lost(self, ts: float, count: int) -> bytes:
        return _encoder.encode_lines([Lost(self.timestamp(ts), count)])

    def _line(self, record: Record) -> Line:
        (
            ts, request_id, tenant, route, model, base, adapter, adapter_revision, replica, pool, intent,
            confidence, decision, status, tokens_in, tokens_out, estimated, ttft, duration, queue, retries, outcome,
        ) = record  # fmt: skip
        if model is not None and len(model) > MAX_TEXT:
            model = model[:MAX_TEXT]
        # Rounded to µs by hand: round() takes twice as long, and unrounded floats are 17 digits long.
        return Line(
            self.timestamp(ts), request_id.decode("latin-1"), tenant or None, route, model or None, base or None,
            adapter or None, adapter_revision or None, replica or None, pool or None, intent or None,
            int(confidence * 1e4 + 0.5) / 1e4 if intent and confidence is not None else None, decision, status,
            tokens_in, tokens_out, estimated, None if ttft is None else int(ttft * 1e6 + 0.5) / 1e6,
            None if duration is None else int(duration * 1e6 + 0.5) / 1e6,
            None if queue is None else int(queue * 1e6 + 0.5) / 1e6, retries, outcome,
        )  # fmt: skip

    def _alone(self, record: Record) -> bytes:
        try:
            line = self._line(record)
            try:
                return _encoder.encode_lines([line])
            except UnicodeEncodeError:  # half a surrogate pair in a name that a client chose
                for name in FIELDS:
                    value = getattr(line, name)
                    if isinstance(value, str):
                        setattr(line, name, value.encode("utf-8", "replace").decode())
                return _encoder.encode_lines([line])
        except Exception:
            self.broken += 1
            return b""
