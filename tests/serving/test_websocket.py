"""WebSocket clients and servers of another make, through a tunnel in a router of a few lines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus

from serving.fleet.replica import Replica
from serving.router import websocket
from serving.router.relay import ends_with_close_frame
from serving.router.tls import ServerTLS, replica_context
from serving.router.tls_listener import TLSListener
from serving.router.websocket import Tunnel, wants_upgrade
from tests.conftest import closed_port
from tests.serving.on_loop import run, until

websocket.CONNECT_SECONDS = 20.0  # a connection that this process is slow to make is no replica's failure

LINES = b"x-exaserve-replica: r0\r\nconnection: close\r\n\r\n"
REFUSED = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 2\r\n\r\nno"


class Front(asyncio.Protocol):
    """Reads one head and makes a tunnel of it; answers itself when that fails."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.head = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.head += data
        if b"\r\n\r\n" in self.head:
            head, _, early = self.head.partition(b"\r\n\r\n")
            self.head = b""
            self.tunnel = Tunnel(
                self.transport, head + b"\r\n\r\n", self.router.replica, self.ended, self.closed,
                early=early, answer_lines=b"x-exaserve-replica: r0\r\n", **self.router.options,
            )  # fmt: skip
            self.router.tunnels.append(self.tunnel)
            self.tunnel.start()

    def ended(self, outcome: str, reason: str) -> None:
        self.router.ends.append((outcome, reason))
        if outcome == "failed":
            self.transport.write(REFUSED)

    def closed(self) -> None:
        self.router.closed += 1


class Router:
    def __init__(self, port: int, options: dict[str, Any]) -> None:
        self.replica = Replica("r0", f"http://127.0.0.1:{port}", "127.0.0.1", port)
        self.options = options
        self.tunnels: list[Tunnel] = []
        self.ends: list[tuple[str, str]] = []
        self.closed = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/realtime"

    async def end(self) -> tuple[str, str]:
        """How its only tunnel ended; the replica is free then."""
        await until(lambda: self.ends)
        assert self.replica.in_flight == 0
        return self.ends[0]


@asynccontextmanager
async def front(port: int, **options: Any) -> AsyncIterator[Router]:
    router = Router(port, options)
    server = await asyncio.get_running_loop().create_server(lambda: Front(router), "127.0.0.1", 0)
    router.port = server.sockets[0].getsockname()[1]
    try:
        yield router
    finally:
        server.close()
        for t in router.tunnels:
            t.abort()


@asynccontextmanager
async def engine(handler: Callable[[ServerConnection], Any], **options: Any) -> AsyncIterator[int]:
    async with serve(handler, "127.0.0.1", 0, max_size=None, **options) as server:
        yield next(iter(server.sockets)).getsockname()[1]


@asynccontextmanager
async def raw(handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[int]:
    """An engine that is no WebSocket server."""
    writers = []

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await handler(reader, writer)

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for w in writers:
            w.transport.abort()


async def echo(ws: ServerConnection) -> None:
    async for message in ws:
        await ws.send(message)


def answering(*pieces: bytes, then: str = "close") -> Callable[..., Any]:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for p in pieces:
            writer.write(p)
            await asyncio.sleep(0.02)
        if then == "close":
            writer.close()
        elif then == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        else:
            await reader.read()

    return handler


CLOSE = b"\x88\x82mask\x6e\x89"  # a client's close frame, 1000
UPGRADE = b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"


async def ask(router: Router, then: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    writer.write(UPGRADE + then)
    return reader, writer


# --- what is upgraded ---


def test_only_a_get_of_the_realtime_api_with_both_headers_is_upgraded() -> None:
    headers = {b"upgrade": b"WebSocket", b"connection": b"keep-alive, Upgrade"}
    assert wants_upgrade(b"GET", b"/v1/realtime", headers)
    assert not wants_upgrade(b"POST", b"/v1/realtime", headers)
    assert not wants_upgrade(b"GET", b"/v1/chat/completions", headers)
    assert not wants_upgrade(b"GET", b"/v1/realtime", headers | {b"upgrade": b"h2c"})
    assert not wants_upgrade(b"GET", b"/v1/realtime", {b"upgrade": b"websocket"})
    assert not wants_upgrade(b"GET", b"/v1/realtime", {})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x88\x00", True),
        (b"\x88\x02\x03\xe8", True),
        (b"\x81\x02hi\x88\x04\x03\xe8ok", True),
        (b"\x88\x7d" + b"x" * 125, True),
        (b"", False),
        (b"\x88", False),
        (b"\x81\x02hi", False),
        (b"\x88\x02\x03", False),
        (b"\x88\x00\x81\x02hi", False),
        (b"\x88\x82mask\x03\xe8", True),
        (b"\x88\x80mask", True),
        (b"\x88\x82mask\x03", False),
    ],
)
def test_a_close_frame_is_seen_at_the_end_of_what_came(data: bytes, expected: bool) -> None:
    assert ends_with_close_frame(data) is expected


