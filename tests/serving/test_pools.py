"""Pools through the router: which requests belong to which, what they count, that one can't block another."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
import uvloop
import yaml

from serving import compiled
from serving.config import Config
from serving.fleet.replica import Replica
from serving.router.heads import REQUEST
from serving.router.pools import Classifier, build
from tests.serving.held_engine import CHAT, STREAM, Asked, HeldEngine, at_rest, code_of
from tests.serving.routing import FAST, Running, read_answer, request, router, run, until

ONE = {"p": {"max_in_flight": 1}}


def tenants_file(folder: Path, *entries: dict[str, Any]) -> str:
    """Each tenant's key is its name."""
    file = folder / "tenants.yaml"
    tenants = [{"keys": [hashlib.sha256(e["name"].encode()).hexdigest()], **e} for e in entries]
    file.write_text(yaml.safe_dump({"tenants": tenants}))
    return str(file)


def pool_counts(r: Running) -> dict[str, float]:
    """Requests by pool, of those that have ended."""
    counts: dict[str, float] = {}
    for s in r.server.metrics.snapshot(whole=True).series:
        counts[s.labels[2]] = counts.get(s.labels[2], 0) + sum(s.codes.values())
    return counts


# --- which pool ---

LONG = {**CHAT, "messages": [{"role": "user", "content": "x" * 8000}]}


@pytest.mark.parametrize(
    ("match", "inside", "outside"),
    [
        ({"min_input_tokens": 1000}, (LONG, ""), (CHAT, "")),
        ({"max_input_tokens": 1000}, (CHAT, ""), (LONG, "")),
        ({"min_output_tokens": 100}, ({**CHAT, "max_tokens": 200}, ""), ({**CHAT, "max_tokens": 99}, "")),
        ({"max_output_tokens": 99}, ({**CHAT, "max_tokens": 99}, ""), ({**CHAT, "max_tokens": 100}, "")),
        ({"headers": {"X-Tier": "gold"}}, (CHAT, "x-tier: gold\r\n"), (CHAT, "x-tier: Gold\r\n")),
        ({"headers": {"x-a": "1", "x-b": "2"}}, (CHAT, "X-B: 2\r\nx-A:  1\r\n"), (CHAT, "x-a: 1\r\n")),
        ({"min_input_tokens": 1000, "max_output_tokens": 50},
         ({**LONG, "max_tokens": 50}, ""), ({**LONG, "max_tokens": 51}, "")),
        ({}, (CHAT, ""), None),
    ],
)  # fmt: skip
def test_each_key_of_match_decides(match: dict[str, Any], inside: Any, outside: Any) -> None:
    async def go() -> None:
        async with router(HeldEngine("answer"), pools={"special": {"match": match}, "rest": {}}) as r:
            for _ in range(2):
                assert (await r.post(inside[0], extra=inside[1]))[0] == 200
                if outside is not None:
                    assert (await r.post(outside[0], extra=outside[1]))[0] == 200
            assert pool_counts(r) == {"special": 2} | ({"rest": 2} if outside is not None else {})
            await at_rest(r)

    uvloop.run(go())


def test_the_answer_names_the_pool_where_there_are_pools() -> None:
    async def go() -> None:
        async with router(
            HeldEngine("answer"), pools={"long": {"match": {"min_input_tokens": 1000}}, "rest": {}}
        ) as r:
            assert b"\r\nx-exaserve-pool: rest" in (await r.post(CHAT))[1]
            assert b"\r\nx-exaserve-pool: long" in (await r.post(LONG))[1]
        async with router(HeldEngine("answer")) as r:
            assert b"x-exaserve-pool" not in (await r.post(CHAT))[1]

    uvloop.run(go())


