"""A tunnel for a connection that is upgraded to WebSocket (the engine's realtime API).

The request's head goes to the replica as it is given. If the answer is 101, bytes are relayed both ways until a
side ends; frames are not read. Any other answer passes as a normal one, and both connections close. Which
requests may do this, which replica gets them and what is counted is the caller's business.

A side that ends without having sent a close frame has died: the kernel says goodbye for it as if all were well.
Then the other connection ends at once, without a close frame; a look at the last bytes tells the difference.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import httptools

from serving.fleet.connect import connect, was_refused
from serving.fleet.replica import Replica
from serving.router.relay import ClientSide, ReplicaSide, Side, ends_with_close_frame

#: Paths that may be upgraded (vLLM 0.32: vllm/entrypoints/speech_to_text/realtime).
PATHS = frozenset((b"/v1/realtime",))
CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 30.0  # for the answer's head; an engine accepts at once, or refuses
HALF_CLOSED_SECONDS = 10.0  # one side has said its last; the other one has to end too, if nothing moves
FLUSH_SECONDS = 30.0  # for a client to take what the replica sent before it ended
MAX_HEAD_BYTES = 64 * 1024
MAX_EARLY_BYTES = 64 * 1024  # what a client may send before it knows whether it is upgraded


def wants_upgrade(method: bytes, path: bytes, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request asks for what is tunnelled here. headers: by lower-case name."""
    return (
        method == b"GET"
        and path in PATHS
        and headers.get(b"upgrade", b"").lower() == b"websocket"
        and b"upgrade" in [t.strip() for t in headers.get(b"connection", b"").lower().split(b",")]
    )


