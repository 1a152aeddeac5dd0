"""Trace context of a request and what a sampled one records. Nothing here exports: see span_export.py.

Headers follow W3C Trace Context (level 1): a valid ``traceparent`` is kept, with its ``tracestate``; one that is
invalid is replaced and its ``tracestate`` dropped; where there is none, one is made. An unsampled request gets
one too, with the sampled flag off: an engine that traces takes a request without a parent for a root of its
own and would record every one of them, whatever ``router.tracing.sample`` says. A request is sampled if its
caller sampled it, or, without a valid parent, with the probability ``router.tracing.sample``. A caller that
decided not to sample is followed.

Without ``router.tracing.endpoint`` the router takes no part: a header passes as it came and none is made.

Records are plain data, so that they can go over a socket to the process that exports. They wait in a queue of
QUEUE_REQUESTS; what comes while it is full is dropped and counted, since a caller may set the flag on everything.
"""

from __future__ import annotations

import time
from collections import deque
from random import getrandbits, random
from typing import Protocol

from serving.router.span_records import Attempt, Attributes, Event, Record

#: Sampled requests that wait for the exporter, per process. At one export a second this is also the most that is
#: traced per second: 512 x 2 spans cost the exporting process 8 % of a core.
QUEUE_REQUESTS = 512
MAX_ATTEMPTS = 8  # recorded of one request
MAX_EVENTS = 16
MAX_TRACESTATE_BYTES = 512  # what W3C asks everyone to forward at least; a longer one is dropped whole

_HEX = b"0123456789abcdef"
_SAMPLED_DIGITS = frozenset(b"13579bdf")
_ZERO_TRACE = b"0" * 32
_ZERO_SPAN = b"0" * 16

