"""What property tests and fuzzing have found, one example each, so that it stays away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serving.config import Config
from tests.fakes import JSON_ANSWER, FakeEngine
from tests.serving.routing import FAST, request, router, run, until

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
UPGRADE = b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nx-request-timeout: 0.2\r\n\r\n"


def reload(server: Any, pools: Any = None, **settings: Any) -> None:
    server.apply_config(Config.model_validate({"router": FAST | settings, "pools": pools or {}}))


@run
async def test_an_http_1_0_client_gets_the_body_of_an_answer_whose_head_is_known() -> None:
    old = request(BODY).replace(b"HTTP/1.1", b"HTTP/1.0")
    async with router(FakeEngine()) as running:
        for _ in range(3):
            assert (await running.raw(old)).partition(b"\r\n\r\n")[2] == JSON_ANSWER


@run
async def test_a_cut_answer_without_length_ends_with_a_reset() -> None:
    """To an HTTP/1.0 client the end of the connection is the end of the answer: closing would make it complete."""
    old = request(BODY | {"stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
    async with router(FakeEngine("die_mid_chunk")) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(old)
        with pytest.raises(ConnectionResetError):
            await reader.read()


@run
async def test_bodies_of_refused_requests_are_not_held() -> None:
    large = request(b"{bad" + b"x" * 100_000)
    async with router(FakeEngine()) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        for _ in range(3):
            writer.write(large[:5000])
            await until(lambda: running.server.buffered_bytes)
            writer.write(large[5000:])
            assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 400")
            assert running.server.buffered_bytes == 0
        writer.close()


@run
async def test_a_deadline_ends_a_tunnel_once() -> None:
    async with router(FakeEngine("silent")) as running:
        assert await running.raw(UPGRADE) == b""
        await until(lambda: not running.server.clients)
        assert running.server.all_pools[0].open == 0
        assert running.replica().in_flight == 0
        assert running.server.metrics.value("exaserve_router_requests_total") == 1


class Second(FakeEngine):
    """The first request to any of its kind is answered late, the second one with 503."""

    seen: list[bytes]

    async def _late_or_503(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        self.seen.append(b"")
        if len(self.seen) == 2:
            return await self._send(writer, b"{}", 503)
        await until(lambda: len(self.seen) == 2)
        await asyncio.sleep(0.3)
        return await self._answer(_, writer)


@run
async def test_a_hedge_that_answers_503_does_not_win() -> None:
    engines = [Second("late_or_503"), Second("late_or_503")]
    engines[0].seen = engines[1].seen = []
    async with router(*engines, retry={"hedge_after": 0.05}) as running:
        assert (await running.post(BODY))[0] == 200
        assert len(engines[0].seen) == 2


@run
async def test_a_hedge_goes_on_when_the_first_attempt_answers_503() -> None:
    engines = [FakeEngine("silent"), FakeEngine("silent")]
    async with router(*engines, retry={"hedge_after": 0.05, "max_attempts": 1}) as running:
        work = asyncio.create_task(running.post(BODY))
        await until(lambda: all(e.requests for e in engines))
        first = next(c for c in running.server.clients).exchange
        assert first is not None
        assert first.replica is not None
        first.replica.attempts.copy().pop().fail_attempt("frozen")
        await asyncio.sleep(0.05)
        assert not work.done()
        assert sum(r.in_flight for r in running.server.replicas) == 1
        work.cancel()


@run
async def test_a_limit_that_comes_with_a_reload_counts_what_is_open() -> None:
    async with router(FakeEngine("silent"), pools={"p": {}}) as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(request(BODY))
        await until(lambda: running.replica().in_flight)
        pool = running.server.all_pools[0]
        reload(running.server, {"p": {"max_in_flight": 1}})
        assert pool.in_flight == {running.replica(): 1}
        assert len(pool.everyone.eligible) == 0
        reload(running.server, {"p": {}})
        reload(running.server, {"p": {"max_in_flight": 1}})
        writer.transport.abort()
        await until(lambda: not running.replica().in_flight)
        assert pool.in_flight == {running.replica(): 0}
        assert len(pool.everyone.eligible) == 1


@run
async def test_one_that_waited_is_sent_once_though_others_are_served_meanwhile() -> None:
    """Sending the first fills its replica, which lets those that wait be looked at again."""
    engines = [FakeEngine("silent") for _ in range(4)]
    async with router(*engines, strategy="round_robin", max_queue_depth=10) as running:
        for e in engines:
            e.metrics["waiting"] = 20
        await until(lambda: all(r.waiting == 20 for r in running.server.replicas))
        writers = []
        for _ in range(4):
            writers.append((await asyncio.open_connection("127.0.0.1", running.port))[1])
            writers[-1].write(request(BODY))
        await until(lambda: running.server.waiting == 4)
        reload(running.server, strategy="round_robin", max_queue_depth=20)
        await until(lambda: running.server.waiting == 0)
        assert sum(r.in_flight for r in running.server.replicas) == 4
        await until(lambda: sum(len(e.requests) for e in engines) >= 4)
        for w in writers:
            w.transport.abort()
        await until(lambda: not running.server.clients)
        assert [(r.in_flight, r.work) for r in running.server.replicas] == [(0, 0.0)] * 4
        assert sum(len(e.requests) for e in engines) == 4


@run
async def test_two_hosts_are_refused_and_one_is_never_taken_away() -> None:
    engine = FakeEngine()
    async with router(engine) as running:
        twice = request(BODY, extra="Host: y\r\n")
        assert (await running.raw(twice)).startswith(b"HTTP/1.1 400")
        await running.raw(request(BODY, extra="connection: host, keep-alive\r\n"))
        assert engine.requests[0][1]["host"] == "x"


@run
async def test_no_host_and_a_coding_that_would_be_lost_on_the_way_are_refused() -> None:
    post = b"POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
    for sent, status in (
        (b"GET /v1/models HTTP/1.1\r\n\r\n", b"400"),
        (post + b"gzip, chunked\r\n\r\n0\r\n\r\n", b"501"),
        (post + b"gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"501"),
        (post + b"Chunked\r\n\r\n0\r\n\r\n", b"200"),
        (b"GET /v1/x HTTP/1.0\r\n\r\n", b"200"),
    ):
        engine = FakeEngine()
        async with router(engine) as running:
            answer = await running.raw(sent)
            assert answer.startswith(b"HTTP/1.1 " + status), (sent, answer)
            assert len(engine.requests) == (1 if status == b"200" else 0), sent


@run
async def test_an_expired_connection_is_not_kept_by_who_looks_for_them() -> None:
    async with router(FakeEngine(), request_timeout=0.1) as running:
        reader, _ = await asyncio.open_connection("127.0.0.1", running.port)
        assert await reader.read() == b""
        await until(lambda: not running.server.clients)
