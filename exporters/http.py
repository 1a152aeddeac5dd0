"""The exporter's HTTP server: ``/metrics`` for Prometheus, ``/healthz`` for a supervisor, ``/`` for people.

Small, cheap and bounded: it does nothing between scrapes, has a thread per connection and at most MAX_CONNECTIONS
of them, limits on time and bytes, GET and HEAD only. (The standard library's server takes 12 MB for its imports,
twice the CPU, and sends head and body apart, which costs every scrape 40 ms on a kept connection.) ``/metrics``
speaks the text format or OpenMetrics, packed or not, whichever the client asks for, and keeps to the time that
Prometheus says it will wait. What is measured is the registry's business.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import socket
import threading
import time
import zlib
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from exporters import exposition
from exporters.registry import DEFAULT_LIMIT, GRACE, Registry

log = logging.getLogger("exaserve.exporter")

#: Connections at one time; a Prometheus needs one. A further one takes the place of the one that has asked for
#: nothing for the longest, so that idle clients can't keep it out; where all of them are answered, it is closed.
MAX_CONNECTIONS = 32
#: Seconds for such a place to become free.
_ROOM_SECONDS = 1.0
#: Bytes of a request's head. Prometheus sends some 500.
MAX_HEAD = 16 * 1024
#: Seconds in which a request's head must be whole, and an answer taken.
HEAD_SECONDS = 15.0
#: Seconds that a connection may rest between two scrapes.
IDLE_SECONDS = 70.0
#: Shortest and longest time for the collectors, whatever the client says it would wait. Scrapes at one time share
#: their work, so that a client that waits for nothing would cost the others their collectors.
MIN_LIMIT, MAX_LIMIT = 0.2, 60.0
#: Bytes of a page below which packing it isn't worth the time.
_MIN_PACKED = 1400

_PLAIN = "text/plain; charset=utf-8"


def limit_for(header: str | None) -> float:
    """Seconds for the collectors when Prometheus waits ``header`` seconds (X-Prometheus-Scrape-Timeout-Seconds).

    A fifth, at most half a second, stays for the way there and back. Missing or senseless: DEFAULT_LIMIT. Less than
    MIN_LIMIT it never is: no Prometheus waits as short as that.
    """
    try:
        timeout = float(header or "")
    except ValueError:
        return DEFAULT_LIMIT
    if not math.isfinite(timeout) or timeout <= 0:
        return DEFAULT_LIMIT
    reserve = min(timeout / 5, 0.5) + min(timeout / 5, GRACE)
    return max(MIN_LIMIT, min(timeout - reserve, MAX_LIMIT))


class Token:
    """The bearer token that a scrape must show: the first line of a file, read again when the file changes.

    Raises OSError or ValueError at its start if the file can't be read or is empty. What goes wrong later keeps
    the token known before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()
        self._value = self._read()

    def admits(self, authorization: str) -> bool:
        try:
            seen = self._stamp()
            if seen != self._seen:
                self._value, self._seen = self._read(), seen
        except (OSError, ValueError) as error:
            log.warning("token file %s: %s; the token read before still holds", self._path, error)
        from hmac import compare_digest  # loads OpenSSL, which an exporter without a token does without

        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and compare_digest(given.strip().encode("latin-1"), self._value)

    def _stamp(self) -> tuple[int, int]:
        about = os.stat(self._path)
        return about.st_mtime_ns, about.st_ino

    def _read(self) -> bytes:
        with open(self._path, "rb") as file:
            value = file.read(4096).split(b"\n", 1)[0].strip()
        if not value:
            raise ValueError("its first line is empty")
        return value


class _Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    keep: bool


class _Bad(Exception):
    """The bytes are no request that is answered here; the status says why."""

    def __init__(self, status: HTTPStatus) -> None:
        self.status = status


