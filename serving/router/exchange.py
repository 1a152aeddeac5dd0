"""One request of a client, from its last byte to the last byte of its answer, over at most two attempts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from serving.fleet.replica import Replica
from serving.router import errors
from serving.router.upstream import HOP_BY_HOP, Upstream

if TYPE_CHECKING:
    from serving.router.client import Client
    from serving.router.server import Server

MAX_ATTEMPTS = 2


class Exchange:
    """Holds the request until something of its answer has gone to the client; then only relays."""

    __slots__ = (
        "attempts", "body", "client", "done", "event_stream", "first_byte", "head", "http10", "method", "model", "replica",
        "request_id", "route", "server", "started", "status", "streaming", "tried", "upstream",
    )  # fmt: skip

    def __init__(
        self, server: Server, client: Client, method: bytes, head: bytes, body: bytes, route: str,
        request_id: bytes, http10: bool, streaming: bool, model: str | None = None,
    ) -> None:  # fmt: skip
        self.server = server
        self.client = client
        self.method = method
        self.head = head
        self.body = body
        self.route = route
        self.request_id = request_id
        self.http10 = http10
        self.streaming = streaming
        self.model = model  # one that is served here, or None: any replica will do
        self.started = time.monotonic()
        self.first_byte = 0.0
        self.status = 0
        self.attempts = 0
        self.tried: list[Replica] = []
        self.replica: Replica | None = None
        self.upstream: Upstream | None = None
        self.event_stream = False
        self.done = False

    # --- called by the server ---

    def assign(self, replica: Replica) -> None:
        """The only place where an attempt is counted in; ``_release`` is the only one where it is counted out."""
        self.replica = replica
        self.attempts += 1
        self.tried.append(replica)
        replica.attempts.add(self)

    def _release(self, outcome: str) -> None:
        replica, self.replica = self.replica, None
        if replica is not None:
            replica.attempts.discard(self)
            replica.outcomes[outcome] += 1

    def fail_attempt(self, reason: str) -> None:
        """The attempt is lost (refused, or its replica is out): the connection, if there is one, is dropped."""
        if self.upstream is not None:
            self.upstream.drop(reason)
        else:
            self.attempt_failed(None, reason, begun=False, stale=False)

    # --- called by the connection to the replica ---

    def begin(self, upstream: Upstream, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.first_byte = time.monotonic()
        self.status = status
        replica = upstream.replica
        lines = [b"HTTP/1.1 %d %s\r\n" % (status, errors.REASONS.get(status, b"-"))]
        for name, value in headers:
            if name in HOP_BY_HOP or (self.http10 and name == b"transfer-encoding"):
                continue
            if name == b"content-type":
                self.event_stream = value.startswith(b"text/event-stream")
            lines.append(b"%s: %s\r\n" % (name, value))
        if self.http10 or upstream.until_close:
            self.client.close_after = True
        lines.append(
            b"x-request-id: %s\r\nx-exaserve-replica: %s\r\n%s\r\n"
            % (
                self.request_id,
                replica.name.encode(),
                b"connection: close\r\n" if self.client.close_after else b"",
            )
        )
        lines.append(body)
        self.body = b""  # from here on there is no second attempt
        self.client.write(b"".join(lines))

    def relay(self, data: bytes) -> None:
        self.client.write(data)

    def ended(self, replica: Replica, outcome: str) -> None:
        self.upstream = None
        self._release(outcome)
        self._account(self.status)
        self.client.answered()

    def attempt_failed(self, upstream: Upstream | None, reason: str, begun: bool, stale: bool) -> None:
        self.upstream = None
        replica = self.replica
        self._release("cut" if begun else "failed")
        if self.done:
            return
        if begun:
            self._cut(upstream, replica, reason)
        elif stale and replica is not None and replica.in_rotation:
            # A keep-alive connection that the replica had closed: it says nothing about the replica.
            self.attempts -= 1
            self.tried.pop()
            self.server.metrics.retry("stale")
            self.server.dispatch(self, fresh_on=replica)
        elif self.attempts < MAX_ATTEMPTS:
            self.server.metrics.retry(reason)
            self.server.dispatch(self)
        else:
            self.server.metrics.reject("replica_failed")
            self.reject(502, "replica_failed", f"two replicas failed before they answered (last: {reason})")

    def _cut(self, upstream: Upstream | None, replica: Replica | None, reason: str) -> None:
        """A begun answer can't go on: say so where the format allows it, never as a complete answer."""
        name = replica.name if replica else "replica"
        clean = self.event_stream and upstream is not None and upstream.between_events
        self._account(self.status)
        if clean:
            event = b"data: %s\n\n" % errors.body(
                f"{name} failed while it was answering ({reason}); what came before this is incomplete",
                "server_error", None, "replica_failed",
            )  # fmt: skip
            if self.http10:
                self.client.write(event)
            else:
                # The answer is whole as HTTP goes, so the connection stays: its head did not announce a close,
                # and a client that reuses it at once would lose a second request to a reset.
                self.client.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(event), event))
            self.client.answered()
        else:
            self.client.abort()

    # --- ends ---

    def reject(self, status: int, code: str, message: str, param: str | None = None) -> None:
        """The router's own answer."""
        self.client.send_error(status, code, message, param, self.request_id)
        self._account(status)
        self.client.answered()

    def answer_json(self, value: object) -> None:
        """The router's own 200."""
        content = msgspec.json.encode(value)
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: %s\r\n%s\r\n"
            % (len(content), self.request_id, b"connection: close\r\n" if self.client.close_after else b"")
        )
        self.client.write(head if self.method == b"HEAD" else head + content)
        self._account(200)
        self.client.answered()

    def client_gone(self) -> None:
        """The client went away: the replica stops, at once."""
        self.done = True
        self.server.metrics.disconnects += 1
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.abort()
        self._release("aborted")
        self._account(499)

    def _account(self, status: int) -> None:
        self.done = True
        now = time.monotonic()
        first = (
            self.first_byte - self.started if self.streaming and self.first_byte and status == 200 else None
        )
        self.server.metrics.request(self.route, status, now - self.started, first)