def test_tenants_decide_and_a_pool_that_a_tenant_may_not_use_is_forbidden(tmp_path: Path) -> None:
    async def go() -> None:
        file = tenants_file(
            tmp_path,
            {"name": "a"},
            {"name": "b", "pools": ["rest"]},
            {"name": "c", "pools": ["rest", "gold"]},
        )
        pools = {
            "gold": {"match": {"tenants": ["a"]}},
            "long": {"match": {"min_input_tokens": 1000}},
            "rest": {},
        }
        async with router(HeldEngine("answer"), pools=pools, tenants=file) as r:
            for name, body, status in (
                ("a", LONG, 200), ("b", CHAT, 200), ("b", LONG, 403), ("c", CHAT, 200), ("c", LONG, 403),
            ):  # fmt: skip
                got, _, content = await r.post(body, extra=f"authorization: Bearer {name}\r\n")
                assert got == status, (name, content)
                if status == 403:
                    assert code_of(content) == "pool_forbidden"
                    assert b"gold, rest" in content or name == "b"
            assert pool_counts(r) == {"gold": 1, "rest": 2, "long": 2}
            assert r.counted("exaserve_router_rejected_requests_total", "pool_forbidden", "long", "b") == 1
            assert all(t.budget.in_flight == 0 for t in r.server.tenants.by_name.values())
            await at_rest(r)

    uvloop.run(go())


@pytest.mark.skipif(compiled.active(), reason="compiled code takes no stand-in for an exchange")
def test_the_intent_decides() -> None:
    settings = {"pools": {"law": {"match": {"intents": ["legal"]}}, "rest": {}}}
    classifier = Classifier(build(Config.model_validate(settings)))
    assert classifier.needs_intent

    class Asking:
        input_tokens = output_tokens = 1
        tenant = None
        intent = ""

    asking: Any = Asking()
    for intent, pool in (("legal", "law"), ("medical", "rest"), ("", "rest")):
        asking.intent = intent
        assert classifier.choose(asking, {}).name == pool


@run
async def test_the_first_pool_that_matches_takes_it_and_the_last_one_takes_everything() -> None:
    pools = {
        "one": {"match": {"headers": {"x-a": "1"}}},
        "two": {"match": {"headers": {"x-a": "1"}}},
        "last": {"match": {"headers": {"x-a": "never"}}},
    }
    async with router(HeldEngine("answer"), pools=pools) as r:
        await r.post(CHAT, extra="x-a: 1\r\n")
        await r.post(CHAT)
        assert pool_counts(r) == {"one": 1, "last": 1}


def test_replicas_belong_to_the_pools_whose_patterns_match_their_names() -> None:
    config = Config.model_validate({"pools": {"a": {"replicas": ["r[01]", "big-*"]}, "b": {}}})
    a, b = build(config)
    replicas = [Replica(n, "http://x", "x", 1) for n in ("r0", "r1", "r2", "big-7", "Big-7")]
    for pool in (a, b):
        pool.set_members(replicas)
    assert [r.name for r in a.members] == ["r0", "r1", "big-7"]
    assert b.members == replicas


# --- what is counted ---


@run
async def test_counts_are_back_at_zero_whatever_the_ending() -> None:
    e = HeldEngine()
    settings = {"ejection": {"enabled": False}, "retry": {"max_attempts": 1}}
    async with router(e, pools={"p": {"max_in_flight": 2}}, **settings) as r:
        for how, status in (
            ("answer", 200), ("stream", 200), ("status_500", 500), ("status_503", 503), ("close_after", 200),
            ("reset", 502), ("reset_after_head", 502), ("die_mid_stream", 200),
        ):  # fmt: skip
            e.script[:] = [how]
            assert (await (await Asked.ask(r, STREAM)).answer())[0] == status, how
        for how in ("die_mid_chunk", "half_json"):
            e.script[:] = [how]
            await (await Asked.ask(r, STREAM)).answer()
        for how in ("silent", "held_stream", "held"):
            e.script[:] = [how]
            a = await Asked.ask(r, STREAM)
            await until(lambda: e.open == 1)
            pool = r.server.all_pools[0]
            assert (pool.open, sum(pool.in_flight.values()), r.replica().in_flight) == (1, 1, 1)
            a.leave()
            await until(lambda: r.replica().in_flight == 0 and e.open == 0)
        for body in (b"{", {"model": "unknown", "messages": []}):
            assert (await r.post(body))[0] in (400, 404)
        assert (await r.post(CHAT, extra="x-request-timeout: 0.1\r\n"))[0] == 504
        await at_rest(r)