class ExporterServer:
    """Listens as soon as it is made; ``serve_forever`` answers. Raises OSError if the port can't be had."""

    def __init__(self, host: str, port: int, registry: Registry, token: Token | None = None) -> None:
        self.registry = registry
        self._token = token
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closed = False
        #: Connections whose request is awaited, or half there; the oldest first.
        self._asking: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
            self._socket.listen(MAX_CONNECTIONS)
        except BaseException:
            self._socket.close()
            raise
        self.port = int(self._socket.getsockname()[1])

    def serve_forever(self) -> None:
        """Takes connections until ``close``."""
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if not self._closed:  # too many open files, most often
                    log.warning("no connection could be taken: %s", error)
                    time.sleep(0.5)
                continue
            if not self._free.acquire(blocking=False) and not self._make_room():
                connection.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), name="http", daemon=True).start()
            except RuntimeError as error:
                log.warning("no thread for a connection: %s", error)
                self._free.release()
                connection.close()

    def _make_room(self) -> bool:
        with self._lock:
            idle = next(iter(self._asking), None)
            if idle is None:
                return False
            del self._asking[idle]
            with contextlib.suppress(OSError):
                idle.shutdown(socket.SHUT_RDWR)  # its thread sees the end and gives its place back
        return self._free.acquire(timeout=_ROOM_SECONDS)

    def close(self) -> None:
        """Take no further connection. Those that are open end by themselves."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes ``accept``
        self._socket.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._converse(connection)
        except (OSError, TimeoutError):
            pass  # a client that went away in the middle is nothing to report
        except Exception:
            log.exception("a connection ended early")
        finally:
            self._free.release()

    def _await(self, connection: socket.socket, rest: bytes) -> tuple[bytes, bytes]:
        with self._lock:
            self._asking[connection] = None
        try:
            return _head(connection, rest)
        finally:
            with self._lock:
                self._asking.pop(connection, None)

    def _converse(self, connection: socket.socket) -> None:
        rest = b""
        while True:
            try:
                head, rest = self._await(connection, rest)
                if not head:
                    return
                request = _request(head)
            except _Bad as bad:
                said = f"{bad.status.value} {bad.status.phrase}\n".encode()
                connection.settimeout(HEAD_SECONDS)
                connection.sendall(_answer(bad.status, _PLAIN, said, keep=False))
                _let_go(connection)
                return
            began = time.monotonic()
            answer = self._respond(request)
            connection.settimeout(HEAD_SECONDS)
            connection.sendall(answer)
            seconds = time.monotonic() - began
            # %a: what a client asks for must not write lines of its own into the log.
            log.debug(
                "%s %a: %d, %d bytes, %.3f s",
                request.method,
                request.path[:200],
                _status_of(answer),
                len(answer),
                seconds,
            )
            if not request.keep:
                return

    def _respond(self, request: _Request) -> bytes:
        head_only = request.method == "HEAD"
        if request.path == "/metrics":
            if self._token and not self._token.admits(request.headers.get("authorization", "")):
                said = b"This exporter wants the bearer token of its --token-file.\n"
                return _answer(
                    HTTPStatus.UNAUTHORIZED,
                    _PLAIN,
                    said,
                    request.keep,
                    head_only,
                    "WWW-Authenticate: Bearer\r\n",
                )
            return self._metrics(request, head_only)
        if request.path == "/healthz":
            return _answer(HTTPStatus.OK, _PLAIN, b"ok\n", request.keep, head_only)
        if request.path == "/":
            return _answer(HTTPStatus.OK, _PLAIN, self._front().encode(), request.keep, head_only)
        said = b"Nothing here. See /metrics, /healthz, /.\n"
        return _answer(HTTPStatus.NOT_FOUND, _PLAIN, said, request.keep, head_only)

    def _metrics(self, request: _Request, head_only: bool) -> bytes:
        headers = request.headers
        page = self.registry.scrape(limit_for(headers.get("x-prometheus-scrape-timeout-seconds")))
        modern = exposition.wants_openmetrics(headers.get("accept", ""))
        body = exposition.openmetrics(page) if modern else exposition.text(page)
        more = "Vary: Accept, Accept-Encoding\r\n"
        if len(body) >= _MIN_PACKED and _takes_gzip(headers.get("accept-encoding", "")):
            # Level 1: a sixth of the page's size for a sixth of the time that the usual level takes.
            packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
            body = packer.compress(body) + packer.flush()
            more += "Content-Encoding: gzip\r\n"
        kind = exposition.OPENMETRICS if modern else exposition.TEXT
        return _answer(HTTPStatus.OK, kind, body, request.keep, head_only, more)

    def _front(self) -> str:
        names = ", ".join(self.registry.names)
        return f"ExaServe exporter\n\n/metrics  for Prometheus (collectors: {names})\n/healthz  this process lives\n"


def _head(connection: socket.socket, seen: bytes) -> tuple[bytes, bytes]:
    """One request's head and the bytes after it; nothing if the client has gone or said nothing for long.

    Raises _Bad if the head is too long or is not whole in time.
    """
    until = time.monotonic() + (HEAD_SECONDS if seen else IDLE_SECONDS)
    while (end := seen.find(b"\r\n\r\n")) < 0:
        if len(seen) > MAX_HEAD:
            raise _Bad(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        left = until - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
            piece = connection.recv(16384)
        except TimeoutError:
            if seen:
                raise _Bad(HTTPStatus.REQUEST_TIMEOUT) from None
            return b"", b""
        if not piece:
            return b"", b""
        if not seen:
            until = time.monotonic() + HEAD_SECONDS
        seen += piece
    return seen[:end], seen[end + 4 :]


def _request(head: bytes) -> _Request:
    """Raises _Bad on what is no HTTP/1 request, has a body, or is neither GET nor HEAD."""
    first, *lines = head.decode("latin-1").lstrip("\r\n").split("\r\n")
    try:
        method, target, version = first.split(" ")
    except ValueError:
        raise _Bad(HTTPStatus.BAD_REQUEST) from None
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise _Bad(
            HTTPStatus.HTTP_VERSION_NOT_SUPPORTED if version[:5] == "HTTP/" else HTTPStatus.BAD_REQUEST
        )
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise _Bad(HTTPStatus.BAD_REQUEST)
        name = name.lower()
        headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
    if method not in ("GET", "HEAD"):
        raise _Bad(HTTPStatus.METHOD_NOT_ALLOWED)
    # A body would be taken for the next request.
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise _Bad(HTTPStatus.BAD_REQUEST)
    asked = headers.get("connection", "").lower()
    keep = "close" not in asked and (version == "HTTP/1.1" or "keep-alive" in asked)
    # With the server's name before it, as for a proxy (RFC 9112, 3.2.2).
    path = re.sub(r"^https?://[^/?]*", "", target, flags=re.IGNORECASE).partition("?")[0]
    return _Request(method, path or "/", headers, keep)


def _takes_gzip(accept_encoding: str) -> bool:
    for item in accept_encoding.split(","):
        name, _, weight = item.partition(";")
        if name.strip().lower() == "gzip":
            return weight.replace(" ", "").rstrip("0.") != "q="
    return False


def _answer(
    status: HTTPStatus, kind: str, body: bytes, keep: bool, head_only: bool = False, more: str = ""
) -> bytes:
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        more += "Allow: GET, HEAD\r\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nServer: exaserve-exporter\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n{more}Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    ).encode()
    return head if head_only else head + body


def _status_of(answer: bytes) -> int:
    """Of what ``_answer`` made."""
    return int(answer.split(b" ", 2)[1])


def _let_go(connection: socket.socket) -> None:
    """Let the client read the last answer: closing on bytes that were not read resets the connection."""
    connection.shutdown(socket.SHUT_WR)
    connection.settimeout(0.5)
    until = time.monotonic() + 2
    while time.monotonic() < until and connection.recv(65536):
        pass
