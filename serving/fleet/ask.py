"""Small HTTP questions to replicas, for probes and load reads, over connections that are kept.

A replica has as many connections here as it has questions open at once: one, or two while a load read runs beside
a probe that waits. The data path has its own (serving/router/upstream.py).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import httptools

from serving.fleet.connect import connect, was_refused
from serving.fleet.replica import Replica

__all__ = ["MAX_ANSWER_BYTES", "Asker", "Question", "was_refused"]

MAX_ANSWER_BYTES = 8 * 2**20
#: Idle connections kept per replica.
MAX_KEPT = 2

#: Called once: with the answer, or with why there is none (OSError, or ValueError for what is not HTTP).
Then = Callable[[int, bytes, Exception | None], None]


class Question:
    """One question; ends with ``then(status, body, error)``, unless it is cancelled."""

    __slots__ = ("asker", "data", "line", "opening", "replica", "then")

    def __init__(self, asker: Asker, replica: Replica, data: bytes, then: Then) -> None:
        self.asker = asker
        self.replica = replica
        self.data = data
        self.then = then
        self.line: _Line | None = None
        self.opening: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """``then`` is not called any more; an answer that may still come is not waited for."""
        if self.opening is not None:
            self.opening.cancel()
        if self.line is not None:
            line, self.line = self.line, None
            line.question = None
            line.abort()


class _Line(asyncio.Protocol):
    """One kept connection: asks one question at a time. Costs the poller 3,072 calls a second: keep it lean."""

    def __init__(self, asker: Asker, replica: Replica) -> None:
        self.asker = asker
        self.replica = replica
        self.transport: asyncio.Transport | None = None
        self.question: Question | None = None
        self.parser = httptools.HttpResponseParser(self)
        self.used = False  # has answered before: a failure without a byte then is only a stale connection
        self.head = b""
        self.pieces: list[bytes] = []
        self.size = 0
        self.complete = False
        self.keep = False

    def ask(self, question: Question) -> None:
        self.question = question
        question.line = self
        self.head = b""
        self.pieces.clear()
        self.size = 0
        self.complete = False
        assert self.transport is not None
        self.transport.write(question.data)

    # --- from the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.replica.heard += 1
        if self.question is None:  # nobody asked
            self.abort()
            return
        if not self.head:
            self.head = data
        self.asker.bytes_read += len(data)
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as e:
            self._end(0, b"", ValueError(f"answered something that is not HTTP ({e})"))
            return
        if self.complete:
            status = self.parser.get_status_code()
            body = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
            self._end(status, body, None, self.keep)
        elif self.size > MAX_ANSWER_BYTES:
            self._end(0, b"", ValueError(f"answered more than {MAX_ANSWER_BYTES} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.asker.lost(self)
        question = self.question
        if question is None:
            return
        if self.used and not self.head:
            self.question = question.line = None
            self.asker.open(question)
        elif self.pieces and exc is None and b"content-length" not in self.head[:4096].lower():
            self._end(
                self.parser.get_status_code(), b"".join(self.pieces), None
            )  # it ends with the connection
        else:
            self._end(0, b"", ConnectionResetError("closed before it answered"))

    # --- from the parser ---

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)
        self.size += len(data)

    def on_message_complete(self) -> None:
        if self.parser.get_status_code() >= 200:  # else an interim answer
            self.complete = True
            self.keep = self.parser.should_keep_alive()  # afterwards the parser has forgotten

    # --- ends ---

    def _end(self, status: int, body: bytes, error: Exception | None, keep: bool = False) -> None:
        question, self.question = self.question, None
        if keep:
            self.used = True
            self.asker.keep(self)
        else:
            self.abort()
        if question is not None:
            question.line = None
            question.then(status, body, error)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Asker:
    """Asks replicas. ``headers`` (whole lines) go with every question, ``tls`` is for those with https.

    bytes_read: all that was read from replicas, heads included.
    """

    def __init__(self, headers: bytes = b"", tls: ssl.SSLContext | None = None) -> None:
        self.headers = headers
        self.tls = tls
        self.bytes_read = 0
        self._kept: dict[Replica, list[_Line]] = {}

    def question(self, replica: Replica, method: str, path: str, body: bytes = b"") -> bytes:
        """The bytes of a question; the same ones may be asked again and again."""
        kind = b"content-type: application/json\r\n" if body else b""
        head = f"{method} {path} HTTP/1.1\r\nhost: {replica.authority}\r\n".encode()
        return b"%s%s%scontent-length: %d\r\n\r\n%s" % (head, kind, self.headers, len(body), body)

    def begin(self, replica: Replica, data: bytes, then: Then) -> Question:
        """Ask; ``then`` is called when the answer is there, from the loop, never from within this call."""
        question = Question(self, replica, data, then)
        kept = self._kept.get(replica)
        while kept:
            line = kept.pop()
            if line.transport is not None and not line.transport.is_closing():
                line.ask(question)
                return question
        self.open(question)
        return question

    async def ask(self, replica: Replica, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """(status, body). Has no time limit of its own: wrap it in ``asyncio.timeout``.

        Raises ConnectionRefusedError if nobody listens, OSError or ConnectionError if the connection breaks,
        ValueError if the answer is not HTTP or larger than 8 MiB. Every piece counts as heard from the replica.
        """
        future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

        def then(status: int, answer: bytes, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result((status, answer))

        question = self.begin(replica, self.question(replica, method, path, body), then)
        try:
            return await future
        finally:
            if future.cancelled():
                question.cancel()

    def forget(self, replica: Replica) -> None:
        """Close what is kept of it."""
        for line in self._kept.pop(replica, []):
            line.abort()

    def close(self) -> None:
        for replica in list(self._kept):
            self.forget(replica)

    # --- for the connections ---

    def open(self, question: Question) -> None:
        """Ask over a new connection."""
        question.opening = asyncio.get_running_loop().create_task(self._open(question))

    async def _open(self, question: Question) -> None:
        line = _Line(self, question.replica)
        try:
            await connect(question.replica, lambda: line, self.tls)
        except asyncio.CancelledError:
            line.abort()  # it may have been connected in the same turn of the loop
            raise
        except (OSError, ValueError) as e:  # ValueError: a name that is none
            question.opening = None
            question.then(0, b"", e)
            return
        question.opening = None
        line.ask(question)

    def keep(self, line: _Line) -> None:
        kept = self._kept.setdefault(line.replica, [])
        if len(kept) < MAX_KEPT:
            kept.append(line)
        else:
            line.abort()

    def lost(self, line: _Line) -> None:
        kept = self._kept.get(line.replica)
        if kept and line in kept:
            kept.remove(line)