class Tunnel:
    """From a request to upgrade until both connections are gone.

    client: the client's transport; it is taken over at ``start``, and given back to its protocol if the replica
    fails before it answers. head: the request's head for the replica, Upgrade and Connection included, as bytes.
    early: what the client sent after its head. answer_lines: header lines (CR LF each) added to the answer's.
    idle_seconds: without a byte either way, the tunnel ends.

    on_end(outcome, reason): the replica is free, once. outcome is one of Replica.outcomes':
      ok       the replica ended it with a close frame, or gave a whole answer below 500; or nothing moved (idle)
      error    a whole answer of 500 or more
      failed   nothing has gone to the client (refused, reset, timeout, or why its replica is out): the transport
               is its protocol's again, to answer or to try another replica; ``early`` holds what came meanwhile
      cut      the replica is lost, and so is the client's connection
      aborted  the client went away first
    on_closed(): the client's connection is gone, at or after on_end; not called after ``failed``.
    status: of the answer, 101 for a tunnel, 0 until there is one.

    While it lasts it is one of the replica's ``attempts``, and ends by ``fail_attempt`` as others do.
    """

    def __init__(
        self, client: asyncio.Transport, head: bytes, replica: Replica, on_end: Callable[[str, str], None],
        on_closed: Callable[[], None] = lambda: None, *, early: bytes = b"", answer_lines: bytes = b"",
        tls: ssl.SSLContext | None = None, idle_seconds: float = 600.0, answer_seconds: float = ANSWER_SECONDS,
        connect: Callable[..., Any] = connect,
    ) -> None:  # fmt: skip
        self.replica = replica
        self.early = early
        self.pool: object = None  # that counts it, if one does
        self.status = 0
        self.relaying = False
        self.moved = False
        self._head = head
        self._on_end = on_end
        self._on_closed = on_closed
        self._answer_lines = answer_lines
        self._tls = tls
        self._idle_seconds = idle_seconds
        self._answer_seconds = answer_seconds
        self._connect = connect
        self._held = b""
        self._parser: httptools.HttpResponseParser | None = None
        self._answered = False  # an answer other than 101 is complete
        self._until_close = False  # it has no length of its own
        self._ended_first: Side | None = None  # who said its last before the other did
        self._over = False
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._client, self._upstream = ClientSide(self), ReplicaSide(self)
        self._client.peer, self._upstream.peer = self._upstream, self._client
        self._client.transport = client
        self._former = client.get_protocol()

    def start(self) -> None:
        assert self._client.transport is not None
        self._client.transport.set_protocol(self._client)
        self.replica.attempts.add(self)
        if len(self.early) > MAX_EARLY_BYTES:
            self._client_gone("too much before the answer")
        else:
            self._task = self._loop.create_task(self._open())

    def fail_attempt(self, reason: str) -> None:
        """The replica is out: down, frozen."""
        self._replica_failed(reason)

    def abort(self) -> None:
        """End it now, both ways: the router stops."""
        self._end("cut", "stopping")
        self._client.abort()

    def expire(self) -> None:
        """Its time is up: both connections end at once."""
        self._client_gone("deadline")

    # --- until the answer ---

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connect(self.replica, lambda: self._upstream, self._tls)
        except (OSError, TimeoutError) as e:
            self._replica_failed("refused" if was_refused(e) else str(e) or "timeout")
            return
        if self._over:
            self._upstream.abort()
            return
        self._upstream.write(self._head + self.early if self.early else self._head)
        self._timer = self._loop.call_later(self._answer_seconds, self._replica_failed, "timeout")

    def early_data(self, data: bytes) -> None:
        """From the client, which does not know yet whether it is upgraded."""
        if self._over or self._parser is not None:
            return  # after a refusal: it will close
        self.early += data
        if len(self.early) > MAX_EARLY_BYTES:
            self._client_gone("too much before the answer")
        else:
            self._upstream.write(data)  # kept, too: another replica would need it

    def answer_data(self, data: bytes) -> None:
        """From the replica, until its answer is known to be 101."""
        if self._over:
            return
        if self._parser is not None:
            self._pass(data)
            return
        self._held += data
        while (end := self._held.find(b"\r\n\r\n") + 4) >= 4:
            head, rest = self._held[:end], self._held[end:]
            if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
                self._replica_failed("reset")
                return
            self.status = int(head[9:12])
            if self.status >= 200:
                self._pass_head(head, rest)
                return
            if self.status == 101:
                self._switch(head, rest)
                return
            self._held = rest  # an interim answer: of no use to a client that waits for 101
        if len(self._held) > MAX_HEAD_BYTES:
            self._replica_failed("reset")

    def _switch(self, head: bytes, rest: bytes) -> None:
        self.relaying = True
        self._upstream.last = rest
        self.early = self._held = b""
        self._client.write(head[:-2] + self._answer_lines + b"\r\n" + rest)
        self._set_timer(self._idle_seconds)

    def _pass_head(self, head: bytes, rest: bytes) -> None:
        """A refusal. Its end has to be found: the replica would keep the connection."""
        self._parser = httptools.HttpResponseParser(self)
        named = [(line.partition(b":")[0].lower(), line) for line in head[:-4].split(b"\r\n")]
        names = {name for name, _ in named}
        self._until_close = not names & {b"content-length", b"transfer-encoding"}
        lines = [line for name, line in named if name not in (b"connection", b"keep-alive")]
        self._client.write(b"\r\n".join(lines) + b"\r\n" + self._answer_lines + b"connection: close\r\n\r\n")
        self._set_timer(self._idle_seconds)
        self._feed(head)
        if rest and not self._over:
            self._pass(rest)
        elif self._answered:
            self._pass(b"")

    def _pass(self, data: bytes) -> None:
        self.moved = True
        self._client.write(data)
        if data:
            self._feed(data)
        if self._answered:
            self._end("error" if self.status >= 500 else "ok", "")
            self._client.close()

    def _feed(self, data: bytes) -> None:
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._replica_failed("reset")

    def on_message_complete(self) -> None:
        """From the parser."""
        self._answered = True

    # --- ends ---

    def eof(self, side: Side) -> bool:
        """A side has said its last. True: it may still be written to."""
        if self._ended_first is None:
            self._ended_first = side
        own, peer = side.transport, side.peer.transport
        if not self.relaying or self._over or own is None or peer is None or peer.is_closing():
            return False
        if self._ended_first is not side or not ends_with_close_frame(side.last):
            return (
                False  # both have ended; or it died, and half a connection would keep the other one waiting
            )
        if not (own.can_write_eof() and peer.can_write_eof()):
            return False  # TLS has no half of a connection to close; ``lost`` follows
        peer.write_eof()
        self._set_timer(min(HALF_CLOSED_SECONDS, self._idle_seconds))
        return True

    def lost(self, side: Side, exc: Exception | None) -> None:
        first = self._ended_first or side
        if side is self._client:
            if first is self._upstream:
                self._replica_ended()
            else:
                self._client_gone("client")
            self._close_hook()
        elif first is self._client:
            self._client_gone("client")
        elif exc is None:
            self._replica_ended()
        else:
            self._replica_failed("reset")

    def _replica_ended(self) -> None:
        """In order, as far as TCP can tell."""
        if self._over:
            return
        if (self.relaying and ends_with_close_frame(self._upstream.last)) or self._until_close:
            self._end("error" if self.status >= 500 else "ok", "")
            self._client.close()
        else:
            self._replica_failed("reset")

    def _client_gone(self, reason: str) -> None:
        if not self._over:
            self._end("aborted", reason)
            self._client.abort()

    def _replica_failed(self, reason: str) -> None:
        if self._over:
            return
        client = self._client.transport
        begun = self.relaying or self._parser is not None
        if begun:
            self._end("cut", reason)
            if self.relaying:
                self._client.close()  # frames that arrived whole are the client's; no close frame follows them
            else:
                self._client.abort()
            return
        self._client.read(True)
        self._client.transport = None  # the client's protocol has it again
        self._closed = True
        if client is not None:
            client.set_protocol(self._former)
        self._end("failed", reason)

    def _end(self, outcome: str, reason: str) -> None:
        if self._over:
            return
        self._over = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
        self._set_timer(0)
        self._upstream.abort()
        self.replica.attempts.discard(self)
        if not self._closed:
            self._timer = self._loop.call_later(FLUSH_SECONDS, self._client.abort)
        self._on_end(outcome, reason)

    def _close_hook(self) -> None:
        self._set_timer(0)
        if not self._closed:
            self._closed = True
            self._on_closed()

    # --- time ---

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds:
            self.moved = False
            self._timer = self._loop.call_later(seconds, self._look, seconds)

    def _look(self, seconds: float) -> None:
        """Between one and two limits after the last byte; a timer reset for every byte would cost more."""
        if self.moved:
            self._set_timer(seconds)
        elif self._ended_first is self._client:
            self._client_gone("client")
        elif self._ended_first is self._upstream:
            self._replica_ended()
            self._client.abort()
        else:
            self._end("ok", "idle")
            self._client.abort()
