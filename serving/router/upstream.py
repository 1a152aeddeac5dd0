"""A connection to a replica: sends one request at a time, relays the answer as it comes.

The parser only finds where the answer ends; the bytes of the body go to the client as they arrived. The head is
held until the first byte of the body, so that a replica that dies during prefill can still be replaced without
the client noticing.

Pieces of a stream that can't hold its end are relayed first and parsed later, some at a time: with hundreds of
streams each touches memory that is no longer in the processor's cache, and the parser's is most of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

import httptools

from serving.fleet.replica import Replica
from serving.router import heads

if TYPE_CHECKING:
    from serving.router.attempt import Attempt

#: A response head larger than this is not an engine's.
MAX_HEAD_BYTES = 64 * 1024
#: Pieces of an answer that are kept to find the usage in: an engine writes the event with it, [DONE] and the last
#: chunk one by one, and they may be read so.
TAIL_PIECES = 4
#: Pieces that wait for the parser, at most, and their size: what a stream keeps in memory.
MAX_PENDING = 32
MAX_PENDING_PIECE = 4096

NOTHING_KNOWN = heads.ResponseHead(b"", {}, True)


class _Parsed:
    """What llhttp finds, put away by built-in functions: a streamed chunk costs no Python frame for it."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.on_header = self.headers.__setitem__
        self.open = [True]  # emptied when the answer is complete
        self.on_message_complete = self.open.clear
        # A second answer that nobody asked for finds it empty, which is an error to llhttp.
        self.begun = [True]
        self.on_message_begin = self.begun.pop
        # Chunks begun and ended. Read only when an answer is cut, so a counter that costs little is enough.
        self.chunks_begun, self.chunks_ended = count(), count()
        self.on_chunk_header = self.chunks_begun.__next__
        self.on_chunk_complete = self.chunks_ended.__next__

    def between_chunks(self) -> bool:
        return self.chunks_begun.__reduce__()[1] == self.chunks_ended.__reduce__()[1]


