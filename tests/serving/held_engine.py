"""A replica that answers when a test lets it, and further answers that the router's tests need."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.fakes import CHUNKS, FakeEngine, chunk
from tests.serving.invariants import check_rest
from tests.serving.routing import Running, read_answer, request, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}
USAGE = {"prompt_tokens": 11, "total_tokens": 18, "completion_tokens": 7}


class HeldEngine(FakeEngine):
    """Behaviours beside those of FakeEngine: held (waits for ``let``), status_N, usage (JSON), usage_stream,
    held_stream (two chunks, then waits for ``let``)."""

    def __init__(self, *script: str, model: str = "m") -> None:
        super().__init__(*(script or ("held",)), model=model)
        self.free = asyncio.Semaphore(0)
        self.answer: bytes = b'{"choices":[]}'

    def let(self, n: int = 1) -> None:
        """So many of the requests that are held now or later may end, the oldest first."""
        for _ in range(n):
            self.free.release()

    @property
    def asked(self) -> list[str]:
        """The header x-n of each request, in order of arrival."""
        return [headers.get("x-n", "") for _, headers, _ in self.requests]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_status_"):
            status = int(name.removeprefix("_status_"))

            async def answer(_: Any, writer: asyncio.StreamWriter) -> bool:
                return await self._send(writer, b'{"error":{"message":"as told"}}', status)

            return answer
        raise AttributeError(name)

    async def _hold(self, reader: asyncio.StreamReader) -> None:
        """Until it may go on, or its client is gone."""
        leaves = asyncio.ensure_future(reader.read(1))
        turn = asyncio.ensure_future(self.free.acquire())
        try:
            await asyncio.wait((leaves, turn), return_when=asyncio.FIRST_COMPLETED)
            if leaves.done() and not turn.done():
                raise ConnectionResetError
        finally:
            leaves.cancel()
            turn.cancel()
            await asyncio.gather(leaves, turn, return_exceptions=True)

    async def _held(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await self._hold(reader)
        return await self._send(writer, self.answer)

    async def _held_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self._sse_head(writer)
        for c in CHUNKS[:2]:
            writer.write(chunk(c))
        await self._hold(reader)
        writer.write(chunk(CHUNKS[3]) + b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _usage(self, _: Any, writer: asyncio.StreamWriter) -> bool:
        return await self._send(writer, json.dumps({"choices": [], "usage": USAGE}).encode())

    async def _usage_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """As engines do with stream_options.include_usage: each event, [DONE] and the last chunk apart."""
        self._sse_head(writer)
        last = b"data: %s\n\n" % json.dumps({"choices": [], "usage": USAGE}).encode()
        for c in (*CHUNKS[:3], last, CHUNKS[3]):
            writer.write(chunk(c))
            await self._watched(reader, self.gap)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


class Asked:
    """A request that is under way on a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def ask(
        cls, r: Running, body: Any = CHAT, extra: str = "", path: str = "/v1/chat/completions"
    ) -> Asked:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(request(body, path, extra))
        return cls(reader, writer)

    async def answer(self) -> tuple[int, bytes, bytes]:
        """(status, head in lower case, body); (0, b"", b"") where the connection ended without one."""
        try:
            data = await asyncio.wait_for(read_answer(self.reader), 30)
        except ConnectionError:
            data = b""
        self.leave()
        head, _, body = data.partition(b"\r\n\r\n")
        return int(head.split()[1]) if head else 0, head.lower(), body

    def leave(self) -> None:
        self.writer.transport.abort()


def code_of(body: bytes) -> str:
    """``error.code`` of the router's own answer."""
    return str(json.loads(body)["error"]["code"])


async def at_rest(r: Running) -> None:
    """Wait until nothing is open; then every count has to be 0."""
    await until(lambda: not any(c.exchange for c in r.server.clients) and not r.server._tasks)
    check_rest(r.server, r.server.replicas)
    assert all(t.budget.in_flight == 0 for t in r.server.tenants.by_name.values())
