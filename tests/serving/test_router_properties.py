"""Random arrivals, failures, cancellations, drains, members and reloads: what must hold whatever happens.

EXASERVE_EXAMPLES=500 runs that many schedules, other ones each time; the usual run is short and always the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import uvloop
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from serving.config import Config
from serving.fleet.discovery import static
from serving.router.exchange import MAX_STALE
from serving.router.tenants import digest
from tests.serving.faulty_engine import BEHAVIOURS, BROKEN, FaultyEngine, answer_of, events_of
from tests.serving.invariants import check_now, check_rest
from tests.serving.routing import FAST, STRICT, Running, router, until
from tests.serving.strict_client import Ask, Got, StrictClient

EXAMPLES = int(os.environ.get("EXASERVE_EXAMPLES", "0"))
KEYS = {"free": "sk-exa-" + "a" * 40, "tight": "sk-exa-" + "b" * 40}
#: Never whole, though nothing else happens to the request.
NEVER = (*BROKEN, "reset", "silent")

ask = st.fixed_dictionaries(
    {
        "stream": st.booleans(),
        "http10": st.sampled_from([False, False, False, True]),
        "chunked": st.sampled_from([False, False, True]),
        "pieces": st.sampled_from([1, 1, 2, 5]),
        "padding": st.sampled_from([0, 10, 70_000]),
        "deadline": st.sampled_from([None, None, 0.03, 0.2]),
        "cut": st.sampled_from([5.0, 5.0, 5.0, 0.001, 0.01, 0.04, 0.15]),
        "own_id": st.booleans(),
        "key": st.sampled_from(["free", "free", "tight"]),
    }
)
#: Each of some clients sends these one after the other, on one connection as long as it lasts.
arrivals = st.lists(st.tuples(st.sampled_from([0.0, 0.0, 0.01, 0.05]), ask), min_size=1, max_size=5)
event = st.tuples(
    st.sampled_from(
        [
            "kill",
            "restart",
            "freeze",
            "thaw",
            "drain",
            "undrain",
            "busy",
            "idle",
            "add",
            "remove",
            "reload",
            "reload",
            "panic",
        ]
    ),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.01, 0.03, 0.1]),
)
POOLS: list[dict[str, Any]] = [
    {},
    {"small": {"match": {"max_input_tokens": 100}, "max_in_flight": 1, "fallback": "rest"}, "rest": {}},
    {
        "free": {"match": {"tenants": ["free"]}, "max_in_flight": 2, "max_wait": 0.05, "priority": 3},
        "rest": {},
    },
    {"rest": {"max_in_flight": 1, "max_waiting": 3, "max_wait": 0.1}},
]
setting = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(
            ["hybrid", "least_work", "round_robin", "least_requests", "power_of_two"]
        ),
        "retry": st.fixed_dictionaries(
            {
                "budget": st.sampled_from([0.0, 0.1, 1.0]),
                "max_attempts": st.integers(1, 3),
                "hedge_after": st.sampled_from([None, None, 0.005, 0.05]),
            }
        ),
        "admission": st.fixed_dictionaries(
            {"max_waiting": st.sampled_from([0, 2, 50]), "max_wait": st.sampled_from([0.05, 0.3])}
        ),
        "ejection": st.fixed_dictionaries({"enabled": st.booleans(), "duration": st.just(0.2)}),
    }
)


class World:
    """A router, its engines, and what happens to both."""

    def __init__(
        self, running: Running, engines: list[FaultyEngine], reloads: list[Any], health: dict[str, Any]
    ) -> None:
        self.running = running
        self.health = health
        self.server = running.server
        self.engines = engines
        self.known = list(running.server.replicas)  # all that there ever were
        self.leaving: list[Any] = []
        self.reloads = reloads
        self.disturbed = False  # by more than the behaviours of the engines
        self.audit: list[Any] = []

    def put(self, record: Any) -> None:
        self.audit.append(record)

    def close(self) -> None:
        """As the audit has it."""

    async def happen(self, what: str, i: int) -> None:
        self.disturbed = self.disturbed or what in ("kill", "freeze")
        engine = self.engines[i % len(self.engines)]
        replicas = self.server.replicas
        replica = replicas[i % len(replicas)]
        health = self.running.health
        if what == "kill":
            await engine.kill()
            engine.alive = False
        elif what == "restart":
            await self.revive(engine)
        elif what == "freeze":
            engine.frozen.clear()
        elif what == "thaw":
            engine.frozen.set()
        elif what == "drain":
            health.drain(replica)
        elif what == "undrain":
            health.undrain(replica)
        elif what in ("busy", "idle"):
            engine.metrics["waiting"] = 33 if what == "busy" else 0
        elif what == "panic":
            self.server.apply_panic(self.server.all_pools[0].name, bool(i % 2))
        elif what == "add":
            await self.add(FaultyEngine(f"r{len(self.engines)}", *engine.drawn))
        elif what == "remove" and len(replicas) > 1:
            health.remove(replica)
            self.server.apply_replicas([], [replica])
            self.leaving.append(replica)
        elif what == "reload":
            wanted, pools = self.reloads[i % len(self.reloads)]
            old = self.server.config
            new = Config.model_validate(
                {"router": FAST | self.health | wanted, "pools": pools, "tenants": {"file": old.tenants.file}}
            )
            self.server.apply_config(new)
            self.server.apply_tenants()

    async def revive(self, engine: FaultyEngine) -> None:
        engine.frozen.set()
        engine.released.set()
        engine.metrics["waiting"] = 0
        if not engine.alive:
            await engine.start()
            engine.alive = True

    async def add(self, engine: FaultyEngine) -> None:
        await engine.start()
        self.engines.append(engine)
        self.running.engines.append(engine)
        replica = static.parse(f"{engine.name}={engine.url}")
        replica.index = len(self.known)
        self.known.append(replica)
        self.server.link._by_index[replica.index] = replica  # type: ignore[union-attr]
        self.server.apply_replicas([replica], [])
        self.running.health.add(replica)

    def check(self) -> None:
        check_now(self.server, self.known)
        for r in [r for r in self.leaving if not r.attempts]:  # as a worker does in its tick
            self.leaving.remove(r)
            self.server.forget(r)

    async def watch(self) -> None:
        while True:
            self.check()
            await asyncio.sleep(0.003)


async def one_client(world: World, number: int, script: list[Any]) -> list[Got]:
    client = StrictClient(world.running.port)
    got = []
    for i, (pause, values) in enumerate(script):
        await asyncio.sleep(pause)
        got.append(await client.ask(Ask(f"n{number}-{i}", **(values | {"key": KEYS[values["key"]]}))))
    client.leave()
    return got


async def run_schedule(
    scripts: list[list[str]],
    clients: list[list[Any]],
    events: list[Any],
    start: Any,
    reloads: list[Any],
    file: str,
) -> None:
    engines = [FaultyEngine(f"r{i}", *script) for i, script in enumerate(scripts)]
    wanted, pools = start
    # Where no engine stands still on purpose, none is to be taken for one that does.
    health = STRICT if any(what in ("kill", "freeze") for what, _, _ in events) else {}
    async with router(*engines, pools=pools, tenants=file, **health | wanted) as running:
        world = World(running, engines, [start, *reloads], health)
        running.server.audit = world  # type: ignore[assignment]
        watcher = asyncio.create_task(world.watch())
        work = asyncio.gather(*(one_client(world, n, c) for n, c in enumerate(clients)))
        for what, i, pause in events:
            await asyncio.sleep(pause)
            await world.happen(what, i)
            world.check()
        await asyncio.sleep(0.1)
        for e in world.engines:  # all that is open comes to an end now
            await world.revive(e)
        both: Any = [work, watcher]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if watcher.done():
            watcher.result()
        got = [g for per_client in work.result() for g in per_client]
        await until(lambda: not running.server.clients)
        await until(lambda: not running.server._tasks)
        watcher.cancel()
        check_rest(running.server, world.known)
        try:
            judge(world, got)
        except AssertionError:
            for e in world.engines:  # so that a failure can be read
                print(e.name, e.attempts, file=sys.stderr)
            print(*got, sep="\n", file=sys.stderr)
            raise
    assert not [t for t in asyncio.all_tasks() if "serving" in str(t.get_coro())]


def judge(world: World, got: list[Got]) -> None:
    """What clients saw is what engines sent, and is counted once."""
    attempts: dict[str, list[tuple[float, str, str]]] = {}
    for e in world.engines:
        for nonce, when, how in e.attempts:
            attempts.setdefault(nonce, []).append((when, how, e.name))
    for g in got:
        judge_one(world, g, sorted(attempts.get(g.ask.nonce, [])))
    ids = Counter(record[1].decode() for record in world.audit)
    assert all(n == 1 for n in ids.values()), ids
    counted = world.server.metrics.value("exaserve_router_requests_total")
    broken_off = world.server.metrics.value("exaserve_router_requests_total", route="other")
    assert counted - broken_off == len(world.audit)
    certain = sum(g.sent and g.end != "left" for g in got)
    assert certain <= counted <= len(got), (certain, counted, len(got))
    for g in got:
        shown = g.headers.get(b"x-request-id", b"").decode()
        if shown and g.status != 408:
            assert ids[shown] == 1, g
            assert not g.ask.own_id or shown == g.ask.nonce


def judge_one(world: World, g: Got, attempts: list[tuple[float, str, str]]) -> None:
    retries = [s["retry"] for s, _ in world.reloads]
    most = max(r["max_attempts"] for r in retries)
    hedged = any(r["hedge_after"] for r in retries)
    assert len(attempts) <= most + MAX_STALE + hedged, (g, attempts)
    # A frozen engine takes notice of what it was sent long after, so that its times say nothing.
    if g.replica and not hedged and not world.disturbed:
        assert all(when <= g.first for when, _, _ in attempts), ("replayed after its first byte", g, attempts)
    if g.end == "left" or not g.status:
        lost = g.ask.deadline is not None or any(
            how in NEVER for _, how, _ in attempts
        )  # what came before a reset
        assert g.end == "left" or lost or world.disturbed, ("closed without an answer", g, attempts)
        return
    if not g.replica:  # the router's own answer
        error = json.loads(g.body)["error"]
        assert g.end == "whole"
        assert g.status in (400, 429, 502, 503, 504), g
        assert set(error) == {"message", "type", "param", "code"}
        return
    here = [how for _, how, name in attempts if name == g.replica]
    assert here, g
    if g.status != 200:
        assert g.end == "whole"
        assert f"status_{g.status}" in here
        return
    failed = (b"data: " + g.body.rpartition(b"data: ")[2]) if b"replica_failed" in g.body[-400:] else b""
    body = g.body[: len(g.body) - len(failed)]
    sizes = [50_000, 1] if "large" in here else [1]
    if g.ask.stream:
        wholes = [b"".join(events_of(g.ask.nonce, g.replica, n)) for n in sizes]
    else:
        wholes = [answer_of(g.ask.nonce, g.replica, n) for n in sizes]
    assert any(w.startswith(body) for w in wholes), ("bytes of somebody else", g)
    if g.end == "whole" and not failed:
        assert body in wholes, ("cut, and looks whole", g, here)
        assert any(how not in NEVER for how in here) or world.disturbed, (g, here)
    else:
        why = g.ask.deadline is not None or world.disturbed or any(h in NEVER for h in here)
        assert why, ("broken for no reason", g, here)


@settings(
    max_examples=EXAMPLES or 30,
    deadline=None,
    database=None,
    derandomize=not EXAMPLES,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
@given(
    scripts=st.lists(st.lists(st.sampled_from(BEHAVIOURS), min_size=1, max_size=8), min_size=2, max_size=4),
    clients=st.lists(arrivals, min_size=4, max_size=16),
    events=st.lists(event, max_size=10),
    start=st.tuples(setting, st.sampled_from(POOLS)),
    reloads=st.lists(st.tuples(setting, st.sampled_from(POOLS)), min_size=1, max_size=2),
)
def test_whatever_happens_counts_end_at_zero_and_no_answer_is_wrong(
    scripts: Any, clients: Any, events: Any, start: Any, reloads: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tenants.yaml"
        file.write_text(
            f"tenants:\n- {{name: free, keys: [{digest(KEYS['free'])}]}}\n"
            f"- {{name: tight, keys: [{digest(KEYS['tight'])}], max_in_flight: 2, requests_per_minute: 20}}\n"
        )
        uvloop.run(asyncio.wait_for(run_schedule(scripts, clients, events, start, reloads, str(file)), 120))
