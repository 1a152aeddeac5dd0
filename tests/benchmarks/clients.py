"""Clients for benchmarks: requests as the openai package sends them, and three ways to load a proxy with them.

``closed_loop`` (N connections, each asks again when it has its answer), ``open_loop`` (arrivals at a rate, whatever
the answers do; latency counts from the time a request was due) and ``Streams`` (open streams, chunks and reads
counted). They check as much of an answer as costs nothing; what an answer must be is for ``tests/serving``.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.benchmarks.prompts import prompt
from tests.benchmarks.upstreams import MODEL

HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAccept-Encoding: gzip, deflate\r\n"
    "Connection: keep-alive\r\n{authorization}accept: application/json\r\ncontent-type: application/json\r\n"
    "user-agent: OpenAI/Python 2.8.1\r\nx-stainless-lang: python\r\nx-stainless-package-version: 2.8.1\r\n"
    "x-stainless-os: Linux\r\nx-stainless-arch: x64\r\nx-stainless-runtime: CPython\r\n"
    "x-stainless-runtime-version: 3.11.7\r\nx-stainless-async: false\r\nx-stainless-retry-count: 0\r\n"
    "x-stainless-read-timeout: 600\r\nContent-Length: {length}\r\n\r\n"
)
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


def _json(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def requests(
    count: int,
    size: int,
    keys: Sequence[str] = (),
    streaming: bool = False,
    max_tokens: int = 64,
    seed: int = 1,
) -> list[bytes]:
    """``count`` different requests with bodies of about ``size`` bytes (± 10 %).

    keys: API keys, used in turn; none: a key that nobody looks at. Sessions are as in real life: one system prompt
    for all, a question of its own in each (prompts.py).
    """
    chosen = random.Random(seed)
    user = {"role": "user", "content": ""}
    body: dict[str, object] = {
        "messages": [
            {"role": "system", "content": "You are a helpful assistant. Answer in two sentences."},
            user,
        ],
        "model": MODEL,
        "max_tokens": max_tokens,
        "temperature": 0.7,
    }
    if streaming:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    rest = len(_json(body)) + 8
    made = []
    for i in range(count):
        text = prompt(chosen, max(int(size * chosen.uniform(0.9, 1.1)) - rest, 20))
        user["content"] = f"{text} ({seed}-{i})"
        raw = _json(body)
        key = keys[i % len(keys)] if keys else "sk-nobody-looks-at-this-0123456789abcdef"
        head = HEAD.format(authorization=f"authorization: Bearer {key}\r\n", length=len(raw))
        made.append(head.encode() + raw)
    return made


class Refused(Exception):
    """An answer that is none: its status line and what follows."""


@dataclass
class Load:
    """What a load did. ``seconds`` is wall time."""

    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    lag: list[float] = field(default_factory=list)  # how late requests were sent
    first_error: str = ""


# --- closed loop ---


class _Asker(asyncio.Protocol):
    """One keep-alive connection: sends the next request as soon as the answer is whole."""

    transport: asyncio.Transport

    def __init__(self, queue: list[bytes], load: Load, ended: asyncio.Future[None]) -> None:
        self.queue = queue
        self.load = load
        self.ended = ended
        self.missing = -1  # bytes of the body still to come; -1: head not seen
        self.chunked = False
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.ask()

    def ask(self) -> None:
        if self.queue:
            self.transport.write(self.queue.pop())
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self.missing < 0:
            data = self.buffer + data if self.buffer else data
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                self.buffer = data
                return
            self.buffer = b""
            if not data.startswith(b"HTTP/1.1 200"):
                self.load.failed += 1
                self.load.first_error = self.load.first_error or data[:300].decode(errors="replace")
            found = LENGTH.search(data, 0, end)
            self.chunked = found is None
            self.missing = int(found[1]) if found else 1 << 40
            data = data[end:]
        self.missing -= len(data)
        if self.missing <= 0 or (self.chunked and data.endswith(b"0\r\n\r\n")):
            self.missing = -1
            self.load.done += 1
            self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.missing >= 0:
            self.load.failed += 1
            self.load.first_error = self.load.first_error or f"connection lost: {exc}"
        if not self.ended.done():
            self.ended.set_result(None)


async def closed_loop(port: int, made: Sequence[bytes], count: int, connections: int = 32) -> Load:
    """``count`` requests, taken from ``made`` in turn. Raises Refused if any answer was not 200.

    A connection belongs to one client, so all of its requests show the same key.
    """
    loop = asyncio.get_running_loop()
    of_clients: dict[bytes, list[bytes]] = {}
    for request in made:
        key = re.search(rb"\r\nauthorization: *([^\r]*)", request[:4096], re.I)
        of_clients.setdefault(key[1] if key else b"", []).append(request)
    groups = list(of_clients.values())
    each, more = divmod(count, connections)
    load, began, futures = Load(), time.perf_counter(), []
    for c in range(connections):
        own = groups[c % len(groups)]
        queue = [own[(c + i) % len(own)] for i in range(each + (c < more))]
        futures.append(loop.create_future())
        await loop.create_connection(lambda f=futures[-1], q=queue: _Asker(q, load, f), "127.0.0.1", port)  # type: ignore[misc]
    async with asyncio.timeout(120):
        await asyncio.gather(*futures)
    load.seconds = time.perf_counter() - began
    if load.failed or load.done != count:
        raise Refused(f"{load.failed} of {count} failed, {load.done} answered: {load.first_error}")
    return load


# --- open loop ---


def open_loop(port: int, made: Sequence[bytes], rate: float, seconds: float, seed: int = 1) -> Load:
    """Poisson arrivals at ``rate`` a second for ``seconds``; latencies from the due time, in seconds.

    No event loop: timers of uvloop and epoll count milliseconds, select counts microseconds. Connections are
    opened as needed, at most 400; a request that finds none free waits, and its latency says so.
    """
    chosen = random.Random(seed)
    load = Load()
    idle: list[socket.socket] = []
    busy: dict[socket.socket, list[float | int]] = {}  # due, bytes missing (-1: no head yet)
    clock = time.perf_counter
    began = clock()
    due, end, n = began + chosen.expovariate(rate), began + seconds, 0
    while due < end or busy:
        now = clock()
        while due <= now and due < end:
            if not idle:
                if len(busy) >= 400:
                    break
                idle.append(_connected(port))
            connection = idle.pop()
            connection.send(made[n % len(made)])
            busy[connection] = [due, -1]
            load.lag.append(clock() - due)
            n += 1
            due += chosen.expovariate(rate)
        if now > end + 20:
            load.failed += len(busy)
            break
        pause = max(due - clock(), 0.0) if due < end and len(busy) < 400 else 0.5
        for connection in select.select(list(busy), [], [], pause)[0]:
            _receive(connection, busy, idle, load, clock)
    load.seconds = clock() - began
    for connection in [*idle, *busy]:
        connection.close()
    return load


def _connected(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _receive(connection, busy, idle, load, clock) -> None:  # type: ignore[no-untyped-def]
    data = connection.recv(262144)
    state = busy[connection]
    if state[1] < 0:
        end = data.find(b"\r\n\r\n") + 4
        found = LENGTH.search(data, 0, end) if end >= 4 else None
        if not data.startswith(b"HTTP/1.1 200") or (data and end < 4):
            load.failed += 1
            load.first_error = load.first_error or data[:300].decode(errors="replace")
            del busy[connection]
            connection.close()
            return
        state[1] = int(found[1]) if found else 1 << 40
        data = data[end:]
    state[1] -= len(data)
    if state[1] <= 0 or data.endswith(b"0\r\n\r\n"):
        load.done += 1
        load.latencies.append(clock() - state[0])
        del busy[connection]
        idle.append(connection)
    elif not data:
        load.failed += 1
        del busy[connection]


# --- streams ---


class Stream(asyncio.Protocol):
    """One stream on a connection of its own."""

    transport: asyncio.Transport

    def __init__(self, streams: Streams, request: bytes) -> None:
        self.streams = streams
        self.request = request
        self.begun = False
        self.ended = False
        self.gone: asyncio.Future[None] | None = None  # for whoever waits for this one

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.streams.open.add(self)
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        streams = self.streams
        if not self.begun:
            self.begun = True
            if not data.startswith(b"HTTP/1.1 200"):
                streams.fail(self, data[:300].decode(errors="replace"))
                return
        events = data.count(b"data: ")
        if events:
            streams.chunks += events
            streams.reads += 1
            if events > 1:
                streams.bundled += events
        if data.endswith(b"0\r\n\r\n"):
            self.ended = True
            streams.whole += 1
            self.transport.close()
        elif streams.abort_at_first and events:
            self.ended = True
            streams.aborted += 1
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.streams.open.discard(self)
        if not self.ended:
            self.streams.fail(self, f"cut: {exc}" if self.begun else f"closed without an answer: {exc}")
        if self.gone is not None and not self.gone.done():
            self.gone.set_result(None)
        self.streams.changed()


class Streams:
    """A set of streams. Counts what came: chunks (events), reads that held any, events that shared a read."""

    def __init__(self, port: int, abort_at_first: bool = False) -> None:
        self.port = port
        self.abort_at_first = abort_at_first
        self.open: set[Stream] = set()
        self.chunks = self.reads = self.bundled = 0
        self.whole = self.failed = self.aborted = 0
        self.errors: dict[str, int] = {}
        self._waiting: asyncio.Future[None] | None = None

    async def start(self, request: bytes) -> Stream | None:
        """Connects and sends; None where the connection was refused (counted as failed)."""
        loop = asyncio.get_running_loop()
        try:
            _, stream = await loop.create_connection(lambda: Stream(self, request), "127.0.0.1", self.port)
        except OSError as error:
            self.failed += 1
            self.note(f"no connection: {error}")
            return None
        return stream

    async def whole_or_not(self, request: bytes) -> None:
        """One stream, from its beginning until it is gone, however it ends."""
        stream = await self.start(request)
        if stream is not None and stream in self.open:
            stream.gone = asyncio.get_running_loop().create_future()
            await stream.gone

    async def start_all(self, made: Sequence[bytes], count: int, at_once: int = 64) -> None:
        """``count`` streams, ``at_once`` of them connecting at a time."""
        for first in range(0, count, at_once):
            batch = range(first, min(first + at_once, count))
            await asyncio.gather(*(self.start(made[i % len(made)]) for i in batch))

    def fail(self, stream: Stream, why: str) -> None:
        if not stream.ended:
            stream.ended = True
            self.failed += 1
            self.note(why)
            stream.transport.abort()

    def note(self, why: str) -> None:
        key = why.split("\r\n", 1)[0][:120]
        if key in self.errors or len(self.errors) < 16:
            self.errors[key] = self.errors.get(key, 0) + 1

    def changed(self) -> None:
        if not self.open and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def all_ended(self, seconds: float) -> None:
        """Until no stream is open. Raises TimeoutError."""
        if self.open:
            self._waiting = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(seconds):
                await self._waiting

    def abort_all(self) -> None:
        for stream in list(self.open):
            stream.ended = True
            self.aborted += 1
            stream.transport.abort()