class _Unchunked(_Parsed):
    """Keeps the body without its framing, for HTTP/1.0 clients."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append

    def take(self) -> bytes:
        body = b"".join(self.pieces)
        self.pieces.clear()
        return body


class Upstream(asyncio.Protocol):
    """One keep-alive connection; ``exchange`` is the request that is open on it, if any."""

    __slots__ = (
        "begun", "exchange", "feed", "head_end", "held", "keep_alive", "known", "parsed", "parser", "pending", "relay",
        "replica", "status", "tail", "transport", "unchunked", "used", "write",
    )  # fmt: skip

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.transport: asyncio.Transport | None = None
        self.exchange: Attempt | None = None
        self.used = 0  # requests before this one: a failure then may just be a stale connection
        self.begun = False  # something of the answer went to the client
        self.write: Callable[[bytes], None] | None = None  # to the client, once it has begun
        self.relay: Callable[[bytes], None] | None = (
            None  # the same, for streams whose pieces may be parsed later
        )
        self.pending: list[bytes] = []  # such pieces
        self.held = b""
        self.head_end = 0  # where the held head ends, 0 = not there yet
        self.status = 0
        self.known = NOTHING_KNOWN  # what the head of the answer says
        self.keep_alive = True
        self.tail: deque[bytes] = deque(maxlen=TAIL_PIECES)  # the newest bytes as they came
        self.unchunked: _Unchunked | None = None
        self._new_parser(_Parsed())

    def _new_parser(self, parsed: _Parsed) -> None:
        self.parsed = parsed
        self.parser = httptools.HttpResponseParser(parsed)
        self.feed = self.parser.feed_data

    # --- from the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def send(self, exchange: Attempt) -> None:
        self.exchange = exchange
        assert self.transport is not None
        if exchange.http10:
            self.unchunked = _Unchunked()
            self._new_parser(self.unchunked)
        # One write: uvloop sends it at once, writelines later.
        self.transport.write(exchange.head + exchange.body)

    def data_received(self, data: bytes) -> None:
        self.replica.heard += 1
        exchange = self.exchange
        if exchange is None:  # nobody asked: not a server that we can talk to
            self.abort()
            return
        relay = self.relay
        if (
            relay is not None
            # The last chunk begins a line with 0: not in here, and no line goes on in the next piece.
            and data[0] != 48
            and data[-2:] == b"\r\n"
            and b"\r\n0" not in data
            and len(data) <= MAX_PENDING_PIECE
        ):
            relay(data)
            pending = self.pending
            pending.append(data)
            if len(pending) == MAX_PENDING:
                self._catch_up()
        elif self.begun:
            self._relay_parsed(exchange, data)
        else:
            self._before_body(exchange, data)

    def _catch_up(self) -> bool:
        """Have the parser see what it has not seen yet. False if that was no HTTP: the answer is cut."""
        pending, exchange = self.pending, self.exchange
        if pending:
            self.tail.extend(pending[-TAIL_PIECES:])
            if exchange is not None:
                exchange.chunks += len(pending)
            data = b"".join(pending)
            pending.clear()
            try:
                self.feed(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade):
                self._fail("reset")
                return False
        return True

    def _relay_parsed(self, exchange: Attempt, data: bytes) -> None:
        """A piece that may hold the end of the answer, or is not in chunks at all."""
        if self.pending and not self._catch_up():
            return
        try:
            self.feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("reset")
            return
        self.tail.append(data)
        exchange.chunks += 1
        assert self.write is not None
        self.write(data if self.unchunked is None else self.unchunked.take())
        # The next piece begins a line if this one ended one.
        chunked = self.known.chunked and self.unchunked is None
        self.relay = self.write if chunked and data[-2:] == b"\r\n" else None
        if not self.parsed.open:
            self._finish(exchange)

    def _before_body(self, exchange: Attempt, data: bytes) -> None:
        """Nothing has gone to the client yet: the head is not whole, or no byte of the body has come."""
        if not self.held:
            end = data.find(b"\r\n\r\n")
            known = heads.KNOWN_RESPONSES.get(data[:end].translate(heads.NO_DIGITS)) if end > 0 else None
            if (
                known is not None
                and known.length_end
                and data.startswith(known.start)
                and exchange.method == b"POST"
                and self.unchunked is None
                and data[9] != 49  # not an interim answer
                and int(data[known.length_start : known.length_end]) == len(data) - end - 4
            ):
                self._whole_answer(exchange, data, end + 4, known)
                return
        held = self.held = self.held + data if self.held else data
        if self.head_end == 0:
            end = held.find(b"\r\n\r\n")
            while end >= 0 and held.startswith(b"HTTP/1.1 1"):  # interim answers, which end with their head
                held = self.held = held[end + 4 :]
                end = held.find(b"\r\n\r\n")
            if end < 0:
                if len(held) > MAX_HEAD_BYTES or not held.startswith(b"HTTP/1."[: len(held)]):
                    self._fail("reset")
                return
            try:
                self.feed(held)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade):
                self._fail("reset")
                return
            self.head_end = end + 4
            if not self._judge_head(exchange):
                return
        else:
            try:
                self.feed(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade):
                self._fail("reset")
                return
        if len(held) > self.head_end or not self.parsed.open or exchange.method == b"HEAD":
            self._begin(exchange)

    def _whole_answer(self, exchange: Attempt, data: bytes, end: int, known: heads.ResponseHead) -> None:
        """An answer in one piece with a head as it came before: nothing is left for the parser."""
        self.held = data
        self.head_end = end
        self.known = known
        status = self.status = int(data[9:12])
        if status >= 429 and exchange.may_go_elsewhere(status):
            self.drop(f"status_{status}")
            return
        self.keep_alive = known.keep_alive
        self.parsed.open.clear()
        self._begin(exchange)

    def _judge_head(self, exchange: Attempt) -> bool:
        """What the head says of how the answer goes on. False: it was dropped, another replica gets the request."""
        special = heads.RESPONSE.find(self.parsed.headers)
        if special is None:
            self._fail("reset")
            return False
        status = self.status = self.parser.get_status_code()
        head = self.held[: self.head_end - 4]
        connection = special.get(b"connection", b"").lower()
        keep_alive = b"close" not in connection and (
            head.startswith(b"HTTP/1.1") or b"keep-alive" in connection
        )
        self.known = heads.ResponseHead(head, special, keep_alive)
        if (
            len(heads.KNOWN_RESPONSES) < heads.MAX_KNOWN
            and head.startswith(b"HTTP/1.1 ")
            and status not in (204, 304)  # whatever length they name, no body follows
        ):
            heads.KNOWN_RESPONSES[head.translate(heads.NO_DIGITS)] = self.known
        if status >= 429 and exchange.may_go_elsewhere(status):
            self.drop(f"status_{status}")
            return False
        # After HEAD the parser waits for a body that never comes.
        self.keep_alive = keep_alive and exchange.method != b"HEAD"
        return True

    @property
    def until_close(self) -> bool:
        """Whether the answer ends with the connection."""
        return self.known.until_close and self.status not in (204, 304) and self.status != 0

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        exchange = self.exchange
        if exchange is not None:
            if self.until_close and exc is None:
                if not self.begun:
                    self._begin(exchange)  # the whole answer was a head
                if self.exchange is not None:  # its own now, if it was a hedge's
                    self._finish(self.exchange)
            else:
                self._fail("reset")
        elif self in self.replica.idle:
            self.replica.idle.remove(self)

    def pause_writing(self) -> None:
        """A request body is at most max_body_bytes and already in memory: nothing to pause."""

    def resume_writing(self) -> None:
        pass

    # --- towards the client ---

    def between_events(self) -> bool:
        """Whether what was relayed ends a whole chunk that ends a whole event: one more may follow it."""
        if self.pending and not self._catch_up():
            return False
        last = self.tail[-1] if self.tail else b""
        return self.known.chunked and last.endswith(b"\n\n\r\n") and self.parsed.between_chunks()

    def _begin(self, exchange: Attempt) -> None:
        held, end = self.held, self.head_end
        head = held[: end - 2]
        for name in self.known.drop:
            head = heads.without(head, name)
        if not head.startswith(b"HTTP/1.1"):
            head = b"HTTP/1.1" + head[8:]
        if exchange.method == b"HEAD":
            body = b""  # there must be none; it would be read as the next answer
            self.parsed.open.clear()
        elif self.unchunked is not None:
            head = heads.without(head, b"transfer-encoding")
            body = self.unchunked.take()
        else:
            body = held[end:]
        self.held = b""
        self.tail.append(body)
        self.begun = True
        write = self.write = exchange.begin(self, self.status, head, body)
        if self.known.chunked and self.unchunked is None and body[-2:] == b"\r\n":
            self.relay = write
        # A hedge that has won has handed the connection over to its exchange.
        if not self.parsed.open and self.exchange is not None:
            self._finish(self.exchange)

    # --- ends ---

    def _finish(self, exchange: Attempt) -> None:
        self.exchange = None
        tail = b"".join(self.tail)
        transport = self.transport
        if self.keep_alive and not self.until_close and transport is not None and not transport.is_closing():
            if not transport.is_reading():  # paused for a client that read slowly
                transport.resume_reading()
            self.used += 1
            self.relay = self.write = None
            self.begun = False
            self.known = NOTHING_KNOWN
            self.status = 0
            self.head_end = 0
            self.tail.clear()
            parsed = self.parsed
            parsed.headers.clear()
            parsed.open[:] = (True,)
            parsed.begun[:] = (True,)
            if self.unchunked is not None:
                self.unchunked = None
                self._new_parser(_Parsed())
            self.replica.idle.append(self)
        elif transport is not None:
            transport.close()
        exchange.ended(self, tail)

    def _fail(self, reason: str) -> None:
        exchange = self.exchange
        stale = self.used > 0 and not self.held and not self.begun
        self.abort()
        if exchange is not None:
            exchange.attempt_failed(self, reason, begun=self.begun, stale=stale)

    def drop(self, reason: str) -> None:
        """The replica is out (down, frozen), or its answer is not wanted: end what is open on it now."""
        self._fail(reason)

    def abort(self) -> None:
        """Close at once; the engine stops generating when its client is gone."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.chunks += len(self.pending)
        if self.transport is not None:
            self.transport.abort()