@run
async def test_a_pool_full_of_long_requests_leaves_the_others_alone() -> None:
    shared = HeldEngine(), HeldEngine()
    pools = {"long": {"match": {"min_input_tokens": 1000}, "max_in_flight": 2, "max_waiting": 3}, "live": {}}
    async with router(*shared, pools=pools) as r:
        flood = [await Asked.ask(r, LONG) for _ in range(12)]
        await until(lambda: r.counted("exaserve_router_rejected_requests_total", "queue_full", "long") == 5)
        await until(lambda: sum(e.open for e in shared) == 4)
        assert [e.open for e in shared] == [2, 2]
        for e in shared:
            e.script[:] = ["answer"]
        for _ in range(5):
            assert (await r.post(CHAT))[0] == 200
        for e in shared:
            e.let(8)
        assert sorted([(await a.answer())[0] for a in flood]) == [200] * 7 + [503] * 5
        await at_rest(r)


@run
async def test_a_header_that_a_reload_gives_a_meaning_is_read_on_connections_that_are_open() -> None:
    async with router(HeldEngine("answer"), pools={"rest": {}}) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        for _ in range(2):
            writer.write(request(CHAT, extra="x-new: 1\r\n"))
            await read_answer(reader)
        r.server.apply_config(config_of({"new": {"match": {"headers": {"x-new": "1"}}}, "rest": {}}))
        assert b"x-new" in REQUEST.special
        writer.write(request(CHAT, extra="x-new: 1\r\n"))
        await read_answer(reader)
        assert pool_counts(r) == {"rest": 2, "new": 1}
        writer.close()


# --- reload ---


def config_of(pools: Any = None, **settings: Any) -> Config:
    return Config.model_validate({"router": FAST | settings, "pools": pools or {}})


@run
async def test_requests_that_wait_take_over_new_limits_and_outlive_their_pool() -> None:
    e = HeldEngine()
    async with router(e, pools=ONE) as r:
        asked = [await Asked.ask(r) for _ in range(4)]
        await until(lambda: r.server.waiting == 3)
        r.server.apply_config(config_of({"p": {"max_in_flight": 2}}))
        assert (r.server.waiting, r.replica().in_flight) == (2, 2)
        r.server.apply_config(config_of({"q": {"max_in_flight": 3}, "last": {"max_in_flight": 1}}))
        assert r.server.waiting == 1  # the new pool has counted none of those that are open
        assert [p.waiting for p in r.server.all_pools] == [0, 1]
        names = {
            labels[0]
            for name, labels, _ in r.server.metrics.snapshot().gauges
            if name.endswith("open_requests")
        }
        assert names == {"q", "last"}
        r.server.apply_config(config_of())
        assert r.server.waiting == 0
        await until(lambda: e.open == 4)
        e.let(4)
        assert [(await a.answer())[0] for a in asked] == [200] * 4
        await at_rest(r)


@run
async def test_a_limit_that_comes_or_goes_while_requests_are_open_is_kept_right() -> None:
    e = HeldEngine()
    async with router(e, pools={"p": {}}) as r:
        asked = [await Asked.ask(r) for _ in range(2)]
        await until(lambda: e.open == 2)
        r.server.apply_config(config_of(ONE))
        asked.append(await Asked.ask(r))
        await until(lambda: r.server.waiting == 1)
        e.let(2)
        await until(lambda: len(e.requests) == 3)
        r.server.apply_config(config_of({"p": {}}))
        e.let(1)
        assert [(await a.answer())[0] for a in asked] == [200] * 3
        r.server.apply_config(config_of(ONE))
        e.let(2)
        assert [(await r.post(CHAT))[0] for _ in range(2)] == [200] * 2
        await at_rest(r)
