"""What a worker knows: its configuration, the pools, the tenants, the replicas and how they do.

The ``apply_…`` methods take over what was decided elsewhere (``link.py``). What happens to requests is ``server.py``'s,
which goes on from this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from serving.audit.writer import Audit, open_audit
from serving.config import Config
from serving.config_base import size_in_bytes
from serving.fleet.outcomes import LocalOutcomes
from serving.fleet.replica import Replica
from serving.router import heads
from serving.router.access import Access, files_of
from serving.router.link import Link
from serving.router.metrics import RouterMetrics
from serving.router.pools import Classifier, Pool, build, in_order_of_service
from serving.router.retry import RetryBudget
from serving.router.shared import Counts
from serving.router.span_export import Exporter
from serving.router.tenants import Tenants
from serving.router.tracing import Tracing
from serving.router.work import Estimator

if TYPE_CHECKING:
    from serving.intent.classifier import Classifier as IntentClassifier
    from serving.router.client import Client
    from serving.router.exchange import Exchange

#: Replicas learn their models one after the other; the pools are sorted anew once for all of them.
SORT_SECONDS = 0.02
POOL_GAUGES = (
    "exaserve_router_waiting_requests", "exaserve_router_max_waiting_requests", "exaserve_router_open_requests",
    "exaserve_router_panic",
)  # fmt: skip


class State:
    """Touched by the event loop's thread only."""

    def __init__(
        self, config: Config, replicas: Sequence[Replica], link: Link, counts: Counts, worker: int = 0
    ) -> None:
        self.config = config
        self.settings = settings = config.router
        self.replicas = list(replicas)
        self.link = link
        self.counts = counts
        self.worker = worker
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.clients: set[Client] = set()
        self.stopping = False
        self.buffered_bytes = 0
        self.epoch = 0  # moves with all that is worked out once per head: tenants, tokens
        self.waiting = 0  # requests in the queues of all pools
        #: Names that clients may ask for -> replicas that serve them; empty as long as none is known.
        self.by_model: dict[str, set[Replica]] = {}
        self.replica_lines: dict[Replica, bytes] = {}
        self.outcomes = LocalOutcomes(settings.ejection, link.eject, self.apply_state, link.provisional)
        link.outcomes = self.outcomes
        self.estimator = Estimator(intents=())
        self.metrics = RouterMetrics()
        self.tenants = Tenants.load(
            Path(config.tenants.file) if config.tenants.file is not None else None, 1.0 / settings.workers
        )
        self.audit = audit if isinstance(audit := open_audit(settings.audit, worker), Audit) else None
        self.tracing: Tracing | None = None
        self._exporter: Exporter | None = None
        self._start_tracing()
        self.classifier: IntentClassifier | None = None
        self.intent_threshold = settings.intent.threshold
        self._load_intents()
        self.access = Access(settings, self.replicas)
        self._tasks: set[asyncio.Task[None]] = set()
        self._sorting: asyncio.TimerHandle | None = None
        self.retries = RetryBudget(settings.retry.budget)
        self.all_pools: list[Pool] = []
        self._take_settings(config)
        for replica in self.replicas:
            self._welcome(replica)
        self._sort_members()
        self._gauges()
        self._say_empty_pools()

    # --- configuration ---

    def _say_empty_pools(self) -> None:
        """A pattern that fits no name is most often a slip."""
        for pool in self.all_pools:
            if not pool.members and self.replicas and self.worker == 0:
                names = ", ".join(r.name for r in self.replicas[:8])
                print(
                    f"pool {pool.name} has no replicas: pools.{pool.name}.replicas fits none of {names}",
                    flush=True,
                )

    def _take_settings(self, config: Config) -> None:
        self.config = config
        self.settings = settings = config.router
        self.epoch += 1
        self.max_buffered_bytes = size_in_bytes(settings.max_buffered_bytes)
        self.retries.ratio = settings.retry.budget
        self.outcomes.set_settings(settings.ejection)
        self.intent_threshold = settings.intent.threshold
        before = self.all_pools
        self.all_pools = build(config, before)
        self.pools = Classifier(self.all_pools)
        self.by_priority = in_order_of_service(self.all_pools)
        heads.REQUEST.add(self.pools.headers)
        for pool in before:
            if pool not in self.all_pools:
                for name in POOL_GAUGES:
                    self.metrics.drop_gauge(name, (pool.name,))
                for exchange in pool.queue():
                    pool.leave(exchange)
                    self._into_last_pool(exchange).enqueue(exchange)

    def _into_last_pool(self, exchange: Exchange) -> Pool:
        """Its own pool is gone from the configuration."""
        if exchange.pool is not None:
            exchange.pool.open -= 1
        pool = exchange.pool = self.all_pools[-1]
        pool.open += 1
        return pool

    def _start_tracing(self) -> None:
        tracing = self.settings.tracing
        if tracing.endpoint is not None:
            self.tracing = Tracing(tracing)
            self._exporter = Exporter(
                tracing.endpoint, self.tracing.records.take, (self.settings.host, self.settings.port)
            )
            self._exporter.start()

    def _load_intents(self) -> None:
        intent = self.settings.intent
        if intent.enabled:
            from serving.intent import classifier

            self.classifier = classifier.load(intent.model, intent.second_stage, intent.time_limit)
            self.estimator = Estimator(intents=self.classifier.labels)

    def reload_access(self) -> None:
        """Files of the token and of TLS towards replicas may have changed."""
        if self.access.reload():
            self.epoch += 1

    def apply_config(self, config: Config) -> None:
        """New limits, pools and strategies; host, port and workers stay. Requests that wait go on waiting."""
        self._take_settings(config)
        if self.access.files != files_of(self.settings):
            self.access = Access(self.settings, self.replicas)
        self._sort_members()
        self._gauges()
        for client in self.clients:
            client.known = None  # other headers may mean something now
        self.serve_waiting()

    def apply_tenants(self) -> None:
        """The tenants file has changed (and was found to be well)."""
        self.tenants.reload(monotonic())
        self.epoch += 1

    # --- what is known of replicas ---

    def _welcome(self, replica: Replica) -> None:
        self.replica_lines[replica] = b"x-exaserve-replica: %s\r\n" % replica.name.encode()
        for model in replica.models:
            self.by_model.setdefault(str(model.get("id")), set()).add(replica)

    def apply_replicas(self, added: Sequence[Replica], removed: Sequence[Replica]) -> None:
        """Removed ones get nothing new; what is open there ends in peace, then ``forget`` follows."""
        gone = set(removed)
        self.replicas = [r for r in self.replicas if r not in gone] + list(added)
        for replica in added:
            self._welcome(replica)
        for replica in removed:
            for model in replica.models:
                self._serves_no_longer(str(model.get("id")), replica)
        self._sort_members()
        self.serve_waiting()

    def forget(self, replica: Replica) -> None:
        """It has nothing open here any more."""
        self._drop_idle(replica)
        self.replica_lines.pop(replica, None)

    def apply_state(self, replica: Replica) -> None:
        """State, weight or trial of a replica changed; its fields say to what."""
        if replica in self.replica_lines:
            for pool in self.all_pools:
                if replica in pool.everyone.has:
                    pool.settle(replica)
            if self.waiting:
                self.serve_waiting()

    def apply_load(self, replica: Replica) -> None:
        """A new report of its load: what that changes is settled with its state."""
        self.apply_state(replica)

    def apply_panic(self, name: str, on: bool) -> None:
        """All of a pool are out: those that can be reached may take requests until that is over."""
        for pool in self.all_pools:
            if pool.name == name and pool.panic != on:
                pool.panic = on
                for replica in pool.members:
                    pool.settle(replica)
        self.serve_waiting()

    def apply_models(self, replica: Replica, before: Sequence[dict[str, Any]]) -> None:
        """``replica.models`` is known anew."""
        old = {str(m.get("id")) for m in before}
        new = {str(m.get("id")) for m in replica.models}
        for name in old - new:
            self._serves_no_longer(name, replica)
        for name in new:
            self.by_model.setdefault(name, set()).add(replica)
        if (old != new or len(self.by_model) > 1 or replica.kv_tokens) and self._sorting is None:
            self._sorting = self.loop.call_later(SORT_SECONDS, self._sort_members)

    def _serves_no_longer(self, name: str, replica: Replica) -> None:
        serving = self.by_model.get(name)
        if serving is not None:
            serving.discard(replica)
            if not serving:
                del self.by_model[name]

    def _sort_members(self) -> None:
        if self._sorting is not None:
            self._sorting.cancel()
            self._sorting = None
        self.estimator.set_models(self.by_model)
        for name, serving in self.by_model.items():
            # Of unlike replicas the smallest counts: it is the one that memory decides about.
            smallest = min((r.kv_tokens for r in serving if r.kv_tokens), default=None)
            self.estimator.set_capacity(name, smallest, self.settings.kv_cache_watermark)
        for pool in self.all_pools:
            pool.set_members(self.replicas)

    def replica_out(self, replica: Replica, reason: str) -> None:
        """What is open there is lost. reason: refused, down or frozen."""
        self._drop_idle(replica)
        for exchange in list(replica.attempts):
            exchange.fail_attempt(reason)

    def _drop_idle(self, replica: Replica) -> None:
        for upstream in list(replica.idle):
            upstream.abort()
        replica.idle.clear()

    # --- what server.py fills in ---

    def serve_waiting(self) -> None:
        """Something has become free: those that wait, in order of their priority."""
        raise NotImplementedError

    def _gauges(self) -> None:
        """Make the gauges of what is there now."""
        raise NotImplementedError
