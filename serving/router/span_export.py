"""Sends the records of sampled requests to an OTLP/HTTP endpoint: what a span looks like outside.

Of each request: a SERVER span ``{operation} {model}`` in the router, and below it a CLIENT span per attempt, whose
id the replica saw as its parent, so that the engine's own span (vLLM's ``--otlp-traces-endpoint``) hangs there.
Names follow the OpenTelemetry GenAI conventions as of SCHEMA_URL, the last release before they moved to a
repository of their own; what they have no name for is ``exaserve.*``.

Belongs in one process, and rather not in one that serves: its thread would take the interpreter from the event
loop for milliseconds. The SDK (8 MiB, 70-100 ms to import) is loaded when an exporter is made, not before. Its
``OTEL_EXPORTER_OTLP_TRACES_*`` variables (headers, certificates, timeouts) and ``OTEL_RESOURCE_ATTRIBUTES`` hold.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from serving.router.span_records import Attempt, Attributes, Record

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
EXPORT_EVERY = 1.0  # seconds between two exports
EXPORT_TIMEOUT = 5.0  # seconds for one, the SDK's own retries within it
REQUESTS_PER_EXPORT = 128  # some 100 KB; what is larger the SDK may refuse

log = logging.getLogger("exaserve.tracing")


def traces_url(endpoint: str) -> str:
    """The URL spans go to. An endpoint without a path is a collector's base address, as OTLP has it."""
    return endpoint.rstrip("/") + "/v1/traces" if urlsplit(endpoint).path in ("", "/") else endpoint


class Exporter:
    """A thread that fetches records and delivers them. It never waits for the data plane, nor the other way round.

    take: gives the records since the last call (``Queue.take``).
    address: where the router listens, for ``server.address`` and ``server.port``; port 0 = a unix socket.
    exported, dropped: spans that the endpoint took, and that were lost since it could not be reached or refused.
    """

    def __init__(self, endpoint: str, take: Callable[[], Sequence[Record]], address: tuple[str, int]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import SpanExportResult

        # The SDK logs each failure with its stack; we say it once, when it begins and when it ends.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self.url = traces_url(endpoint)
        self.exported = 0
        self.dropped = 0
        self._take = take
        self._ok = SpanExportResult.SUCCESS
        self._sink = OTLPSpanExporter(endpoint=self.url, timeout=EXPORT_TIMEOUT)
        resource = Resource.create(
            {
                "service.name": "exaserve-router",
                "service.version": version("exaserve"),
                "service.instance.id": f"{socket.gethostname()}:{address[1]}:{os.getpid()}",
            }
        )
        self._make = spans_maker(resource, address)
        self._failing = False
        self._pending = 0  # spans in hand
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="span-export", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """Deliver what waits, for at most ``seconds``; what is left then counts as dropped. May be called twice."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        if self._thread.is_alive():
            self._sink.shutdown()  # ends the SDK's wait between two retries
            self._thread.join(0.2)
        if self._thread.is_alive():
            self.dropped += self._pending
        self._count_dropped(self._take())

    def _run(self) -> None:
        last = False
        while not last:
            last = self._stop.wait(EXPORT_EVERY)
            records = self._take()
            for i in range(0, len(records), REQUESTS_PER_EXPORT):
                self.export(records[i : i + REQUESTS_PER_EXPORT])
        self._sink.shutdown()

    def export(self, records: Sequence[Record]) -> None:
        """Deliver them now, or count them as dropped."""
        spans: list[Any] = []
        for r in records:
            spans.extend(self._make(r))
            time.sleep(0)  # let a thread that waits for the interpreter have it
        self._pending = len(spans)
        try:
            done = self._sink.export(spans) is self._ok
        except Exception as e:  # whatever the SDK raises, the thread lives on
            log.debug("export: %r", e)
            done = False
        self._pending = 0
        if done:
            self.exported += len(spans)
        else:
            self.dropped += len(spans)
        if done is self._failing:
            self._failing = not done
            if done:
                log.warning("spans reach %s again", self.url)
            else:
                log.warning(
                    "spans can't be delivered to %s (router.tracing.endpoint); dropping them", self.url
                )

    def _count_dropped(self, records: Sequence[Record]) -> None:
        self.dropped += sum(r.spans for r in records)


def spans_maker(resource: Any, address: tuple[str, int]) -> Callable[[Record], list[Any]]:
    """A function that turns a record into the SDK's spans: the server span first, then its attempts."""
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

    scope = InstrumentationScope("exaserve.router", version("exaserve"), SCHEMA_URL)
    sampled = TraceFlags(TraceFlags.SAMPLED)
    own: Attributes = {"server.address": address[0]}
    if address[1]:
        own["server.port"] = address[1]
    unset = Status(StatusCode.UNSET)

    def status(code: int, error: str) -> Status:
        # A client's own mistake (4xx) is no error of the server (OpenTelemetry HTTP conventions).
        return Status(StatusCode.ERROR, error) if error and not 400 <= code < 500 else unset

    def make(record: Record) -> list[Any]:
        trace_id = int(record.trace_id, 16)
        state = TraceState.from_header([record.tracestate.decode("latin-1")])

        def context(span_id: bytes, remote: bool = False) -> SpanContext:
            return SpanContext(trace_id, int(span_id, 16), remote, sampled, state)

        server = context(record.span_id)
        spans = [
            ReadableSpan(
                name=record.name,
                context=server,
                parent=context(record.parent_id, True) if record.parent_id else None,
                resource=resource,
                attributes=record.attributes | own,
                events=[Event(e.name, e.attributes, e.at_ns) for e in record.events],
                kind=SpanKind.SERVER,
                status=status(int(record.attributes["http.response.status_code"]), record.error),
                start_time=record.start_ns,
                end_time=record.end_ns,
                instrumentation_scope=scope,
            )
        ]
        for a in record.attempts:
            spans.append(
                ReadableSpan(
                    name=record.name,
                    context=context(a.span_id),
                    parent=server,
                    resource=resource,
                    attributes=_of_attempt(record, a),
                    kind=SpanKind.CLIENT,
                    status=Status(StatusCode.ERROR, a.error) if a.error or a.status >= 400 else unset,
                    start_time=a.start_ns,
                    end_time=a.end_ns,
                    instrumentation_scope=scope,
                )
            )
        return spans

    return make


def _of_attempt(record: Record, attempt: Attempt) -> Attributes:
    attributes: Attributes = {
        k: v
        for k, v in record.attributes.items()
        if k in ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")
    }
    attributes["server.address"] = attempt.host
    attributes["server.port"] = attempt.port
    attributes["exaserve.replica"] = attempt.replica
    if attempt.status:
        attributes["http.response.status_code"] = attempt.status
    error = attempt.error or (str(attempt.status) if attempt.status >= 400 else "")
    if error:
        attributes["error.type"] = error
    return attributes
