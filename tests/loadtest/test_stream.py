"""An answer's bytes: what counts as a token, when it came, how it ended, however the bytes are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadtest._lib._stream import MAX_LINE, Reading

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return event({"object": "chat.completion.chunk", "choices": [choice]} | more)


def event(content: Any) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk({}, "stop")
DONE = b"data: [DONE]\n\n"


def read(*pieces: bytes, keep_text: bool = False) -> Reading:
    """The first piece arrives at 1 s, the next at 2 s, …"""
    reading = Reading(keep_text)
    for second, piece in enumerate(pieces, 1):
        reading.feed(piece, float(second))
    reading.end(float(len(pieces)))
    return reading


def test_the_role_only_chunk_is_no_token() -> None:
    reading = read(ROLE, chunk({"content": "a"}), chunk({"content": "b"}), STOP + DONE)
    assert (reading.first, reading.last, reading.gaps, reading.chunks) == (2.0, 3.0, [1.0], 2)
    assert reading.failure is None
    assert reading.finish_reason == "stop"


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "a"},
        {"reasoning_content": "a"},
        {"reasoning": "a"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"function_call": {"arguments": "{"}},
        {"refusal": "no"},
    ],
)
def test_content_reasoning_tool_calls_and_refusals_are_tokens(delta: dict[str, Any]) -> None:
    reading = read(ROLE, chunk(delta), STOP + DONE)
    assert (reading.first, reading.chunks, reading.failure) == (2.0, 1, None)


@pytest.mark.parametrize(
    "delta", [{"content": ""}, {"content": None}, {"tool_calls": []}, {"reasoning_content": ""}]
)
def test_what_is_empty_is_no_token(delta: dict[str, Any]) -> None:
    assert read(ROLE, chunk(delta), STOP + DONE).failure == ("empty", "empty stream: no token in it")


def test_text_of_a_completion_is_a_token() -> None:
    piece = event({"choices": [{"index": 0, "text": " a", "finish_reason": "length"}]})
    reading = read(piece, DONE, keep_text=True)
    assert (reading.first, reading.chunks, reading.finish_reason) == (1.0, 1, "length")
    assert reading.text == " a"


def test_two_choices_in_one_event_are_one_chunk() -> None:
    choices = [
        {"index": i, "delta": {"content": "a"}, "finish_reason": "stop" if i else None} for i in range(2)
    ]
    assert read(event({"choices": choices}), DONE).chunks == 1


def test_comments_and_other_fields_are_no_tokens() -> None:
    noise = b": ping\n\nid: 7\nretry: 100\n\nevent: message\n"
    reading = read(noise, chunk({"content": "a"}), b": ping\n\n", STOP + DONE)
    assert (reading.first, reading.chunks, reading.gaps, reading.failure) == (2.0, 1, [], None)


STREAM = (
    ROLE
    + chunk({"content": "é"})
    + b": ping\n\n"
    + chunk({"content": "水🚀"})
    + chunk({"content": "!"}, "stop")
    + event({"choices": [], "usage": USAGE})
    + DONE
)
CRLF = STREAM.replace(b"\n", b"\r\n")
LINES = STREAM.replace(b', "choices"', b',\ndata: "choices"')


@pytest.mark.parametrize("stream", [STREAM, CRLF, LINES], ids=["lf", "crlf", "several data lines"])
def test_a_cut_anywhere_changes_nothing_but_the_times(stream: bytes) -> None:
    for cut in range(1, len(stream)):
        reading = read(stream[:cut], stream[cut:], keep_text=True)
        assert (reading.text, reading.chunks, reading.failure) == ("é水🚀!", 3, None), cut
        assert (reading.input_tokens, reading.output_tokens, reading.cached_tokens) == (9, 3, 4)
        assert reading.size == len(stream)
        assert reading.first in (1.0, 2.0)


def test_an_event_came_when_its_last_byte_did() -> None:
    one = chunk({"content": "水"})
    reading = read(ROLE, one[:40], one[40:-1], one[-1:], STOP + DONE)
    assert reading.first == 4.0


def test_a_line_of_700_kib_in_small_reads_is_one_token() -> None:
    long = chunk({"content": "x" * (700 << 10)})
    pieces = [long[i : i + 16384] for i in range(0, len(long), 16384)]
    reading = read(*pieces, STOP + DONE, keep_text=True)
    assert (reading.first, reading.chunks, len(reading.text)) == (float(len(pieces)), 1, 700 << 10)


def test_a_line_without_end_is_refused() -> None:
    reading = read(*[b"x" * (1 << 20)] * (MAX_LINE // (1 << 20) + 1))
    assert reading.failure == ("other", "a line of over 4 MiB in the stream")


def test_the_last_event_may_lack_its_empty_line() -> None:
    assert read(chunk({"content": "a"}, "stop"), b"data: [DONE]").failure is None


@pytest.mark.parametrize(
    ("pieces", "failure"),
    [
        ((ROLE, STOP, DONE), ("empty", "empty stream: no token in it")),
        ((), ("empty", "empty stream: no token in it")),
        ((chunk({"content": "a"}, "stop"),), ("cut", "cut stream: ended without [DONE]")),
        ((chunk({"content": "a"}), DONE), ("cut", "no finish_reason in the stream")),
        (
            (chunk({"content": "a"}), event({"error": {"message": "request 4711 died", "code": "lost"}})),
            ("error", "error event in the stream: lost: request # died"),
        ),
        (
            (b'event: error\ndata: {"message": "x"}\n\n',),
            ("error", "error event in the stream: no words"),
        ),
        (
            (chunk({"content": "a"}), b"data: {oops\n\n", DONE),
            ("other", "an event that is no chat chunk in the stream"),
        ),
        ((b"data: [1]\n\n",), ("other", "an event that is no chat chunk in the stream")),
        ((b'data: {"choices": 7}\n\n',), ("other", "an event that is no chat chunk in the stream")),
        ((b'data: {"choices": [], "x": "\xff"}\n\n',), None),
    ],
)
def test_how_a_stream_fails(pieces: tuple[bytes, ...], failure: tuple[str, str] | None) -> None:
    reading = read(*pieces)
    if failure is None:  # bytes that are no UTF-8
        assert reading.failure is not None
        assert reading.failure[0] in ("other", "empty")
    else:
        assert reading.failure == failure


def test_nothing_after_a_failure_or_the_end_counts() -> None:
    reading = read(
        chunk({"content": "a"}), event({"error": "x"}) + chunk({"content": "b"}), chunk({"content": "c"})
    )
    assert (reading.chunks, reading.last) == (1, 1.0)
    assert read(chunk({"content": "a"}, "stop") + DONE, chunk({"content": "b"})).chunks == 1


def test_without_usage_there_are_no_token_numbers() -> None:
    reading = read(chunk({"content": "a"}, "stop"), DONE)
    assert (reading.input_tokens, reading.output_tokens, reading.cached_tokens) == (None, None, None)


def whole(content: Any, keep_text: bool = False) -> Reading:
    reading = Reading(keep_text)
    reading.whole(content if isinstance(content, bytes) else json.dumps(content).encode(), 5.0)
    return reading


def test_an_answer_that_is_no_stream_has_a_last_byte_and_no_first_token() -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    reading = whole({"choices": [choice], "usage": USAGE}, keep_text=True)
    assert (reading.first, reading.last, reading.chunks, reading.failure) == (None, 5.0, 0, None)
    assert (reading.text, reading.output_tokens, reading.finish_reason) == ("hi", 3, "stop")


def test_embeddings_have_input_tokens_only() -> None:
    reading = whole({"data": [{"embedding": [0.5, 0.25]}], "usage": {"prompt_tokens": 7, "total_tokens": 7}})
    assert (reading.last, reading.failure) == (5.0, None)
    assert (reading.input_tokens, reading.output_tokens) == (7, None)


@pytest.mark.parametrize(
    ("content", "failure"),
    [
        (b"<html>", ("other", "an answer that is no JSON object of this API")),
        ({"choices": []}, ("empty", "empty answer: neither a token nor an embedding in it")),
        ({"data": []}, ("empty", "empty answer: neither a token nor an embedding in it")),
        (
            {"choices": [{"message": {"content": ""}}]},
            ("empty", "empty answer: neither a token nor an embedding in it"),
        ),
        (
            {"error": {"message": "no", "type": "bad"}},
            ("error", "error in an answer with status 200: bad: no"),
        ),
    ],
)
def test_how_an_answer_that_is_no_stream_fails(content: Any, failure: tuple[str, str]) -> None:
    reading = whole(content)
    assert reading.failure == failure
    assert reading.last is None
