"""HTTP/1.1 of the simulated replica: one connection's requests in, answers out.

What is answered is decided in ``server.py``. Keep-alive, pipelining (answered in order), chunked streams; a
client that goes away is told to whoever works for it.
"""

from __future__ import annotations

import asyncio
import http
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote

import httptools

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 2**20
_MAX_PIPELINED = 16
#: uvicorn, which vLLM runs on, closes an idle connection after this long. A router has to live with that.
KEEP_ALIVE_SECONDS = 5.0
_UNFINISHED_REQUEST_SECONDS = 60.0


@dataclass(slots=True)
class HttpRequest:
    """One request. Header names are lower-case; of repeated ones the last counts."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = True
    chunked: bool = True


class Connection(asyncio.Protocol):
    """One client connection. ``handle(connection, request)`` is called for each request in turn.

    It answers with ``respond`` at once or later, or with ``begin``, ``send`` and ``end``. ``on_gone``, if set
    meanwhile, is called when the client goes away first.
    """

    def __init__(
        self, handle: Callable[[Connection, HttpRequest], None], open_connections: set[Connection]
    ) -> None:
        self.on_gone: Callable[[], None] | None = None
        self.transport: asyncio.Transport | None = None
        self._handle = handle
        self._open = open_connections
        self._parser: Any = httptools.HttpRequestParser(self)
        self._reading = HttpRequest()
        self._head_bytes = 0
        self._queue: deque[HttpRequest] = deque()
        self._current: HttpRequest | None = None
        self._timer: asyncio.TimerHandle | None = None

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface but not the class.
        self.transport = cast("asyncio.Transport", transport)
        self._open.add(self)
        self._watch(KEEP_ALIVE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
        self._watch(None)
        self.transport = None
        self._queue.clear()
        gone, self.on_gone = self.on_gone, None
        if gone:
            gone()

    def data_received(self, data: bytes) -> None:
        if self._current is None:
            self._watch(_UNFINISHED_REQUEST_SECONDS)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(400, "Invalid HTTP request received.")

    # httptools callbacks
    def on_message_begin(self) -> None:
        self._reading = HttpRequest()
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._reading.path += url.decode("latin-1")
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + 4)
        self._reading.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._reading.headers.get("expect", "").lower() == "100-continue" and self._current is None:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._reading.body += body
        if len(self._reading.body) > MAX_BODY_BYTES:
            self._refuse(413, f"The body is larger than {MAX_BODY_BYTES} bytes.")

    def on_message_complete(self) -> None:
        request = self._reading
        request.method = self._parser.get_method().decode("latin-1")
        request.path = unquote(request.path.partition("?")[0])
        request.keep_alive = self._parser.should_keep_alive()
        request.chunked = self._parser.get_http_version() != "1.0"
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

    def begin(self, content_type: str) -> None:
        """The head of a stream."""
        chunked = self._current is not None and self._current.chunked
        length = "transfer-encoding: chunked\r\n" if chunked else ""
        head = f"{_status_line(200)}content-type: {content_type}\r\nvary: Origin\r\n{length}{self._closing()}\r\n"
        self._write(head.encode())

    def send(self, data: bytes) -> None:
        """A piece of the stream; one chunk."""
        if self._current is not None and self._current.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._write(data)

    def end(self) -> None:
        """The end of the stream."""
        if self._current is not None and self._current.chunked:
            self._write(b"0\r\n\r\n")
        self._finish()

    def cut(self) -> None:
        """Break the connection, as a dying process does."""
        self.on_gone = None
        if self.transport:
            self.transport.abort()

    def close(self) -> None:
        """Close once everything written has gone out."""
        if self.transport:
            self.transport.close()

    def _finish(self) -> None:
        request, self._current, self.on_gone = self._current, None, None
        if self.transport is None or self.transport.is_closing():
            return
        if request is None or not request.keep_alive:
            self.transport.close()
            return
        self._watch(KEEP_ALIVE_SECONDS)
        if self._queue:
            # Not called from here: a long pipeline of short answers would go as deep as it is long.
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if (
            self._current is not None
            or not self._queue
            or self.transport is None
            or self.transport.is_closing()
        ):
            return
        self._current = self._queue.popleft()
        self._watch(None)
        self.transport.resume_reading()
        self._handle(self, self._current)

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

    def _watch(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.close)


def _status_line(status: int) -> str:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\n"
