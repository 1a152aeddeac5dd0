"""One request of a client, from its last byte to the last byte of its answer, over the attempts that it takes.

Holds the request until something of its answer has gone to the client; then only relays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic, time
from typing import TYPE_CHECKING

import msgspec

from serving.fleet.replica import Replica
from serving.router import errors
from serving.router.attempt import Attempt
from serving.router.usage import usage_in

if TYPE_CHECKING:
    from serving.router.client import Client
    from serving.router.heads import RequestHead
    from serving.router.hedge import Hedge
    from serving.router.server import Server
    from serving.router.tenants import Tenant
    from serving.router.tracing import Span
    from serving.router.upstream import Upstream
    from serving.router.websocket import Tunnel

#: Answers of a replica that say it can't, not that the request is wrong: another one may.
ELSEWHERE = frozenset((429, 502, 503, 504))
#: Stale kept-alive connections in a row before one is taken for a failure of the replica.
MAX_STALE = 2


class Exchange(Attempt):
    """See the module. Times are ``time.monotonic()`` seconds, 0.0 = not yet."""

    # Defaults of the class, so that a request sets only what differs.
    model: str | None = None  # one that is served here, or None: any replica will do
    streaming = False
    upgrade = False
    tenant: Tenant | None = None
    intent = ""
    confidence = 0.0
    session = 0
    size = 0  # bytes of the body
    input_tokens = 0
    output_tokens = 0
    metered = False  # counted in its tenant's budget
    charged = 0  # tokens that the tenant was charged
    priority = 0
    deadline = 0.0
    first_byte = 0.0
    sent = 0.0  # when the request went to the replica (the last attempt)
    overhead = -1.0
    waited = 0.0  # in the pool's queue, and for the second stage
    wait_began = 0.0
    status = 0
    attempts = 0
    stale = 0
    decision = "admitted"
    replica_name = ""
    hedge: Hedge | None = None
    tunnel: Tunnel | None = None  # what is open at the replica, of an upgraded connection
    span: Span | None = None
    event_stream = False
    admitted = False  # counted in its pool
    timer: asyncio.TimerHandle | None = None
    deadline_timer: asyncio.TimerHandle | None = None
    pending: tuple[Mapping[bytes, bytes], int, int | None, int | None] | None = None
    tried: list[Replica] | tuple[()] = ()

    def __init__(self, server: Server, client: Client, head: RequestHead, body: bytes, now: float) -> None:
        self.server = server
        self.client = client
        self.method = head.method
        self.url = head.url
        self.route = head.route
        self.http10 = head.http10
        self.body = body
        self.started = now
        self.request_id = b""

    # --- called by the server ---

    def assign(self, replica: Replica) -> None:
        """The only place where an attempt is counted in; ``release`` is the only one where it is counted out."""
        self.replica = replica
        self.attempts += 1
        self.tried = [*self.tried, replica]
        self.server.count_in(self, replica)

    def release(self, outcome: str) -> None:
        """The attempt is over: ok, error (its answer was one), failed (no answer), cut, aborted (client gone)."""
        replica, self.replica = self.replica, None
        if replica is not None:
            self.replica_name = replica.name
            self.server.count_out(self, replica, outcome)

    def fail_attempt(self, reason: str) -> None:
        """The attempt is lost (refused, or its replica is out): the connection, if there is one, is dropped."""
        if self.upstream is not None:
            self.upstream.drop(reason)
        else:
            self.attempt_failed(None, reason, begun=False, stale=False)

    def sending(self, now: float) -> None:
        """The request goes out to the replica now."""
        if self.overhead < 0:
            self.overhead = now - self.started - self.waited
        self.sent = now

    def set_deadline(self, seconds: float) -> None:
        self.deadline = self.started + seconds
        self.deadline_timer = self.server.loop.call_later(
            max(self.deadline - monotonic(), 0.0), self._deadline_passed
        )

    def _deadline_passed(self) -> None:
        """Cut, so that the engine computes no further for somebody who has stopped waiting."""
        if self.done:
            return
        self.server.metrics.reject("deadline", self.pool_name, self.tenant_name)
        if self.tunnel is not None:  # the client's connection is the tunnel's: no place for an answer
            self.tunnel.expire()
            return
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.abort()
        self._drop_hedge()
        replica = self.replica
        self.release("aborted")
        if self.first_byte:
            self._cut(upstream, replica, "its deadline has passed")
        else:
            self.decision = "deadline"
            self.reject(
                504,
                "deadline_exceeded",
                "the request's time is up (x-request-timeout, router.max_request_time)",
            )

    # --- called by the connection to the replica ---

    def may_go_elsewhere(self, status: int) -> bool:
        """Whether an answer that says "not me" is dropped for another replica's; counted as a retry then."""
        return (
            status in ELSEWHERE
            and not self.done
            and (
                self.hedge is not None  # which may still do it
                or (
                    self.server.another_for(self)
                    and self.attempts < self.server.settings.retry.max_attempts
                    and self.server.retries.left >= 1.0
                )
            )
        )

    def begin(self, upstream: Upstream, status: int, head: bytes, body: bytes) -> Callable[[bytes], None]:
        """The first bytes of the answer. head: lines with their CRLF. Returns what takes the next pieces."""
        now = self.first_byte = monotonic()
        self.status = status
        self.chunks = 1
        server, client, replica = self.server, self.client, upstream.replica
        if self.hedge is not None:
            self._drop_hedge()
        server.first_byte(self, replica, status, now)
        self.event_stream = upstream.known.event_stream
        if self.http10 or upstream.until_close or server.stopping:
            client.close_after = True
        self.body = b""  # from here on there is no second attempt
        client.release_buffer()
        tenant = self.tenant
        client.write(
            b"%sx-request-id: %s\r\n%s%s%s%s\r\n%s"
            % (
                head,
                self.request_id,
                server.replica_lines[replica],
                self.pool.answer_line if self.pool is not None else b"",
                tenant.budget.headers() if tenant is not None else b"",
                b"connection: close\r\n" if client.close_after else b"",
                body,
            )
        )
        return client.transport.write  # type: ignore[union-attr]

    def ended(self, upstream: Upstream, tail: bytes) -> None:
        """The answer is complete. tail: its last two pieces."""
        self.upstream = None
        status = self.status
        if self.span is not None:
            self.span.attempt_ended(upstream.replica, status)
        self.release("error" if status >= 500 else "ok")
        self._account(status, "error" if status >= 500 else "ok", usage_in(tail) if status == 200 else None)
        self.client.answered()

    def attempt_failed(self, upstream: Upstream | None, reason: str, begun: bool, stale: bool) -> None:
        self.upstream = None
        replica = self.replica
        if self.span is not None and replica is not None:
            self.span.attempt_ended(replica, error=reason)
        if stale and not begun and not self.done and replica is not None:
            # A keep-alive connection that the replica had closed: it says nothing about the replica.
            self.stale += 1
            if self.stale <= MAX_STALE and replica.in_rotation:
                self.release("aborted")
                self.attempts -= 1
                self.tried = self.tried[:-1]
                self.server.metrics.retry("stale", self.pool_name)
                self.server.dispatch(self, fresh_on=replica)
                return
        if replica is not None:
            self.server.attempt_lost(self, replica, reason, begun)
        self.release("cut" if begun else "failed")
        if self.done:
            return
        if begun:
            self._cut(upstream, replica, reason)
        elif self.hedge is not None:
            self.hedge.promote()
        else:
            self.server.try_again(self, reason)

    def _cut(self, upstream: Upstream | None, replica: Replica | None, reason: str) -> None:
        """A begun answer can't go on: say so where the format allows it, never as a complete answer."""
        name = replica.name if replica else "replica"
        clean = self.event_stream and upstream is not None and upstream.between_events()
        self._account(self.status, "cut", None)
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
        elif self.http10 or (upstream is not None and upstream.until_close):
            self.client.reset()
        else:
            self.client.abort()

    # --- ends ---

    def reject(
        self, status: int, code: str, message: str, param: str | None = None, extra: bytes = b"",
        decision: str = "", kind: str | None = None,
    ) -> None:  # fmt: skip
        """The router's own answer. extra: header lines. decision: for the audit, where it is not the code."""
        if self.done:
            return
        if self.decision == "admitted":
            self.decision = decision or code
        self.client.send_error(status, code, message, param, self.request_id, extra, kind)
        self.first_byte = 0.0
        self._account(status, "rejected", None)
        self.client.answered()

    def answer_json(self, value: object) -> None:
        """The router's own 200."""
        content = msgspec.json.encode(value)
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: %s\r\n%s\r\n"
            % (len(content), self.request_id, b"connection: close\r\n" if self.client.close_after else b"")
        )
        self.client.write(head if self.method == b"HEAD" else head + content)
        self.decision = "local"
        self._account(200, "ok", None)
        self.client.answered()

    def finish_tunnel(self, status: int, outcome: str) -> None:
        """A WebSocket tunnel has ended."""
        self._account(status or 502, outcome, None)

    def client_gone(self) -> None:
        """The client went away: the replica stops, at once."""
        if self.done:
            return
        self.done = True
        self.server.metrics.disconnects += 1
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.abort()
        self._drop_hedge()
        self.release("aborted")
        self._account(499, "aborted", None)

    def _drop_hedge(self) -> None:
        hedge, self.hedge = self.hedge, None
        if hedge is not None:
            hedge.cancel()

    @property
    def pool_name(self) -> str:
        return self.pool.name if self.pool is not None else ""

    @property
    def tenant_name(self) -> str:
        return self.tenant.name if self.tenant is not None else ""

    def _account(self, status: int, outcome: str, usage: tuple[int, int] | None) -> None:
        """Once for each request, whatever became of it."""
        self.done = True
        self.status = status
        now = monotonic()
        server, tenant, pool = self.server, self.tenant, self.pool
        if self.deadline_timer is not None:
            self.deadline_timer.cancel()
        if self.timer is not None:
            self.timer.cancel()
        if self.wait_began:
            server.stop_waiting(self)
        if self.admitted and pool is not None:
            pool.open -= 1
        pool_name = pool.name if pool is not None else ""
        tenant_name = tenant.name if tenant is not None else ""
        first = self.first_byte - self.started if self.first_byte else -1.0
        streamed = self.streaming and status == 200
        series = server.metrics.series(self.route, self.model or "", pool_name, self.intent, tenant_name)
        if outcome == "cut":
            series.cut += 1
        series.done(
            status,
            now - self.started,
            first if streamed else -1.0,
            self.waited if self.attempts else -1.0,
            self.overhead,
            self.chunks if streamed else 0,
            now - self.first_byte,
        )
        estimated = usage is None
        if usage is not None:
            tokens_in, tokens_out = usage
            server.estimator.learn(self.model, self.intent, self.size, tokens_in, tokens_out)
            server.metrics.used(tenant_name, self.model or "", tokens_in, tokens_out)
        else:
            tokens_in = self.input_tokens if self.first_byte else 0
            tokens_out = self.chunks if streamed else 0
        if self.metered and tenant is not None:
            if self.first_byte or outcome == "aborted" or (self.decision == "deadline" and self.attempts):
                tenant.budget.settle(now, self.charged, tokens_in + tokens_out)
                tenant.budget.release()
            else:
                tenant.budget.undo(now, self.charged)
        if server.audit is not None and self.decision != "local":
            server.audit.put(
                (
                    time(), self.request_id, tenant_name, self.route, self.model, None, None, None,
                    self.replica_name, pool_name, self.intent, self.confidence, self.decision, status,
                    tokens_in, tokens_out, estimated, first if first >= 0.0 else None, now - self.started,
                    self.waited, max(self.attempts - 1, 0), outcome,
                )
            )  # fmt: skip
        if self.span is not None:
            self.span.end(
                self,
                error="" if outcome == "ok" else ("client_disconnected" if outcome == "aborted" else outcome),
                queue_seconds=self.waited,
                input_tokens=None if estimated else tokens_in,
                output_tokens=None if estimated else tokens_out,
            )
