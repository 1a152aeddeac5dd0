"""What happens to a request that no replica can take now: another pool, a bounded wait, or a refusal with its reason."""

from __future__ import annotations

import math
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving.router.exchange import Exchange
    from serving.router.pools import Pool, View
    from serving.router.server import Server

#: A client is asked to stay away no longer than this, in seconds: loads of seconds change in seconds.
MAX_RETRY_AFTER = 30


def none_free(server: Server, exchange: Exchange, pool: Pool, view: View) -> None:
    """No replica of the view may take it now."""
    nobody_else = bool(exchange.tried) and len(view.rotating) <= sum(
        r in view.rotating for r in exchange.tried
    )
    if (nobody_else or not exchange.tried) and _to_fallback(server, exchange, pool):
        return
    # With nobody left here it waits for a seat on the fallback, as it would for one of its own replicas.
    elsewhere = not view.rotating and _serves(exchange, pool.fallback)
    if nobody_else and not elsewhere:
        server.retries.give_back()
        names = ", ".join(r.name for r in exchange.tried)
        server.metrics.reject("replica_failed", pool.name, exchange.tenant_name)
        exchange.reject(
            502,
            "replica_failed",
            f"{names} failed before it answered and no other replica is in rotation",
        )
        return
    if not view.rotating and not exchange.tried and not elsewhere:
        _none_ready(server, exchange, pool, view)
    elif pool.waiting >= pool.max_waiting:
        refuse(server, exchange, pool, "queue_full" if pool.max_waiting else "capacity")
    else:
        exchange.wait_began = now = monotonic()
        pool.enqueue(exchange)
        server.waiting += 1
        until = now + pool.max_wait
        if exchange.span is not None:
            exchange.span.event("queued")
        if exchange.timer is not None:
            exchange.timer.cancel()  # for a hedge of the attempt before
        exchange.timer = server.loop.call_later(until - now, _waited_out, server, exchange)


def _to_fallback(server: Server, exchange: Exchange, pool: Pool) -> bool:
    """Send it to a replica of the pool's fallback, also if it waits already. False if none there may take it."""
    other = pool.fallback
    if other is None or not _may_use(exchange, other):
        return False
    there = other.view(exchange.model)
    replica = there.policy.choose(exchange, there.eligible, exchange.tried)
    if replica is None:
        return False
    if exchange.wait_began:
        leave(server, exchange)
    server.metrics.count("exaserve_router_fallbacks_total", (pool.name, other.name))
    pool.open -= 1
    other.open += 1
    exchange.pool = other
    exchange.decision = "fallback"
    server.send_waiting(exchange, replica)
    return True


def _serves(exchange: Exchange, pool: Pool | None) -> bool:
    """Whether a fallback has replicas in rotation for it."""
    return pool is not None and _may_use(exchange, pool) and bool(pool.view(exchange.model).rotating)


def _may_use(exchange: Exchange, pool: Pool) -> bool:
    """A fallback is no way into a pool that the tenant may not use."""
    tenant = exchange.tenant
    return tenant is None or tenant.pools is None or pool.name in tenant.pools


def _waited_out(server: Server, exchange: Exchange) -> None:
    pool = exchange.pool
    if exchange.wait_began and not exchange.done and pool is not None:
        leave(server, exchange)
        refuse(server, exchange, pool, "queue_timeout")


def leave(server: Server, exchange: Exchange) -> None:
    """It waits no longer, whatever the reason."""
    pool = exchange.pool
    if pool is not None and pool.leave(exchange):
        server.waiting -= 1
        exchange.waited += monotonic() - exchange.wait_began
    exchange.wait_began = 0.0
    if exchange.timer is not None:
        exchange.timer.cancel()
        exchange.timer = None


def serve(server: Server) -> None:
    """Give those that wait what has become free."""
    for pool in server.by_priority:
        if not pool.waiting:
            continue
        if not pool.may_serve():
            if pool.fallback is not None and not pool.everyone.rotating:  # nobody is left to wait for
                for exchange in pool.queue():
                    if exchange.wait_began:
                        _to_fallback(server, exchange, pool)
            continue
        for exchange in pool.queue():
            if not exchange.wait_began:
                continue  # it was served meanwhile: sending another one can let this be called again
            view = pool.view(exchange.model)
            replica = view.policy.choose(exchange, view.eligible, exchange.tried)
            if replica is not None:
                leave(server, exchange)
                server.send_waiting(exchange, replica)
                if not pool.may_serve():
                    break


def refuse(server: Server, exchange: Exchange, pool: Pool, reason: str) -> None:
    """503: the fleet can't, though the request may."""
    server.metrics.reject(reason, pool.name, exchange.tenant_name)
    oldest = next((monotonic() - e.wait_began for e in pool.queue()), 0.0)
    seconds = min(max(math.ceil(oldest), 1), MAX_RETRY_AFTER)
    busy = "every replica is above kv_cache_watermark, max_queue_depth or its pool's max_in_flight"
    words = {
        "capacity": f"{busy}; try again shortly",
        "queue_full": f"{busy}, and {pool.waiting} requests wait already (max_waiting); try again shortly",
        "queue_timeout": f"{busy}, and was so for {pool.max_wait:g} s (max_wait); try again shortly",
    }[reason]
    exchange.reject(
        503, "capacity", words, extra=b"retry-after: %d\r\n" % seconds, decision=reason
    )  # fmt: skip


def _none_ready(server: Server, exchange: Exchange, pool: Pool, view: View) -> None:
    none_ready(server, exchange, [r for r in view.members if not r.in_rotation][:4], pool.name)


def none_ready(server: Server, exchange: Exchange, out: list, pool: str = "") -> None:
    """503: nobody is there. out: some of the replicas, for the words."""
    why = "; ".join(f"{r.name} is {r.state} ({r.reason})" for r in out)
    server.metrics.reject("no_replica_ready", pool, exchange.tenant_name)
    exchange.reject(503, "no_replica_ready", f"no replica is ready: {why or 'the pool has no replicas'}")
