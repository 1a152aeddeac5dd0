"""One GET over one connection of its own: connects, asks, takes the answer apart, and says how it ended.

Content-length, chunked and read-until-close bodies; http and https; basic credentials in the URL. A redirect is
refused, a compressed body too. When it is its turn, and for how long, is ``_fetch.py``'s business.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import httptools

from exporters.collectors._addresses import Address

if TYPE_CHECKING:
    from exporters.collectors._fetch import Ask, Run

MAX_HEAD_BYTES = 64 * 1024
#: For one address while others of the name are left; a lost packet is sent again after 1 s.
ADDRESS_SECONDS = 1.0
_READ_BYTES = 256 * 1024


class Refusal(ValueError):
    """The server answered, but not with a page: another status than 200. status: that one."""

    def __init__(self, status: int, location: str = "") -> None:
        self.status = status
        where = f", a redirect to {location[:200]!r}, which is not followed" if location else ""
        super().__init__(f"answered {status}{where}")


class Line:
    """One connection, one question."""

    __slots__ = (
        "addresses", "ask", "data", "encoded", "framed", "head", "location", "parser", "pieces", "ready", "run",
        "size", "sock", "state", "status", "target", "tried", "whole", "writing",
    )  # fmt: skip

    def __init__(self, run: Run, ask: Ask, target: Target) -> None:
        self.run = run
        self.ask = ask
        self.target = target
        self.addresses: list[Address] | None = None
        self.tried = 0
        self.sock: Any = None
        self.writing = True
        self.ready: Callable[[], None] = self._connected
        self.data = b""
        self.parser: Any = None
        self.pieces: list[bytes] = []
        self.size = self.head = self.status = 0
        self.location = ""
        self.framed = self.encoded = self.whole = False

    # --- getting there ---

    def resolve(self) -> None:
        if self not in self.run.open:
            return
        try:
            self.addresses = self.run.fetcher.addresses.of(self.target.host, self.target.port)
        except OSError as error:
            self.end(error)
            return
        if self.addresses is None:
            self.run.nameless.append(self)
        else:
            self._connect()

    def _connect(self, why: OSError | None = None) -> None:
        """To the next address; ends with ``why`` if there is none left."""
        assert self.addresses is not None
        while self.tried < len(self.addresses):
            address = self.addresses[self.tried]
            self.tried += 1
            try:
                self.sock = socket.socket(address.family, socket.SOCK_STREAM)
                self.sock.setblocking(False)
                code = self.sock.connect_ex(address.at)
            except OSError as error:
                self._close()
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self.run.open.discard(self)
                    if self.run.too_many_files(self.ask):
                        return
                why = error
                continue
            if code not in (0, errno.EINPROGRESS):
                self._close()
                why = OSError(code, os.strerror(code))
                continue
            self.ready = self._connected
            self.writing = True
            self.run.selector.register(self.sock, selectors.EVENT_WRITE, self)
            if self.tried < len(self.addresses):
                self.run.alarm(self, time.monotonic() + ADDRESS_SECONDS, self.tried)
            return
        self.end(why or OSError(f"no address of {self.target.host}"))

    def _connected(self) -> None:
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._close()
            self._connect(OSError(code, os.strerror(code)))
            return
        if self.addresses and len(self.addresses) > 1:
            self.run.fetcher.addresses.prefer(self.target.host, self.addresses[self.tried - 1])
        self.tried = -1  # an address's own alarm no longer counts
        self.data = self.target.request
        if not self.target.secure:
            self._send()
            return
        self.run.selector.unregister(self.sock)
        try:
            self.sock = self.run.fetcher.tls().wrap_socket(
                self.sock, server_hostname=self.target.host, do_handshake_on_connect=False
            )
        except (OSError, ValueError) as error:
            self.end(error)
            return
        self.run.selector.register(self.sock, selectors.EVENT_WRITE, self)
        self.ready = self._shake
        self._shake()

    def _shake(self) -> None:
        if self._tried(self.sock.do_handshake) is not None:
            self._send()

    # --- the question and the answer ---

    def _send(self) -> None:
        self.ready = self._send
        sent = self._tried(self.sock.send, self.data)
        if sent is None:
            return
        self.data = self.data[sent:]
        if self.data:
            self._want(writing=True)
            return
        self.parser = httptools.HttpResponseParser(self)
        self.ready = self._read
        self._want(writing=False)

    def _read(self) -> None:
        while True:
            data = self._tried(self.sock.recv, _READ_BYTES)
            if data is None:
                return
            self._take(data)
            # TLS may hold more than the socket shows; a plain socket calls again.
            if not data or not self.target.secure or self.sock is None:
                return

    def _take(self, data: bytes) -> None:
        if not data:
            ended = self.status == 200 and not self.framed
            self._answer() if ended else self.end(ConnectionError("closed before its answer was whole"))
            return
        if not self.status:
            self.head += len(data)
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.end(ValueError(f"answered something that is not HTTP ({error})"))
            return
        if self.status and self.status != 200:
            self.end(Refusal(self.status, self.location))
        elif self.encoded:
            self.end(ValueError("answered with a compressed page, which was not asked for"))
        elif self.size > self.ask.most or self.head > MAX_HEAD_BYTES + _READ_BYTES:
            self.end(ValueError(f"its page is longer than {self.ask.most} bytes"))
        elif self.whole:
            self._answer()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self.framed = True
        elif name == b"location":
            self.location = value.decode("latin-1")
        elif name == b"content-encoding":
            self.encoded = value.strip().lower() not in (b"", b"identity")

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status >= 200:  # else an interim answer
            self.status = status
        else:
            self.framed = self.encoded = False

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)
        self.size += len(data)

    def on_message_complete(self) -> None:
        self.whole = self.status >= 200

    # --- ends ---

    def late(self, address: int) -> None:
        """An alarm: of the whole question (-1), or of an address while others are left."""
        if address < 0:
            self.end(TimeoutError())
        elif address == self.tried:
            self._close()
            self._connect(TimeoutError())

    def _answer(self) -> None:
        self.end(self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces))

    def end(self, answer: bytes | Exception) -> None:
        self._close()
        self.run.open.discard(self)
        self.run.done(self.ask, answer)

    def _close(self) -> None:
        if self.sock is not None:
            with contextlib.suppress(KeyError, ValueError):
                self.run.selector.unregister(self.sock)
            self.sock.close()
            self.sock = None

    def _want(self, writing: bool) -> None:
        if self.writing != writing:
            self.writing = writing
            events = selectors.EVENT_WRITE if writing else selectors.EVENT_READ
            self.run.selector.modify(self.sock, events, self)

    def _tried(self, act: Callable[..., Any], *args: Any) -> Any:
        """What ``act`` returns (True for nothing); None if it has to wait or has ended the question."""
        try:
            result = act(*args)
        except BlockingIOError:
            return None
        except OSError as error:
            # ssl says so by two kinds of OSError; named by string so that plain http need not import ssl.
            kind = type(error).__name__
            if kind in ("SSLWantReadError", "SSLWantWriteError"):
                self._want(writing=kind == "SSLWantWriteError")
            else:
                self.end(error)
            return None
        return True if result is None else result


class Target(NamedTuple):
    host: str
    port: int
    secure: bool
    request: bytes


@lru_cache(maxsize=16_384)
def target_of(url: str) -> Target:
    """Raises ValueError if it can't be asked."""
    parts = urlsplit(url)
    host = parts.hostname
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("is not an http or https address")
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    try:
        name = f"[{host}]" if ":" in host else host.encode("idna").decode()
    except UnicodeError:
        raise ValueError("has a host name that can't be") from None
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._") + (
        "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~-._[]?") if parts.query else ""
    )
    head = f"GET {path} HTTP/1.1\r\nHost: {name.partition('%')[0] + ']' if '%' in name else name}:{port}\r\n"
    head += "Accept: text/plain, */*;q=0.1\r\nAccept-Encoding: identity\r\nConnection: close\r\n"
    head += "User-Agent: exaserve-exporter\r\n"
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        head += f"Authorization: Basic {base64.b64encode(secret).decode()}\r\n"
    return Target(host, port, secure, f"{head}\r\n".encode())