# --- the tunnel ---


def test_messages_pass_both_ways_and_a_close_is_in_order() -> None:
    @run
    async def go() -> None:
        async with engine(echo) as port, front(port) as router:
            async with connect(router.url) as ws:
                assert ws.response is not None
                assert ws.response.headers["x-exaserve-replica"] == "r0"
                assert router.replica.in_flight == 1
                for message in ("hello", b"\x00\xff", ""):
                    await ws.send(message)
                    assert await ws.recv() == message
            assert ws.close_code == 1000
            assert await router.end() == ("ok", "")
            assert router.tunnels[0].status == 101
            await until(lambda: router.closed == 1)
            assert router.replica.heard > 0

    go()


def test_the_server_may_be_the_one_that_closes() -> None:
    async def once(ws: ServerConnection) -> None:
        await ws.recv()
        await ws.close(1001, "bye")

    @run
    async def go() -> None:
        async with engine(once) as port, front(port) as router, connect(router.url) as ws:
            await ws.send("x")
            with pytest.raises(ConnectionClosed):
                await ws.recv()
            assert (ws.close_code, ws.close_reason) == (1001, "bye")
            assert await router.end() == ("ok", "")

    go()


def test_16_mib_pass_each_way_unchanged() -> None:
    big = bytes(range(256)) * 65536

    @run
    async def go() -> None:
        async with (
            engine(echo, compression=None) as port,
            front(port) as router,
            connect(router.url, max_size=None, compression=None) as ws,
        ):
            await ws.send(big)
            assert await ws.recv() == big

    go()


@pytest.mark.parametrize("slow", ["client", "replica"])
def test_a_slow_reader_stops_the_writer_instead_of_filling_the_router(slow: str) -> None:
    piece = b"x" * 65536

    @run
    async def go() -> None:
        written = 0
        go_on = asyncio.Event()

        async def flood(writer: asyncio.StreamWriter) -> None:
            nonlocal written
            while written < 64 * 2**20:
                writer.write(piece)
                await writer.drain()
                written += len(piece)

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(SWITCH)
            if slow == "client":
                await flood(writer)
            else:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                await go_on.wait()
                writer.transport.resume_reading()  # type: ignore[attr-defined]
                while await reader.read(2**20):
                    pass

        async with raw(handler) as port, front(port) as router:
            reader, writer = await ask(router)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
            if slow == "client":
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                task = None
            else:
                task = asyncio.create_task(flood(writer))
            before = -1
            while before != written or not written:  # until nothing moves
                before = written
                await asyncio.sleep(0.2)
            assert written < 32 * 2**20  # the kernel's buffers, and 64 KiB of ours
            if slow == "client":
                writer.transport.resume_reading()  # type: ignore[attr-defined]
                got = 0
                while got < 64 * 2**20:
                    got += len(await reader.read(2**20))
            go_on.set()
            if task is not None:
                await task
            assert written == 64 * 2**20
            writer.transport.abort()
            assert (await router.end())[0] in ("aborted", "cut")

    go()


def test_a_client_that_vanishes_frees_the_replica_at_once() -> None:
    @run
    async def go() -> None:
        gone = asyncio.Event()

        async def wait(ws: ServerConnection) -> None:
            with contextlib.suppress(ConnectionClosed):
                await ws.recv()
            gone.set()

        async with engine(wait) as port, front(port) as router:
            ws = await connect(router.url)
            assert router.replica.in_flight == 1
            ws.transport.abort()
            async with asyncio.timeout(30):
                await gone.wait()
                assert await router.end() == ("aborted", "client")
            await until(lambda: router.closed == 1)

    go()


def test_a_client_that_stays_half_closed_does_not_keep_the_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.router.websocket.HALF_CLOSED_SECONDS", 0.1)

    @run
    async def go() -> None:
        seen = asyncio.Event()

        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(SWITCH)
            await reader.read()
            seen.set()
            await asyncio.sleep(60)

        async with raw(deaf) as port, front(port) as router:
            reader, writer = await ask(router)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(CLOSE)
            writer.write_eof()
            async with asyncio.timeout(30):
                await seen.wait()  # it is told at once
            assert await router.end() == ("aborted", "client")

    go()


