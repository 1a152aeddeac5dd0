"""HTTP/1.1 for load: one connection, one request at a time, bytes handed on the moment they can be read.

Not here: what the bytes mean (``_stream``), when to send (``_sender``).

The loop calls ``_Connection._readable`` itself whenever bytes are there: no greenlet is woken for an event of a
stream, only at the end of the answer. That halves the CPU of an event against a greenlet that waits in ``recv`` (and
keeps the time of arrival from waiting behind other greenlets). Redirects are not followed and proxies of the environment
not used: a load test measures the address that it was given. ``Accept-Encoding: identity``, because a compressed
stream arrives when the compressor flushes, not when the token was made.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import gevent
import gevent.socket
import httptools
from gevent import monkey
from gevent.event import AsyncResult

from loadtest._lib import _clock

_PlainSocket = monkey.get_original("socket", "socket")

#: uvicorn closes connections that were idle for 5 s; one that old may close under a request.
MAX_IDLE = 4.0
#: One read. A stream's events are far smaller; a line of megabytes takes several reads.
_BLOCK = 1 << 14


class Broken(Exception):
    """The connection failed. Its words say how; ``reason`` is one of ``_record.REASONS``."""

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason


class Reply:
    """An answer that is arriving.

    status 0: no line of it arrived. headers: lower-case names; of several with one name, the last. at: when the last
    byte arrived so far. chosen: called with this once the headers are there; may replace on_data.
    """

    def __init__(self, chosen: Callable[[Reply], Callable[[bytes, float], bool]]) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.at = 0.0
        self.headed = self.complete = self.enough = False
        self.linger: float | None = None
        self.keep_alive = False
        self._chosen = chosen
        self._on_data: Callable[[bytes, float], bool] | None = None
        self.parser = httptools.HttpResponseParser(self)

    # Called by the parser.
    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        if self.status >= 200:
            self.headed = True
            self._on_data = self._chosen(self)

    def on_body(self, data: bytes) -> None:
        if self._on_data is not None:
            self.enough = self._on_data(data, self.at) or self.enough

    def on_message_complete(self) -> None:
        if self.headed:
            self.complete = True
            self.keep_alive = self.parser.should_keep_alive()
        else:  # 100 or 103: the answer itself comes after it
            self.headers.clear()

    @property
    def ends_with_the_connection(self) -> bool:
        """True if the body has no length of its own, so that the server's closing ends it properly."""
        return (
            self.headed
            and "content-length" not in self.headers
            and "chunked" not in self.headers.get("transfer-encoding", "")
        )


class Address:
    """Where requests go. base: ``http://host:port``, with or without a path; a trailing ``/v1`` is the same address.

    Raises ValueError for anything else; its words never have a password in them.
    """

    def __init__(self, base: str) -> None:
        if "@" in base:
            raise ValueError(
                "an address has no user or password in it: give --api-key-file, or EXASERVE_API_KEY"
            )
        try:
            url = urlsplit(base if base.isprintable() and " " not in base else "")
            port = url.port
            host = (url.hostname or "").encode("idna").decode()
        except ValueError:
            url, port, host = urlsplit(""), None, ""
        if url.scheme not in ("http", "https") or not host or port == 0 or not url.path.isascii():
            raise ValueError(f"{base!r} is not an address like http://127.0.0.1:8000")
        if url.query or url.fragment:
            raise ValueError(f"{base!r}: leave out what begins with {'?' if url.query else '#'}")
        self.tls = ssl.create_default_context() if url.scheme == "https" else None
        self.host = host
        self.port = port or (443 if self.tls else 80)
        self.path = url.path.rstrip("/").removesuffix("/v1")
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.authority = shown if port is None else f"{shown}:{port}"
        self._found: list[Any] = []

    def connect(self) -> Any:
        """A gevent socket. The name is looked up once: gevent asks for it in a thread, which costs a millisecond.

        Raises OSError.
        """
        if not self._found:
            self._found = gevent.socket.getaddrinfo(self.host, self.port, 0, gevent.socket.SOCK_STREAM)
        failed: OSError | None = None
        for family, kind, protocol, _, address in self._found:
            sock = gevent.socket.socket(family, kind, protocol)
            try:
                sock.connect(address)
            except OSError as error:
                sock.close()
                failed = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise failed or OSError("the name has no address")


