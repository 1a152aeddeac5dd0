"""The router where timing, framing and load are awkward: each case once went wrong."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
import uvloop

from tests.fakes import CHUNKS, JSON_ANSWER, FakeEngine, chunk
from tests.serving.routing import read_answer, request, router, run, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}


class Engine(FakeEngine):
    async def _large(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        self.sent = 0
        return await self._send(writer, b"x" * 8 * 2**20)

    async def _huge(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        return await self._send(writer, b"x" * 16 * 2**20)

    async def _die_in_chunk_size(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        self._sse_head(writer)
        writer.write(chunk(CHUNKS[0]) + chunk(CHUNKS[1])[:1])
        await writer.drain()
        await asyncio.sleep(0.05)
        return False

    async def _interim(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        return await self._send(writer, JSON_ANSWER)

    async def _twice(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        return await self._raw(writer, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok" * 2)

    async def _upgrade(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        head = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nx"
        return await self._raw(writer, head)

    async def _trailer(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        return await self._raw(writer, head + b"2\r\nok\r\n0\r\nx-late: 1\r\n\r\n")

    async def _raw(self, writer: asyncio.StreamWriter, data: bytes) -> bool:
        writer.write(data)
        await writer.drain()
        return True


@run
async def test_a_connection_paused_for_a_slow_reader_is_not_reused_paused() -> None:
    e = Engine("large", "answer")
    async with router(e) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port, limit=4096)
        writer.write(request(CHAT))
        await asyncio.sleep(0.5)
        await reader.readuntil(b"\r\n\r\n")
        got = 0
        while got < 8 * 2**20:
            got += len(await reader.read(2**20))
            await asyncio.sleep(0.001)
        assert all(u.transport.is_reading() for u in r.replica().idle)
        for _ in range(3):
            assert (await asyncio.wait_for(r.post(CHAT), 30))[0] == 200


@run
async def test_a_connection_paused_by_the_last_bytes_of_an_answer_can_be_used_again() -> None:
    e = FakeEngine("answer")
    async with router(e) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        await until(lambda: r.server.clients)
        client = next(iter(r.server.clients))
        write = client.write

        def pausing(data: bytes) -> None:
            write(data)
            client.pause_writing()

        client.write = pausing
        writer.write(request(CHAT))
        await read_answer(reader)
        client.resume_writing()
        assert (await asyncio.wait_for(r.post(CHAT), 30))[0] == 200


@run
async def test_a_request_goes_to_a_replica_that_serves_its_model() -> None:
    a, b = FakeEngine(model="a"), FakeEngine(model="b")
    async with router(a, b) as r:
        for _ in range(12):
            _, head, _ = await r.post({**CHAT, "model": "b"})
            assert b"x-exaserve-replica: r1" in head


@run
async def test_trailers_are_bounded_and_not_taken_for_headers() -> None:
    e = FakeEngine()
    async with router(e) as r:
        body = json.dumps(CHAT).encode()
        start = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            + chunk(body)
            + b"0\r\n"
        )
        a = await r.raw(start + b"authorization: Bearer stolen\r\n\r\n")
        assert a.startswith(b"HTTP/1.1 200")
        assert "authorization" not in e.requests[0][1]
        a = await r.raw(start + b"x: %s\r\n" % (b"y" * 1000) * 2000 + b"\r\n")
        assert a.startswith(b"HTTP/1.1 431"), a[:200]


@run
async def test_stray_bytes_while_answering_do_not_hide_a_leaving_client() -> None:
    e = FakeEngine("silent")
    async with router(e) as r:
        _, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(request(CHAT))
        await until(lambda: e.open == 1)
        writer.write(b"GET / HTTP/1.1\r\n")
        await asyncio.sleep(0.1)
        writer.close()
        await until(lambda: e.open == 0)


@run
async def test_stray_line_ends_are_not_pipelining() -> None:
    e = FakeEngine("stream")
    async with router(e) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(request(CHAT))
        await until(lambda: e.requests)
        writer.write(b"\r\n")
        await read_answer(reader)
        writer.write(request(CHAT))
        assert (await read_answer(reader)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("status", [429, 503])
def test_a_probe_refused_for_load_does_not_cut_streams(status: int) -> None:
    async def go() -> None:
        e = FakeEngine("endless")
        async with router(e) as r:
            reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
            writer.write(request(STREAM))
            await reader.readuntil(b"\r\n\r\n")
            real = e._send

            async def send(w: asyncio.StreamWriter, body: bytes, s: int = 200) -> bool:
                return await real(w, body, status if body == e.probe() else s)

            e._send = send
            n = sum(r.replica().probe_results.values())
            await until(lambda: sum(r.replica().probe_results.values()) >= n + 3)
            assert r.replica().in_rotation, r.replica().reason
            assert r.replica().in_flight == 1

    uvloop.run(asyncio.wait_for(go(), 60))


@run
async def test_a_router_that_stood_still_itself_condemns_nobody() -> None:
    e = FakeEngine("silent")
    async with router(e, health_check_interval=60, silence_timeout=2.5) as r:
        real = e._send

        async def send(w: asyncio.StreamWriter, body: bytes, s: int = 200) -> bool:
            await asyncio.sleep(0.4)
            return await real(w, body, s)

        e._send = send
        _, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(request(CHAT))
        await until(lambda: e.open == 1)
        for _ in range(3):
            await until(lambda: r.replica() not in r.health.sweep.asked)
            await until(lambda: r.replica() in r.health.sweep.asked)
            await asyncio.sleep(0.3)
            time.sleep(3.0)
            await asyncio.sleep(0.05)
            assert r.replica().state == "ready", r.replica().reason
        writer.close()


@run
async def test_cut_inside_a_chunk_size_never_looks_clean() -> None:
    async with router(Engine("die_in_chunk_size")) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(request(STREAM))
        try:
            data = await reader.read(-1)
        except ConnectionError:
            data = b""
        assert not data.endswith(b"0\r\n\r\n"), data[-200:]


@run
async def test_interim_answers_are_skipped() -> None:
    async with router(Engine("interim")) as r:
        assert (await r.post(CHAT))[0] == 200


@run
async def test_a_head_whose_end_is_split_over_two_reads_is_not_too_large() -> None:
    e = FakeEngine()
    async with router(e) as r:
        body = json.dumps({**CHAT, "pad": "x" * 100_000}).encode()
        data = request(body)
        cut = data.index(b"\r\n\r\n") + 3
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(data[:cut])
        await asyncio.sleep(0.1)
        writer.write(data[cut:])
        assert (await read_answer(reader)).startswith(b"HTTP/1.1 200")


CONTROL = [
    "/start_weight_update",
    "/finish_weight_update",
    "/start_draft_weight_update",
    "/shutdown_weight_transfer_engine",
    "/release_kv_cache_memory",
    "/weight_checker",
    "/weight_info",
    "/update_weight_version",
    "/kv_event_sources",
    "/fault_tolerance/apply",
    "/fault_tolerance/status",
]


@run
async def test_every_control_endpoint_is_closed() -> None:
    e = FakeEngine("answer")
    async with router(e) as r:
        for p in CONTROL:
            assert (await r.post(b"", p))[0] == 403, p
        assert (await r.raw(request(b"", "/v1/files/a%20b", method="GET"))).startswith(b"HTTP/1.1 200")
        for p in (
            "/%6detrics",
            "/metrics/",
            "//metrics",
            "/metrics/x",
            "/v1/../metrics",
            "/sleep?x=1",
            "http://h/metrics",
            "/metrics#",
            "/sleep#?x",
        ):
            assert (await r.raw(request(b"", p, method="GET"))).startswith(b"HTTP/1.1 403"), p


@run
async def test_connection_named_headers_are_not_forwarded() -> None:
    e = FakeEngine("answer")
    async with router(e) as r:
        await r.post(CHAT, extra="connection: keep-alive, x-hop\r\nx-hop: 1\r\n")
        assert "x-hop" not in e.requests[0][1]


@run
async def test_drain_lets_written_answers_reach_slow_readers() -> None:
    e = Engine("huge")
    async with router(e) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port, limit=4096)
        writer.write(request(CHAT))
        await asyncio.sleep(0.5)
        drain = asyncio.create_task(r.server.drain(60))
        got = 0
        await reader.readuntil(b"\r\n\r\n")
        try:
            while data := await reader.read(2**18):
                got += len(data)
                await asyncio.sleep(0.03)
        except ConnectionError:
            pass
        assert got == 16 * 2**20
        await drain


@run
async def test_a_client_that_half_closes_without_reading_frees_its_replica() -> None:
    e = FakeEngine("flood")
    async with router(e) as r:
        _, writer = await asyncio.open_connection("127.0.0.1", r.port, limit=4096)
        writer.write(request(STREAM))
        await until(lambda: r.replica().in_flight == 1)
        await asyncio.sleep(0.5)  # until every buffer on the way is full
        writer.write_eof()
        await until(lambda: r.replica().in_flight == 0)
        assert not r.server.clients
        writer.transport.abort()


@run
async def test_an_answer_to_head_has_no_body_whoever_gives_it() -> None:
    async with router(Engine("reset")) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        for path, status in (("/metrics", b"403"), ("/v1/files", b"502"), ("/v1/models", b"200")):
            writer.write(request(b"", path, method="HEAD"))
            assert (await reader.readuntil(b"\r\n\r\n")).split()[1] == status
        await asyncio.sleep(0.1)
        writer.write(request(b"", "/v1/models", method="GET"))
        assert (await reader.readuntil(b"\r\n")) == b"HTTP/1.1 200 OK\r\n"
        writer.close()


@pytest.mark.parametrize("how", ["twice", "upgrade"])
def test_an_answer_that_is_none_is_not_relayed(how: str) -> None:
    async def go() -> None:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        async with router(Engine(how)) as r:
            assert (await r.post(CHAT))[0] == 502
            assert r.replica().in_flight == 0
        assert failures == []

    uvloop.run(asyncio.wait_for(go(), 60))


@run
async def test_a_trailer_of_an_answer_is_not_taken_for_a_header() -> None:
    async with router(Engine("trailer")) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(request(CHAT))
        assert b"x-late" not in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"2\r\nok\r\n0\r\nx-late: 1\r\n\r\n"
        writer.close()
