"""Accepts TLS connections, and says what went wrong with those that don't become one.

``create_server(ssl=…)`` is silent there: a failed handshake, or plain HTTP on the TLS port, ends without an
answer or a line in the log. Here the first bytes are looked at before the handshake, and its error is counted.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable

from serving.router.tls import ServerTLS, words

#: Values of the label ``reason`` of exaserve_router_tls_handshake_failures_total; nothing else appears there.
FAILURES = ("plain_http", "timeout", "closed", "no_certificate", "bad_certificate", "protocol", "busy")
MAX_HANDSHAKES = 1024  # open at once; further connections are closed
ACCEPTS = 64  # connections taken per turn of the loop, so that a flood leaves time for others
LOG_EVERY = 60.0  # seconds between two lines about the same kind of failure
LINGER_SECONDS = 1.0
LINGER_BYTES = 2**20

PLAIN_ANSWER_BODY = (
    b'{"error":{"message":"this port speaks TLS: use https://","type":"invalid_request_error","param":null,'
    b'"code":"plain_http_on_tls_port"}}'
)
PLAIN_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%s" % (len(PLAIN_ANSWER_BODY), PLAIN_ANSWER_BODY)
)

log = logging.getLogger("exaserve.tls")


class TLSListener:
    """Takes connections from ``sock`` (listening, TCP or unix) until closed; the factory's protocols then own them.

    handshake_timeout: seconds from accept to the end of the handshake.
    tls: may be replaced; the next connection gets it. failures: count by reason. pending: handshakes that are going on.
    """

    def __init__(
        self, sock: socket.socket, factory: Callable[[], asyncio.Protocol], tls: ServerTLS,
        handshake_timeout: float = 10.0,
    ) -> None:  # fmt: skip
        self.sock = sock
        self.failures = dict.fromkeys(FAILURES, 0)
        self.pending: set[asyncio.Task[None]] = set()
        self._factory = factory
        self.tls = tls
        self._timeout = handshake_timeout
        self._loop = asyncio.get_running_loop()
        self._said: dict[str, float] = {}
        self._closed = False
        sock.setblocking(False)
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Stop accepting, and drop handshakes that are going on. The socket is closed; connections stay."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self.sock)
            self.sock.close()
            for task in self.pending:
                task.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                connection, _ = self.sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                if e.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    log.error("no connection can be accepted: %s (ulimit -n); again in a second", e.strerror)
                    self._loop.remove_reader(self.sock)
                    self._loop.call_later(1.0, self._again)
                return
            if len(self.pending) >= MAX_HANDSHAKES:
                connection.close()
                self._failed("busy", f"{MAX_HANDSHAKES} handshakes are open")
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(connection))
            self.pending.add(task)
            task.add_done_callback(self.pending.discard)

    def _again(self) -> None:
        if not self._closed:
            self._loop.add_reader(self.sock, self._accept)

    async def _serve(self, connection: socket.socket) -> None:
        given = False
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self._timeout):
                first = await self._first_byte(connection)
                if first == b"\x16":
                    given = True
                    await self._loop.connect_accepted_socket(
                        self._factory, connection, ssl=self.tls.context, ssl_handshake_timeout=self._timeout
                    )
                    return
            if first:
                self._failed("plain_http", "a client speaks plain HTTP on the TLS port")
                await self._answer_plain(connection)
            else:
                self._failed("closed", "a client closed before the handshake")
        except (TimeoutError, OSError) as e:
            self._failed(*_kind(e))
        finally:
            if not given:
                connection.close()

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """What the client sends first, left in the socket. b"" if it closes."""
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK)

    async def _answer_plain(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                await self._loop.sock_sendall(connection, PLAIN_ANSWER)
                connection.shutdown(socket.SHUT_WR)
                # Closing with bytes unread would reset the connection, and could cost the client the answer.
                read = 0
                while read < LINGER_BYTES and (data := await self._loop.sock_recv(connection, 65536)):
                    read += len(data)
        except (TimeoutError, OSError):
            pass

    def _failed(self, reason: str, text: str) -> None:
        self.failures[reason] += 1
        now = time.monotonic()
        if now - self._said.get(reason, -LOG_EVERY) >= LOG_EVERY:
            self._said[reason] = now
            log.warning("TLS handshake failed: %s (%d so far)", text, self.failures[reason])


def _kind(error: BaseException) -> tuple[str, str]:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "bad_certificate", f"a client: {words(error)}"
    if isinstance(error, ssl.SSLError):
        if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return "no_certificate", "a client showed no certificate (router.tls.client_ca asks for one)"
        reason = error.reason or ""
        if ("ALERT" in reason and "CERTIFICATE" in reason) or "UNKNOWN_CA" in reason:
            return "bad_certificate", f"a client refuses our certificate: {words(error)}"
        return "protocol", words(error)
    if isinstance(error, TimeoutError) or "taking longer" in str(error):
        return "timeout", "a client took too long"
    return "closed", f"a client closed during the handshake: {words(error)}"
