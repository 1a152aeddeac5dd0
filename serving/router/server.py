"""The data plane of one worker: which replica gets a request, what is counted, who waits.

One event loop (uvloop). ``link`` says what happens to replicas here to whoever judges them, and is told through
the ``apply_…`` methods what was decided; it may be Health in this process (tests) or the master.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

from serving import compiled
from serving.fleet.connect import connect, was_refused
from serving.fleet.replica import Replica
from serving.router import admission, heads, local, second_stage
from serving.router.client import Client
from serving.router.hedge import Hedge
from serving.router.limits import Refusal
from serving.router.retry import MOVED
from serving.router.state import POOL_GAUGES, State
from serving.router.tunnels import open_tunnel
from serving.router.upstream import Upstream

if TYPE_CHECKING:
    from serving.router.attempt import Attempt
    from serving.router.exchange import Exchange

CONNECT_SECONDS = 2.0


class Server(State):
    """State of the data plane; touched by the event loop's thread only."""

    # --- requests ---

    def new_client(self) -> Client:
        """For listeners."""
        return Client(self)

    def know(self, head: heads.RequestHead) -> Refusal | None:
        """Work out, for now and for requests with the same head: who asks, and what the replica gets to see."""
        drop: tuple[bytes, ...] = ()
        if self.tenants.required and head.url != b"/health":  # load balancers have no key
            special = head.special
            found = self.tenants.authenticate(special.get(b"authorization"), special.get(b"x-api-key"))
            if isinstance(found, Refusal):
                return found
            head.tenant = found
            drop = (b"authorization", b"x-api-key")  # the tenant's key is no business of the replica's
        elif self.access.header:
            drop = (b"authorization",)
        given = head.special.get(b"x-request-id")
        if given is not None and heads.request_id(given) != given:
            drop += (b"x-request-id",)
        if self.tracing is not None:
            drop += (b"traceparent", b"tracestate")
        head.prepare(drop, self.access.header)
        head.epoch = self.epoch
        return None

    def denied(self, head: heads.RequestHead) -> Refusal | None:
        """Why the key in this head is none, before a body is taken in."""
        return self.know(head) if head.epoch != self.epoch else None

    def answer_locally(self, exchange: Exchange, method: bytes, path: bytes) -> bool:
        """The few paths that are the router's own. False for all others."""
        return local.answer(self, exchange, method, path)

    def ask_second_stage(self, exchange: Exchange, text: str) -> None:
        """Have the transformer look at it. A request with ``pending`` goes on when it has spoken, or its time is up."""
        if self.classifier is not None:
            self._spawn(second_stage.look(self, self.classifier, exchange, text))

    def dispatch(self, exchange: Exchange, fresh_on: Replica | None = None) -> None:
        """Send the request to a replica; ``fresh_on``: to this one, over a new connection."""
        if fresh_on is not None:
            self._send(exchange, fresh_on, fresh=True)
            return
        if self._sorting is not None:  # replicas have just said what they serve
            self._sort_members()
        pool = exchange.pool
        assert pool is not None
        view = pool.view(exchange.model)
        replica = view.policy.choose(exchange, view.eligible, exchange.tried)
        if replica is None:
            admission.none_free(self, exchange, pool, view)
        else:
            self._send(exchange, replica)

    def _send(self, exchange: Exchange, replica: Replica, fresh: bool = False) -> None:
        exchange.assign(replica)
        if exchange.span is not None:
            exchange.head = exchange.span.attempt(replica, exchange.head)
        if exchange.upgrade:
            open_tunnel(self, exchange, replica, self.access.tls)
            return
        idle = replica.idle
        while idle and not fresh:
            upstream: Upstream = idle.pop()
            transport = upstream.transport
            if transport is not None and not transport.is_closing():
                exchange.upstream = upstream
                upstream.send(exchange)
                exchange.sending(monotonic())
                break
        else:
            self._spawn(self._connect(exchange, replica))
        hedge_after = self.settings.retry.hedge_after
        if hedge_after is not None and exchange.timer is None:
            exchange.timer = self.loop.call_later(hedge_after, self._hedge, exchange)

    def _spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, exchange: Attempt, replica: Replica) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, upstream = await connect(replica, lambda: Upstream(replica), self.access.tls)
        except (OSError, TimeoutError) as e:
            if exchange.replica is not replica or exchange.done:
                return
            # First this request's attempt, or health would fail it a second time.
            exchange.attempt_failed(None, "refused", begun=False, stale=False)
            if was_refused(e):
                self.link.refused(replica)
            return
        if exchange.replica is not replica or exchange.done:
            transport.abort()  # type: ignore[attr-defined]
            return  # the client went away, or the replica went out, while we connected
        exchange.upstream = upstream
        upstream.send(exchange)
        exchange.sending(monotonic())

    def _hedge(self, exchange: Exchange) -> None:
        """No first byte for router.retry.hedge_after: ask another replica too, if retries are left."""
        pool = exchange.pool
        if exchange.done or exchange.first_byte or exchange.hedge is not None or pool is None:
            return
        if exchange.replica is None or not self.retries.take():
            return
        view = pool.view(exchange.model)
        replica = view.policy.choose(exchange, view.eligible, exchange.tried)
        if replica is None:
            self.retries.give_back()
            return
        hedge = exchange.hedge = Hedge(exchange, replica)
        self._spawn(self._connect(hedge, replica))

    # --- what becomes of attempts ---

    def count_in(self, exchange: Attempt, replica: Replica) -> None:
        """An attempt begins."""
        replica.attempts.add(exchange)
        replica.work += exchange.work
        index = replica.index
        self.counts.cells[index] = len(replica.attempts)
        self.counts.work[index] = replica.work
        pool = exchange.pool
        if pool is not None and pool.max_in_flight is not None:
            pool.taken(replica)
        if replica.waiting:
            # Its queue is as long as reported plus what we send, until the next report says better.
            replica.waiting += 1
            if replica.waiting > self.settings.max_queue_depth:
                self.apply_state(replica)
        if replica.trial:
            self.apply_state(replica)

    def count_out(self, exchange: Attempt, replica: Replica, outcome: str) -> None:
        """It is over. outcome: one of fleet.replica.OUTCOMES."""
        replica.attempts.discard(exchange)
        replica.work -= exchange.work
        index = replica.index
        self.counts.cells[index] = len(replica.attempts)
        self.counts.work[index] = replica.work
        self.link.outcome(replica, outcome)
        pool = exchange.pool
        if pool is not None and pool.max_in_flight is not None:
            pool.freed(replica)
        if replica.trial:
            self.apply_state(replica)
        if self.waiting:
            self.serve_waiting()

    def first_byte(self, exchange: Exchange, replica: Replica, status: int, now: float) -> None:
        """An answer begins: the prompt is computed, and the replica has shown what it can."""
        if status >= 500:
            self.outcomes.bad(replica, exchange.work, now)
        elif status == 429 and self.another_for(exchange):
            self._full(replica)
        else:
            self.outcomes.good(replica, now - exchange.sent if exchange.streaming and status == 200 else 0.0)
        done = self.estimator.prefill_part(exchange)
        exchange.work -= done
        replica.work -= done
        self.counts.work[replica.index] = replica.work

    def attempt_lost(self, exchange: Attempt, replica: Replica, reason: str, begun: bool) -> None:
        """A replica failed a request; ``begun``: in the middle of its answer."""
        if begun:
            self.outcomes.cut(replica, exchange.work, monotonic())
        elif reason == "status_429":
            self._full(replica)
        else:
            self.outcomes.bad(replica, exchange.work, monotonic())

    def _full(self, replica: Replica) -> None:
        """It says that it is full, which is no fault: nothing new goes there until its next load report, or for the
        time of one, since an idle replica's reports that say the same again do not reach the workers.

        Else it would be asked again at once, and the retries would be used up by one replica that refuses.
        """
        before, full = replica.waiting, self.settings.max_queue_depth + 1
        if before is None or before < full:
            replica.waiting = full
            self.apply_state(replica)
            self.loop.call_later(self.settings.load_interval, self._full_no_more, replica, full, before)

    def _full_no_more(self, replica: Replica, full: int, before: int | None) -> None:
        if replica.waiting == full:  # no report has come since
            replica.waiting = before
            self.apply_state(replica)

    def another_for(self, exchange: Exchange) -> bool:
        """Whether a replica that was not tried may take it now."""
        if exchange.pool is None:
            return False
        eligible = exchange.pool.view(exchange.model).eligible
        return len(eligible) > sum(r in eligible for r in exchange.tried)

    def try_again(self, exchange: Exchange, reason: str) -> None:
        """The attempt failed before its first byte: on another replica, as long as that may be."""
        if exchange.pool not in self.all_pools:
            self._into_last_pool(exchange)
        if exchange.attempts >= self.settings.retry.max_attempts:
            denied, why = "attempts", ""
        elif reason not in MOVED and not self.retries.take():
            denied, why = "budget", "; retries are used up (router.retry.budget)"
        else:
            self.metrics.retry("status" if reason.startswith("status_") else reason, exchange.pool_name)
            if exchange.span is not None:
                exchange.span.event("retry", reason)
            self.dispatch(exchange)
            return
        self.metrics.retry_denied(denied)
        code = "retry_budget" if denied == "budget" else "replica_failed"
        self.metrics.reject(code, exchange.pool_name, exchange.tenant_name)
        count = exchange.attempts
        words = "a replica failed" if count == 1 else f"{'two' if count == 2 else count} replicas failed"
        exchange.reject(
            502,
            "replica_failed",
            f"{words} before {'it' if count == 1 else 'they'} answered (last: {reason}){why}",
            decision=code,
        )

    def stop_waiting(self, exchange: Exchange) -> None:
        """It is over while it waited."""
        admission.leave(self, exchange)

    def serve_waiting(self) -> None:
        """Something has become free: those that wait, in order of their priority."""
        if self.waiting:
            admission.serve(self)

    def send_waiting(self, exchange: Exchange, replica: Replica) -> None:
        """One that waited gets its replica."""
        self._send(exchange, replica)

    # --- life ---

    def _gauges(self) -> None:
        gauge = self.metrics.gauge
        gauge("exaserve_router_client_connections", (), lambda: len(self.clients))
        gauge("exaserve_router_max_client_connections", (), lambda: self.settings.max_connections)
        gauge("exaserve_router_buffered_bytes", (), lambda: self.buffered_bytes)
        gauge("exaserve_router_compiled_workers", (), compiled.active)
        audit, tracing, exporter = self.audit, self.tracing, self._exporter
        if audit is not None:
            self.metrics.counter("exaserve_router_audit_written_total", (), lambda: audit.written)
            self.metrics.counter("exaserve_router_audit_dropped_total", (), lambda: audit.dropped)
            gauge("exaserve_router_audit_queue", (), lambda: len(audit))
        if tracing is not None and exporter is not None:
            records = tracing.records
            self.metrics.counter("exaserve_router_spans_exported_total", (), lambda: exporter.exported)
            self.metrics.counter(
                "exaserve_router_spans_dropped_total", (), lambda: records.dropped + exporter.dropped
            )
        for pool in self.all_pools:
            values = (
                lambda p=pool: p.waiting, lambda p=pool: p.max_waiting, lambda p=pool: p.open,
                lambda p=pool: int(p.panic),
            )  # fmt: skip
            for name, value in zip(POOL_GAUGES, values, strict=True):
                gauge(name, (pool.name,), value)

    async def expire_clients(self) -> None:
        """Cuts clients that let their time run out, for as long as the router lives."""
        while True:
            await asyncio.sleep(min(0.5, self.settings.request_timeout / 5, self.settings.send_timeout / 5))
            self._expire(monotonic())

    def _expire(self, now: float) -> None:
        for client in [c for c in self.clients if c.expires and c.expires < now]:
            client.expired()

    def stop_accepting(self) -> None:
        """No new requests from now on; connections that are idle close."""
        self.stopping = True
        self._close_idle()

    def _close_idle(self) -> None:
        for client in list(self.clients):
            # close() sends what is still buffered; the client is gone from the set when that is done.
            if client.idle and client.transport is not None and not client.transport.is_closing():
                client.transport.close()

    def warm_up(self) -> None:
        """Start what takes a while, before the first request needs it."""
        if self.classifier is not None and self.classifier.second is not None:
            self._spawn(self.classifier.second.start())

    async def drain(self, seconds: float) -> int:
        """Open requests may end within ``seconds``; returns how many were cut."""
        self.stop_accepting()
        end = monotonic() + seconds
        while self.clients and monotonic() < end:
            self._close_idle()
            await asyncio.sleep(0.05)
        cut = sum(c.exchange is not None for c in self.clients)
        for client in list(self.clients):
            client.abort()
        return cut

    async def close(self) -> None:
        """Whatever is still to be written is written."""
        await asyncio.sleep(0)  # connections that were aborted say goodbye
        for task in list(self._tasks):
            task.cancel()
        for replica in self.replicas:
            self._drop_idle(replica)
        if self.classifier is not None and self.classifier.second is not None:
            await self.classifier.second.close()
        if self.audit is not None:
            await asyncio.to_thread(self.audit.close)
        if self._exporter is not None:
            await asyncio.to_thread(self._exporter.stop)
