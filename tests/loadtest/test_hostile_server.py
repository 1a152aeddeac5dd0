"""What a broken or hostile server sends must cost neither memory nor sense: every request ends with a reason in words."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import gevent
import msgspec
import pytest

from loadtest._lib import _stream
from loadtest._lib._ask import Ask
from loadtest._lib._http import Address
from loadtest._lib._record import Record
from loadtest._lib._sender import Sender, Settings
from tests.loadtest.scripted import Script, Scripted, plain, stream, token

ASK = Ask("chat", {"messages": [], "max_tokens": 2})
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
DONE = "data: [DONE]\n\n"


@pytest.fixture(autouse=True)
def _no_hub_left() -> Iterator[None]:
    yield
    gevent.get_hub().destroy()


def one(*script: bytes | float | None) -> Record:
    steps: Script = list(script)
    with Scripted(steps) as server:
        record = Sender(Settings(host=server.url, model="m", limit=20.0)).send(ASK).record
    assert record is not None
    return record


def usage(given: object, got: object, cached: object = None) -> dict[str, object]:
    details = {"prompt_tokens_details": {"cached_tokens": cached}} if cached is not None else {}
    return {"choices": [], "usage": {"prompt_tokens": given, "completion_tokens": got} | details}


@pytest.mark.parametrize("count", [10**30, 2**63 - 1, -7])
def test_counts_that_cannot_be_are_unknown_and_the_record_can_be_written(count: int) -> None:
    record = one(stream(token("a"), token("b", "stop"), usage(count, count, count), DONE))
    assert (record.outcome, record.input_tokens, record.output_tokens, record.cached_tokens) == (
        "ok",
        None,
        None,
        None,
    )
    assert msgspec.json.decode(msgspec.json.encode(record), type=Record) == record


def test_names_that_a_server_sends_are_kept_short() -> None:
    record = one(
        stream(token("a"), token("b", "x" * 10_000), DONE, headers=f"x-exaserve-replica: {'r' * 20_000}\r\n")
    )
    assert (record.finish_reason, record.replica) == ("x" * 200, "r" * 200)


def test_an_answer_that_was_packed_says_so() -> None:
    body = gzip.compress(b"data: [DONE]\n\n")
    record = one(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    assert record.reason == "other"
    assert record.detail == "an answer with content-encoding gzip, though identity was asked for"


def test_a_redirect_says_where_to_and_what_to_do() -> None:
    record = one(plain("307 Temporary Redirect", {}, "Location: http://other:1/v1"))
    assert record.detail == "HTTP 307 to http://other:1/v1; redirects are not followed: give that address"


def test_json_of_any_depth_is_no_chat_chunk() -> None:
    depth = 100_000
    record = one(stream(f'data: {{"choices":[{{"delta":{{"content":{"[" * depth}{"]" * depth}}}}}]}}\n\n'))
    assert (record.reason, record.detail) == ("other", "an event that is no chat chunk in the stream")


def test_an_event_that_never_ends_is_given_up() -> None:
    reading = _stream.Reading()
    for _ in range(5):
        reading.feed(b"data: xxxxxxxxxx\n" * 65_536, 1.0)
    assert reading.failure == ("other", "an event of over 4 MiB in the stream")


def test_a_long_answer_of_short_events_is_no_long_event() -> None:
    reading = _stream.Reading()
    event = b'data: {"choices":[{"delta":{"content":"' + b"x" * 900_000 + b'"}}]}\n\n'
    for _ in range(8):
        reading.feed(event, 1.0)
    assert (reading.failure, reading.chunks) == (None, 8)


def test_a_stream_of_more_chunks_than_any_answer_has_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stream, "MAX_CHUNKS", 3)
    reading = _stream.Reading()
    reading.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * 4, 1.0)
    assert reading.failure == ("other", "a stream of over 3 chunks")


@pytest.mark.parametrize(
    "base",
    ["http://h:0", "http://h/a b", "http://h/x\r\nA: b", "http://h\n", "http://.", f"http://{'a' * 300}", "http://a..b",
     "http://h/ü", "ftp://h", "h:80", "http://h?x=1", "http://h#f"],
)  # fmt: skip
def test_what_cannot_be_an_address_is_refused_before_anything_is_sent(base: str) -> None:
    with pytest.raises(ValueError, match=r"http|ftp|h:80"):
        Address(base)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="--api-key-file") as refused:
        Address("http://user:hunter2@h:1")
    assert "hunter2" not in str(refused.value)


def test_a_name_in_another_script_is_sent_as_dns_has_it() -> None:
    assert Address("http://münchen.de:80/v1/").authority == "xn--mnchen-3ya.de:80"
