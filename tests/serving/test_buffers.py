"""Large bodies and slow clients: what is held is counted, given back in every ending, and bounded."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import uvloop

from tests.fakes import FakeEngine
from tests.serving.held_engine import CHAT, STREAM, Asked, HeldEngine, at_rest, code_of
from tests.serving.routing import read_answer, request, router, run, until

BIG = {**CHAT, "pad": "x" * 500_000}
REJECTED = "exaserve_router_rejected_requests_total"


def chunked(body: bytes) -> bytes:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


@pytest.mark.parametrize("kind", ["length", "chunked"])
@pytest.mark.parametrize(
    "how", ["answer", "status_500", "reset", "bad json", "unknown model", "full", "deadline"]
)
def test_a_large_body_is_given_back_in_every_ending_and_on_the_same_connection(how: str, kind: str) -> None:
    async def go() -> None:
        e = HeldEngine(how if how in ("answer", "status_500", "reset") else "held")
        settings: dict[str, Any] = {
            "max_buffered_bytes": "2M",
            "ejection": {"enabled": False},
            "load_interval": 60,
        }
        if how == "deadline":
            settings["max_request_time"] = 0.05
        async with router(e, admission={"max_waiting": 0}, **settings) as r:
            if how == "full":
                await until(lambda: r.replica().kv_usage is not None)  # the only report that comes
                r.replica().kv_usage = 1.0
                r.server.apply_load(r.replica())
            body = json.dumps(BIG if how != "unknown model" else {**BIG, "model": "?"}).encode()
            body = body[:-1] if how == "bad json" else body
            reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
            for _ in range(6):  # more than would fit if each left its bytes behind
                writer.write(request(body) if kind == "length" else chunked(body))
                answer = await read_answer(reader)
                assert b"too_many_bytes" not in answer
                await at_rest(r)
                assert r.server.buffered_bytes == 0
            writer.close()

    uvloop.run(asyncio.wait_for(go(), 60))


@pytest.mark.parametrize("kind", ["length", "chunked"])
def test_a_client_that_leaves_in_the_middle_of_its_body_is_counted_out(kind: str) -> None:
    async def go() -> None:
        async with router(HeldEngine("answer"), request_timeout=5) as r:
            body = json.dumps(BIG).encode()
            data = request(body) if kind == "length" else chunked(body)
            _, writer = await asyncio.open_connection("127.0.0.1", r.port)
            writer.write(data[:-100_000])
            await until(lambda: r.server.buffered_bytes > 0)
            writer.transport.abort()
            await until(lambda: not r.server.clients)
            assert r.server.buffered_bytes == 0

    uvloop.run(asyncio.wait_for(go(), 60))


@pytest.mark.parametrize("kind", ["length", "chunked"])
def test_more_bytes_than_may_be_held_are_refused_and_counted_out(kind: str) -> None:
    async def go() -> None:
        e = HeldEngine("held")
        async with router(e, max_buffered_bytes="800K", request_timeout=5) as r:
            first = await Asked.ask(r, BIG)
            await until(lambda: e.open == 1)
            held = r.server.buffered_bytes
            assert held > 500_000
            body = json.dumps(BIG).encode()
            answer = await r.raw(request(body) if kind == "length" else chunked(body))
            assert answer.startswith(b"HTTP/1.1 503")
            assert code_of(answer.partition(b"\r\n\r\n")[2]) == "too_many_bytes"
            await until(lambda: r.server.buffered_bytes == held)
            e.let()
            assert (await first.answer())[0] == 200
            await until(lambda: r.server.buffered_bytes == 0)

    uvloop.run(asyncio.wait_for(go(), 60))


@run
async def test_the_limit_of_a_body_holds_for_small_ones_too() -> None:
    e = FakeEngine("answer")
    async with router(e, max_body_bytes=1024) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(request(CHAT))
        assert (await read_answer(reader)).startswith(b"HTTP/1.1 200")
        writer.write(request({**CHAT, "pad": "x" * 1024}))  # in one piece, behind a head that is known
        assert (await read_answer(reader)).startswith(b"HTTP/1.1 413")
        status, _, body = await r.post({**CHAT, "pad": "x" * 1024})
        assert (status, code_of(body)) == (413, "body_too_large")
        assert len(e.requests) == 1
        writer.close()


class Flooding(HeldEngine):
    async def _large(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        return await self._send(writer, b"x" * 16 * 2**20)


@run
async def test_a_client_that_reads_nothing_is_cut_and_its_replica_is_free() -> None:
    e = Flooding("flood")
    async with router(e, send_timeout=0.5) as r:
        _, writer = await asyncio.open_connection("127.0.0.1", r.port, limit=1024)
        writer.transport.pause_reading()
        writer.write(request(STREAM))
        await until(lambda: r.counted(REJECTED, "client_stalled") == 1)
        await until(lambda: not r.server.clients)
        await at_rest(r)
        assert r.server.metrics.disconnects == 1
        writer.transport.abort()


@run
async def test_answers_do_not_pile_up_for_a_client_that_asks_and_never_reads() -> None:
    e = Flooding("large")
    async with router(e, send_timeout=1.0) as r:
        _, writer = await asyncio.open_connection("127.0.0.1", r.port, limit=1024)
        writer.transport.pause_reading()
        (client,) = r.server.clients or [None]
        for _ in range(20):
            writer.write(request(CHAT))
            await asyncio.sleep(0.02)
            client = client or next(iter(r.server.clients), None)
        assert client is not None
        transport = client.transport
        assert transport is not None
        assert transport.get_write_buffer_size() < 40 * 2**20
        assert len(e.requests) <= 2
        await until(lambda: not r.server.clients)
        await at_rest(r)
        writer.transport.abort()


@run
async def test_a_connection_that_was_slow_once_still_ends_when_it_idles() -> None:
    e = Flooding("large", "answer")
    async with router(e, request_timeout=0.1) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port, limit=2**20)
        writer.write(request(CHAT))
        await until(lambda: any(c.stalled for c in r.server.clients))
        (client,) = r.server.clients
        await read_answer(reader)
        await until(lambda: not client.exchange)
        assert client.expires > 0 or client not in r.server.clients
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
