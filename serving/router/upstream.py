"""A connection to a replica: sends one request at a time, relays the answer as it comes.

The parser only finds where the head, the chunks and the answer end; the bytes of the body go to the client as
they arrived. The head is held until the first byte of the body, so that a replica that dies during prefill
can still be replaced without the client noticing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httptools

from serving.fleet.replica import Replica

if TYPE_CHECKING:
    from serving.router.exchange import Exchange

#: Hop-by-hop headers (RFC 9110 7.6.1) and those that the router writes itself.
HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"proxy-authenticate",
     b"proxy-authorization", b"x-request-id", b"x-exaserve-replica")
)  # fmt: skip
#: A response head larger than this is not an engine's.
MAX_HEAD_BYTES = 64 * 1024


class Upstream(asyncio.Protocol):
    """One keep-alive connection; ``exchange`` is the request that is open on it, if any."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.parser = httptools.HttpResponseParser(self)
        self.used = 0  # requests before this one: a failure then may just be a stale connection
        self._reset()

    def _reset(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.held = b""
        self.last = b""  # the newest bytes as they came
        self.interim = 0  # heads of 1xx answers before the final one
        self.is_interim = False
        self.head_done = False
        self.body_begun = False
        self.complete = False
        self.begun = False  # something of the answer went to the client
        self.at_boundary = True
        self.chunked = False
        self.until_close = False
        self.keep_alive = True
        self.pieces: list[bytes] | None = None  # body without chunk framing, for HTTP/1.0 clients

    # --- from the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def send(self, exchange: Exchange) -> None:
        self.exchange = exchange
        assert self.transport is not None
        # One write: uvloop sends it at once, writelines later.
        self.transport.write(exchange.head + exchange.body)

    def data_received(self, data: bytes) -> None:
        self.replica.heard += 1
        exchange = self.exchange
        if exchange is None:  # nobody asked: not a server that we can talk to
            self.abort()
            return
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("reset")
            return
        self.last = data
        if self.begun:
            if self.pieces is None:
                exchange.relay(data)
            else:
                exchange.relay(b"".join(self.pieces))
                self.pieces.clear()
        else:
            self.held += data
            if self.body_begun or self.complete:
                self._begin(exchange)
            elif len(self.held) > MAX_HEAD_BYTES:
                self._fail("reset")
                return
        if self.complete:
            self._finish(exchange)

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.exchange is not None:
            if self.until_close and exc is None:
                if not self.begun:
                    self._begin(self.exchange)  # the whole answer was a head
                self._finish(self.exchange)
            else:
                self._fail("reset")
        elif self in self.replica.idle:
            self.replica.idle.remove(self)

    def pause_writing(self) -> None:
        """A request body is at most max_body_bytes and already in memory: nothing to pause."""

    def resume_writing(self) -> None:
        pass

    # --- from the parser ---

    def on_message_begin(self) -> None:
        if self.complete:  # a second answer that nobody asked for: its bytes must not reach the client
            raise ValueError("more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head_done:  # a trailer must not become a header (RFC 9110 6.5.1)
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status < 200:
            self.is_interim = True
            return
        self.head_done = True
        self.keep_alive = self.parser.should_keep_alive()
        names = {n for n, _ in self.headers}
        self.chunked = b"transfer-encoding" in names
        if self.exchange is not None and self.exchange.method == b"HEAD":
            self.complete = True
            self.keep_alive = False  # the parser waits for a body that never comes
        elif status not in (204, 304) and not self.chunked and b"content-length" not in names:
            self.until_close = True
        if self.chunked and self.exchange is not None and self.exchange.http10:
            self.pieces = []

    def on_body(self, data: bytes) -> None:
        self.body_begun = True
        if self.pieces is not None:
            self.pieces.append(data)

    def on_chunk_header(self) -> None:
        self.at_boundary = False

    def on_chunk_complete(self) -> None:
        self.at_boundary = True

    def on_message_complete(self) -> None:
        if self.is_interim:
            self.is_interim = False
            self.interim += 1
            self.headers.clear()
        else:
            self.complete = True

    @property
    def between_events(self) -> bool:
        """Whether what was relayed ends a whole chunk that ends a whole event: one more may follow it.

        ``at_boundary`` alone is not enough: the parser says nothing about half a chunk-size line.
        """
        return self.chunked and self.at_boundary and self.last.endswith(b"\n\n\r\n")

    # --- ends ---

    def _begin(self, exchange: Exchange) -> None:
        body = self.held.split(b"\r\n\r\n", 1 + self.interim)[-1]
        if self.pieces is not None:
            body = b"".join(self.pieces)
            self.pieces.clear()
        if exchange.method == b"HEAD":
            body = b""  # there must be none; it would be read as the next answer
        self.held = b""
        self.begun = True
        exchange.begin(self, self.parser.get_status_code(), self.headers, body)

    def _finish(self, exchange: Exchange) -> None:
        self.exchange = None
        status = self.parser.get_status_code()
        transport = self.transport
        reusable = self.keep_alive and not self.until_close and transport is not None
        if reusable and transport is not None and not transport.is_closing():
            if not transport.is_reading():  # paused for a client that read slowly
                transport.resume_reading()
            self.used += 1
            self._reset()
            self.replica.idle.append(self)
        elif transport is not None:
            transport.close()
        exchange.ended(self.replica, "error" if status >= 500 else "ok")

    def _fail(self, reason: str) -> None:
        exchange, self.exchange = self.exchange, None
        stale = self.used > 0 and not self.held and not self.begun
        self.abort()
        if exchange is not None:
            exchange.attempt_failed(self, reason, begun=self.begun, stale=stale)

    def drop(self, reason: str) -> None:
        """The replica is out (down, frozen): end what is open on it now."""
        self._fail(reason)

    def abort(self) -> None:
        """Close at once; the engine stops generating when its client is gone."""
        self.exchange = None
        if self.transport is not None:
            self.transport.abort()
