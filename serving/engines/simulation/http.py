"""HTTP/1.1 of the simulated replica: one connection's requests in, answers out.

What is answered is decided in ``server.py``. Keep-alive, pipelining (answered in order), chunked streams; a
client that goes away is told to whoever works for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import math
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast
from urllib.parse import unquote

import httptools

from .connections import KEEP_ALIVE_SECONDS, Connections, Owner

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 2**20
_MAX_PIPELINED = 16
_UNFINISHED_REQUEST_SECONDS = 60.0
# The only headers that anybody here asks for.
_WANTED = {b"content-type", b"x-request-id", b"endpoint-load-metrics-format", b"expect"}
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST, and what is not sent yet is lost


@dataclass(slots=True)
class HttpRequest:
    """One request. headers: the wanted ones, names in lower case; of repeated ones the last counts.

    arrived: when its last byte was read, of ``time.monotonic()``.
    """

    method: str = ""
    path: str = ""
    query: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = True
    chunked: bool = True
    arrived: float = 0.0


class Connection(asyncio.Protocol):
    """One client connection. ``owner.handle(connection, request)`` is called for each request in turn.

    It answers with ``respond`` at once or later, or with ``begin``, ``send`` and ``end``. ``on_gone``, if set
    meanwhile, is called when the client goes away first. expires: when it has been quiet for too long.
    """

    __slots__ = (
        "_current", "_everywhere", "_file", "_head_bytes", "_owner", "_parser", "_queue", "_reading", "chunked",
        "expires", "on_gone", "transport",
    )  # fmt: skip

    def __init__(self, owner: Owner, everywhere: Connections) -> None:
        self.on_gone: Callable[[], None] | None = None
        self.transport: asyncio.Transport | None = None
        self.expires = 0.0
        self.chunked = False  # whether the stream that is sent has chunks
        self._owner = owner
        self._everywhere = everywhere
        self._file = -1
        self._parser: Any = httptools.HttpRequestParser(self)
        self._reading: HttpRequest | None = None
        self._head_bytes = 0
        self._queue: deque[HttpRequest] | None = None  # pipelined ones
        self._current: HttpRequest | None = None

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface but not the class.
        self.transport = cast("asyncio.Transport", transport)
        self._file = transport.get_extra_info("socket").fileno()
        self._owner.connections.add(self)
        self._everywhere.add(self)
        self.expires = time.monotonic() + KEEP_ALIVE_SECONDS

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.connections.discard(self)
        self._everywhere.discard(self)
        self.transport = None
        self._queue = None
        gone, self.on_gone = self.on_gone, None
        if gone:
            gone()

    def data_received(self, data: bytes) -> None:
        if self._current is None:
            self.expires = time.monotonic() + _UNFINISHED_REQUEST_SECONDS
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(400, "Invalid HTTP request received.")

    # httptools callbacks
    def on_message_begin(self) -> None:
        self._reading = HttpRequest()
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        if self._reading:
            self._reading.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + 4)
        if (name := name.lower()) in _WANTED and self._reading:
            self._reading.headers[name.decode()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._reading and "expect" in self._reading.headers and self._current is None:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        if not self._reading:
            return
        self._reading.body += body
        if len(self._reading.body) > MAX_BODY_BYTES:
            self._refuse(413, f"The body is larger than {MAX_BODY_BYTES} bytes.")

    def on_message_complete(self) -> None:
        request, self._reading = self._reading, None
        if request is None:
            return
        request.method = self._parser.get_method().decode("latin-1")
        path, _, request.query = request.path.partition("?")
        request.path = unquote(path) if "%" in path else path
        request.keep_alive = self._parser.should_keep_alive()
        request.chunked = self._parser.get_http_version() != "1.0"
        request.arrived = time.monotonic()
        if self._queue is None and self._current is None:
            self._start(request)
            return
        if self._queue is None:
            self._queue = deque()
        self._queue.append(request)
        if self._current is None:
            self._next()
        elif self.transport and len(self._queue) >= _MAX_PIPELINED:
            self.transport.pause_reading()

    # answering
    def respond(self, status: int, body: bytes, content_type: str, headers: str = "") -> None:
        """The whole answer. headers: further lines, each ending in CRLF."""
        kind = f"content-type: {content_type}\r\n" if content_type else ""
        head = f"{_status_line(status)}content-length: {len(body)}\r\n{kind}vary: Origin\r\n{headers}{self._closing()}\r\n"
        self._write(head.encode() + body)
        self._finish()

    def begin_and_reset(self, body: bytes, content_type: str) -> None:
        """The head and the first half of an answer, then RST."""
        head = f"{_status_line(200)}content-length: {len(body)}\r\ncontent-type: {content_type}\r\n\r\n"
        self._write(head.encode() + body[: len(body) // 2])
        # RST drops what lies in the socket's buffer: give it a moment to arrive.
        asyncio.get_running_loop().call_later(0.01, self.reset)

    def begin(self, content_type: str) -> None:
        """The head of a stream."""
        self.chunked = self._current is not None and self._current.chunked
        self._write(_stream_head(content_type, self.chunked, self._closing()))

    def send(self, data: bytes) -> None:
        """A piece of the stream; one chunk."""
        if self.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._write(data)

    def send_now(self, data: bytes) -> None:
        """Bytes of the stream as they are (the chunk's frame is in them), past the event loop's buffer.

        What uvloop's transports do around a write costs as much again as all that the simulation does for a token.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() == 0:
            try:
                sent = os.write(self._file, data)
            except BlockingIOError:
                sent = 0
            except OSError:  # the client is gone; the transport will say so
                return
            if sent == len(data):
                return
            data = data[sent:]
        transport.write(data)

    def end(self) -> None:
        """The end of the stream."""
        if self.chunked:
            self._write(b"0\r\n\r\n")
        self._finish()

    def cut(self) -> None:
        """End the connection without an end of the answer, as a dying process does."""
        self.on_gone = None
        if self.transport:
            self.transport.abort()

    def reset(self) -> None:
        """``cut`` with RST; what was written and has not gone out is lost."""
        if self.transport and (sock := self.transport.get_extra_info("socket")) is not None:
            with contextlib.suppress(OSError):  # it is closed already
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.cut()

    def close(self) -> None:
        """Close once everything written has gone out."""
        if self.transport:
            self.transport.close()

    def expire(self) -> None:
        """It has been quiet for too long."""
        if not self._owner.frozen:
            self.close()

    @property
    def idle(self) -> bool:
        """Whether no request is being answered or read on it."""
        return self._current is None and self._reading is None

    def _start(self, request: HttpRequest) -> None:
        self._current = request
        self.expires = math.inf
        self._owner.handle(self, request)

    def _finish(self) -> None:
        request, self._current, self.on_gone = self._current, None, None
        if self.transport is None or self.transport.is_closing():
            return
        if request is None or not request.keep_alive:
            self.transport.close()
            return
        keep = self._owner.keep_alive
        self.expires = time.monotonic() + keep
        if keep < KEEP_ALIVE_SECONDS:  # a fault
            asyncio.get_running_loop().call_later(keep, self._reset_idle)
        if self._queue:
            # Not called from here: a long pipeline of short answers would go as deep as it is long.
            asyncio.get_running_loop().call_soon(self._next)

    def _reset_idle(self) -> None:
        if self.idle:
            self.reset()

    def _next(self) -> None:
        if (
            self._current is not None
            or not self._queue
            or self.transport is None
            or self.transport.is_closing()
        ):
            return
        request = self._queue.popleft()
        self.transport.resume_reading()
        self._start(request)

    def _closing(self) -> str:
        return "" if self._current is None or self._current.keep_alive else "connection: close\r\n"

    def _write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, f"The request's head is larger than {MAX_HEAD_BYTES} bytes.")

    def _refuse(self, status: int, message: str) -> None:
        """Answer what can't be read, and close: what follows on this connection can't be told apart."""
        if self.transport is None or self.transport.is_closing():
            return
        if self._current is None:
            body = message.encode()
            head = f"{_status_line(status)}content-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            self._write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()


@lru_cache(maxsize=16)
def _stream_head(content_type: str, chunked: bool, closing: str) -> bytes:
    length = "transfer-encoding: chunked\r\n" if chunked else ""
    return (
        f"{_status_line(200)}content-type: {content_type}\r\nvary: Origin\r\n{length}{closing}\r\n".encode()
    )


@lru_cache(maxsize=256)
def _status_line(status: int) -> str:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\n"
