"""Connecting to a replica: unix sockets, names with several addresses, who refuses, what errors say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from serving.fleet import connect as module
from serving.fleet.ask import Asker
from serving.fleet.connect import connect, was_refused
from serving.fleet.discovery import static
from serving.fleet.replica import Replica
from tests.serving.on_loop import run

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ANSWER)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _listen(host: str = "127.0.0.1") -> tuple[asyncio.Server, int]:
    server = await asyncio.start_server(_serve, host, 0)
    return server, server.sockets[0].getsockname()[1]


async def _peer(replica: Replica) -> str:
    transport, _ = await connect(replica, asyncio.Protocol)
    peer = transport.get_extra_info("peername")
    transport.close()
    return str(peer[0])


def _name(port: int) -> Replica:
    return static.parse(f"http://gpu-1.example:{port}")


def _resolver(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """The name resolves to these; returns the list of look-ups."""
    looked: list[str] = []

    async def resolve(host: str, port: int, first: str | None) -> list[str]:
        looked.append(host)
        return list(addresses)

    monkeypatch.setattr(module, "_resolve", resolve)
    return looked


def test_a_replica_on_a_unix_socket_is_asked_as_any_other(tmp_path: Path) -> None:
    @run
    async def test() -> None:
        server = await asyncio.start_unix_server(_serve, tmp_path / "v.sock")
        asker = Asker()
        replica = static.parse(f"unix:{tmp_path}/v.sock")
        assert await asker.ask(replica, "GET", "/health") == (200, b"ok")
        asker.close()
        server.close()
        (tmp_path / "v.sock").unlink(missing_ok=True)
        with pytest.raises(ConnectionRefusedError, match=r"no socket at .*v\.sock"):
            await connect(replica, asyncio.Protocol)

    test()


def test_each_address_of_a_name_is_tried_and_the_one_that_answered_is_first_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @run
    async def test() -> None:
        server, port = await _listen()
        replica = _name(port)
        looked = _resolver(monkeypatch, "127.0.0.3", "127.0.0.2", "127.0.0.1")
        assert await _peer(replica) == "127.0.0.1"
        assert await _peer(replica) == "127.0.0.1"
        assert looked == ["gpu-1.example"]  # known for a while
        server.close()

    test()


def test_a_name_that_moved_is_looked_up_when_its_old_address_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    @run
    async def test() -> None:
        server, port = await _listen("127.0.0.2")
        replica = _name(port)
        replica.reached = ("127.0.0.1", 1e12)
        looked = _resolver(monkeypatch, "127.0.0.2")
        assert await _peer(replica) == "127.0.0.2"
        assert looked == ["gpu-1.example"]
        assert replica.reached[0] == "127.0.0.2"
        server.close()

    test()


def test_a_dead_address_costs_its_time_only_while_another_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ADDRESS_SECONDS", 0.05)

    @run
    async def test() -> None:
        server, port = await _listen()
        # A backlog of 0 that is full: further SYNs are dropped, as by a dead host.
        import socket

        dead = socket.socket()
        dead.bind(("127.0.0.5", port))
        dead.listen(0)
        fill = [socket.socket() for _ in range(3)]
        for s in fill:
            s.setblocking(False)
            s.connect_ex(("127.0.0.5", port))
        await asyncio.sleep(0.05)
        _resolver(monkeypatch, "127.0.0.5", "127.0.0.1")
        assert await _peer(_name(port)) == "127.0.0.1"
        for s in (dead, *fill):
            s.close()
        server.close()

    test()


def test_refused_means_refused_by_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    @run
    async def test() -> None:
        server, port = await _listen()
        server.close()
        await server.wait_closed()
        _resolver(monkeypatch, "127.0.0.3", "127.0.0.2")
        with pytest.raises(ConnectionRefusedError, match=r"refused by 127.0.0.3, 127.0.0.2"):
            await connect(_name(port), asyncio.Protocol)

        async def unknown(*_: object) -> list[str]:
            raise OSError("Name or service not known")

        monkeypatch.setattr(module, "_resolve", unknown)
        with pytest.raises(OSError, match=r"not known") as e:
            await connect(_name(port), asyncio.Protocol)
        assert not was_refused(e.value)

    test()


@run
async def test_a_real_name_is_resolved() -> None:
    server, port = await _listen()
    assert await _peer(static.parse(f"http://localhost:{port}")) == "127.0.0.1"
    server.close()
