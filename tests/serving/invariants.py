"""What must hold in the router's data plane at every moment, and when nothing is open any more."""

from __future__ import annotations

from collections import Counter
from typing import Any

from serving.router.hedge import Hedge
from serving.router.server import Server


def open_attempts(server: Server) -> Counter[Any]:
    """Attempts by replica, as the exchanges of the clients have them: not from the replica's own record."""
    found: Counter[Any] = Counter()
    for client in server.clients:
        exchange = client.exchange
        if exchange is not None and not exchange.done:
            if exchange.replica is not None:
                found[exchange.replica] += 1
            if exchange.hedge is not None and exchange.hedge.replica is not None:
                found[exchange.hedge.replica] += 1
    return found


def check_now(server: Server, replicas: list[Any]) -> None:
    """At any moment between two callbacks of the loop."""
    opened = open_attempts(server)
    for r in replicas:
        assert r.in_flight == opened[r], (r.name, r.attempts, opened)
        assert server.counts.cells[r.index] == r.in_flight, r.name
        assert r.work == sum(a.work for a in r.attempts), (r.name, r.work)
        assert server.counts.work[r.index] == r.work, r.name
        for attempt in r.attempts:
            assert not attempt.done, (r.name, attempt)
            assert attempt.replica is r
            assert isinstance(attempt, Hedge) or attempt.client.exchange is attempt
    pools = list(server.all_pools)
    for pool in pools:
        waiting = list(pool.queue())
        assert pool.waiting == len(waiting), pool.name
        assert all(e.pool is pool and not e.done and e.wait_began and e.replica is None for e in waiting)
        assert pool.open >= pool.waiting >= 0, pool.name
        assert pool.max_in_flight is not None or not pool.in_flight
        if pool.max_in_flight is not None:
            for replica in pool.members:
                n = pool.in_flight.get(replica, 0)
                assert n == sum(a.pool is pool for a in replica.attempts), (pool.name, replica.name, n)
    assert server.waiting == sum(p.waiting for p in pools)
    assert 0 <= server.buffered_bytes == sum(c.buffered for c in server.clients)
    assert not any(c.buffered for c in server.clients if c.idle)
    for tenant in server.tenants.by_name.values():
        assert tenant.budget.in_flight >= 0, tenant.name


def check_rest(server: Server, replicas: list[Any]) -> None:
    """When no request is open: every count is exactly 0, and nothing waits for a request that is gone."""
    check_now(server, replicas)
    for r in replicas:
        assert (r.in_flight, r.work) == (0, 0.0), r.name
        assert all(u.exchange is None for u in r.idle), r.name
    for pool in server.all_pools:
        assert (pool.open, pool.waiting, sum(pool.in_flight.values())) == (0, 0, 0), pool.name
    assert server.buffered_bytes == 0
    assert not server._tasks
    for tenant in server.tenants.by_name.values():
        assert tenant.budget.in_flight == 0, tenant.name