class Connection:
    """A kept-alive connection. Made in a greenlet (connecting waits); ``ask`` waits for the end of the answer."""

    def __init__(self, address: Address) -> None:
        self._reply: Reply | None = None
        self._ended: AsyncResult | None = None
        self._timer: Any = None
        self.closed = False
        self.idle_since = 0.0
        try:
            sock = address.connect()
        except OSError as error:
            raise Broken("connect", told(error)) from None
        # Read by the loop's callback, where gevent's own socket may not be used.
        self._sock = _PlainSocket(fileno=sock.detach())
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watcher = gevent.get_hub().loop.io(self._sock.fileno(), 1)
        self._tls: _Tls | None = None
        if address.tls is not None:
            try:
                self._tls = _Tls(self._sock, address.tls, address.host)
            except OSError as error:
                self.close()
                raise Broken("connect", told(error)) from None
            except BaseException:
                self.close()
                raise
        self._watcher.start(self._readable)

    def ask(self, head: bytes, body: bytes, reply: Reply) -> None:
        """Send and wait until ``reply`` is complete. Raises Broken; what arrived is in ``reply`` all the same."""
        ended = self._ended = AsyncResult()
        self._reply = reply
        try:
            self._send(head + body)
            ended.get()
        finally:
            self._reply = self._ended = None
            if self._timer is not None:
                self._timer.close()
                self._timer = None
            if not (reply.complete and reply.keep_alive):
                self.close()
            self.idle_since = _clock.now()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._watcher.stop()
            self._watcher.close()
            self._sock.close()

    def _send(self, data: bytes) -> None:
        if self._tls is not None:
            data = self._tls.sealed(data)
        view = memoryview(data)
        while view:
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                gevent.socket.wait_write(self._sock.fileno())
                if self.closed:
                    raise Broken("reset", "connection closed while it was sent to") from None
            except OSError as error:
                # A server that refuses a long body answers and closes: its answer says more than the reset.
                if isinstance(error, BrokenPipeError | ConnectionResetError):
                    return
                raise Broken("reset", told(error)) from None

    def _readable(self) -> None:
        """Called by the loop: it may raise nothing and wait for nothing."""
        now = _clock.now()
        try:
            data = self._sock.recv(_BLOCK)
            if self._tls is not None and data:
                data = self._tls.opened(data)
                if not data:
                    return
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(Broken("reset", told(error)))
            return
        reply = self._reply
        if reply is None:  # idle: the server has closed it, or says what nobody asked for
            self.close()
            return
        if not data:
            self._closed_by_server(reply)
            return
        reply.at = now
        try:
            reply.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end(Broken("other", "an answer that changes the protocol"))
        except httptools.HttpParserError as error:
            self._end(Broken("other", f"no HTTP/1.1: {error}"[:160]))
        except Exception as error:  # a mistake of ours must not leave the request waiting for ever
            self._end(Broken("other", f"{type(error).__name__}: {error}"[:160]))
        else:
            if reply.complete or reply.enough:
                self._end(None)
            elif reply.linger is not None and self._timer is None:
                self._timer = gevent.get_hub().loop.timer(reply.linger)
                self._timer.start(self._end, None)

    def _closed_by_server(self, reply: Reply) -> None:
        if reply.ends_with_the_connection:
            reply.complete = True
            self._end(None)
        elif reply.headed:
            self._end(Broken("cut", "connection closed inside the body"))
        else:
            self._end(Broken("reset", "connection closed without an answer"))

    def _end(self, error: Broken | None) -> None:
        if error is not None:
            self.close()
        if self._ended is not None and not self._ended.ready():
            if error is None:
                self._ended.set()
            else:
                self._ended.set_exception(error)


class _Tls:
    """TLS over a socket that does not block: bytes in, bytes out."""

    def __init__(self, sock: object, context: ssl.SSLContext, host: str) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._in, self._out, server_hostname=host)
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                self._push(sock)
                gevent.socket.wait_read(sock.fileno())  # type: ignore[attr-defined]
                data = sock.recv(_BLOCK)  # type: ignore[attr-defined]
                if not data:
                    raise ConnectionResetError from None
                self._in.write(data)
            else:
                self._push(sock)
                return

    def _push(self, sock: object) -> None:
        data = self._out.read()
        while data:
            data = data[sock.send(data) :]  # type: ignore[attr-defined]  # a handshake fits into any buffer

    def sealed(self, data: bytes) -> bytes:
        self._object.write(data)
        return self._out.read()

    def opened(self, data: bytes) -> bytes:
        """What can be read of it now; nothing where a record is still incomplete."""
        self._in.write(data)
        parts = []
        try:
            while part := self._object.read(_BLOCK):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        return b"".join(parts)


def told(error: OSError) -> str:
    """The system's error in words that stay the same from one time to the next."""
    match error:
        case ConnectionRefusedError():
            return "connection refused"
        case ConnectionResetError() | BrokenPipeError():
            return "connection reset"
        case TimeoutError():
            return "timed out"
        case gevent.socket.gaierror():
            return "unknown host"
        case ssl.SSLCertVerificationError():
            return f"TLS: {error.verify_message}; SSL_CERT_FILE=… names the certificate to trust"
        case ssl.SSLError():
            return f"TLS: {error.reason}"
    return f"{type(error).__name__}: {error}"[:160]
