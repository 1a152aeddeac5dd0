"""Parses what the fast way of ``client.py`` leaves alone: heads that come in pieces, chunked bodies, 100-continue,
HTTP/1.0, headers given twice. Same limits, more callbacks; one parser a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httptools

from serving.router import errors

if TYPE_CHECKING:
    from serving.router.client import Client

#: (status, code, message) of an answer that ends the connection.
Refusal = tuple[int, str, str]


class CarefulParser:
    """One request, fed as it comes. ``refusal`` is what is wrong with it, ``complete`` whether it is all there."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.settings = client.server.settings
        self.parser = httptools.HttpRequestParser(self)
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []
        self.head_bytes = 0
        self.head_tail = b""
        self.framing_bytes = 0
        self.body_bytes = 0
        self.head_done = False
        self.complete = False
        self.refusal: Refusal | None = None

    def feed(self, data: bytes) -> None:
        if not self.head_done and not self._head_fits(data):
            return
        in_body, before = self.head_done, self.body_bytes
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.refusal = (400, "upgrade_refused", "CONNECT and Upgrade are not supported on this path")
        except httptools.HttpParserError as e:
            self.refusal = (400, "bad_http", errors.parser_words(e))
        else:
            if in_body:
                # Trailers and chunk extensions are no body; without this they would have no limit.
                self.framing_bytes = self.framing_bytes + len(data) if self.body_bytes == before else 0
                if self.framing_bytes > self.settings.max_header_bytes:
                    self.refusal = head_too_large(self.settings.max_header_bytes)

    def _head_fits(self, data: bytes) -> bool:
        # The blank line may be split over two reads; body bytes after it don't count.
        end = (self.head_tail + data).find(b"\r\n\r\n")
        self.head_bytes += len(data) if end < 0 else max(end - len(self.head_tail), 0)
        self.head_tail = (self.head_tail + data[-3:])[-3:]
        if self.head_bytes > self.settings.max_header_bytes:
            self.refusal = head_too_large(self.settings.max_header_bytes)
        return self.refusal is None

    # --- from the parser ---

    def on_message_begin(self) -> None:
        if self.complete:
            self.refusal = pipelined()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head_done:  # a trailer must not become a header (RFC 9110 6.5.1)
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        self.head_done = True
        names = [n for n, _ in self.headers]
        if b"content-length" in names and b"transfer-encoding" in names:
            self.refusal = (400, "bad_http", "Content-Length and Transfer-Encoding exclude each other")
            return
        hosts = names.count(b"host")
        if hosts != 1 and (hosts or not self.http10):  # RFC 9112 3.2
            self.refusal = (400, "bad_http", f"there is {'more than one' if hosts else 'no'} Host")
            return
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings and codings != [b"chunked"]:  # RFC 9112 6.1: what would be forwarded is not what was meant
            self.refusal = (501, "bad_http", "Transfer-Encoding may only be chunked")
            return
        for name, value in self.headers:
            if name == b"content-length":
                self.refusal = self.refusal or body_too_large(int(value), self.settings.max_body_bytes)
            elif name == b"expect" and value.lower() == b"100-continue" and self.refusal is None:
                self.client.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self.body_bytes += len(data)
        if self.body_bytes > self.settings.max_body_bytes:
            self.refusal = body_too_large(self.body_bytes, self.settings.max_body_bytes)
        elif self.refusal is None:
            self.pieces.append(data)

    def on_message_complete(self) -> None:
        self.complete = True

    # --- the whole request ---

    @property
    def method(self) -> bytes:
        return bytes(self.parser.get_method())

    @property
    def http10(self) -> bool:
        return bool(self.parser.get_http_version() == "1.0")

    @property
    def keep_alive(self) -> bool:
        return not self.http10 and bool(self.parser.should_keep_alive())

    def special(self, names: set[bytes]) -> dict[bytes, bytes]:
        """Special headers by name; the first of those given twice."""
        found: dict[bytes, bytes] = {}
        for name, value in self.headers:
            if name in names:
                found.setdefault(name, value)
        return found

    def lines(self, drop: frozenset[bytes]) -> bytes:
        """Header lines to forward, without hop-by-hop ones, those in ``drop`` and those that Connection names."""
        out = set(drop)
        for name, value in self.headers:
            if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
                out.update(x.strip() for x in value.lower().split(b","))
        out.discard(b"host")  # it can't be an option of a connection, and a request without it is none
        return b"".join([b"%s: %s\r\n" % h for h in self.headers if h[0] not in out])


def pipelined() -> Refusal:
    return (400, "pipelining", "HTTP pipelining is not supported: wait for the answer")


def head_too_large(limit: int) -> Refusal:
    return (
        431,
        "headers_too_large",
        f"the request head is larger than {limit} bytes (router.max_header_bytes)",
    )


def body_too_large(size: int, limit: int) -> Refusal | None:
    """None if it fits."""
    if size <= limit:
        return None
    return (
        413,
        "body_too_large",
        f"the body is {size} bytes or more, the limit is {limit} (router.max_body_bytes)",
    )
