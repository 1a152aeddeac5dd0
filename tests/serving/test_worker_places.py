"""A worker's place: watched, replaced, started less often where it dies at once. With workers by hand."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from serving.router import channel as messages
from serving.router import listen
from serving.router.channel import ToMaster
from serving.router.workers import Place, Workers
from tests.serving.routing import run, until

FAKE = """
import socket, sys, struct, time
sys.path[:0] = {path!r}
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
channel = socket.socket(fileno=int(options["--channel"]))
from serving.router import channel as messages
how = {how!r}
if how != "dies":
    channel.sendall(messages.pack(messages.Ready()))
    if how == "lives":
        while True:
            channel.sendall(messages.pack(messages.Beat([], {{}})))
            time.sleep(0.05)
    time.sleep(60)
"""


@asynccontextmanager
async def fakes(
    how: str, sockets: Any = (), pauses: list[float] | None = None, **options: Any
) -> AsyncIterator[tuple[Workers, list[str]]]:
    """One worker that dies, is silent or lives; and what the master heard of it.

    pauses: gets the seconds from each death to the next start.
    """
    heard: list[str] = []

    def take(place: Place, message: ToMaster) -> None:
        if isinstance(message, messages.Ready):
            workers.now_serving(place)
            heard.append("ready")

    def died(place: Place, how: str) -> None:
        heard.append(how)
        if pauses is not None:
            pauses.append(place.next_start - time.monotonic())

    program = [sys.executable, "-c", FAKE.format(how=how, path=[str(Path(__file__).parents[2])])]
    fd = os.open(os.devnull, os.O_RDONLY)
    workers = Workers(
        [Place(0, list(sockets), [])], fd, take, died, lambda _: messages.Ask(0), program=program, **options
    )
    await workers.start()
    try:
        yield workers, heard
    finally:
        workers.close()


@run
async def test_a_worker_without_a_sign_of_life_is_killed_and_replaced() -> None:
    async with fakes("silent", silence=0.5) as (workers, heard):
        await until(lambda: heard.count("ready") == 2, 60)
        assert heard[:2] == ["ready", "signal SIGKILL"]
        assert workers.places[0].restarts == {"died": 0, "frozen": 1}


@run
async def test_a_worker_that_shows_life_is_left_alone() -> None:
    async with fakes("lives", silence=3.0) as (workers, heard):
        await until(lambda: heard == ["ready"], 60)
        await asyncio.sleep(4.0)
        assert heard == ["ready"]
        assert [p.number for p in workers.serving()] == [0]


@run
async def test_a_worker_that_dies_at_once_is_started_less_and_less_often() -> None:
    pauses: list[float] = []
    async with fakes("dies", pauses=pauses) as (workers, heard):
        await until(lambda: len(heard) == 3, 60)
        assert workers.places[0].quick_deaths == 3
        assert pauses[2] > 0.2
        assert heard == ["exit status 0"] * 3


@run
async def test_a_worker_that_dies_at_once_again_and_again_stops_holding_connections() -> None:
    (sockets,) = listen.bind("127.0.0.1", 0, 1)
    sockets[0].listen()  # as its first worker left it
    address = sockets[0].getsockname()
    async with fakes("dies", sockets=sockets) as (_, heard):
        (await asyncio.open_connection(*address))[1].close()
        await until(lambda: len(heard) >= 3, 60)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
