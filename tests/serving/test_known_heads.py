"""Heads that came before are not looked at again, on both sides: that must not change a byte of anything."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.router import heads
from tests.fakes import JSON_ANSWER, FakeEngine
from tests.serving.held_engine import at_rest
from tests.serving.routing import Running, read_answer, request, router, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SETTINGS: dict[str, Any] = {
    "ejection": {"enabled": False}, "health_check_interval": 60, "load_interval": 60, "silence_timeout": 60,
    "request_timeout": 20,
}  # fmt: skip
MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


class RawEngine(FakeEngine):
    """Answers with the bytes that it was given, piece by piece."""

    def __init__(self) -> None:
        super().__init__("raw")
        self.answers: list[tuple[list[bytes], bool]] = []  # pieces, and whether the connection stays

    async def _raw(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        if not self.answers:
            return await self._send(writer, JSON_ANSWER)
        pieces, stays = self.answers.pop(0)
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.001)
        return stays


class Standing:
    """A router and its replica that stay over all examples of a test."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.engine = RawEngine()
        self.context = router(self.engine, **SETTINGS)
        self.r: Running = self.do(self.context.__aenter__())

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def close(self) -> None:
        self.do(self.context.__aexit__(None, None, None))
        self.loop.close()


@pytest.fixture(scope="module")
def standing() -> Iterator[Standing]:
    s = Standing()
    yield s
    s.close()


@asynccontextmanager
async def connection(r: Running) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await until(lambda: not r.server.clients)
        await at_rest(r)


