"""Bad input: each a clear 4xx that names the field or the limit, nothing reaches a replica, the router lives."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import uvloop

from tests.fakes import FakeEngine
from tests.serving.routing import read_answer, request, router, run, until

OK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
P = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"

#: (what, bytes, status, code, param, words that the message must have)
CASES: list[tuple[str, bytes, int, str, str | None, str]] = [
    ("broken JSON", request(b'{"messages": [\n {"role" "user"}]}'), 400, "invalid_json", None, "line 2"),
    ("empty body", request(b""), 400, "invalid_json", None, "empty"),
    ("not an object", request([1]), 400, "invalid_type", None, "object"),
    ("messages missing", request({"model": "m"}), 400, "missing_field", "messages", "messages is missing"),
    ("messages null", request({"messages": None}), 400, "invalid_type", "messages", "array"),
    ("messages not a list", request({"messages": "hi"}), 400, "invalid_type", "messages", "array"),
    ("messages empty", request({"messages": []}), 400, "empty_messages", "messages", "at least one"),
    ("message not an object", request({"messages": [1]}), 400, "invalid_type", "messages[0]", "object"),
    (
        "content missing",
        request({"messages": [OK["messages"][0], {"role": "user"}]}),  # type: ignore[index]
        400,
        "missing_field",
        "messages[1].content",
        "messages[1].content is missing",
    ),
    ("content null", request({"messages": [{"role": "user", "content": None}]}), 400, "missing_field",
     "messages[0].content", "missing"),
    ("content a number", request({"messages": [{"role": "user", "content": 1}]}), 400, "invalid_type",
     "messages[0].content", "str"),
    ("role missing", request({"messages": [{"content": "x"}]}), 400, "missing_field", "messages[0].role", "role"),
    ("stream a string", request({**OK, "stream": "yes"}), 400, "invalid_type", "stream", "bool"),
    ("max_tokens negative", request({**OK, "max_tokens": -1}), 400, "invalid_value", "max_tokens", "-1"),
    ("temperature a string", request({**OK, "temperature": "hot"}), 400, "invalid_type", "temperature", "float"),
    ("unknown model", request({**OK, "model": "gpt-9"}), 404, "model_not_found", "model", "known: m"),
    ("invalid UTF-8", request(b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}'), 400, "invalid_json", None, "JSON"),
    ("deep nesting", request(b"[" * 100_000), 400, "invalid_type", None, "object"),
    ("20 MiB body", request(b"x" * 20 * 2**20), 413, "body_too_large", None, "router.max_body_bytes"),
    (
        "20 MiB in chunks",
        P + b"transfer-encoding: chunked\r\n\r\n" + b"100000\r\n%s\r\n" % (b"x" * 2**20) * 20 + b"0\r\n\r\n",
        413, "body_too_large", None, "router.max_body_bytes",
    ),
    ("100 KiB header", P + b"x-long: " + b"a" * 100 * 1024 + b"\r\n\r\n", 431, "headers_too_large", None, "32768"),
    ("100 KiB of headers", P + b"x-a: 1\r\n" * 12_800 + b"\r\n", 431, "headers_too_large", None, "32768"),
    ("100 KiB URL", b"GET /" + b"a" * 100 * 1024 + b" HTTP/1.1\r\n\r\n", 431, "headers_too_large", None, "32768"),
    ("half a head, then silence", P + b"content-le", 408, "request_timeout", None, "0.5 s"),
    ("half a body, then silence", P + b"content-length: 50\r\n\r\n{", 408, "request_timeout", None, "0.5 s"),
    ("pipelining", request(OK) + request(OK), 400, "pipelining", None, "pipelining"),
    ("pipelining with a GET", request(OK) + b"GET / HTTP/1.1\r\n\r\n", 400, "pipelining", None, "pipelining"),
    (
        "Content-Length beside Transfer-Encoding",
        P + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        400, "bad_http", None, "Content-Length",
    ),
    (
        "Transfer-Encoding beside Content-Length",
        P + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        400, "bad_http", None, "Content-Length",
    ),
    ("two Content-Lengths", P + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcde", 400, "bad_http", None, "HTTP"),
    ("Content-Length not a number", P + b"content-length: 5x\r\n\r\nabcde", 400, "bad_http", None, "HTTP"),
    ("Content-Length beyond 64 bits", P + b"content-length: 99999999999999999999\r\n\r\n", 400, "bad_http", None, "HTTP"),
    ("chunk size not hex", P + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400, "bad_http", None, "HTTP"),
    ("gzip transfer encoding", P + b"transfer-encoding: gzip\r\n\r\nzz\r\n", 400, "bad_http", None, "HTTP"),
    ("TLS on the plain port", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_http", None, "HTTP"),
    ("garbage", b"hello there\r\n\r\n", 400, "bad_http", None, "HTTP"),
    ("space in a header name", P + b"a b: 1\r\n\r\n", 400, "bad_http", None, "HTTP"),
    ("bare LF smuggling", P + b"x: 1\ntransfer-encoding: chunked\r\n\r\n", 400, "bad_http", None, "HTTP"),
    ("CONNECT", b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n", 400, "upgrade_refused", None, "CONNECT"),
    ("upgrade", b"GET /x HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n", 400,
     "upgrade_refused", None, "Upgrade"),
    ("engine's metrics", request(b"", "/metrics", method="GET"), 403, "control_endpoint", None, "replica"),
    ("engine's sleep", request(b"", "/sleep?level=2"), 403, "control_endpoint", None, "replica"),
    ("engine's LoRA loading", request(OK, "/v1/load_lora_adapter"), 403, "control_endpoint", None, "replica"),
    ("encoded control path", request(b"", "/v1/../%6detrics", method="GET"), 403, "control_endpoint", None, ""),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[c[0] for c in CASES])
def test_it_is_refused_with_the_field_or_limit_and_reaches_no_replica(case: Any) -> None:
    _, data, status, code, param, words = case
    settings = {"request_timeout": 0.5} if code == "request_timeout" else {}

    async def go() -> None:
        e = FakeEngine()
        async with router(e, **settings) as r:
            answer = await r.raw(data)
            head, _, body = answer.partition(b"\r\n\r\n")
            error = json.loads(body)["error"]
            assert (int(head.split()[1]), error["code"], error["param"]) == (status, code, param), error
            assert error["type"] == "invalid_request_error"
            assert words in error["message"]
            assert b"x-request-id: " in head
            assert e.requests == []
            assert r.counted("exaserve_router_rejected_requests_total") == 1
            assert (await r.post(OK))[0] == 200  # it lives

    uvloop.run(asyncio.wait_for(go(), 60))


@run
async def test_what_engines_accept_passes() -> None:
    passes: list[dict[str, Any]] = [
        {"messages": OK["messages"]},
        {**OK, "model": None},
        {**OK, "unknown": {"x": [1, 2**70]}},
        {
            **OK,
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "1"}]},
                {"role": "user", "content": "x"},
            ],
        },
        {**OK, "messages": [{"role": "assistant", "content": None, "tool_calls": []}]},
        {**OK, "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        {**OK, "messages": [{"role": "narrator", "content": ""}]},
        {**OK, "temperature": 1, "max_tokens": None, "stream": None, "n": 2, "stop": ["a"]},
    ]
    e = FakeEngine("answer")
    async with router(e) as r:
        for body in passes:
            assert (await r.post(body))[0] == 200, body
        assert len(e.requests) == len(passes)


@run
async def test_a_second_request_while_the_first_is_answered_is_refused_after_it() -> None:
    e = FakeEngine("stream")
    async with router(e) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(request(OK))
        await until(lambda: e.requests)
        e.frozen.clear()  # so that the first is answered until the second has come
        writer.write(request(OK))
        await until(lambda: any(c.pipelined for c in r.server.clients))
        e.frozen.set()
        assert (await read_answer(reader)).startswith(b"HTTP/1.1 200")
        assert (await read_answer(reader)).startswith(b"HTTP/1.1 400")
        assert await reader.read() == b""
        assert len(e.requests) == 1


@run
async def test_a_head_that_drips_in_is_cut_in_bounded_time() -> None:
    async with router(FakeEngine(), request_timeout=0.5) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        answer = asyncio.create_task(read_answer(reader))
        started = asyncio.get_running_loop().time()
        writer.write(P)
        while not answer.done():
            writer.write(b"x: y\r\n")
            await asyncio.sleep(0.1)
        assert answer.result().startswith(b"HTTP/1.1 408")
        assert asyncio.get_running_loop().time() - started < 30  # it would drip for ever
        writer.close()


@run
async def test_connections_beyond_the_limit_get_503() -> None:
    async with router(FakeEngine(), max_connections=2) as r:
        held = [await asyncio.open_connection("127.0.0.1", r.port) for _ in range(2)]
        await until(lambda: len(r.server.clients) == 2)
        assert (await r.raw(request(OK))).startswith(b"HTTP/1.1 503")
        for _, w in held:
            w.close()
        await until(lambda: len(r.server.clients) == 0)
        assert (await r.post(OK))[0] == 200
