"""Trace context by W3C's rules, and spans as a real OTLP receiver decodes them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from serving.router import span_export
from serving.router.span_export import SCHEMA_URL, Exporter, traces_url
from serving.router.span_records import Record
from serving.router.tracing import MAX_ATTEMPTS, MAX_EVENTS, Queue, Span, Tracing, valid
from tests.serving.otlp_receiver import Receiver, attributes

TRACE, PARENT = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
SAMPLED = b"00-%s-%s-01" % (TRACE, PARENT)
UNSAMPLED = b"00-%s-%s-00" % (TRACE, PARENT)
R0 = SimpleNamespace(name="r0", host="127.0.0.1", port=8100)
R1 = SimpleNamespace(name="r1", host="::1", port=8101)


def tracing(sample: float = 0.0, endpoint: str | None = "http://collector") -> Tracing:
    return Tracing(SimpleNamespace(endpoint=endpoint, sample=sample))


def exchange(**changes: Any) -> Any:
    now = time.monotonic()
    values: dict[str, Any] = {
        "route": "chat_completions", "model": "m", "tenant": SimpleNamespace(name="acme"), "intent": "legal",
        "pool": SimpleNamespace(name="interactive"), "request_id": b"abc", "streaming": True,
        "started": now - 0.5, "first_byte": now - 0.25, "status": 200,
    }  # fmt: skip
    return SimpleNamespace(**values | changes)


def traceparent_of(lines: bytes) -> bytes:
    name, _, value = lines.split(b"\r\n")[0].partition(b": ")
    assert name == b"traceparent"
    return value


def sampled(t: Tracing, traceparent: bytes | None = SAMPLED) -> tuple[Span, bytes]:
    span, lines = t.start(traceparent, None)
    assert span is not None
    return span, lines


# --- trace context ---


@pytest.mark.parametrize(
    "value",
    [
        SAMPLED,
        UNSAMPLED,
        SAMPLED[:-2] + b"ff",
        b"01" + SAMPLED[2:],
        b"cc" + SAMPLED[2:] + b"-what-comes-later",
    ],
)
def test_a_valid_traceparent_is_recognised(value: bytes) -> None:
    assert valid(value)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00",
        SAMPLED[:-1],
        SAMPLED + b"-extra",  # version 00 has no fifth field
        SAMPLED + b".",
        b"cc" + SAMPLED[2:] + b".later",
        b"cc" + SAMPLED[2:] + b"-",
        b"ff" + SAMPLED[2:],
        b"00-" + b"0" * 32 + SAMPLED[35:],
        SAMPLED[:36] + b"0" * 16 + b"-01",
        SAMPLED.upper(),
        SAMPLED.replace(b"-", b"_"),
        SAMPLED[:20] + b"-" + SAMPLED[21:],
        b"000" + SAMPLED[3:35] + b"--" + SAMPLED[37:],  # three dashes, elsewhere
        b"00-" + b"g" * 32 + SAMPLED[35:],
        b"\xff" * 55,
    ],
)
def test_an_invalid_traceparent_is_not(value: bytes) -> None:
    assert not valid(value)


def test_an_unsampled_traceparent_passes_with_its_tracestate_as_it_came() -> None:
    assert tracing(1.0).start(UNSAMPLED, b"a=1,b=2") == (
        None,
        b"traceparent: %s\r\ntracestate: a=1,b=2\r\n" % UNSAMPLED,
    )


def test_a_sampled_traceparent_keeps_its_trace_and_gets_this_attempt_as_parent() -> None:
    span, lines = tracing().start(SAMPLED, b"a=1")
    assert span is not None
    forwarded = traceparent_of(lines)
    assert valid(forwarded)
    assert forwarded[:36] == SAMPLED[:36]
    assert forwarded[36:52] not in (PARENT, span.span_id)
    assert forwarded[53:] == b"01"
    assert lines.endswith(b"\r\ntracestate: a=1\r\n")
    assert span.parent_id == PARENT


@pytest.mark.parametrize("value", [b"", b"rubbish", SAMPLED[:-1]])
def test_an_invalid_traceparent_is_replaced_and_its_tracestate_dropped(value: bytes) -> None:
    span, lines = tracing().start(value, b"a=1")
    assert span is None
    assert lines.count(b"\r\n") == 1
    assert valid(traceparent_of(lines))


def test_without_a_traceparent_one_is_made_unsampled_so_that_the_engine_samples_none_of_its_own() -> None:
    t = tracing()
    made = {traceparent_of(t.start(None, None)[1]) for _ in range(100)}
    assert len(made) == 100
    assert all(valid(m) and m.endswith(b"-00") for m in made)


def test_the_share_of_new_traces_that_is_sampled_is_the_configured_one() -> None:
    t = tracing(0.25)
    count = sum(t.start(None, None)[0] is not None for _ in range(20000))
    assert 0.22 < count / 20000 < 0.28  # 10 standard deviations


def test_a_new_sampled_trace_is_a_root() -> None:
    span, lines = sampled(tracing(1.0), None)
    assert span.parent_id == b""
    assert traceparent_of(lines)[3:35] == span.trace_id


def test_without_an_endpoint_headers_pass_and_none_is_made() -> None:
    off = tracing(1.0, endpoint=None)
    assert off.start(None, None) == (None, b"")
    assert off.start(SAMPLED, b"a=1") == (None, b"traceparent: %s\r\ntracestate: a=1\r\n" % SAMPLED)


def test_an_overlong_tracestate_is_dropped_from_a_sampled_request() -> None:
    _, lines = tracing().start(SAMPLED, b"a=" + b"x" * 600)
    assert b"tracestate" not in lines


# --- a sampled request ---


def test_each_attempt_sends_an_id_of_its_own() -> None:
    t = tracing()
    span, lines = sampled(t)
    head = b"POST / HTTP/1.1\r\n" + lines + b"x: y\r\n\r\n"
    first = span.attempt(R0, head)
    span.attempt_ended(R0, error="reset")
    second = span.attempt(R1, first)
    span.attempt_ended(R1, 200)
    span.end(exchange())
    assert first == head
    a, b = t.records.take()[0].attempts
    assert b"-%s-01\r\n" % a.span_id in first
    assert second == first.replace(a.span_id, b.span_id)
    assert len({a.span_id, b.span_id, span.span_id}) == 3


def test_hedged_attempts_end_each_on_its_own_replica() -> None:
    t = tracing()
    span, lines = sampled(t)
    span.attempt(R1, span.attempt(R0, lines))
    span.attempt_ended(R0, error="hedged")
    span.end(exchange())
    a, b = t.records.take()[0].attempts
    assert (a.error, b.error) == ("hedged", "aborted")
    assert 0 < a.end_ns <= b.end_ns


def test_a_span_ends_once_and_stays_bounded() -> None:
    t = tracing()
    span, lines = sampled(t)
    for _ in range(50):
        span.attempt(R0, lines)
        span.event("retry", "reset")
    span.end(exchange())
    span.end(exchange())
    (record,) = t.records.take()
    assert (len(record.attempts), len(record.events)) == (MAX_ATTEMPTS, MAX_EVENTS)


def test_a_full_queue_drops_and_counts_spans() -> None:
    t = tracing()
    t.records = Queue(limit=2)
    for _ in range(5):
        span, lines = sampled(t)
        span.attempt(R0, lines)
        span.end(exchange())
    assert len(t.records.take()) == 2
    assert t.records.take() == []
    assert t.records.dropped == 3 * 2


def test_a_record_survives_the_way_to_another_process() -> None:
    t = tracing()
    span, lines = sampled(t)
    span.attempt(R0, lines)
    span.event("retry", "reset")
    span.end(exchange(), output_tokens=3)
    (record,) = t.records.take()
    packed = msgspec.msgpack.encode([record])
    assert msgspec.msgpack.decode(packed, type=list[Record]) == [record]


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [(200, "", None), (429, "rate_limit", "rate_limit"), (503, "", "503"), (502, "replica_failed", "replica_failed")],
)  # fmt: skip
def test_error_type_is_the_reason_or_else_the_status(status: int, error: str, expected: str | None) -> None:
    t = tracing()
    span, _ = sampled(t)
    span.end(exchange(status=status), error=error)
    assert t.records.take()[0].attributes.get("error.type") == expected


def test_a_request_refused_before_it_was_classified_is_described_by_what_is_known() -> None:
    t = tracing()
    span, _ = sampled(t)
    span.end(
        exchange(route="other", model=None, tenant=None, pool=None, intent="", status=400), error="schema"
    )
    (record,) = t.records.take()
    assert record.name == "other"
    assert {k for k in record.attributes if k.startswith("gen_ai")} == {
        "gen_ai.request.stream",
        "gen_ai.response.time_to_first_chunk",
    }


# --- export ---


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def test_the_receiver_gets_a_server_span_with_a_client_span_per_attempt(receiver: Receiver) -> None:
    t = tracing()
    exporter = Exporter(receiver.url, t.records.take, ("127.0.0.1", 8000))
    exporter.start()
    before = time.time_ns()
    span, lines = t.start(SAMPLED, b"vendor=x")
    assert span is not None
    head = span.attempt(R0, lines)
    span.attempt_ended(R0, error="reset")
    span.event("retry", "reset")
    head = span.attempt(R1, head)
    span.attempt_ended(R1, 200)
    span.end(exchange(), queue_seconds=0.125, input_tokens=7, output_tokens=9, conversation="c1")
    after = time.time_ns()
    exporter.stop(10)

    assert receiver.paths == ["/v1/traces"]
    assert receiver.schema_url == SCHEMA_URL
    assert receiver.resource["service.name"] == "exaserve-router"
    server, first, second = receiver.spans
    assert {s.trace_id.hex().encode() for s in receiver.spans} == {TRACE}
    assert server.parent_span_id.hex().encode() == PARENT
    assert first.parent_span_id == second.parent_span_id == server.span_id
    assert (
        second.span_id.hex().encode() == traceparent_of(head)[36:52]
    )  # what the engine hangs its span below
    assert (server.kind, first.kind, second.kind) == (2, 3, 3)
    assert {s.name for s in receiver.spans} == {"chat m"}
    assert {s.trace_state for s in receiver.spans} == {"vendor=x"}
    got = attributes(server)
    assert got.pop("gen_ai.response.time_to_first_chunk") == pytest.approx(0.25, abs=0.01)
    assert got == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.conversation.id": "c1",
        "server.address": "127.0.0.1",
        "server.port": 8000,
        "http.response.status_code": 200,
        "exaserve.route": "chat_completions",
        "exaserve.pool": "interactive",
        "exaserve.intent": "legal",
        "exaserve.tenant": "acme",
        "exaserve.replica": "r1",
        "exaserve.request_id": "abc",
        "exaserve.queue_seconds": 0.125,
        "exaserve.retries": 1,
    }
    assert attributes(first) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "m",
        "server.address": "127.0.0.1",
        "server.port": 8100,
        "exaserve.replica": "r0",
        "error.type": "reset",
    }
    assert attributes(second)["http.response.status_code"] == 200
    assert (server.status.code, first.status.code, second.status.code) == (0, 2, 0)
    (event,) = server.events
    assert (event.name, attributes(event)) == ("exaserve.retry", {"exaserve.reason": "reset"})
    half, clocks = 500_000_000, 100_000_000  # two clocks, which are not read in the same instant
    assert before - half - clocks < server.start_time_unix_nano < after - half + clocks  # exchange.started
    assert before <= first.start_time_unix_nano <= first.end_time_unix_nano <= second.start_time_unix_nano
    assert second.end_time_unix_nano <= server.end_time_unix_nano <= after
    assert (exporter.exported, exporter.dropped) == (3, 0)


def test_only_the_servers_own_errors_mark_its_span(receiver: Receiver) -> None:
    t = tracing()
    exporter = Exporter(receiver.url, t.records.take, ("/run/router.sock", 0))
    exporter.start()
    for status, error in ((429, "rate_limit"), (503, "capacity")):
        span, _ = sampled(t)
        span.end(exchange(status=status), error=error)
    exporter.stop(10)
    assert [(s.status.code, s.status.message) for s in receiver.spans] == [(0, ""), (2, "capacity")]
    assert "server.port" not in attributes(receiver.spans[0])


@pytest.mark.parametrize("state", [b"=;rubbish\xff", b"a=1,a=1", b","])
def test_a_tracestate_that_no_one_can_read_costs_no_span(receiver: Receiver, state: bytes) -> None:
    t = tracing()
    exporter = Exporter(receiver.url, t.records.take, ("127.0.0.1", 8000))
    exporter.start()
    span, _ = t.start(SAMPLED, state)
    assert span is not None
    span.end(exchange())
    exporter.stop(10)
    assert exporter.exported == 1


def test_an_unreachable_endpoint_loses_spans_countedly_and_stops_in_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_export, "EXPORT_TIMEOUT", 60.0)
    t = tracing()
    exporter = Exporter("http://127.0.0.1:9", t.records.take, ("127.0.0.1", 8000))
    exporter.start()
    for _ in range(3):
        span, lines = sampled(t)
        span.attempt(R0, lines)
        span.end(exchange())
    started = time.monotonic()
    with caplog.at_level(logging.WARNING):
        exporter.stop(0.3)
    assert time.monotonic() - started < 20
    assert exporter.dropped == 6
    assert exporter.exported == 0
    assert "Traceback" not in caplog.text


def test_an_endpoint_that_refuses_is_named_once(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.status = 400
    t = tracing()
    exporter = Exporter(receiver.url, t.records.take, ("127.0.0.1", 8000))
    with caplog.at_level(logging.WARNING):
        for status in (400, 400, 200):
            receiver.status = status
            span, _ = sampled(t)
            span.end(exchange())
            exporter.export(t.records.take())
    assert (exporter.exported, exporter.dropped) == (1, 2)
    assert [r.getMessage().split("/v1")[0] for r in caplog.records] == [
        f"spans can't be delivered to {receiver.url}",
        f"spans reach {receiver.url}",
    ]


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/otlp/traces", "https://c/otlp/traces"),
    ],
)
def test_a_collectors_base_address_gets_the_usual_path(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url
