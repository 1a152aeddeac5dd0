"""The usual request of a client's connection: its head in one read, its body with a Content-Length.

It is parsed with callbacks that are built-in functions, so that no Python runs per header, and a head that came
before is only compared. All that is less usual is a method here that ``client.py`` fills in.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httptools

from serving.router import errors, heads
from serving.router.careful import CarefulParser, head_too_large, pipelined
from serving.router.routes import FIRST_LINES, origin_form

if TYPE_CHECKING:
    from serving.router.exchange import Exchange
    from serving.router.server import Server


class Parsed:
    """What llhttp finds, put away by built-in functions: no Python frame per header."""

    __slots__ = ("begun", "headers", "on_body", "on_header", "on_message_begin", "on_message_complete", "on_url",
                 "open", "pieces", "urls")  # fmt: skip

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.pieces: list[bytes] = []
        self.urls: list[bytes] = []
        self.open = [True]  # emptied when the message is complete
        self.begun = [True]  # a second message in the same bytes finds it empty, which is an error to llhttp
        self.on_header = self.headers.__setitem__
        self.on_url = self.urls.append
        self.on_body = self.pieces.append
        self.on_message_begin = self.begun.pop
        self.on_message_complete = self.open.clear

    def reset(self) -> None:
        self.headers.clear()
        self.pieces.clear()
        self.urls.clear()
        self.open[:] = (True,)
        self.begun[:] = (True,)


class Incoming(asyncio.Protocol):
    """What a connection holds of its client and of the request that comes in."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.close_after = False
        self.closing = False  # refused: what still comes is read and dropped
        self.stalled = False  # reads nothing of its answer
        self.lingered = 0
        self.expires = 0.0  # time.monotonic() at which ``expired`` is called; 0 = never
        self.deadline = 0.0
        self.parsed = Parsed()
        self.parser = httptools.HttpRequestParser(self.parsed)
        self.careful: CarefulParser | None = None
        self.started = False  # something of a request has come
        self.pipelined = False
        self.known: heads.RequestHead | None = None  # the head of the request before this one
        # Of a request whose body is still coming:
        self.head: heads.RequestHead | None = None
        self.parsing = False  # by llhttp; else its head was known and its body is counted only
        self.missing = 0
        self.buffered = 0  # counted in server.buffered_bytes

    def data_received(self, data: bytes) -> None:
        if self.started or self.exchange is not None or self.closing:
            self._more(data)
            return
        if data[0] == 13 or data[0] == 10:  # blank lines before a request are allowed (RFC 9112 2.2)
            data = data.lstrip(b"\r\n")
            if not data:
                return
        self.started = True
        known = self.known
        if known is not None and data.startswith(known.before):
            start = len(known.before)
            stop = data.find(b"\r\n", start, start + 12)
            if stop > 0 and data.startswith(known.after, stop) and data[start:stop].isdigit():
                self._known_head(known, int(data[start:stop]), data[stop + len(known.after) :])
                return
        self._parse(data)

    def _known_head(self, head: heads.RequestHead, length: int, body: bytes) -> None:
        """The head that came before, which was well: nothing of it has to be looked at again."""
        if len(body) == length and length <= self.server.settings.max_body_bytes:
            self._whole(head, body)
        elif len(body) > length:
            self.refuse(*pipelined())
        else:
            self.parsing = False
            self._body_follows(head, length, body)

    def _parse(self, data: bytes) -> None:
        parsed = self.parsed
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._carefully(data)
            return
        if end > self.server.settings.max_header_bytes:
            self.refuse(*head_too_large(self.server.settings.max_header_bytes))
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._upgrade(data, end)
            return
        except httptools.HttpParserCallbackError:
            self.refuse(*pipelined())
            return
        except httptools.HttpParserError as e:
            self.refuse(400, "bad_http", errors.parser_words(e))
            return
        headers = parsed.headers
        special = heads.REQUEST.find(headers)
        if (
            special is None
            or data.count(b"\n", 0, end) != len(headers)  # a name given twice, a folded line
            or b"transfer-encoding" in special
            or b"expect" in special
            or b"host" not in special
            or special.get(b"connection", b"close") not in heads.PLAIN_CONNECTION
        ):
            self._carefully(data)
            return
        head = self._head_of(data, end, special)
        body = data[end + 4 :]
        length = int(special.get(b"content-length", b"0"))
        if len(body) > length:
            self.refuse(*pipelined())
            return
        if len(body) < length or length > self.server.settings.max_body_bytes:
            self.parsing = True
            self._body_follows(head, length, body)
            return
        parsed.reset()
        self._whole(head, body)

    def _head_of(self, data: bytes, end: int, special: dict[bytes, bytes]) -> heads.RequestHead:
        """What llhttp has found well, for the replica: lines of one hop only are out."""
        lines = data[: end + 2]
        line_end = lines.find(b"\r\n") + 2
        usual = FIRST_LINES.get(lines[:line_end])
        http10 = False
        if usual is not None:
            method, url, route = usual
        else:
            method, url, route = self.parser.get_method(), b"".join(self.parsed.urls), ""
            http10 = self.parser.get_http_version() == "1.0"
            if url[:1] != b"/":
                url = origin_form(url)
            lines = b"%s %s HTTP/1.1\r\n%s" % (method, url, lines[line_end:])
        for name in special.keys() & heads.HOP_REQUEST:
            lines = heads.without(lines, name)
        close = http10 or special.get(b"connection") == b"close"
        head = heads.RequestHead(method, url, route, lines, special, http10=http10, close=close)
        if usual is not None and not close and end <= heads.MAX_KEPT_HEAD:
            head.keep(data[: end + 4])
            self.known = head if head.before else None
        return head

    # --- what client.py fills in ---

    def _whole(self, head: heads.RequestHead, body: bytes) -> None:
        """All of a request is there."""
        raise NotImplementedError

    def _more(self, data: bytes) -> None:
        """Bytes that do not begin a request."""
        raise NotImplementedError

    def _body_follows(self, head: heads.RequestHead, length: int, body: bytes) -> None:
        """Of ``length`` bytes of a body only these are there, or they are too many."""
        raise NotImplementedError

    def _carefully(self, data: bytes) -> None:
        """A request that has to be parsed with more care."""
        raise NotImplementedError

    def _upgrade(self, data: bytes, end: int) -> None:
        """A request that wants another protocol."""
        raise NotImplementedError

    def refuse(
        self, status: int, code: str, message: str, reason: str | None = None, extra: bytes = b""
    ) -> None:
        """Answer, then close."""
        raise NotImplementedError