async def write_cut(writer: asyncio.StreamWriter, data: bytes, cuts: list[int]) -> None:
    """In pieces that end at ``cuts`` (of 1,000)."""
    at = 0
    for cut in [*sorted(c * len(data) // 1000 for c in cuts), len(data)]:
        if cut > at:
            writer.write(data[at:cut])
            at = cut
            await asyncio.sleep(0.001)


def lines_of(head: bytes) -> list[tuple[bytes, bytes]]:
    """(name in lower case, value) of each line after the first, sorted."""
    pairs = [line.partition(b":") for line in head.strip().split(b"\r\n")[1:]]
    return sorted((name.lower(), value.strip()) for name, _, value in pairs)


# --- requests ---

NAMES = st.sampled_from(
    ["x-a", "X-A", "Accept", "user-agent", "X-Content-Length", "te-x", "authorization", "X-Session-Id",
     "cookie", "x-request-timeout"]
)  # fmt: skip
VALUES = st.sampled_from(["1", "22", "application/json", "a b", "content-length: 5", "\xe9", "~" * 300])
HEADS = st.fixed_dictionaries(
    {
        "lines": st.lists(st.tuples(NAMES, VALUES), max_size=5, unique_by=lambda x: x[0].lower())
        | st.lists(st.tuples(NAMES, VALUES), max_size=5),
        "length": st.sampled_from(["content-length", "Content-Length", "CONTENT-LENGTH"]),
        "place": st.integers(0, 5),
        "hop": st.sampled_from([[], [], [], [("Connection", "keep-alive")], [("connection", "Keep-Alive"), ("TE", "trailers")],
                                [("Connection", "x-a"), ("Keep-Alive", "timeout=5")]]),
    }
)  # fmt: skip
REQUESTS = st.tuples(
    st.sampled_from([0, 0, 0, 1]),  # which of the heads
    st.sampled_from([0, 1, 9, 90, 400, 900, 9000, 90_000]),  # bytes more
    st.just([]) | st.lists(st.integers(0, 1000), max_size=3),  # where it is cut
    st.sampled_from([False] * 5 + [True]),  # in chunks
)


def as_bytes(head: dict[str, Any], body: bytes, chunked: bool) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The request, and the header lines that a replica has to see but for x-request-id."""
    lines = [(n, "30" if n == "x-request-timeout" else v) for n, v in head["lines"]]
    own = [("host", "x"), *lines, *head["hop"]]
    framing = ("transfer-encoding", "chunked") if chunked else (head["length"], str(len(body)))
    own.insert(min(head["place"], len(own)), framing)
    text = "POST /v1/chat/completions HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in own) + "\r\n"
    if chunked:
        third = max(len(body) // 3, 1)
        pieces = [body[i : i + third] for i in range(0, len(body), third)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"
    gone = {"connection", "te", "keep-alive"} | ({"x-a"} if ("Connection", "x-a") in head["hop"] else set())
    seen = [
        (n.lower().encode(), v.encode("latin-1"))
        for n, v in own
        if n.lower() not in gone and (n, v) != framing
    ]
    return text.encode("latin-1") + body, sorted(seen)


@MANY
@given(variants=st.tuples(HEADS, HEADS), sequence=st.lists(REQUESTS, min_size=2, max_size=10))
def test_the_replica_receives_what_was_sent_whatever_came_before(
    standing: Standing, variants: Any, sequence: Any
) -> None:
    async def go() -> None:
        e = standing.engine
        e.requests.clear()
        e.heads.clear()
        async with connection(standing.r) as (reader, writer):
            for i, (which, more, cuts, chunked) in enumerate(sequence):
                body = json.dumps({**CHAT, "pad": "é" * more}, ensure_ascii=False).encode()
                data, seen = as_bytes(variants[which], body, chunked)
                await write_cut(writer, data, cuts)
                answer = await read_answer(reader)
                assert answer.startswith(b"HTTP/1.1 200"), answer
                assert answer.endswith(JSON_ANSWER)
                assert len(e.requests) == i + 1
                assert e.requests[i][2] == body
                lines = [x for x in lines_of(e.heads[i]) if x[0] != b"x-request-id"]
                assert lines == sorted([*seen, (b"content-length", b"%d" % len(body))])
                assert e.heads[i].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")

    standing.do(go())


def test_a_head_that_came_before_is_not_parsed_again(standing: Standing) -> None:
    async def go() -> None:
        async with connection(standing.r) as (reader, writer):
            for n in range(4):
                writer.write(request({**CHAT, "pad": "x" * n * 30}))
                assert (await read_answer(reader)).endswith(JSON_ANSWER)
                (client,) = standing.r.server.clients
                client._parse = None  # type: ignore[method-assign,assignment]

    standing.do(go())


INNER = b"GET /v1/smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
FRAMINGS = [
    b"content-length: +%d", b"content-length: %d, %d", b"content-length: 0%d", b"content-length: 0x%d",
    b"content-length: -%d", b"content-length: %d000000000000000000000", b"content-length: %d %d", b"content-length:",
    b"content-length: 0\r\ncontent-length: %d", b"content-length: %d\r\nContent-Length: 0", b"content-length: %d\r\ncontent-length: %d",
    b"content-length: %d\r\ntransfer-encoding: chunked", b"transfer-encoding: chunked\r\ncontent-length: %d",
    b"content_length: %d", b"content-length : %d", b"content-length\t: %d", b" content-length: %d", b"x: 1\r\n content-length: %d",
    b"transfer-encoding: xchunked", b"transfer-encoding: identity", b"transfer-encoding: chunked, identity",
    b"transfer-encoding: chunked\r\ntransfer-encoding: identity", b"transfer-encoding:\x0bchunked", b"x: 1\rcontent-length: %d",
    b"x: 1\ncontent-length: %d", b"x: \x00\r\ncontent-length: %d", b"content-length: %d\r\nconnection: content-length",
    b"connection: content-length, host\r\ncontent-length: %d", b"upgrade: h2c\r\nconnection: upgrade\r\ncontent-length: %d",
]  # fmt: skip


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("framing", FRAMINGS)
def test_one_request_never_becomes_two(standing: Standing, framing: bytes, known: bool) -> None:
    body = json.dumps({**CHAT, "pad": "\r\n"}).encode()

    async def go() -> None:
        e = standing.engine
        e.requests.clear()
        async with connection(standing.r) as (reader, writer):
            if known:
                writer.write(request(CHAT))
                await read_answer(reader)
            e.requests.clear()
            sizes = (len(body),) * framing.count(b"%d")
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n%s\r\n\r\n" % (framing % sizes)
            writer.write(head + body + INNER)
            first = await read_answer(reader)
            if first.startswith(b"HTTP/1.1 200"):
                await read_answer(reader)
        assert len(e.requests) <= 1
        for line, _, arrived in e.requests:
            assert line == "POST /v1/chat/completions"
            assert arrived in (body, b"")
        assert (await standing.r.post(CHAT))[0] == 200

    standing.do(go())


def test_a_token_that_changes_is_used_on_connections_that_are_open(tmp_path: Path) -> None:
    async def go() -> None:
        token = tmp_path / "token"
        token.write_text("one\n")
        e = FakeEngine("answer")
        async with router(e, replica_token_file=str(token)) as r, connection(r) as (reader, writer):
            for text in ("one", "one", "second", "second"):
                token.write_text(text + "\n")
                r.server.reload_access()
                writer.write(request(CHAT, extra="authorization: Bearer mine\r\n"))
                await read_answer(reader)
            seen = [headers["authorization"] for _, headers, _ in e.requests]
            assert seen == ["Bearer one", "Bearer one", "Bearer second", "Bearer second"]

    uvloop.run(asyncio.wait_for(go(), 60))


# --- answers ---

#: What answers of one example have in common: with these, only digits differ.
SHAPES = st.tuples(
    st.sampled_from(["OK", "X", ""]),
    st.sampled_from(["length", "length", "length", "chunked", "until close"]),
    st.integers(0, 3),  # place of the framing among the headers
    st.sampled_from(["", "", "connection: close", "Connection: keep-alive", "x-request-id: 7"]),
)
ANSWERS = st.tuples(
    st.sampled_from([200, 200, 200, 201, 204, 206, 304, 400, 404, 429, 500, 502, 503]),
    st.sampled_from(["1.1", "1.1", "1.1", "1.0"]),
    st.sampled_from([0, 2, 9, 10, 11, 99, 100, 70_000]),
    st.just([]) | st.lists(st.integers(0, 1000), max_size=2),
)


def answer_bytes(shape: Any, answer: Any) -> tuple[bytes, list[tuple[bytes, bytes]], bytes, bool]:
    """As it is sent; the lines and the body for the client; whether the connection stays."""
    reason, framing, place, extra = shape
    status, version, size, _ = answer
    if version == "1.0" and framing == "chunked":
        framing = "length"
    body = b"" if status in (204, 304) else (b"0123456789" * (size // 10 + 1))[:size]
    kept = ["Content-Type: application/json", f"date: {status:05d}", f"x-n: {size}"]
    if status not in (204, 304) or framing == "length":
        line = {
            "length": f"content-length: {len(body)}",
            "chunked": "transfer-encoding: chunked",
            "until close": "",
        }[framing]
        if line:
            kept.insert(place, line)
    lines = [*kept, extra] if extra else kept
    head = f"HTTP/{version} {status} {reason}\r\n" + "".join(f"{x}\r\n" for x in lines) + "\r\n"
    if framing == "chunked" and status not in (204, 304):
        body = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
    stays = "close" not in extra and (version == "1.1" or "keep-alive" in extra)
    if framing == "until close" and status not in (204, 304):
        stays = False
    return head.encode() + body, lines_of(("x\r\n" + "\r\n".join(kept)).encode()), body, stays


async def read_whole(reader: asyncio.StreamReader, status: int) -> tuple[bytes, bytes]:
    if status not in (204, 304):
        data = await read_answer(reader)
        head, _, body = data.partition(b"\r\n\r\n")
        return head, body
    return (await reader.readuntil(b"\r\n\r\n"))[:-4], b""


@MANY
@given(shape=SHAPES, sequence=st.lists(ANSWERS, min_size=2, max_size=8))
def test_answers_come_back_as_they_are_whatever_came_before(
    standing: Standing, shape: Any, sequence: Any
) -> None:
    async def go() -> None:
        heads.KNOWN_RESPONSES.clear()
        for answer in sequence:
            status = answer[0]
            data, lines, body, stays = answer_bytes(shape, answer)
            async with connection(standing.r) as (reader, writer):
                standing.engine.answers = [([x for x in cut_up(data, answer[3]) if x], stays)]
                writer.write(request(CHAT))
                head, got = await read_whole(reader, status)
                assert head.startswith(b"HTTP/1.1 %d %s\r\n" % (status, shape[0].encode())), (
                    head,
                    data[:200],
                )
                assert got == body
                found = lines_of(head)
                ours = (b"x-request-id", b"x-exaserve-replica", b"connection")
                assert [x for x in found if x[0] not in ours] == lines
                assert len({n for n, _ in found}) == len(found)

    standing.do(go())


def cut_up(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(c * len(data) // 1000 for c in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(at)]


def test_an_http_1_0_client_gets_the_body_of_an_answer_whose_head_is_known(standing: Standing) -> None:
    async def go() -> None:
        for _ in range(2):
            assert (await standing.r.post(CHAT))[2] == JSON_ANSWER
        body = json.dumps(CHAT).encode()
        head = b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body)
        answer = await standing.r.raw(head + body)
        assert answer.partition(b"\r\n\r\n")[2] == JSON_ANSWER

    standing.do(go())


def test_what_is_kept_of_replicas_heads_is_bounded(standing: Standing) -> None:
    async def go() -> None:
        heads.KNOWN_RESPONSES.clear()
        async with connection(standing.r) as (reader, writer):
            for i in range(heads.MAX_KNOWN + 40):
                name = "".join(chr(97 + (i >> s & 15)) for s in (0, 4, 8))
                data = f"HTTP/1.1 200 OK\r\nx-{name}: 1\r\ncontent-length: 2\r\n\r\nok".encode()
                standing.engine.answers = [([data], True)]
                writer.write(request(CHAT))
                assert (await read_answer(reader)).endswith(b"\r\n\r\nok")
        assert len(heads.KNOWN_RESPONSES) == heads.MAX_KNOWN
        heads.KNOWN_RESPONSES.clear()

    standing.do(go())