def test_bytes_still_come_after_the_client_has_closed_its_half() -> None:
    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH)
        assert await reader.read() == b"last words" + CLOSE
        writer.write(b"heard\x88\x00")
        writer.close()

    @run
    async def go() -> None:
        async with raw(late) as port, front(port) as router:
            reader, writer = await ask(router)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"last words" + CLOSE)
            writer.write_eof()
            assert await reader.read() == b"heard\x88\x00"

    go()


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_replica_that_dies_breaks_the_clients_connection_visibly(how: str) -> None:
    @run
    async def go() -> None:
        async with raw(answering(SWITCH, b"\x81\x02hi", then=how)) as port, front(port) as router:
            reader, writer = await ask(router)
            data = b""
            with contextlib.suppress(ConnectionResetError):
                data = await reader.read()
            if how == "close":
                assert data.endswith(b"\x81\x02hi")
            assert await router.end() == ("cut", "reset")
            await until(lambda: router.closed == 1)
            writer.transport.abort()

    go()


def test_a_killed_websocket_server_is_an_error_for_the_client() -> None:
    @run
    async def go() -> None:
        async def die(ws: ServerConnection) -> None:
            await ws.recv()
            ws.transport.abort()

        async with engine(die) as port, front(port) as router:
            ws = await connect(router.url)
            await ws.send("x")
            with pytest.raises(ConnectionClosedError):
                await ws.recv()
            assert await router.end() == ("cut", "reset")

    go()


def test_a_replica_out_of_rotation_ends_the_tunnel() -> None:
    @run
    async def go() -> None:
        async with engine(echo) as port, front(port) as router:
            ws = await connect(router.url)
            for attempt in list(router.replica.attempts):
                attempt.fail_attempt("frozen")
            with pytest.raises(ConnectionClosedError):
                await ws.recv()
            assert await router.end() == ("cut", "frozen")

    go()


def test_nothing_moving_ends_it() -> None:
    @run
    async def go() -> None:
        async with raw(answering(SWITCH, then="stay")) as port, front(port, idle_seconds=0.1) as router:
            reader, _ = await ask(router)
            await reader.readuntil(b"\r\n\r\n")
            assert await router.end() == ("ok", "idle")
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""

    go()


def test_moving_bytes_keep_it() -> None:
    @run
    async def go() -> None:
        async with engine(echo) as port, front(port, idle_seconds=4.0) as router:
            async with connect(router.url) as ws:
                for _ in range(22):
                    await ws.send("x")
                    assert await ws.recv() == "x"
                    await asyncio.sleep(0.2)
            assert await router.end() == ("ok", "")

    go()


def test_a_stop_of_the_router_cuts_both() -> None:
    @run
    async def go() -> None:
        async with engine(echo) as port, front(port) as router:
            ws = await connect(router.url)
            router.tunnels[0].abort()
            router.tunnels[0].abort()
            with pytest.raises(ConnectionClosedError):
                await ws.recv()
            assert router.ends == [("cut", "stopping")]
            await until(lambda: router.closed == 1)

    go()


# --- answers other than 101 ---


def test_a_refusal_passes_as_a_normal_answer() -> None:
    def no(ws: ServerConnection, _: Any) -> Any:
        return ws.respond(403, "not for you\n")

    @run
    async def go() -> None:
        async with engine(echo, process_request=no) as port, front(port) as router:
            with pytest.raises(InvalidStatus) as e:
                await connect(router.url)
            assert e.value.response.status_code == 403
            assert e.value.response.body == b"not for you\n"
            assert await router.end() == ("ok", "")
            assert router.tunnels[0].status == 403

    go()