#: gen_ai.operation.name by route. Routes that generate nothing have none.
OPERATIONS = {
    "chat_completions": "chat",
    "completions": "text_completion",
    "responses": "chat",
    "embeddings": "embeddings",
}


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Target(Protocol):
    """A replica, as far as a span describes it."""

    @property
    def name(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class TracingSettings(Protocol):
    @property
    def endpoint(self) -> str | None: ...
    @property
    def sample(self) -> float: ...


class Ended(Protocol):
    """What ``Span.end`` reads of an exchange. started, first_byte: time.monotonic(), 0 = never."""

    @property
    def route(self) -> str: ...
    @property
    def model(self) -> str | None: ...
    @property
    def tenant(self) -> Named | None: ...
    @property
    def intent(self) -> str: ...
    @property
    def pool(self) -> Named | None: ...
    @property
    def request_id(self) -> bytes: ...
    @property
    def streaming(self) -> bool: ...
    @property
    def started(self) -> float: ...
    @property
    def first_byte(self) -> float: ...
    @property
    def status(self) -> int: ...


def valid(traceparent: bytes) -> bool:
    """Whether it is a ``traceparent`` of version 00, or a later one that begins like it (W3C 3.2, 4.3)."""
    if len(traceparent) != 55:
        if len(traceparent) < 57 or traceparent[55] != 45 or traceparent[:2] == b"00":
            return False
        traceparent = traceparent[:55]
    # Three dashes are left when the hex digits go, and they are where they belong.
    return (
        traceparent.translate(None, _HEX) == b"---"
        and traceparent[2] == 45
        and traceparent[35] == 45
        and traceparent[52] == 45
        and traceparent[3:35] != _ZERO_TRACE
        and traceparent[36:52] != _ZERO_SPAN
        and traceparent[:2] != b"ff"
    )


class Span:
    """A sampled request while it is open. Called by the data plane's thread only."""

    __slots__ = (
        "_mono", "_next_id", "_tracing", "_wall", "attempts", "ended", "events", "line", "parent_id", "span_id",
        "trace_id", "tracestate",
    )  # fmt: skip

    def __init__(self, tracing: Tracing, trace_id: bytes, parent_id: bytes, tracestate: bytes) -> None:
        self._tracing = tracing
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.tracestate = tracestate
        self.span_id = b"%016x" % (getrandbits(64) or 1)
        self._next_id = b"%016x" % (getrandbits(64) or 1)
        self.line = b"traceparent: 00-%s-%s-01\r\n" % (trace_id, self._next_id)
        # One look at each clock: later times are monotonic ones from here, so that no span ends before it began.
        self._wall = time.time_ns()
        self._mono = time.monotonic()
        self.attempts: list[Attempt] = []
        self.events: list[Event] = []
        self.ended = False

    def attempt(self, replica: Target, head: bytes) -> bytes:
        """An attempt on ``replica`` begins; returns ``head`` with this attempt's id as the parent to see there.

        head: as sent, or to be sent, for the attempt before; it holds the line that ``start`` gave. Hedged
        attempts may be open side by side.
        """
        if len(self.attempts) >= MAX_ATTEMPTS:
            return head
        if self._next_id == b"":
            before, self._next_id = self.line, b"%016x" % (getrandbits(64) or 1)
            self.line = b"traceparent: 00-%s-%s-01\r\n" % (self.trace_id, self._next_id)
            head = head.replace(before, self.line, 1)
        self.attempts.append(
            Attempt(self._next_id, replica.name, replica.host, replica.port, self._ns(time.monotonic()))
        )
        self._next_id = b""
        return head

    def attempt_ended(self, replica: Target, status: int = 0, error: str = "") -> None:
        """The newest open attempt on that replica is over; error: "" or why (refused, reset, aborted, …)."""
        for a in reversed(self.attempts):
            if a.end_ns == 0 and a.replica == replica.name:
                a.end_ns = self._ns(time.monotonic())
                a.status = status
                a.error = error
                return

    def event(self, name: str, reason: str = "") -> None:
        """Something worth a mark on the time line: ``retry``, ``hedge``, ``queued`` …; bounded."""
        if len(self.events) < MAX_EVENTS:
            attributes: Attributes = {"exaserve.reason": reason} if reason else {}
            self.events.append(Event(f"exaserve.{name}", self._ns(time.monotonic()), attributes))

    def end(
        self,
        exchange: Ended,
        *,
        error: str = "",
        queue_seconds: float = 0.0,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        conversation: str = "",
    ) -> None:
        """The request is over: make its record and queue it. A second call does nothing.

        error: why it failed, for ``error.type``: a rejection's code, ``client_disconnected``, ``cut``; "" with a
        5xx status stands for the status. input_tokens, output_tokens: as the engine reported, None if it did
        not; estimates don't belong here. conversation: the session's id as the client gave it.
        """
        if self.ended:
            return
        self.ended = True
        now = self._ns(time.monotonic())
        for a in self.attempts:
            if a.end_ns == 0:
                a.end_ns = now
                a.error = "aborted"
        status = exchange.status
        if not error and status >= 500:
            error = str(status)
        operation = OPERATIONS.get(exchange.route, "")
        model = exchange.model or ""
        attributes: Attributes = {
            "exaserve.route": exchange.route,
            "exaserve.request_id": exchange.request_id.decode("latin-1"),
            "exaserve.queue_seconds": queue_seconds,
            "exaserve.retries": max(len(self.attempts) - 1, 0),
            "http.response.status_code": status,
        }
        if operation:
            attributes["gen_ai.operation.name"] = operation
            attributes["gen_ai.provider.name"] = "vllm"
        if model:
            attributes["gen_ai.request.model"] = model
        if exchange.streaming:
            attributes["gen_ai.request.stream"] = True
            if exchange.first_byte:
                attributes["gen_ai.response.time_to_first_chunk"] = exchange.first_byte - exchange.started
        if exchange.pool is not None:
            attributes["exaserve.pool"] = exchange.pool.name
        if exchange.tenant is not None:
            attributes["exaserve.tenant"] = exchange.tenant.name
        if exchange.intent:
            attributes["exaserve.intent"] = exchange.intent
        if self.attempts:
            attributes["exaserve.replica"] = self.attempts[-1].replica
        if input_tokens is not None:
            attributes["gen_ai.usage.input_tokens"] = input_tokens
        if output_tokens is not None:
            attributes["gen_ai.usage.output_tokens"] = output_tokens
        if conversation:
            attributes["gen_ai.conversation.id"] = conversation
        if error:
            attributes["error.type"] = error
        self._tracing.records.put(
            Record(
                self.trace_id, self.span_id, self.parent_id, self.tracestate,
                f"{operation or exchange.route} {model}".rstrip(), min(self._ns(exchange.started), now), now,
                attributes, error, self.events, self.attempts,
            )
        )  # fmt: skip

    def _ns(self, monotonic: float) -> int:
        return self._wall + int((monotonic - self._mono) * 1e9)


class Queue:
    """Records on their way to the exporter, at most ``limit``. One thread puts; any may take.

    dropped: spans lost because it was full.
    """

    def __init__(self, limit: int = QUEUE_REQUESTS) -> None:
        self.limit = limit
        self.dropped = 0
        self._records: deque[Record] = deque()

    def put(self, record: Record) -> None:
        if len(self._records) < self.limit:
            self._records.append(record)
        else:
            self.dropped += record.spans

    def take(self) -> list[Record]:
        """All that waits, oldest first, and no longer here."""
        return [self._records.popleft() for _ in range(len(self._records))]


class Tracing:
    """Decides for each request. settings: ``router.tracing`` (endpoint: str | None, sample: 0-1).

    records: of the sampled requests, until the exporter takes them.
    """

    def __init__(self, settings: TracingSettings) -> None:
        self.enabled = settings.endpoint is not None
        self.sample = settings.sample
        self.records = Queue()

    def start(
        self, traceparent: bytes | None, tracestate: bytes | None, trace_id: bytes = b""
    ) -> tuple[Span | None, bytes]:
        """What the headers of a request mean: its span if it is sampled, and the header lines to forward.

        traceparent: the header's value, None if there is none, b"" if there were several (W3C: restart the trace).
        tracestate: its value, several joined by ``,``. The lines end in CR LF and replace both headers.
        trace_id: 32 hex digits for a trace that begins here (the request's id, so that logs and traces meet).
        """
        span = None
        if traceparent is not None and (not self.enabled or valid(traceparent)):
            if self.enabled and traceparent[54] in _SAMPLED_DIGITS:
                if tracestate is not None and len(tracestate) > MAX_TRACESTATE_BYTES:
                    tracestate = None
                span = Span(self, traceparent[3:35], traceparent[36:52], tracestate or b"")
                lines = span.line
            elif traceparent:
                lines = b"traceparent: %s\r\n" % traceparent
            else:
                return None, b""
            return span, lines + b"tracestate: %s\r\n" % tracestate if tracestate else lines
        if not self.enabled:
            return None, b""
        if random() < self.sample:  # noqa: S311 - not a secret
            span = Span(self, trace_id or b"%032x" % (getrandbits(128) or 1), b"", b"")
            return span, span.line
        # Nobody records it; the parent's id has to be there and not zero.
        trace_id = trace_id or b"%032x" % (getrandbits(128) or 1)
        return None, b"traceparent: 00-%s-%s-00\r\n" % (trace_id, b"00000000000000e5")
