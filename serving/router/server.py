"""The router: ties clients, replicas, health and the admin API together and runs them.

The data plane is one event loop (uvloop). Exchanges ask it for a replica; health tells it which are out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import KeysView, Sequence
from typing import Any

from serving.config import Router
from serving.fleet.ask import was_refused
from serving.fleet.health import Health
from serving.fleet.replica import Replica
from serving.router.client import Client
from serving.router.exchange import Exchange
from serving.router.metrics import RouterCollector, RouterMetrics
from serving.router.policies import least_work
from serving.router.upstream import Upstream

CONNECT_SECONDS = 2.0
DRAIN_SECONDS = 10.0


class Server:
    """State of the data plane. All of it is touched by the event loop's thread only, but read by the admin's."""

    def __init__(self, settings: Router, replicas: Sequence[Replica]) -> None:
        self.settings = settings
        self.replicas = list(replicas)
        self.metrics = RouterMetrics()
        self.clients: set[Client] = set()
        self.stopping = False
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        #: Which replicas serve a name. Kept as they are learned: looking through 3,072 for every request takes 1.5 ms.
        self.by_model: dict[str, list[Replica]] = {}
        self.health = Health(settings, self.replicas, self._replica_out, self._models_learned)
        self._connecting: set[asyncio.Task[None]] = set()

    @property
    def known_models(self) -> KeysView[str]:
        """Names that clients may ask for; empty as long as none is known, and then any passes."""
        return self.by_model.keys()

    def _models_learned(self, replica: Replica, before: Sequence[dict[str, Any]]) -> None:
        for name in {str(m.get("id")) for m in before}:
            self.by_model[name].remove(replica)
            if not self.by_model[name]:
                del self.by_model[name]
        for name in {str(m.get("id")) for m in replica.models}:
            self.by_model.setdefault(name, []).append(replica)

    def _candidates(self, exchange: Exchange) -> Sequence[Replica]:
        """The replicas that serve the model asked for; all where it names none."""
        return self.by_model.get(exchange.model, self.replicas) if exchange.model else self.replicas

    async def expire_clients(self) -> None:
        """Cuts clients that let their time run out, for as long as the router lives."""
        pause = min(0.5, self.settings.request_timeout / 5)
        while True:
            await asyncio.sleep(pause)
            now = self.loop.time()
            for client in [c for c in self.clients if c.expires and c.expires < now]:
                client.expired()

    def collector(self) -> RouterCollector:
        return RouterCollector(self.metrics, self.replicas, self.clients)  # type: ignore[arg-type]

    # --- requests ---

    def answer_locally(self, exchange: Exchange, method: bytes, path: bytes) -> bool:
        """The few paths that are the router's own. False for all others."""
        if method not in (b"GET", b"HEAD"):
            return False
        if path == b"/v1/models":
            if not any(r.in_rotation for r in self.replicas):
                return False
            exchange.answer_json({"object": "list", "data": self._models()})
            return True
        if path == b"/health":
            if any(r.in_rotation for r in self.replicas):
                exchange.answer_json({"status": "ok"})
            else:
                self._reject_none_ready(exchange)
            return True
        return False

    def _models(self) -> list[object]:
        seen: dict[object, object] = {}
        for r in self.replicas:
            if r.in_rotation:
                for m in r.models:
                    seen.setdefault(str(m.get("id")), m)
        return list(seen.values())

    def dispatch(self, exchange: Exchange, fresh_on: Replica | None = None) -> None:
        """Send the request to a replica; ``fresh_on``: to this one, over a new connection."""
        s = self.settings
        replica = fresh_on or least_work.choose(
            self._candidates(exchange), exchange.tried, s.max_queue_depth, s.kv_cache_watermark
        )
        if replica is None:
            self._reject(exchange)
            return
        exchange.assign(replica)
        while replica.idle and fresh_on is None:
            upstream: Upstream = replica.idle.pop()
            if upstream.transport is not None and not upstream.transport.is_closing():
                exchange.upstream = upstream
                upstream.send(exchange)
                return
        task = self.loop.create_task(self._connect(exchange, replica))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, exchange: Exchange, replica: Replica) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, upstream = await self.loop.create_connection(
                    lambda: Upstream(replica), replica.host, replica.port
                )
        except (OSError, TimeoutError) as e:
            if exchange.replica is not replica or exchange.done:
                return
            # First this request's attempt, or health would fail it a second time.
            exchange.attempt_failed(None, "refused", begun=False, stale=False)
            if was_refused(e):
                self.health.refused(replica)
            return
        if exchange.replica is not replica or exchange.done:
            transport.abort()  # the client went away, or the replica went out, while we connected
            return
        exchange.upstream = upstream
        upstream.send(exchange)

    def _reject(self, exchange: Exchange) -> None:
        tried = exchange.tried
        if tried and not any(r.in_rotation and r not in tried for r in self._candidates(exchange)):
            names = ", ".join(r.name for r in tried)
            self.metrics.reject("replica_failed")
            exchange.reject(
                502,
                "replica_failed",
                f"{names} failed before it answered and no other replica is in rotation",
            )
        elif any(r.in_rotation for r in self._candidates(exchange)):
            self.metrics.reject("capacity")
            exchange.reject(
                503,
                "capacity",
                "every replica is above kv_cache_watermark or max_queue_depth; try again shortly",
            )
        else:
            self._reject_none_ready(exchange)

    def _reject_none_ready(self, exchange: Exchange) -> None:
        out = [r for r in self._candidates(exchange) if not r.in_rotation]
        why = "; ".join(f"{r.name} is {r.state} ({r.reason})" for r in out[:4])
        self.metrics.reject("no_replica_ready")
        exchange.reject(503, "no_replica_ready", f"no replica is ready: {why}")

    def _replica_out(self, replica: Replica, reason: str) -> None:
        for upstream in list(replica.idle):
            upstream.abort()
        replica.idle.clear()
        for exchange in list(replica.attempts):
            exchange.fail_attempt(reason)

    # --- life ---

    async def drain(self) -> None:
        """No new requests; open ones may end within DRAIN_SECONDS."""
        self.stopping = True
        end = time.monotonic() + DRAIN_SECONDS
        while self.clients and time.monotonic() < end:
            for client in list(self.clients):
                # close() sends what is still buffered; the client is gone from the set when that is done.
                if client.idle and client.transport is not None and not client.transport.is_closing():
                    client.transport.close()
            await asyncio.sleep(0.05)
        for client in list(self.clients):
            client.abort()
