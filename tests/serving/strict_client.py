"""A client that believes nothing: it sends one request as it is told and parses the answer with h11."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import h11


@dataclass
class Ask:
    """One request. cut: seconds after which the client goes away, if it has no whole answer by then."""

    nonce: str
    stream: bool = False
    http10: bool = False
    chunked: bool = False
    pieces: int = 1
    padding: int = 0
    deadline: float | None = None
    cut: float = 5.0
    own_id: bool = True
    key: str = ""

    def bytes(self) -> list[bytes]:
        """As it goes over the wire, in pieces."""
        content: dict[str, Any] = {
            "model": "m",
            "messages": [{"role": "user", "content": "x" * self.padding}],
        }
        if self.stream:
            content["stream"] = True
        body = json.dumps(content).encode()
        version = "1.0" if self.http10 else "1.1"
        head = f"POST /v1/chat/completions HTTP/{version}\r\nhost: x\r\nx-nonce: {self.nonce}\r\n"
        if self.own_id:
            head += f"x-request-id: {self.nonce}\r\n"
        if self.key:
            head += f"authorization: Bearer {self.key}\r\n"
        if self.deadline is not None:
            head += f"x-request-timeout: {self.deadline}\r\n"
        if self.chunked and not self.http10:
            half = len(body) // 2
            parts = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (body[:half], body[half:]))
            raw = head.encode() + b"transfer-encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n"
        else:
            raw = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
        size = max(1, -(-len(raw) // self.pieces))
        return [raw[i : i + size] for i in range(0, len(raw), size)]


@dataclass
class Got:
    """What became of it. end: whole, broken (the connection ended first) or left (the client went away)."""

    ask: Ask
    sent: bool = False  # the whole request
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    end: str = "left"
    first: float = 0.0  # loop time of the first byte
    keep: bool = False  # the connection may be used again

    @property
    def replica(self) -> str:
        return self.headers.get(b"x-exaserve-replica", b"").decode()


class StrictClient:
    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, ask: Ask) -> Got:
        """Send it and read the answer. Raises h11.RemoteProtocolError for what is no HTTP."""
        got = Got(ask)
        try:
            async with asyncio.timeout(ask.cut):
                await self._ask(ask, got)
        except (TimeoutError, ConnectionError) as e:
            got.end = "left" if isinstance(e, TimeoutError) else "broken"
        if not got.keep:
            self.leave()
        return got

    def leave(self) -> None:
        if self.writer is not None:
            self.writer.transport.abort()
        self.reader = self.writer = None

    async def _ask(self, ask: Ask, got: Got) -> None:
        if self.writer is None or self.writer.transport.is_closing() or self.reader is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.reader, self.writer
        pieces = ask.bytes()
        for i, piece in enumerate(pieces):
            if i:
                await asyncio.sleep(0.002)
            got.sent = i == len(pieces) - 1
            writer.write(piece)
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
        parser.send(h11.EndOfMessage())
        while True:
            data = await reader.read(65536)
            if data and not got.first:
                got.first = asyncio.get_running_loop().time()
            try:
                parser.receive_data(data)
                while (event := parser.next_event()) is not h11.NEED_DATA:
                    if isinstance(event, h11.Response):
                        got.status, got.headers = event.status_code, dict(event.headers)
                    elif isinstance(event, h11.Data):
                        got.body += event.data
                    elif isinstance(event, h11.EndOfMessage):
                        got.end = "whole"
                        got.keep = not ask.http10 and parser.our_state is h11.DONE and bool(data)
                        assert not parser.trailing_data[0], "more than the answer"
                        return
                    elif isinstance(event, h11.ConnectionClosed):
                        got.end = "broken"
                        return
            except h11.RemoteProtocolError:
                if data:
                    raise
                got.end = "broken"
                return
