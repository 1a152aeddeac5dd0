"""The simulated replica over HTTP: answers, streams, errors."""

from __future__ import annotations

import base64
import json
import math
import socket
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from .replica_client import chat, events, shape, simulated, stream_shape


@pytest.fixture(scope="module")
def fast() -> Iterator[httpx.Client]:
    """A replica that answers at once."""
    with simulated("--tokens-per-second", "5000", "--prefill-tokens-per-second", "1e6") as (client, _):
        yield client


def test_a_stream_says_what_the_whole_answer_says(fast: httpx.Client) -> None:
    whole = fast.post("/v1/chat/completions", json=chat(max_tokens=20)).json()
    streamed = events(fast.post("/v1/chat/completions", json=chat(max_tokens=20, stream=True)).text)
    assert streamed[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert streamed[-1] == "[DONE]"
    text = "".join(e["choices"][0]["delta"]["content"] for e in streamed[:-1])
    assert text == whole["choices"][0]["message"]["content"]
    assert len(streamed) == 1 + 20 + 1
    assert [e["choices"][0]["finish_reason"] for e in streamed[:-1]] == [None] * 20 + ["length"]
    assert whole["usage"]["completion_tokens"] == 20
    assert whole["usage"]["total_tokens"] == whole["usage"]["prompt_tokens"] + 20


def test_usage_comes_before_done_when_asked_for(fast: httpx.Client) -> None:
    body = chat(max_completion_tokens=3, stream=True, stream_options={"include_usage": True})
    *chunks, usage, done = events(fast.post("/v1/chat/completions", json=body).text)
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 3, "[DONE]")
    assert all("usage" not in chunk for chunk in chunks)


def test_an_answer_ends_by_itself_unless_told_to_go_on(fast: httpx.Client) -> None:
    whole = fast.post("/v1/chat/completions", json=chat()).json()
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert 32 <= whole["usage"]["completion_tokens"] <= 128
    longer = fast.post("/v1/chat/completions", json=chat(max_tokens=300, ignore_eos=True)).json()
    assert (longer["choices"][0]["finish_reason"], longer["usage"]["completion_tokens"]) == ("length", 300)


def test_a_stop_string_ends_the_answer_before_it(fast: httpx.Client) -> None:
    text = fast.post("/v1/chat/completions", json=chat(max_tokens=20)).json()["choices"][0]["message"][
        "content"
    ]
    stop = text.split()[5]
    choice = fast.post("/v1/chat/completions", json=chat(max_tokens=20, stop=[stop])).json()["choices"][0]
    assert choice["message"]["content"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


def test_the_seed_decides_the_answer(fast: httpx.Client) -> None:
    ask = chat(max_tokens=20)
    same = {
        fast.post("/v1/chat/completions", json=ask).json()["choices"][0]["message"]["content"]
        for _ in range(2)
    }
    with simulated("--seed", "1", "--tokens-per-second", "5000") as (other, _):
        same.add(other.post("/v1/chat/completions", json=ask).json()["choices"][0]["message"]["content"])
    assert len(same) == 2


def test_a_list_of_prompts_gives_a_choice_each(fast: httpx.Client) -> None:
    answer = fast.post("/v1/completions", json={"prompt": ["a river", "b"], "max_tokens": 2}).json()
    assert [c["index"] for c in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 4
    ids = fast.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 2}).json()
    assert ids["usage"]["prompt_tokens"] == 3


def test_embeddings_are_unit_vectors_the_same_in_both_formats(fast: httpx.Client) -> None:
    body: dict[str, Any] = {"input": ["hello", "world"]}
    plain = fast.post("/v1/embeddings", json=body).json()
    packed = fast.post("/v1/embeddings", json={**body, "encoding_format": "base64"}).json()
    vector = plain["data"][0]["embedding"]
    assert len(vector) == 384
    assert math.isclose(sum(v * v for v in vector), 1.0, rel_tol=1e-9)
    assert vector != plain["data"][1]["embedding"]
    unpacked = struct.unpack("<384f", base64.b64decode(packed["data"][0]["embedding"]))
    assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(vector, unpacked, strict=True))


