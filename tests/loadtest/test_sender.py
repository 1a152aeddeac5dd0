"""Requests as they go out and what is kept of each, against servers that send exactly what they are told.

In this process, without locust: the sender needs none, and gevent alone replaces no sockets.
"""

from __future__ import annotations

import email.utils
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest
import trustme

from loadtest._lib import _clock
from loadtest._lib._ask import COMPLETIONS, EMBEDDINGS, Ask
from loadtest._lib._record import Record
from loadtest._lib._sender import Sender, Settings
from tests.conftest import closed_port
from tests.loadtest.scripted import GOOD, Script, Scripted, plain, stream, token

ASK = Ask("chat", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2})


@pytest.fixture(autouse=True)
def _no_hub_left() -> Iterator[None]:
    yield
    gevent.get_hub().destroy()


def sender(server: Scripted, limit: float = 20.0, key: str | None = None) -> Sender:
    return Sender(Settings(host=server.url, model="m", limit=limit, api_key=key))


def one(*scripts: Script, ask: Ask = ASK, limit: float = 20.0) -> Record:
    with Scripted(*scripts) as server:
        record = sender(server, limit).send(ask).record
    assert record is not None
    return record


def test_a_request_is_what_the_server_needs_and_no_more() -> None:
    with Scripted([GOOD]) as server:
        sender(server, key="secret").send(ASK)
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /v1/chat/completions HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}".encode(),
        b"User-Agent: exaserve-loadtest",
        b"Accept-Encoding: identity",
        b"Content-Type: application/json",
        b"Authorization: Bearer secret",
        f"Content-Length: {len(body)}".encode(),
    ]
    assert json.loads(body) == ASK.body | {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert "stream" not in ASK.body


def test_a_good_stream_becomes_a_record() -> None:
    headers = "x-exaserve-replica: r1\r\nx-request-id: q7\r\n"
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    body = [token("a"), token("b", "length"), {"choices": [], "usage": usage}, "data: [DONE]\n\n"]
    before = _clock.now()
    record = one([stream(*body, headers=headers)])
    assert (record.outcome, record.reason, record.detail) == ("ok", None, None)
    assert (record.status, record.replica, record.request_id) == (200, "r1", "q7")
    assert (record.input_tokens, record.output_tokens, record.cached_tokens) == (5, 3, 2)
    assert (record.finish_reason, record.chunks, record.gaps) == ("length", 2, [0.0])
    assert (record.profile, record.phase, record.due) == ("chat", "measured", None)
    assert record.sent is not None
    assert record.first is not None
    assert record.ended is not None
    assert before <= record.sent <= record.first <= record.ended <= _clock.now()
    assert record.ttft == pytest.approx(record.first - record.sent, abs=2e-6)
    assert record.e2e == record.ttft
    assert record.tpot == 0.0


def test_tokens_are_timed_when_they_arrive() -> None:
    first, second, *_ = GOOD.partition(b"data: ")[2].split(b"\n\n")
    chunks = [b"%x\r\n%s\r\n" % (len(d), d) for d in (b"data: " + first + b"\n\n", second + b"\n\n")]
    end = b"data: [DONE]\n\n"
    start = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    # On a busy machine this side may look late at what came, and then the next comes sooner after it.
    for _ in range(10):
        record = one([start, 0.2, chunks[0], 0.3, chunks[1], 0.1, b"%x\r\n%s\r\n0\r\n\r\n" % (len(end), end)])
        assert record.outcome == "ok"
        assert record.ttft is not None
        assert record.e2e is not None
        assert record.ended is not None
        assert record.last is not None
        assert record.ttft >= 0.2
        assert record.e2e >= 0.5
        if record.gaps[0] >= 290 and record.ended - record.last >= 0.09:
            break
    assert record.gaps[0] >= 290
    assert record.e2e == pytest.approx(record.ttft + record.gaps[0] / 1000, abs=1e-5)
    assert record.ended - record.last >= 0.09


def test_latencies_of_an_open_loop_count_from_when_the_request_was_due() -> None:
    with Scripted([GOOD]) as server:
        ours = sender(server)
        due = _clock.now() - 5.0
        record = ours.send(ASK, due).record
    assert record is not None
    assert record.due == due
    assert record.ttft is not None
    assert record.e2e is not None
    assert record.ttft > 5.0
    assert record.e2e > 5.0
    assert ours.lag_max >= 5.0


def test_the_text_is_kept_for_sessions_only() -> None:
    with Scripted([GOOD]) as server:
        ours = sender(server)
        assert ours.send(ASK).text == ""
        assert ours.send(Ask("chat", ASK.body, session="s1")).text == "ab"


def test_a_completion_stream_and_an_answer_that_is_no_stream() -> None:
    piece = {"choices": [{"index": 0, "text": " a", "finish_reason": "stop"}]}
    ask = Ask("completion", {"prompt": "p"}, path=COMPLETIONS)
    with Scripted([stream(piece, "data: [DONE]\n\n")]) as server:
        record = sender(server).send(ask).record
    assert server.requests[0].startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert record is not None
    assert (record.outcome, record.chunks) == ("ok", 1)

    answer = {
        "choices": [{"message": {"content": "a b"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    record = one([plain("200 OK", answer)], ask=Ask("batch", {}, stream=False))
    assert (record.outcome, record.first, record.ttft, record.tpot) == ("ok", None, None, None)
    assert (record.output_tokens, record.chunks) == (2, 0)
    assert record.e2e is not None


def test_embeddings() -> None:
    answer = {"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 4}}
    ask = Ask("embedding", {"input": ["a"]}, path=EMBEDDINGS, stream=False)
    with Scripted([plain("200 OK", answer)]) as server:
        record = sender(server).send(ask).record
    body = json.loads(server.requests[0].partition(b"\r\n\r\n")[2])
    assert body == {"model": "m", "input": ["a"]}
    assert record is not None
    assert (record.outcome, record.input_tokens, record.output_tokens) == ("ok", 4, None)


FAILURES: list[tuple[Script, str, str]] = [
    (
        [plain("400 Bad Request", {"error": {"message": "too long", "code": "x"}})],
        "status_4xx",
        "HTTP 400: x: too long",
    ),
    ([plain("429 Too Many Requests", {})], "status_429", "HTTP 429"),
    ([plain("503 Unavailable", b"<html>")], "status_5xx", "HTTP 503"),
    ([plain("302 Found", {}, "Location: /elsewhere")], "other", "HTTP 302"),
    ([plain("200 OK", {"choices": []})], "other", "not an event stream but application/json"),
    ([None], "reset", "connection closed without an answer"),
    ([stream(token("a"), end=False), None], "cut", "cut stream: connection closed inside the body"),
    ([stream(": ping\n\n", end=False), None], "cut", "connection closed inside the body"),
    ([stream(token("a"))], "cut", "cut stream: ended without [DONE]"),
    ([stream("data: [DONE]\n\n")], "empty", "empty stream: no token in it"),
    (
        [stream(token("a"), {"error": {"message": "died"}}, end=False)],
        "error",
        "error event in the stream: error: died",
    ),
    ([b"SSH-2.0-x\r\n"], "other", "no HTTP/1.1: Expected HTTP/"),
]


@pytest.mark.parametrize(
    ("script", "reason", "detail"), FAILURES, ids=[f"{f[1]}-{f[2][:28]}" for f in FAILURES]
)
def test_each_failure_has_its_reason(script: Script, reason: str, detail: str) -> None:
    record = one(script)
    assert (record.outcome, record.reason) == ("failed", reason)
    assert record.detail is not None
    assert record.detail.startswith(detail)


def test_times_of_what_failed_are_kept_all_the_same() -> None:
    record = one([stream(token("a"), end=False), None])
    assert (record.outcome, record.chunks) == ("failed", 1)
    assert record.ttft is not None


@pytest.mark.parametrize(
    ("script", "limit", "detail"),
    [
        ([60.0, GOOD], 0.3, "no token for 0.3 s"),
        ([stream(token("a"), end=False), 60.0], 4.0, "no end after 4 s"),  # the token has to come before
        ([stream(": ping\n\n", end=False), 60.0], 0.3, "no token for 0.3 s"),
    ],
)
def test_a_request_that_takes_too_long_has_failed(script: Script, limit: float, detail: str) -> None:
    record = one(script, limit=limit)
    assert (record.outcome, record.reason, record.detail) == ("failed", "timeout", detail)


def test_nobody_listens() -> None:
    with closed_port() as port:
        host = f"http://127.0.0.1:{port}"
        record = Sender(Settings(host=host, model="m", limit=20.0)).send(ASK).record
    assert record is not None
    assert (record.outcome, record.reason, record.detail) == ("failed", "connect", "connection refused")
    assert record.status is None


def test_retry_after_is_kept_as_seconds() -> None:
    assert one([plain("503 X", {}, "Retry-After: 7")]).retry_after == 7.0
    later = email.utils.formatdate(time.time() + 60, usegmt=True)
    value = one([plain("429 X", {}, f"Retry-After: {later}")]).retry_after
    assert value is not None
    assert 50 < value <= 60
    assert one([plain("503 X", {}, "Retry-After: soon")]).retry_after is None
    assert one([plain("503 X", {})]).retry_after is None


def test_a_redirect_is_not_followed_and_a_proxy_of_the_environment_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Scripted([plain("307 X", {}, "Location: http://127.0.0.1:9/")], [GOOD]) as server:
        ours = sender(server)
        assert [ours.send(ASK).good, ours.send(ASK).good] == [False, True]
    assert len(server.requests) == 2


def test_connections_are_used_again_and_dead_ones_are_not() -> None:
    with Scripted([GOOD], [GOOD, 0.05, None], [GOOD]) as server:
        ours = sender(server)
        assert ours.send(ASK).good
        assert ours.send(ASK).good
        with gevent.Timeout(60):
            while server.played < 2:  # it has closed the connection then
                gevent.sleep(0.01)
        for _ in range(2):  # where a timer is over together with what can be read, it comes first
            gevent.sleep(0.05)
        assert ours.send(ASK).good
    assert server.ports[0] == server.ports[1] != server.ports[2]


def test_an_answer_that_ends_late_does_not_carry_the_next_request() -> None:
    late = GOOD.removesuffix(b"0\r\n\r\n")
    with Scripted([late, 60.0], [GOOD]) as server:
        ours = sender(server)
        record = ours.send(ASK).record
        assert record is not None
        assert record.outcome == "ok"
        assert record.ended is not None
        assert record.sent is not None
        assert record.ended - record.sent < 15
        assert ours.send(ASK).good
    assert server.ports[0] != server.ports[1]


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    body = b'{"choices": [{"message": {"content": "a"}}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    assert one([head + body, None], ask=Ask("batch", {}, stream=False)).outcome == "ok"


def test_early_hints_are_not_the_answer() -> None:
    assert one([b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + GOOD]).outcome == "ok"


def test_a_killed_request_is_kept_as_open() -> None:
    kept: list[Record] = []
    # After its script the server waits for another request.
    with Scripted([stream(token("a"), end=False)]) as server:
        ours = sender(server, limit=120.0)
        ours.listeners.append(kept.append)
        greenlet = gevent.spawn(ours.send, ASK)
        with gevent.Timeout(60):
            while server.played < 1:
                gevent.sleep(0.01)
        for _ in range(2):  # where a timer is over together with what can be read, it comes first
            gevent.sleep(0.05)
        assert ours.profiles_in_flight() == {"chat": 1}
        greenlet.kill()
    assert [(r.outcome, r.chunks, r.reason, r.detail) for r in kept] == [
        ("open", 1, None, "not ended when the run did")
    ]
    assert ours.in_flight == {}
    assert dict(ours.offered) == dict(ours.started) == {"chat/measured": 1}


def test_what_was_never_sent_is_offered_but_not_started() -> None:
    kept: list[Record] = []
    with Scripted([GOOD]) as server:
        ours = sender(server)
        ours.listeners.append(kept.append)
        ours.unsent(ASK, 1000.0, "over --max-open")
    assert [(r.outcome, r.due, r.sent, r.detail) for r in kept] == [
        ("unsent", 1000.0, None, "over --max-open")
    ]
    assert dict(ours.offered) == {"chat/measured": 1}
    assert dict(ours.started) == {}


def test_an_error_that_was_asked_for_is_right() -> None:
    ask = Ask("overlong", {}, stream=False, expect=400)
    message = "This model's maximum context length is 1024 tokens, you asked for 2000"
    good = one([plain("400 X", {"error": {"message": message}})], ask=ask)
    assert (good.outcome, good.status, good.reason) == ("ok", 400, None)
    bad = one([plain("500 X", {"error": {"message": message}})], ask=ask)
    assert (bad.outcome, bad.reason) == ("failed", "status_5xx")


def test_tls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    long = "x" * 300_000
    answer = stream(token(long), token("b", "stop"), "data: [DONE]\n\n")
    with Scripted([answer], tls=context) as server:
        refused = sender(server).send(ASK).record
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        ours = sender(server)
        answers = [ours.send(Ask("chat", ASK.body, session="s")) for _ in range(2)]
    assert refused is not None
    assert (refused.reason, refused.detail) == (
        "connect",
        "TLS: unable to get local issuer certificate; SSL_CERT_FILE=… names the certificate to trust",
    )
    assert [a.text for a in answers] == [long + "b"] * 2
    assert server.ports[-1] == server.ports[-2], "kept alive"


def test_a_long_prompt_goes_out_whole() -> None:
    ask = Ask("chat", {"messages": [{"role": "user", "content": "word " * 1_000_000}]})
    with Scripted([0.2, GOOD]) as server:
        assert sender(server).send(ask).good
    assert len(server.requests[0]) > 5_000_000


@pytest.mark.parametrize("text", ["foo", "http://", "ftp://x", "http://x:99999", "http://[::1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address like http"):
        Sender(Settings(host=text, model="m"))
