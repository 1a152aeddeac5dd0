"""A replica for property tests: it answers each request with bytes of its own, or fails in a way that was drawn.

Requests carry a nonce in the header ``x-nonce``. An answer is a function of nonce and replica, so a client can
tell whether what it got is whole and whose it is. ``attempts`` records what came, when.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.fakes import FakeEngine, chunk

#: What a request may meet; those of BROKEN end in the middle of an answer.
BROKEN = ("reset_after_head", "die_mid_stream", "die_mid_chunk", "die_between", "half_json")
BEHAVIOURS = (
    "whole", "whole", "pieces", "chunked", "until_close", "late", "large", "close_after", "reset", "silent",
    "status_500", "status_503", "status_429", *BROKEN,
)  # fmt: skip


def answer_of(nonce: str, engine: str, size: int = 1) -> bytes:
    """The JSON answer."""
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    content = {"nonce": nonce, "engine": engine, "text": "ab" * size, "usage": usage}
    return json.dumps(content).encode()


def events_of(nonce: str, engine: str, size: int = 1) -> list[bytes]:
    """The events of a stream."""
    texts = [f"{nonce}-{engine}-{i}-" + "xy" * size for i in range(4)]
    return [b'data: {"t":"%s"}\n\n' % t.encode() for t in texts] + [b"data: [DONE]\n\n"]


class FaultyEngine(FakeEngine):
    def __init__(self, name: str, *script: str) -> None:
        super().__init__("drawn")
        self.name = name
        self.drawn = list(script) or ["whole"]
        self.attempts: list[tuple[str, float, str]] = []  # (nonce, loop time, behaviour)
        self.gap = 0.005
        self.released = asyncio.Event()  # ends what is silent
        self.alive = True

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            return await super()._one(reader, writer)
        except RuntimeError as e:  # uvloop, of a connection that ``kill`` has reset
            raise ConnectionResetError from e

    async def _drawn(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        headers, body = self.requests[-1][1:]
        how = self.drawn[len(self.attempts) % len(self.drawn)]
        nonce = headers.get("x-nonce", "?")
        self.attempts.append((nonce, asyncio.get_running_loop().time(), how))
        if how == "reset":
            return False
        if how == "silent":
            while not self.released.is_set():
                await self._watched(reader, 0.05)
            return False
        if how.startswith("status_"):
            status = int(how[7:])
            return await self._send(writer, b'{"error":{"message":"no","code":"%d"}}' % status, status)
        if how == "late":
            await self._watched(reader, 0.15)
        size = 50_000 if how == "large" else 1
        if b'"stream": true' in body:
            return await self._events(reader, writer, how, events_of(nonce, self.name, size))
        return await self._json(reader, writer, how, answer_of(nonce, self.name, size))

    async def _events(self, reader: Any, writer: Any, how: str, events: list[bytes]) -> bool:
        self._sse_head(writer)
        if how == "reset_after_head":
            await writer.drain()
            return False
        for i, e in enumerate(events):
            if i == 2 and how in BROKEN:
                if how != "die_between":
                    writer.write(chunk(e)[:-9])
                await writer.drain()
                await asyncio.sleep(self.gap)
                return False
            writer.write(chunk(e))
            if how != "whole":
                await self._watched(reader, self.gap)
            await self.frozen.wait()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return how != "close_after"

    async def _json(self, reader: Any, writer: Any, how: str, body: bytes) -> bool:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        if how == "chunked":
            writer.write(head + b"transfer-encoding: chunked\r\n\r\n")
            for i in range(0, len(body), 40):
                writer.write(chunk(body[i : i + 40]))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            return True
        if how == "until_close":
            writer.write(head + b"connection: close\r\n\r\n" + body)
            await writer.drain()
            writer.close()
            await asyncio.sleep(self.gap)
            return False
        writer.write(head + b"content-length: %d\r\n\r\n" % len(body))
        if how in ("pieces", "late", *BROKEN):
            await writer.drain()
            await asyncio.sleep(self.gap)
        if how == "reset_after_head":
            return False
        if how in BROKEN:
            writer.write(body[: len(body) // 2])
            await writer.drain()
            await asyncio.sleep(self.gap)
            return False
        await self.frozen.wait()
        writer.write(body)
        await writer.drain()
        return how != "close_after"