def test_the_openai_client_is_content(fast: httpx.Client) -> None:
    client = openai.OpenAI(
        base_url=f"{fast.base_url}/v1",
        api_key="x",
    )
    assert [m.id for m in client.models.list()] == ["smollm2-135m"]
    messages: Any = [{"role": "user", "content": "Hi"}]
    whole = client.chat.completions.create(model="smollm2-135m", messages=messages, max_tokens=5)
    stream = client.chat.completions.create(
        model="smollm2-135m",
        messages=messages,
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert (
        "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        == whole.choices[0].message.content
    )
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert len(client.embeddings.create(model="smollm2-135m", input="x").data[0].embedding) == 384


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "param"),
    [
        ("chat/completions", {"messages": None}, 400, "BadRequestError", None),
        ("chat/completions", {}, 400, "Bad Request", "body.messages"),
        ("chat/completions", {"messages": "x"}, 400, "Bad Request", "body.messages"),
        ("chat/completions", {"messages": []}, 400, "BadRequestError", None),
        ("chat/completions", {"messages": [3]}, 400, "Bad Request", "body.messages.0"),
        ("chat/completions", chat(model="nope"), 404, "NotFoundError", "model"),
        ("chat/completions", chat("word " * 2000), 400, "BadRequestError", "input_tokens"),
        ("chat/completions", chat(max_tokens=5000), 400, "BadRequestError", "max_tokens"),
        ("chat/completions", chat(max_tokens=0), 400, "BadRequestError", "max_tokens"),
        ("chat/completions", chat(max_tokens="x"), 400, "Bad Request", "body.max_tokens"),
        ("chat/completions", chat(temperature=-1), 400, "BadRequestError", "temperature"),
        ("chat/completions", chat(n=2), 400, "BadRequestError", "n"),
        ("chat/completions", chat(stop=[3]), 400, "Bad Request", "body.stop"),
        ("chat/completions", chat(stream_options={}), 400, "BadRequestError", "stream_options"),
        ("chat/completions", [1], 400, "Bad Request", "body"),
        ("completions", {}, 400, "BadRequestError", "prompt"),
        ("completions", {"prompt": 5}, 400, "Bad Request", "body.prompt"),
        ("completions", {"prompt": []}, 400, "BadRequestError", None),
        ("completions", {"prompt": [1] * 1024}, 400, "BadRequestError", "max_tokens"),
        ("completions", {"prompt": [1] * 1025}, 400, "BadRequestError", "input_tokens"),
        ("embeddings", {"input": [1] * 1025}, 400, "BadRequestError", "input_tokens"),
        ("embeddings", {}, 400, "Bad Request", "body.input"),
        ("embeddings", {"input": "x", "encoding_format": 3}, 400, "Bad Request", "body.encoding_format"),
    ],
)
def test_bad_requests_get_vllms_errors(
    fast: httpx.Client, path: str, body: Any, status: int, kind: str, param: str | None
) -> None:
    answer = fast.post(f"/v1/{path}", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"], error["param"]) == (status, status, kind, param)
    if param == "input_tokens":
        assert error["message"].startswith("This model's maximum context length is 1024 tokens.")


def test_broken_json_is_told_where(fast: httpx.Client) -> None:
    answer = fast.post(
        "/v1/chat/completions", content=b'{"model":', headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "body.9"


@pytest.mark.parametrize("raw", [b"\xff\xfe{}", b"[" * 100_000, b'{"messages": [' + b"9" * 5000 + b"]}"])
def test_bytes_that_are_no_request_never_break_it(fast: httpx.Client, raw: bytes) -> None:
    answer = fast.post("/v1/chat/completions", content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert fast.get("/health").status_code == 200


def test_unknown_routes_and_methods(fast: httpx.Client) -> None:
    assert (fast.get("/nope").status_code, fast.get("/nope").json()) == (404, {"detail": "Not Found"})
    answer = fast.get("/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert fast.post("/_sim/fault", json={"kind": "stuck"}).status_code == 404


def raw_exchange(client: httpx.Client, data: bytes, end: bytes) -> bytes:
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=20) as s:
        s.sendall(data)
        got = b""
        while end not in got and (piece := s.recv(65536)):
            got += piece
        return got


def test_pipelined_requests_are_answered_in_order(fast: httpx.Client) -> None:
    body = json.dumps(chat(max_tokens=3)).encode()
    asked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    asked += b"content-length: %d\r\n\r\n" % len(body) + body
    asked += b"GET /load HTTP/1.1\r\nhost: x\r\n\r\n" * 30 + b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
    got = raw_exchange(fast, asked, b'"version"')
    assert got.index(b"chat.completion") < got.index(b"server_load") < got.index(b'"version"')
    assert got.count(b"server_load") == 30


def test_what_is_not_http_is_refused(fast: httpx.Client) -> None:
    assert raw_exchange(fast, b"\x16\x03\x01 hello\r\n\r\n", b"never").startswith(b"HTTP/1.1 400 ")
    huge = b"GET /health HTTP/1.1\r\nx: " + b"a" * 100_000 + b"\r\n\r\n"
    assert raw_exchange(fast, huge, b"never").startswith(b"HTTP/1.1 431 ")


def test_an_old_client_gets_an_unchunked_stream_and_a_closed_connection(fast: httpx.Client) -> None:
    body = json.dumps(chat(max_tokens=2, stream=True)).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    got = raw_exchange(fast, head % len(body) + body, b"never")
    assert b"transfer-encoding" not in got
    assert got.endswith(b"data: [DONE]\n\n")


def test_shapes_keep_the_order_of_keys() -> None:
    assert shape({"a": 1, "b": [{"c": 2}]}) == [("a", None), ("b", [[("c", None)]])]
    assert shape({"a": 1, "b": 2}) != shape({"b": 2, "a": 1})
    assert stream_shape([{"a": 1}, {"a": 2}, "[DONE]"]) == [[("a", None)], "[DONE]"]
