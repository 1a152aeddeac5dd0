"""A client that asks an OpenAI-compatible server for streams and says when each token came.

For measuring (``measure.py``) and for comparing replicas in the tests: plain sockets, one process, a few tens of
microseconds a token, so that the client's own time does not show.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

# A server may close a connection that has been idle for 5 s; one that might be gone is not used again.
_FRESH = 2.0
# Token numbers that every vocabulary has and that are ordinary text in most.
_FIRST_TOKEN, _LAST_TOKEN = 1000, 30_000


class AskError(Exception):
    """The server could not be asked; the message says what it did."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer. started: of ``time.monotonic()``. tokens: seconds after that at which each token came."""

    started: float
    tokens: tuple[float, ...]

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.tokens[0]

    @property
    def total(self) -> float:
        """Seconds to the last token."""
        return self.tokens[-1]

    @property
    def steps(self) -> list[float]:
        """Seconds between neighbouring tokens."""
        return [b - a for a, b in pairwise(self.tokens)]


class Client:
    """One keep-alive connection to ``url``; use it for one request at a time."""

    def __init__(self, url: str, timeout: float = 120.0) -> None:
        """Raises AskError for a URL that is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AskError(f"{url} is no http:// or https:// address")
        self._ssl = True if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = parts.port or (443 if self._ssl else 80)
        self._path = parts.path.rstrip("/")
        self._timeout = timeout
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = 0.0

    async def get(self, path: str) -> bytes:
        """The body of a GET. Raises AskError for anything but 200."""
        return await self._guarded(self._get(path))

    async def stream(self, model: str, prompt: list[int], tokens: int) -> Timed:
        """Ask for exactly ``tokens`` tokens. Raises AskError."""
        return await self._guarded(self._stream(model, prompt, tokens))

    def close(self) -> None:
        """Close the connection."""
        if self._streams:
            self._streams[1].close()
            self._streams = None

    async def _guarded(self, work: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout):
                return await work
        except TimeoutError:
            self.close()
            raise AskError(
                f"{self._host}:{self._port} gave no whole answer within {self._timeout:g} s"
            ) from None
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise AskError(f"{self._host}:{self._port}: {error or type(error).__name__}") from None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if time.monotonic() - self._used > _FRESH:
            self.close()
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, ssl=self._ssl)
        return self._streams

    async def _send(self, head: str, body: bytes = b"") -> asyncio.StreamReader:
        reader, writer = await self._connect()
        self._used = time.monotonic()
        writer.write(f"{head}host: {self._host}:{self._port}\r\n\r\n".encode() + body)
        return reader

    async def _get(self, path: str) -> bytes:
        reader = await self._send(f"GET {self._path}{path} HTTP/1.1\r\n")
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = b"".join([piece async for piece in _pieces(reader, head)])
        self._after(head)
        if not head.startswith(b"http/1.1 200 "):
            raise AskError(f"GET {path}: {head.split(bytes([13]))[0].decode()}")
        return body

    async def _stream(self, model: str, prompt: list[int], tokens: int) -> Timed:
        ask = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        raw = json.dumps({**ask, "ignore_eos": True, "stream": True}).encode()
        head = "POST %s/v1/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        await self._connect()  # the time that it takes is not the server's
        self._used = time.monotonic()
        started = time.monotonic()
        reader = await self._send(head % (self._path, len(raw)), raw)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        times: list[float] = []
        said = b""
        async for piece in _pieces(reader, answer):
            now = time.monotonic() - started
            times += [now] * piece.count(b'"text":')
            said = said or piece
        self._after(answer)
        if not answer.startswith(b"http/1.1 200 ") or len(times) != tokens:
            status = answer.split(b"\r")[0].decode()
            raise AskError(
                f"{status}, {len(times)} of {tokens} tokens: {said[:300].decode(errors='replace')}"
            )
        return Timed(started, tuple(times))

    def _after(self, head: bytes) -> None:
        self._used = time.monotonic()
        if b"connection: close" in head:
            self.close()


async def _pieces(reader: asyncio.StreamReader, head: bytes) -> Any:
    """The body, piece by piece as it comes. head: in lower case."""
    if b"transfer-encoding: chunked" in head:
        while size := int(await reader.readline(), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        length = int(head.split(b"content-length:")[1].split(b"\r")[0])
        yield await reader.readexactly(length)


def prompt(source: random.Random, length: int) -> list[int]:
    """A prompt of ``length`` tokens that no prefix cache has seen."""
    return [source.randrange(_FIRST_TOKEN, _LAST_TOKEN) for _ in range(length)]


async def load(
    url: str,
    model: str,
    requests: list[tuple[int, int]],
    users: int,
    source: random.Random,
    apart: float = 0.0,
) -> list[Timed]:
    """Answer times of ``requests`` (prompt tokens, answer tokens) in their order, asked by ``users`` at once,
    each as soon as its last one has been answered. They start ``apart`` seconds after each other. Raises
    AskError."""
    prompts = [prompt(source, length) for length, _ in requests]
    found: list[Timed | None] = [None] * len(requests)
    left = iter(range(len(requests)))

    async def user(number: int) -> None:
        await asyncio.sleep(number * apart)
        client = Client(url)
        try:
            for i in left:
                found[i] = await client.stream(model, prompts[i], requests[i][1])
        finally:
            client.close()

    await asyncio.gather(*(user(number) for number in range(users)))
    return [timed for timed in found if timed is not None]
