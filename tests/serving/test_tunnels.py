"""WebSockets through the router: a real client, a real server as the replica, and what is counted meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
import yaml
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import Server as WebSocketServer
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from tests.fakes import FakeEngine
from tests.serving.held_engine import at_rest
from tests.serving.routing import Running, request, router, run, until

TUNNELS = "exaserve_router_tunnels_total"
PATH = "/v1/realtime?model=m"


class RealtimeEngine(FakeEngine):
    """A replica whose upgrades are served by the ``websockets`` package: it echoes, and closes when told "bye"."""

    def __init__(self, script: str = "realtime") -> None:
        super().__init__(script)
        self.server: WebSocketServer | None = None
        self.sockets = 0
        self.refuse = False

    async def start(self, port: int = 0) -> FakeEngine:
        logger = logging.getLogger("quiet")
        logger.disabled = True
        self.server = await serve(self._echo, "127.0.0.1", 0, process_request=self._look, logger=logger)
        return await super().start(port)

    async def kill(self) -> None:
        await super().kill()
        if self.server is not None:
            self.server.close(close_connections=True)

    def _look(self, connection: ServerConnection, _: Any) -> Any:
        return connection.respond(http.HTTPStatus.FORBIDDEN, "not today\n") if self.refuse else None

    async def _echo(self, connection: ServerConnection) -> None:
        self.sockets += 1
        try:
            async for message in connection:
                if message == "bye":
                    break
                await connection.send(message)
        finally:
            self.sockets -= 1

    async def _realtime(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        assert self.server is not None
        head = self.heads[-1]
        inside, outside = await asyncio.open_connection(*self.server.sockets[0].getsockname()[:2])
        outside.write(head)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, outside), pump(inside, writer))
        return False


@contextlib.asynccontextmanager
async def dialled(r: Running, path: str = PATH, **options: Any) -> AsyncIterator[ClientConnection]:
    async with connect(f"ws://127.0.0.1:{r.port}{path}", open_timeout=30, **options) as ws:
        yield ws


@run
async def test_messages_pass_both_ways_and_it_counts_as_one_open_request() -> None:
    e = RealtimeEngine()
    async with router(e, pools={"p": {"max_in_flight": 3}}) as r:
        async with dialled(r) as ws:
            for message in ("hello", b"\x00\xff" * 50_000, "é"):
                await ws.send(message)
                assert await ws.recv() == message
            pool = r.server.all_pools[0]
            assert (r.replica().in_flight, pool.open, pool.in_flight) == (1, 1, {r.replica(): 1})
            assert r.server.counts.cells[0] == 1
            assert ws.response is not None
            assert ws.response.headers["x-exaserve-replica"] == "r0"
            assert ws.response.headers["x-request-id"]
            assert e.requests[0][0] == f"GET {PATH}"
            assert e.requests[0][1]["x-request-id"] == ws.response.headers["x-request-id"]
        await until(lambda: e.sockets == 0)
        await at_rest(r)
        # The client has said goodbye first; which of the two connections ends first is up to the kernel.
        assert r.counted(TUNNELS) == 1
        found = [(s.labels[0], dict(s.codes)) for s in r.server.metrics.snapshot(whole=True).series]
        assert found == [("realtime", {101: 1})]


@run
async def test_a_replica_that_ends_it_in_order_is_ok() -> None:
    e = RealtimeEngine()
    async with router(e) as r:
        async with dialled(r) as ws:
            await ws.send("bye")
            await ws.wait_closed()
            assert ws.close_code == 1000
        await at_rest(r)
        assert r.counted(TUNNELS, "ok") == 1


@run
async def test_a_replica_that_dies_is_seen_as_that_and_counted_as_cut() -> None:
    e = RealtimeEngine()
    async with router(e) as r:
        async with dialled(r) as ws:
            await ws.send("hello")
            await ws.recv()
            await e.kill()
            with pytest.raises(ConnectionClosedError) as caught:
                await asyncio.wait_for(ws.recv(), 30)
            assert caught.value.rcvd is None  # no close frame that nobody sent
        await at_rest(r)
        assert r.counted(TUNNELS, "cut") == 1


@run
async def test_a_client_that_dies_frees_the_replica() -> None:
    e = RealtimeEngine()
    async with router(e) as r:
        async with dialled(r) as ws:
            await ws.send("hello")
            await ws.recv()
            ws.transport.abort()
            await until(lambda: e.sockets == 0)
            await at_rest(r)
        assert r.counted(TUNNELS, "aborted") == 1


@run
async def test_a_refusal_of_the_replica_passes() -> None:
    e = RealtimeEngine()
    e.refuse = True
    async with router(e) as r:
        with pytest.raises(InvalidStatus) as caught:
            async with dialled(r):
                pass
        assert caught.value.response.status_code == 403
        assert caught.value.response.body == b"not today\n"
        await at_rest(r)


@run
async def test_another_replica_is_asked_if_one_does_not_answer() -> None:
    engines = RealtimeEngine("reset"), RealtimeEngine()
    async with router(*engines, strategy="round_robin", ejection={"enabled": False}) as r:
        for _ in range(4):
            async with dialled(r) as ws:
                await ws.send("x")
                assert await ws.recv() == "x"
        await at_rest(r)
        assert r.counted("exaserve_router_retries_total", "reset") == len(engines[0].requests) > 0


@run
async def test_no_replica_that_answers_is_an_error_and_not_a_hang() -> None:
    async with router(RealtimeEngine("reset"), ejection={"enabled": False}) as r:
        with pytest.raises(InvalidStatus) as caught:
            async with dialled(r):
                pass
        assert caught.value.response.status_code == 502
        await at_rest(r)


@run
async def test_other_paths_are_not_upgraded() -> None:
    e = RealtimeEngine()
    async with router(e) as r:
        for path in ("/v1/chat/completions", "/", "/v1/realtime/x", "/metrics"):
            with pytest.raises(InvalidStatus) as caught:
                async with dialled(r, path):
                    pass
            assert caught.value.response.status_code == 400, path
        extra = "connection: upgrade\r\nupgrade: websocket\r\n"
        assert (await r.raw(request(b"", PATH, extra))).startswith(b"HTTP/1.1 400")  # a POST
        assert e.requests == []
        await until(lambda: not any(c.exchange for c in r.server.clients))


@run
async def test_a_pool_that_is_full_refuses_it_in_http() -> None:
    e = RealtimeEngine()
    async with router(e, pools={"p": {"max_in_flight": 1, "max_waiting": 0}}) as r:
        async with dialled(r) as ws:
            with pytest.raises(InvalidStatus) as caught:
                async with dialled(r):
                    pass
            assert caught.value.response.status_code == 503
            await ws.send("still here")
            assert await ws.recv() == "still here"
        await at_rest(r)
        async with dialled(r) as ws:
            await ws.send("free again")
            assert await ws.recv() == "free again"


@run
async def test_a_deadline_ends_it_both_ways() -> None:
    e = RealtimeEngine()
    async with router(e, max_request_time=3) as r:
        async with dialled(r) as ws:
            with pytest.raises(ConnectionClosedError):
                await asyncio.wait_for(ws.recv(), 30)
        await until(lambda: e.sockets == 0)
        await at_rest(r)


@run
async def test_a_router_that_stops_ends_it_after_its_time() -> None:
    e = RealtimeEngine()
    async with router(e) as r:
        async with dialled(r) as ws:
            await r.server.drain(0.1)
            with pytest.raises(ConnectionClosedError):
                await asyncio.wait_for(ws.recv(), 30)
        await until(lambda: e.sockets == 0)
        await at_rest(r)


def test_tenants_need_a_key_are_limited_and_audited(tmp_path: Path) -> None:
    async def go() -> None:
        file = tmp_path / "tenants.yaml"
        entry = {"name": "acme", "keys": [hashlib.sha256(b"k3y").hexdigest()], "max_in_flight": 1}
        file.write_text(yaml.safe_dump({"tenants": [entry]}))
        token = tmp_path / "token"
        token.write_text("t0ken\n")
        e = RealtimeEngine()
        audit = {"enabled": True, "folder": str(tmp_path / "audit")}
        async with router(e, tenants=str(file), audit=audit, replica_token_file=str(token)) as r:
            mine = {"additional_headers": {"Authorization": "Bearer k3y"}}
            for headers, status in (({}, 401), ({"additional_headers": {"Authorization": "Bearer no"}}, 401)):
                with pytest.raises(InvalidStatus) as caught:
                    async with dialled(r, **headers):
                        pass
                assert caught.value.response.status_code == status
            async with dialled(r, **mine) as ws:
                with pytest.raises(InvalidStatus) as caught:
                    async with dialled(r, **mine):
                        pass
                assert caught.value.response.status_code == 429
                await ws.send("bye")
                await ws.wait_closed()
            await at_rest(r)
            assert e.requests[0][1]["authorization"] == "Bearer t0ken"
            assert b"k3y" not in e.heads[0]

    uvloop.run(asyncio.wait_for(go(), 60))
    text = (tmp_path / "audit" / "audit-0.jsonl").read_text()
    lines = [json.loads(x) for x in text.splitlines()]
    assert [(x["tenant"] or "", x["status"], x["outcome"]) for x in lines] == [
        ("", 401, "rejected"), ("", 401, "rejected"), ("acme", 429, "rejected"), ("acme", 101, "ok"),
    ]  # fmt: skip
    assert "k3y" not in text
