"""Pools: which kind of request goes where, who may take one now, and who waits for it.

A pool has its own replicas (or shares them), limits and queue, so that one kind of request can't block another.
Everything here is one worker's: limits that a pool shares between workers are divided among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from serving.config import Config
from serving.config_router import DEFAULT_POOL, Match
from serving.config_router import Pool as PoolSettings
from serving.fleet.replica import Replica
from serving.router import policies
from serving.router.policies.eligible import Eligible

if TYPE_CHECKING:
    from serving.router.exchange import Exchange


class View:
    """The members of a pool that serve one model (or all of them), with the policy that chooses among them."""

    __slots__ = ("eligible", "has", "members", "policy", "rotating")

    def __init__(self, strategy: str, members: Sequence[Replica]) -> None:
        self.members: list[Replica] = []
        self.has: frozenset[Replica] = frozenset()
        self.eligible = Eligible()
        self.rotating: set[Replica] = set()  # in rotation, whether they may take more now or not
        self.policy = policies.load(strategy)
        self.set_members(members)

    def set_members(self, members: Sequence[Replica]) -> None:
        """The policy keeps what it knows: keys stay with the replicas that stay."""
        if self.members == members:
            return
        self.members = list(members)
        has = frozenset(members)
        for gone in self.has - has:
            self.eligible.discard(gone)
            self.rotating.discard(gone)
        self.has = has
        self.policy.set_replicas(self.members)


class Pool:
    """One pool at run time. ``waiting``: requests by priority, each in the order in which they came."""

    def __init__(self, name: str, settings: PoolSettings, config: Config) -> None:
        self.name = name
        self.panic = False
        self.open = 0
        self.in_flight: dict[Replica, int] = {}  # empty without max_in_flight
        self.counted = False  # whether what is open is in in_flight
        self.members: list[Replica] = []
        self.by_model: dict[str, View] = {}
        self.waiting = 0
        self._lanes: dict[int, dict[Exchange, None]] = {}
        self._waiting_for: dict[str | None, int] = {}  # how many by model
        self.configure(settings, config)
        self.everyone = View(self.strategy, ())

    def configure(self, settings: PoolSettings, config: Config) -> None:
        """Take over (new) settings; ``set_members`` has to follow. What is open or waiting stays so."""
        router = config.router
        self.settings = settings
        self.strategy = settings.strategy or router.strategy
        self.max_wait = settings.max_wait or router.admission.max_wait
        waiting = settings.max_waiting
        self.max_waiting = router.admission.max_waiting if waiting is None else waiting
        limit = settings.max_in_flight
        #: Of this pool, on one replica, from this worker.
        self.max_in_flight = max(1, limit // router.workers) if limit is not None else None
        self.max_queue_depth = router.max_queue_depth
        self.watermark = router.kv_cache_watermark
        self.priority = settings.priority
        #: Tells clients which pool answered; nothing where there is only one.
        self.answer_line = b"x-exaserve-pool: %s\r\n" % self.name.encode() if config.pools else b""
        self.fallback: Pool | None = None

    # --- members ---

    def set_members(self, members: Sequence[Replica]) -> None:
        """Those that are left keep their counts; a view per model where there are several."""
        self.members = [r for r in members if self.settings.takes(r.name)]
        names = {str(m.get("id")) for r in self.members for m in r.models}
        self.everyone = self._view(self.everyone, self.members)
        before, self.by_model = self.by_model, {}
        if len(names) > 1:
            for name in names:
                serving = [r for r in self.members if any(m.get("id") == name for m in r.models)]
                self.by_model[name] = self._view(before.get(name), serving)
        for r in list(self.in_flight):
            if r not in self.everyone.has and not self.in_flight[r]:
                del self.in_flight[r]
        self._count_anew()
        for r in self.members:
            self.settle(r)

    def _count_anew(self) -> None:
        """Without a limit nobody has counted; with a new one what is open already counts as well."""
        counted = self.max_in_flight is not None
        if counted and not self.counted:
            for r in self.members:
                self.in_flight[r] = sum(getattr(e, "pool", None) is self for e in r.attempts)
        elif not counted:
            self.in_flight.clear()
        self.counted = counted

    def _view(self, known: View | None, members: Sequence[Replica]) -> View:
        if known is None or known.policy.name != self.strategy:
            return View(self.strategy, members)
        known.set_members(members)
        return known

    def view(self, model: str | None) -> View:
        return self.by_model.get(model, self.everyone) if model is not None else self.everyone

    def settle(self, replica: Replica) -> None:
        """Let it in or out after something about it has changed; take over its load."""
        may = replica.may_take or (self.panic and replica.reachable)
        if may and not self.panic:
            may = (
                (replica.waiting or 0) <= self.max_queue_depth
                and (replica.kv_usage or 0.0) <= self.watermark
                and (self.max_in_flight is None or self.in_flight.get(replica, 0) < self.max_in_flight)
            )
        self._settle_in(self.everyone, replica, may)
        for view in self.by_model.values():
            if replica in view.has:
                self._settle_in(view, replica, may)

    def _settle_in(self, view: View, replica: Replica, may: bool) -> None:
        if may:
            view.eligible.add(replica)
        else:
            view.eligible.discard(replica)
        if replica.in_rotation or may:
            view.rotating.add(replica)
        else:
            view.rotating.discard(replica)

    # --- counts of a pool with a limit ---

    def taken(self, replica: Replica) -> None:
        n = self.in_flight[replica] = self.in_flight.get(replica, 0) + 1
        if self.max_in_flight is not None and n >= self.max_in_flight:
            self.settle(replica)

    def freed(self, replica: Replica) -> None:
        before = self.in_flight.get(replica)
        if before is None:
            return
        n = self.in_flight[replica] = before - 1
        if self.max_in_flight is not None and n == self.max_in_flight - 1 and replica in self.everyone.has:
            self.settle(replica)

    # --- waiting ---

    def enqueue(self, exchange: Exchange) -> None:
        self._lanes.setdefault(exchange.priority, {})[exchange] = None
        self.waiting += 1
        self._waiting_for[exchange.model] = self._waiting_for.get(exchange.model, 0) + 1

    def leave(self, exchange: Exchange) -> bool:
        """Whether it was waiting."""
        lane = self._lanes.get(exchange.priority)
        if lane is None or exchange not in lane:
            return False
        del lane[exchange]
        self.waiting -= 1
        left = self._waiting_for[exchange.model] - 1
        if left:
            self._waiting_for[exchange.model] = left
        else:
            del self._waiting_for[exchange.model]
        return True

    def may_serve(self) -> bool:
        """Whether a replica is free for one of the models that are waited for: else nobody need be looked at."""
        return any(self.view(model).eligible for model in self._waiting_for)

    def queue(self) -> Iterator[Exchange]:
        """In the order in which they are served; may be changed meanwhile."""
        for priority in sorted(self._lanes):
            yield from list(self._lanes[priority])


def build(config: Config, before: Sequence[Pool] = ()) -> list[Pool]:
    """The pools of a configuration, in its order; those of ``before`` with the same name are taken over."""
    known = {p.name: p for p in before}
    wanted = config.pools or {DEFAULT_POOL: PoolSettings()}
    pools: dict[str, Pool] = {}
    for name, settings in wanted.items():
        pool = pools[name] = known.get(name) or Pool(name, settings, config)
        pool.configure(settings, config)
    for pool in pools.values():
        if pool.settings.fallback is not None:
            pool.fallback = pools[pool.settings.fallback]
    return list(pools.values())


class Classifier:
    """The first pool that matches takes the request; the last one matches everything."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self.rules = [(pool, pool.settings.match) for pool in pools[:-1]]
        self.last = pools[-1]
        self.needs_intent = any(m.intents for _, m in self.rules)
        self.headers = {h.lower().encode() for _, m in self.rules for h in m.headers or ()}

    def choose(self, exchange: Exchange, special: Mapping[bytes, bytes]) -> Pool:
        """special: the headers that were asked for with ``headers``, by lower-case name."""
        for pool, match in self.rules:
            if matches(match, exchange, special):
                return pool
        return self.last


def matches(match: Match, exchange: Exchange, special: Mapping[bytes, bytes]) -> bool:
    tokens = exchange.input_tokens
    if match.min_input_tokens is not None and tokens < match.min_input_tokens:
        return False
    if match.max_input_tokens is not None and tokens > match.max_input_tokens:
        return False
    tokens = exchange.output_tokens
    if match.min_output_tokens is not None and tokens < match.min_output_tokens:
        return False
    if match.max_output_tokens is not None and tokens > match.max_output_tokens:
        return False
    if match.intents is not None and exchange.intent not in match.intents:
        return False
    if match.tenants is not None and (exchange.tenant is None or exchange.tenant.name not in match.tenants):
        return False
    return match.headers is None or all(
        special.get(name.lower().encode()) == value.encode() for name, value in match.headers.items()
    )


def in_order_of_service(pools: Iterable[Pool]) -> list[Pool]:
    return sorted(pools, key=lambda p: p.priority)
