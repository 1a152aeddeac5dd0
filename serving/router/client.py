"""A connection from a client: reads one request at a time, within limits, and writes its answer."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import httptools

from serving.router import errors, schema
from serving.router.exchange import Exchange
from serving.router.routes import control_endpoint, origin_form, route_of

if TYPE_CHECKING:
    from serving.router.server import Server

#: Not forwarded to the replica: hop-by-hop, or written anew.
NOT_FORWARDED = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"host", b"expect",
     b"content-length", b"transfer-encoding", b"x-request-id", b"proxy-authorization")
)  # fmt: skip
LINGER_SECONDS = 5.0  # a refused client may go on sending its body for this long before it is cut
LINGER_BYTES = 64 * 2**20
MAX_LINGERING = 256  # connections beyond max_connections that are told so; further ones are just cut


def new_request_id() -> bytes:
    """32 hex digits, as a UUID has, at a tenth of its cost."""
    return os.urandom(16).hex().encode()


class Client(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.close_after = False
        self.closing = False  # refused: what still comes is read and dropped
        self.lingered = 0
        self.expires = 0.0  # loop time at which ``expired`` is called; 0 = never
        self.deadline = 0.0
        self.parser = httptools.HttpRequestParser(self)
        self._next_request()

    def _next_request(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []
        self.head_bytes = 0
        self.head_tail = b""
        self.framing_bytes = 0
        self.body_bytes = 0
        self.head_done = False
        self.started = False
        self.complete = False
        self.pipelined = False
        self.refusal: tuple[int, str, str] | None = None

    # --- from the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.server.clients.add(self)
        most = self.server.settings.max_connections
        if len(self.server.clients) > most + MAX_LINGERING:
            self.abort()
        elif len(self.server.clients) > most:
            self._refuse(503, "too_many_connections", "the router serves as many connections as it may")
        elif self.server.stopping:
            self._refuse(503, "stopping", "the router is stopping")
        else:
            self._arm(self.server.settings.request_timeout * 6)

    def data_received(self, data: bytes) -> None:
        if self.closing:
            self.lingered += len(data)
            if self.lingered > LINGER_BYTES:
                self.abort()
            return
        if self.exchange is not None:  # a second request while the first is being answered
            # Dropped, not left unread: a paused connection would hide that the client goes away.
            self.pipelined = self.pipelined or bool(data.strip(b"\r\n"))
            return
        if not self.started:
            data = data.lstrip(b"\r\n") if data[:1] in b"\r\n" else data
            if not data:
                return
            self.started = True
            self.deadline = self.server.loop.time() + 2 * self.server.settings.request_timeout
        if not self.head_done and not self._head_fits(data):
            return
        in_body, before = self.head_done, self.body_bytes
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "upgrade_refused", "CONNECT and Upgrade are not supported")
            return
        except httptools.HttpParserError as e:
            self._refuse(400, "bad_http", errors.parser_words(e))
            return
        if in_body:
            # Trailers and chunk extensions are no body; without this they would have no limit.
            self.framing_bytes = self.framing_bytes + len(data) if self.body_bytes == before else 0
            if self.framing_bytes > self.server.settings.max_header_bytes:
                self._head_too_large()
                return
        if self.refusal is not None:
            self._refuse(*self.refusal)
        elif self.complete:
            self._disarm()
            self._dispatch()
        else:
            self._arm(self.server.settings.request_timeout)

    def eof_received(self) -> bool:
        if self.exchange is not None:
            self.abort()  # closing would wait for it to read what is buffered, and keep its replica busy meanwhile
        return False  # a client that has closed its side is gone; the transport closes

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self.server.clients.discard(self)
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.client_gone()

    def pause_writing(self) -> None:
        self._upstream_reading(False)

    def resume_writing(self) -> None:
        self._upstream_reading(True)

    def _upstream_reading(self, on: bool) -> None:
        upstream = self.exchange.upstream if self.exchange is not None else None
        if upstream is not None and upstream.transport is not None and not upstream.transport.is_closing():
            if on:
                upstream.transport.resume_reading()
            else:
                upstream.transport.pause_reading()

    # --- limits ---

    def _head_fits(self, data: bytes) -> bool:
        # The blank line may be split over two reads; body bytes after it don't count.
        end = (self.head_tail + data).find(b"\r\n\r\n")
        self.head_bytes += len(data) if end < 0 else max(end - len(self.head_tail), 0)
        self.head_tail = (self.head_tail + data[-3:])[-3:]
        if self.head_bytes > self.server.settings.max_header_bytes:
            self._head_too_large()
            return False
        return True

    def _head_too_large(self) -> None:
        limit = self.server.settings.max_header_bytes
        self._refuse(
            431,
            "headers_too_large",
            f"the request head is larger than {limit} bytes (router.max_header_bytes)",
        )

    def _arm(self, seconds: float) -> None:
        """A timer without a timer: the server looks at ``expires`` a few times per timeout."""
        self.expires = self.server.loop.time() + seconds
        if self.started and not self.head_done:
            self.expires = min(self.expires, self.deadline)

    def _disarm(self) -> None:
        self.expires = 0.0

    def expired(self) -> None:
        if self.closing or not self.started:
            self.abort()
            return
        seconds = self.server.settings.request_timeout
        self._refuse(
            408,
            "request_timeout",
            f"no further byte of the request for {seconds:g} s (router.request_timeout)",
        )

    # --- from the parser ---

    def on_message_begin(self) -> None:
        if self.complete:
            self.refusal = (400, "pipelining", "HTTP pipelining is not supported: wait for the answer")

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head_done:  # a trailer must not become a header (RFC 9110 6.5.1)
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        self.head_done = True
        limit = self.server.settings.max_body_bytes
        names = [n for n, _ in self.headers]
        if b"content-length" in names and b"transfer-encoding" in names:
            self.refusal = (400, "bad_http", "Content-Length and Transfer-Encoding exclude each other")
        for name, value in self.headers:
            if name == b"content-length" and int(value) > limit:
                self.refusal = (
                    413,
                    "body_too_large",
                    f"the body is {int(value)} bytes, the limit is {limit} (router.max_body_bytes)",
                )
            elif name == b"expect" and value.lower() == b"100-continue" and self.refusal is None:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self.parser.get_http_version() == "1.0" or not self.parser.should_keep_alive():
            self.close_after = True

    def on_body(self, data: bytes) -> None:
        self.body_bytes += len(data)
        limit = self.server.settings.max_body_bytes
        if self.body_bytes > limit:
            self.refusal = (
                413,
                "body_too_large",
                f"the body is larger than {limit} bytes (router.max_body_bytes)",
            )
        elif self.refusal is None:
            self.pieces.append(data)

    def on_message_complete(self) -> None:
        self.complete = True

    # --- a whole request ---

    def _dispatch(self) -> None:
        method = self.parser.get_method()
        if self.url[:1] != b"/":
            self.url = origin_form(self.url)
        # A fragment has no place in a request, but an engine's server cuts it off: /metrics# is /metrics to it.
        path = self.url.partition(b"?")[0].partition(b"#")[0]
        body = b"".join(self.pieces)
        self.pieces = []
        route = route_of(path)
        request_id = self._request_id()
        problem, streaming, model = schema.check(route, method, body, self.server.known_models)
        head = self._forward_head(method, body, request_id)
        http10 = self.parser.get_http_version() == "1.0"
        self.exchange = Exchange(
            self.server, self, method, head, body, route, request_id, http10, streaming, model
        )
        if problem is not None:
            self.server.metrics.reject(problem.reason)
            self.exchange.reject(problem.status, problem.code, problem.message, problem.param)
        elif control_endpoint(path):
            self.server.metrics.reject("control_endpoint")
            self.exchange.reject(
                403, "control_endpoint", "this is a control endpoint of the engine: ask the replica itself"
            )
        elif not self.server.answer_locally(self.exchange, method, path):
            self.server.dispatch(self.exchange)

    def _request_id(self) -> bytes:
        for name, value in self.headers:
            if (
                name == b"x-request-id"
                and 0 < len(value) <= 128
                and value.isascii()
                and value.decode().isprintable()
            ):
                return value
        return new_request_id()

    def _forward_head(self, method: bytes, body: bytes, request_id: bytes) -> bytes:
        lines = [b"%s %s HTTP/1.1\r\nhost: replica\r\nx-request-id: %s\r\n" % (method, self.url, request_id)]
        drop: frozenset[bytes] = NOT_FORWARDED
        for name, value in self.headers:
            if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
                drop = drop.union(x.strip() for x in value.lower().split(b","))
        lines.extend(b"%s: %s\r\n" % h for h in self.headers if h[0] not in drop)
        if body or method in (b"POST", b"PUT", b"PATCH"):
            lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        return b"".join(lines)

    # --- answers ---

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def send_error(self, status: int, code: str, message: str, param: str | None, request_id: bytes) -> None:
        answer = errors.answer(status, code, message, param, request_id, self.close_after)
        if self.exchange is not None and self.exchange.method == b"HEAD":
            answer = answer[: answer.index(b"\r\n\r\n") + 4]  # a body would be read as the next answer
        self.write(answer)

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer, then close; the client may go on sending, or a reset could cost it the answer."""
        self.closing = self.close_after = True
        self.server.metrics.reject(code)
        self.server.metrics.request("other", status, 0.0, None)
        self.send_error(status, code, message, None, new_request_id())
        self._disarm()
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.write_eof()
            self._arm(LINGER_SECONDS)

    def answered(self) -> None:
        """The answer is out: close, or wait for the next request."""
        self.exchange = None
        if self.pipelined and not self.closing:
            self._refuse(400, "pipelining", "HTTP pipelining is not supported: wait for the answer")
        elif self.close_after or self.server.stopping:
            if self.transport is not None:
                self.transport.close()
        else:
            self._next_request()
            self._arm(self.server.settings.request_timeout * 6)

    @property
    def idle(self) -> bool:
        """Between two requests; nothing is lost by closing it."""
        return self.exchange is None and not self.started

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