@pytest.mark.parametrize(
    ("pieces", "body", "end"),
    [
        ((b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\nconnection: keep-alive\r\n\r\n", b"nope"), b"nope", "ok"),
        ((b"HTTP/1.1 500 X\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab", b"\r\n0\r\n\r\n"),
         b"2\r\nab\r\n0\r\n\r\n", "error"),
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), b"", "ok"),
        ((b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n",), b"", "ok"),
    ],
    ids=["length", "chunked", "empty", "after_interim"],
)  # fmt: skip
def test_the_end_of_a_refusal_is_found_though_the_replica_keeps_the_connection(
    pieces: tuple[bytes, ...], body: bytes, end: str
) -> None:
    @run
    async def go() -> None:
        async with raw(answering(*pieces, then="stay")) as port, front(port) as router:
            reader, _ = await ask(router)
            head, _, got = (await reader.read()).partition(b"\r\n\r\n")
            assert got == body
            assert head.split(b"\r\n")[-2:] == [b"x-exaserve-replica: r0", b"connection: close"]
            assert head.count(b"onnection") == 1
            assert await router.end() == (end, "")

    go()


def test_a_refusal_without_a_length_ends_with_the_connection() -> None:
    @run
    async def go() -> None:
        async with raw(answering(b"HTTP/1.1 400 X\r\n\r\n", b"all of it")) as port, front(port) as router:
            reader, _ = await ask(router)
            assert (await reader.read()).endswith(b"all of it")
            assert await router.end() == ("ok", "")

    go()


def test_a_refusal_that_is_cut_short_is_cut_for_the_client_too() -> None:
    @run
    async def go() -> None:
        short = answering(b"HTTP/1.1 400 X\r\ncontent-length: 10\r\n\r\n", b"half")
        async with raw(short) as port, front(port) as router:
            reader, _ = await ask(router)
            assert (await reader.read()).endswith(b"content-length: 10\r\n" + LINES + b"half")
            assert await router.end() == ("cut", "reset")

    go()


# --- failures before an answer: the caller's turn ---


@pytest.mark.parametrize(
    "handler",
    [
        answering(),
        answering(then="reset"),
        answering(b"HTTP/1.1 101 Switching"),
        answering(b"SSH-2.0-OpenSSH\r\n\r\n"),
        answering(b"HTTP/1.1 101" + b"x" * 70000, then="stay"),
    ],
    ids=["closed", "reset", "half_a_head", "not_http", "endless_head"],
)
def test_a_replica_that_fails_first_leaves_the_client_to_the_caller(handler: Any) -> None:
    @run
    async def go() -> None:
        async with raw(handler) as port, front(port) as router:
            reader, writer = await ask(router, b"early")
            assert await reader.readexactly(len(REFUSED)) == REFUSED
            assert await router.end() == ("failed", "reset")
            assert router.tunnels[0].early == b"early"
            assert router.closed == 0
            writer.write(UPGRADE)  # the connection goes on
            assert await reader.readexactly(len(REFUSED)) == REFUSED
            writer.transport.abort()

    go()


def test_refused_connections_and_silence_are_told_apart() -> None:
    @run
    async def go() -> None:
        with closed_port() as port:
            async with front(port) as router:
                reader, _ = await ask(router)
                assert await reader.readexactly(len(REFUSED)) == REFUSED
                assert await router.end() == ("failed", "refused")
        async with raw(answering(then="stay")) as port, front(port, answer_seconds=0.1) as router:
            reader, _ = await ask(router)
            assert await reader.readexactly(len(REFUSED)) == REFUSED
            assert await router.end() == ("failed", "timeout")

    go()


def test_what_a_client_sends_early_reaches_the_replica_and_is_limited() -> None:
    @run
    async def go() -> None:
        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            early = await reader.readexactly(9)
            writer.write(SWITCH + early)
            await reader.read()

        async with raw(late) as port, front(port) as router:
            reader, writer = await ask(router, b"too ")
            writer.write(b"early")
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(9) == b"too early"
            writer.transport.abort()
        async with raw(answering(then="stay")) as port, front(port) as router:
            reader, writer = await ask(router)
            writer.write(b"x" * 100_000)
            assert (await router.end())[0] == "aborted"

    go()


def test_a_client_that_leaves_before_the_answer_frees_the_replica() -> None:
    @run
    async def go() -> None:
        async with raw(answering(then="stay")) as port, front(port) as router:
            _, writer = await ask(router)
            await until(lambda: router.replica.in_flight)
            writer.close()
            async with asyncio.timeout(30):
                assert await router.end() == ("aborted", "client")

    go()


# --- TLS on both sides ---


def test_through_tls_towards_client_and_replica(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ca = trustme.CA()
    leaf = ca.issue_cert("127.0.0.1")
    leaf.private_key_pem.write_to_path(tmp_path / "key")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    ca.cert_pem.write_to_path(tmp_path / "ca")
    (tmp_path / "key").chmod(0o600)
    tls = ServerTLS(tmp_path / "cert", tmp_path / "key")
    client = ssl.create_default_context()
    ca.configure_trust(client)

    @run
    async def go() -> None:
        async with engine(echo, ssl=tls.context) as port, front(port) as router:
            router.replica.scheme = "https"
            router.options["tls"] = replica_context(tmp_path / "ca", None, None)
            sock = socket.create_server(("127.0.0.1", 0))
            listener = TLSListener(sock, lambda: Front(router), tls)
            url = f"wss://127.0.0.1:{sock.getsockname()[1]}/v1/realtime"
            async with connect(url, ssl=client, max_size=None) as ws:
                await ws.send(b"x" * 2**20)
                assert await ws.recv() == b"x" * 2**20
            assert await router.end() == ("ok", "")
            ws = await connect(url, ssl=client)
            ws.transport.abort()
            await until(lambda: len(router.ends) == 2)
            assert router.ends[1] == ("aborted", "client")
            listener.close()

    with caplog.at_level(logging.INFO):
        go()
    assert "has no effect when using ssl" not in caplog.text
