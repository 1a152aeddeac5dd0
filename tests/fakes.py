"""A replica written by hand, for what a real engine won't do on demand: refuse, reset, freeze, die mid-stream.

It speaks raw HTTP/1.1 on 127.0.0.1, records what reached it, and follows ``script``: a behaviour per request to
an inference path, the last one repeated.
"""

from __future__ import annotations

import asyncio
import json
import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

CHUNKS = [
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"Par"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"is"},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
]
JSON_ANSWER = b'{"choices":[{"message":{"content":"Paris"}}],"big":123456789012345678901234567890}'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class FakeEngine:
    """Behaviours: answer, stream, slow_stream, reset, reset_after_head, die_mid_stream, die_mid_chunk, silent,
    error_500, half_json, close_after (answers, then closes the idle connection)."""

    def __init__(self, *script: str, model: str = "m") -> None:
        self.script = list(script) or ["auto"]
        self.model = model
        self.requests: list[tuple[str, dict[str, str], bytes]] = []  # what clients sent, probes left out
        self.heads: list[bytes] = []  # of the same, as they came
        self.probes = 0
        self.open = 0  # inference requests that are being answered now
        self.aborted = 0  # whose connection went away before the answer ended
        self.probe: Callable[[], bytes] = lambda: b'{"choices":[{"text":"2"}]}'
        self.probe_status = 200
        self.frozen = asyncio.Event()
        self.frozen.set()  # set = running
        self.metrics = {"running": 0, "waiting": 0, "usage": 0.0, "tokens": 0}
        self.kv_blocks: int | None = None  # of 16 tokens; None: its page does not say
        self.gap = 0.02
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._port_held: socket.socket | None = None
        self.port = 0

    async def start(self, port: int = 0) -> FakeEngine:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", port or self.port, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def kill(self) -> None:
        """As a killed process: nobody listens, every connection is reset."""
        if self._server is not None:
            self._server.close()
        for w in list(self._writers):
            w.transport.abort()
        await asyncio.sleep(0)
        if self._port_held is None and self.port:
            # Bound, not listening: ours until ``start``. A free port may be given to another test, which answers there.
            self._port_held = socket.socket()
            weakref.finalize(self, self._port_held.close)
            self._port_held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                self._port_held.bind(("127.0.0.1", self.port))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, RuntimeError):
            pass  # the last: uvloop's, of a connection that is closed
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (x.partition(":") for x in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        await self.frozen.wait()
        method, path, _ = first.split(" ")
        if path == "/v1/models":
            models = {"object": "list", "data": [{"id": self.model, "object": "model"}]}
            return await self._send(writer, json.dumps(models).encode())
        if path.startswith("/metrics"):  # load reads ask for some families only
            return await self._send(writer, self._page())
        if path == "/v1/completions" and b'"prompt": "1"' in body:
            self.probes += 1
            return await self._send(writer, self.probe(), self.probe_status)
        self.requests.append((f"{method} {path}", headers, body))
        self.heads.append(head.encode("latin-1"))
        how = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if how == "auto":
            how = "stream" if b'"stream": true' in body or b'"stream":true' in body else "answer"
        self.open += 1
        try:
            return bool(await getattr(self, f"_{how}")(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError, RuntimeError):
            self.aborted += 1
            raise
        finally:
            self.open -= 1

    def _page(self) -> bytes:
        m, labels = self.metrics, '{engine="0",model_name="m"}'
        blocks = f'{{block_size="16",num_gpu_blocks="{self.kv_blocks}"}}'
        cache = f"vllm:cache_config_info{blocks} 1.0\n" if self.kv_blocks is not None else ""
        return (
            f"# HELP x\n{cache}vllm:num_requests_running{labels} {m['running']}\n"
            f"vllm:num_requests_waiting{labels} {m['waiting']}\nvllm:kv_cache_usage_perc{labels} {m['usage']}\n"
            f"vllm:generation_tokens_total{labels} {m['tokens']}\n"
        ).encode()

    async def _send(self, writer: asyncio.StreamWriter, body: bytes, status: int = 200) -> bool:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        return True

    async def _answer(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        return await self._send(writer, JSON_ANSWER)

    async def _error_500(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        return await self._send(writer, b'{"error":{"message":"boom"}}', 500)

    async def _close_after(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        await self._send(writer, JSON_ANSWER)
        return False

    def _sse_head(self, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )

    async def _watched(self, reader: asyncio.StreamReader, seconds: float) -> None:
        """Sleeps, but notices a client that goes away, as an engine does."""
        try:
            async with asyncio.timeout(seconds):
                if not await reader.read(1):
                    raise ConnectionResetError
        except TimeoutError:
            pass

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self._sse_head(writer)
        for c in CHUNKS:
            writer.write(chunk(c))
            await self._watched(reader, self.gap)
            await self.frozen.wait()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _endless(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self._sse_head(writer)
        while True:
            writer.write(chunk(CHUNKS[1]))
            await self._watched(reader, self.gap)
            await self.frozen.wait()

    async def _flood(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        """As many bytes as the reader takes, up to 64 MiB."""
        self._sse_head(writer)
        piece = chunk(b"data: " + b"x" * 65000 + b"\n\n")
        self.sent = 0
        for _i in range(1000):
            writer.write(piece)
            await writer.drain()
            self.sent += len(piece)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _silent(self, reader: asyncio.StreamReader, _: Any) -> bool:
        await self._watched(reader, 3600)
        return False

    async def _reset(self, *_: Any) -> bool:
        return False

    async def _reset_after_head(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        self._sse_head(writer)
        await writer.drain()
        await asyncio.sleep(0.05)
        return False

    async def _die_mid_stream(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        self._sse_head(writer)
        for c in CHUNKS[:2]:
            writer.write(chunk(c))
        await writer.drain()
        await asyncio.sleep(0.05)
        return False

    async def _die_mid_chunk(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        self._sse_head(writer)
        writer.write(chunk(CHUNKS[0]) + chunk(CHUNKS[1])[:-9])
        await writer.drain()
        await asyncio.sleep(0.05)
        return False

    async def _half_json(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(JSON_ANSWER), JSON_ANSWER[:9]))
        await writer.drain()
        await asyncio.sleep(0.05)
        return False
