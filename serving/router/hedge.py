"""A second attempt beside the first, for a request that has waited long for its first byte (router.retry.hedge_after).

Whichever answers first gets the client; the other one is dropped, and its engine stops. Off by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from serving.fleet.replica import Replica
from serving.router.attempt import Attempt
from serving.router.exchange import ELSEWHERE, Exchange

if TYPE_CHECKING:
    from serving.router.upstream import Upstream


class Hedge(Attempt):
    """Stands in for its exchange towards one replica, until it has won or lost."""

    def __init__(self, exchange: Exchange, replica: Replica) -> None:
        self.exchange = exchange
        self.server = exchange.server
        self.replica = replica
        if exchange.span is not None:
            exchange.head = exchange.span.attempt(replica, exchange.head)
            exchange.span.event("hedge")
        self.head = exchange.head
        self.body = exchange.body
        self.method = exchange.method
        self.http10 = exchange.http10
        self.work = exchange.work
        self.pool = exchange.pool
        self.server.count_in(self, replica)
        self.server.metrics.hedge("sent")

    # --- as an exchange has them ---

    def sending(self, now: float) -> None:
        """The exchange's own times stay: it was sent before."""

    def may_go_elsewhere(self, status: int) -> bool:
        """An answer that says "not me" does not win over a first attempt that may still do it."""
        return status in ELSEWHERE and self.exchange.replica is not None

    def fail_attempt(self, reason: str) -> None:
        if self.upstream is not None:
            self.upstream.drop(reason)
        else:
            self.attempt_failed(None, reason, begun=False, stale=False)

    def attempt_failed(self, upstream: Upstream | None, reason: str, begun: bool, stale: bool) -> None:
        replica = self.replica
        if replica is not None and not stale:
            self.server.attempt_lost(self, replica, reason, begun)
        self._lost(reason)
        self._over("failed")
        exchange = self.exchange
        # The first has failed before.
        if exchange.replica is None and replica is not None and not exchange.done:
            exchange.attempts += 1
            exchange.tried = [*exchange.tried, replica]
            self.server.try_again(exchange, reason)

    def begin(self, upstream: Upstream, status: int, head: bytes, body: bytes) -> Callable[[bytes], None]:
        """It answers first, if with an answer: the exchange goes on with this connection."""
        return self._hand_over(upstream).begin(upstream, status, head, body)

    def ended(self, upstream: Upstream, tail: bytes) -> None:
        raise AssertionError("a hedge that begins has handed over")

    # --- called by its exchange ---

    def promote(self) -> None:
        """The first attempt has failed: this one is the exchange's now, at once or when it is connected and answers."""
        if self.upstream is not None:
            self._hand_over(self.upstream)

    def cancel(self) -> None:
        """The first attempt answers, or nobody waits any more."""
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.abort()
        self._lost("aborted")
        self._over("aborted")

    def _lost(self, reason: str) -> None:
        if self.done:
            return
        self.server.metrics.hedge("lost")
        span = self.exchange.span
        if span is not None and self.replica is not None:
            span.attempt_ended(self.replica, error=reason)

    def _hand_over(self, upstream: Upstream) -> Exchange:
        exchange, replica = self.exchange, upstream.replica
        self.server.metrics.hedge("won")
        self.done = True
        self.replica = None
        exchange.hedge = None
        first, exchange.upstream = exchange.upstream, None
        if first is not None:
            first.abort()
        exchange.release("aborted")
        replica.attempts.discard(self)
        replica.attempts.add(exchange)
        exchange.replica = replica
        exchange.attempts += 1
        exchange.tried = [*exchange.tried, replica]
        exchange.upstream = upstream
        upstream.exchange = exchange
        return exchange

    def _over(self, outcome: str) -> None:
        self.done = True
        replica, self.replica = self.replica, None
        if self.exchange.hedge is self:
            self.exchange.hedge = None
        if replica is not None:
            self.server.count_out(self, replica, outcome)
