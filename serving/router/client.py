"""A connection from a client: reads one request at a time, within limits, and writes its answer.

The usual request (head in one read, Content-Length) is ``incoming.py``'s, which this goes on from; what is unusual goes
through ``careful.py``. What is then done with a request is in ``intake.py``.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

import httptools

from serving.router import errors, heads
from serving.router.careful import CarefulParser, Refusal, body_too_large, pipelined
from serving.router.exchange import Exchange
from serving.router.incoming import Incoming
from serving.router.intake import take_in
from serving.router.routes import origin_form
from serving.router.websocket import wants_upgrade

if TYPE_CHECKING:
    pass

LINGER_SECONDS = 5.0  # a refused client may go on sending its body for this long before it is cut
LINGER_BYTES = 64 * 2**20
MAX_LINGERING = 256  # connections beyond max_connections that are told so; further ones are just cut
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST, not FIN
#: Bodies up to this size, and those that are there in one read (256 KiB at most), are not counted against
#: router.max_buffered_bytes.
SMALL_BODY = 64 * 1024


class Client(Incoming):
    """See the module."""

    # --- from the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        server = self.server
        server.clients.add(self)
        most = server.settings.max_connections
        if len(server.clients) > most + MAX_LINGERING:
            self.abort()
        elif len(server.clients) > most:
            self.refuse(503, "too_many_connections", "the router serves as many connections as it may")
        elif server.stopping:
            self.refuse(503, "stopping", "the router is stopping")
        else:
            self.expires = monotonic() + server.settings.request_timeout * 6

    def _whole(self, head: heads.RequestHead, body: bytes) -> None:
        """All of a request is there."""
        self.expires = 0.0
        if len(body) > self.server.settings.max_body_bytes:
            refusal = body_too_large(len(body), self.server.settings.max_body_bytes)
            assert refusal is not None
            self.refuse(*refusal)
            return
        if head.close:
            self.close_after = True
        exchange = self.exchange = Exchange(self.server, self, head, body, monotonic())
        take_in(self.server, exchange, head)

    # --- requests that come in pieces ---

    def _body_follows(self, head: heads.RequestHead, length: int, body: bytes) -> None:
        settings = self.server.settings
        refusal = body_too_large(length, settings.max_body_bytes) or self._no_room(length)
        if refusal is not None:
            self.refuse(*refusal)
            return
        denied = self.server.denied(head)
        if denied is not None:  # before a body of many bytes is taken in
            self.refuse(denied.status, denied.code, denied.message, denied.reason, denied.headers)
            return
        self.head = head
        self.missing = length - len(body)
        if not self.parsing and body:
            self.parsed.pieces.append(body)
        self.expires = monotonic() + settings.request_timeout

    def _no_room(self, length: int) -> Refusal | None:
        return self._more_room(length) if length > SMALL_BODY else None

    def _more(self, data: bytes) -> None:
        if self.closing:
            self.lingered += len(data)
            if self.lingered > LINGER_BYTES:
                self.abort()
            return
        if self.exchange is not None:  # a second request while the first is being answered
            # Dropped, not left unread: a paused connection would hide that the client goes away.
            self.pipelined = self.pipelined or bool(data.strip(b"\r\n"))
            return
        if self.careful is not None:
            self._feed_careful(data)
            return
        self.missing -= len(data)
        if self.missing < 0:
            self.refuse(*pipelined())
            return
        if not self.parsing:
            self.parsed.pieces.append(data)
        else:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserError as e:
                self.refuse(400, "bad_http", errors.parser_words(e))
                return
        if self.missing:
            self.expires = monotonic() + self.server.settings.request_timeout
            return
        head, pieces = self.head, self.parsed.pieces
        assert head is not None
        self.head = None
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.parsed.reset()
        self._whole(head, body)

    def _carefully(self, data: bytes) -> None:
        """From the first byte again, with a parser of its own; the fast one is in the middle of it."""
        if self.parsed.begun == []:
            self.parser = httptools.HttpRequestParser(self.parsed)
            self.parsed.reset()
        self.careful = CarefulParser(self)
        self.deadline = monotonic() + 2 * self.server.settings.request_timeout
        self._feed_careful(data)

    def _feed_careful(self, data: bytes) -> None:
        careful = self.careful
        assert careful is not None
        held = careful.body_bytes
        careful.feed(data)
        if careful.refusal is None and careful.body_bytes > SMALL_BODY:
            careful.refusal = self._more_room(careful.body_bytes - max(held, SMALL_BODY))
        if careful.refusal is not None:
            self.refuse(*careful.refusal)
        elif not careful.complete:
            self.expires = monotonic() + self.server.settings.request_timeout
            if not careful.head_done:
                self.expires = min(self.expires, self.deadline)
        else:
            self._careful_whole(careful)

    def _more_room(self, size: int) -> Refusal | None:
        server = self.server
        if server.buffered_bytes + size > server.max_buffered_bytes:
            return (
                503,
                "too_many_bytes",
                "the router holds as many bytes of requests as it may; try again shortly",
            )
        server.buffered_bytes += size
        self.buffered += size
        return None

    def _careful_whole(self, careful: CarefulParser) -> None:
        self.careful = None
        self.expires = 0.0
        method, url, body = careful.method, careful.url, b"".join(careful.pieces)
        if url[:1] != b"/":
            url = origin_form(url)
        special = careful.special(heads.REQUEST.special)
        lines = b"%s %s HTTP/1.1\r\n%s%s" % (
            method, url, b"" if b"host" in special else b"host: replica\r\n",
            careful.lines(heads.HOP_REQUEST | {b"content-length"}),
        )  # fmt: skip
        if body or method in (b"POST", b"PUT", b"PATCH"):
            lines += b"content-length: %d\r\n" % len(body)
        self._whole(
            heads.RequestHead(
                method, url, "", lines, special, http10=careful.http10, close=not careful.keep_alive
            ),
            body,
        )

    def _upgrade(self, data: bytes, end: int) -> None:
        parser, parsed = self.parser, self.parsed
        special = heads.REQUEST.find(parsed.headers)
        url = b"".join(parsed.urls)
        path = url.partition(b"?")[0]
        if special is None or not wants_upgrade(parser.get_method(), path, special):
            self.refuse(400, "upgrade_refused", "CONNECT and Upgrade are not supported on this path")
            return
        self.expires = 0.0
        head = heads.RequestHead(b"GET", url, "realtime", data[: end + 2], special, close=True)
        self.close_after = True
        # The body: frames that were sent along.
        exchange = self.exchange = Exchange(self.server, self, head, data[end + 4 :], monotonic())
        exchange.upgrade = True
        take_in(self.server, exchange, head)

    def eof_received(self) -> bool:
        if self.exchange is not None:
            self.abort()  # closing would wait for it to read what is buffered, and keep its replica busy meanwhile
        return False  # a client that has closed its side is gone; the transport closes

    def connection_lost(self, exc: Exception | None) -> None:
        self.expires = 0.0
        self.server.clients.discard(self)
        self.release_buffer()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.client_gone()

    def pause_writing(self) -> None:
        self.stalled = True
        self.expires = monotonic() + self.server.settings.send_timeout
        self._upstream_reading(False)

    def resume_writing(self) -> None:
        self.stalled = False
        if self.exchange is not None:
            self.expires = 0.0
            self._upstream_reading(True)
        elif not self.closing and self.transport is not None and not self.transport.is_closing():
            self.expires = monotonic() + self.server.settings.request_timeout * 6
            self.transport.resume_reading()  # ``answered`` has paused it

    def _upstream_reading(self, on: bool) -> None:
        upstream = self.exchange.upstream if self.exchange is not None else None
        if upstream is not None and upstream.transport is not None and not upstream.transport.is_closing():
            if on:
                upstream.transport.resume_reading()
            else:
                upstream.transport.pause_reading()

    def release_buffer(self) -> None:
        self.server.buffered_bytes -= self.buffered
        self.buffered = 0

    # --- limits ---

    def expired(self) -> None:
        if self.stalled and self.exchange is not None:
            self.server.metrics.reject("client_stalled")
            self.abort()
        elif self.closing or not self.started:
            self.abort()
        else:
            seconds = self.server.settings.request_timeout
            self.refuse(
                408,
                "request_timeout",
                f"no further byte of the request for {seconds:g} s (router.request_timeout)",
            )

    # --- answers ---

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def send_error(
        self, status: int, code: str, message: str, param: str | None, request_id: bytes, extra: bytes = b"",
        kind: str | None = None,
    ) -> None:  # fmt: skip
        """extra: further header lines, each with its CRLF. kind: ``error.type``, where the status does not say it."""
        answer = errors.answer(status, code, message, param, request_id, self.close_after, extra, kind)
        if self.exchange is not None and self.exchange.method == b"HEAD":
            answer = answer[: answer.index(b"\r\n\r\n") + 4]  # a body would be read as the next answer
        self.write(answer)

    def refuse(
        self, status: int, code: str, message: str, reason: str | None = None, extra: bytes = b""
    ) -> None:
        """Answer, then close; the client may go on sending, or a reset could cost it the answer.

        reason: as metrics count it, where that is not the code. extra: header lines.
        """
        self.closing = self.close_after = True
        self.careful = None
        self.parsed.reset()
        self.release_buffer()
        self.server.metrics.reject(reason or code)
        self.server.metrics.request("other", status, 0.0, None)
        self.send_error(status, code, message, None, heads.new_request_id(), extra)
        self.expires = 0.0
        transport = self.transport
        if transport is not None and not transport.is_closing():
            if transport.can_write_eof():  # TLS has no half-close
                transport.write_eof()
            self.expires = monotonic() + LINGER_SECONDS

    def answered(self) -> None:
        """The answer is out: close, or wait for the next request."""
        self.exchange = None
        self.started = False
        if self.buffered:  # it was refused before anything was sent
            self.release_buffer()
        if self.pipelined and not self.closing:
            self.refuse(*pipelined())
        elif self.close_after or self.server.stopping:
            self.expires = monotonic() + self.server.settings.send_timeout  # for what is still to be sent
            if self.transport is not None:
                self.transport.close()
        elif self.stalled:
            # Its next requests would be answered into memory, without a limit.
            self.expires = monotonic() + self.server.settings.send_timeout
            if self.transport is not None and not self.transport.is_closing():
                self.transport.pause_reading()
        else:
            self.expires = monotonic() + self.server.settings.request_timeout * 6

    @property
    def idle(self) -> bool:
        """Between two requests; nothing is lost by closing it."""
        return self.exchange is None and not self.started

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def reset(self) -> None:
        """Abort so that the client sees it: an answer that ends with its connection would look complete."""
        sock = self.transport.get_extra_info("socket") if self.transport is not None else None
        if sock is not None:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.abort()
