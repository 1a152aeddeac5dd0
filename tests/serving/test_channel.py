"""Messages between master and workers: whole, in order, within bounds."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec

from serving.fleet.discovery import static
from serving.router import channel as messages
from serving.router.channel import Channel, ToWorker, pack
from tests.serving.routing import run, until


def pair(kind: Any) -> tuple[Channel[Any], list[Any], list[str]]:
    got: list[Any] = []
    ends: list[str] = []
    return Channel(kind, got.append, lambda: ends.append("lost")), got, ends


@run
async def test_messages_arrive_whole_and_in_order_however_they_are_cut() -> None:
    ours, theirs = socket.socketpair()
    end, got, ends = pair(ToWorker)
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: end, sock=theirs)
    sent = [messages.Ask(i) for i in range(50)] + [messages.Panic("p", True), messages.Stop(1.5)]
    raw = b"".join(pack(m) for m in sent)
    ours.setblocking(False)
    for i in range(0, len(raw), 7):
        await loop.sock_sendall(ours, raw[i : i + 7])
    await until(lambda: len(got) == len(sent))
    assert got == sent
    ours.close()
    await until(lambda: ends == ["lost"])


@run
async def test_a_length_that_no_message_has_closes_the_channel() -> None:
    ours, theirs = socket.socketpair()
    end, got, ends = pair(ToWorker)
    await asyncio.get_running_loop().create_unix_connection(lambda: end, sock=theirs)
    ours.sendall(b"\xff\xff\xff\xff")
    await until(lambda: ends == ["lost"])
    assert got == []
    end.send(messages.Ask(1))  # nothing happens
    ours.close()


def test_a_replica_arrives_as_it_is_known() -> None:
    (r,) = static.parse_all(["a=https://[::1]:8443"])
    r.index, r.model, r.models, r.base_weight, r.weight = 7, "m", [{"id": "m"}], 2.0, 1.0
    r.enter("ready", "by hand")
    r.running, r.waiting, r.kv_usage = 3, 1, 0.5
    data = msgspec.msgpack.encode(messages.ReplicaNews.of(r))
    new = msgspec.msgpack.decode(data, type=messages.ReplicaNews).replica()
    for name in (
        "index",
        "name",
        "url",
        "host",
        "port",
        "scheme",
        "path",
        "model",
        "models",
        "base_weight",
        "weight",
    ):
        assert getattr(new, name) == getattr(r, name), name
    assert (new.state, new.reason, new.since) == ("ready", "by hand", r.since)
    assert (new.running, new.waiting, new.kv_usage) == (3, 1, 0.5)
