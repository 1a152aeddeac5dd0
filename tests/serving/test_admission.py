"""Requests that no replica can take now: they wait, bounded and in order, go to another pool, or are refused."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
import uvloop
import yaml

from serving import compiled
from tests.fakes import FakeEngine
from tests.serving.held_engine import CHAT, Asked, HeldEngine, at_rest, code_of
from tests.serving.routing import router, run, until

REJECTED = "exaserve_router_rejected_requests_total"
ONE = {"p": {"max_in_flight": 1}}


def refused_as(answer: tuple[int, bytes, bytes]) -> str:
    status, head, body = answer
    assert status == 503
    assert b"\r\nretry-after: " in head
    return code_of(body)


# --- what keeps a replica from taking requests ---


@run
async def test_a_replica_above_the_kv_watermark_gets_nothing_and_the_client_is_told_why() -> None:
    full, free = HeldEngine("answer"), HeldEngine("answer")
    full.metrics["usage"] = 0.86
    async with router(full, free, admission={"max_waiting": 0}) as r:
        await until(lambda: r.replica(0).kv_usage == 0.86)
        for _ in range(6):
            assert (await r.post(CHAT))[0] == 200
        assert (len(full.requests), len(free.requests)) == (0, 6)
        free.metrics["usage"] = 1.0
        await until(lambda: r.replica(1).kv_usage == 1.0)
        answer = await r.post(CHAT)
        assert refused_as(answer) == "capacity"
        assert b"kv_cache_watermark" in answer[2]
        assert r.counted(REJECTED, "capacity", "default") == 1
        full.metrics["usage"] = 0.85  # the watermark itself is still good
        await until(lambda: r.replica(0).kv_usage == 0.85)
        assert (await r.post(CHAT))[0] == 200
        await at_rest(r)


@run
async def test_a_replica_whose_queue_is_too_deep_gets_nothing() -> None:
    e = HeldEngine("answer")
    e.metrics["waiting"] = 3
    async with router(e, admission={"max_waiting": 0}, max_queue_depth=2) as r:
        await until(lambda: r.replica().waiting == 3)
        assert refused_as(await r.post(CHAT)) == "capacity"
        e.metrics["waiting"] = 2
        await until(lambda: r.replica().waiting == 2)
        assert (await r.post(CHAT))[0] == 200


@run
async def test_between_two_load_reports_what_is_sent_counts_as_waiting() -> None:
    e = HeldEngine()
    e.metrics["waiting"] = 1
    async with router(e, admission={"max_waiting": 0}, max_queue_depth=2, load_interval=60) as r:
        await until(lambda: r.replica().waiting == 1)
        asked = [await Asked.ask(r), await Asked.ask(r)]
        await until(lambda: e.open == 2)
        assert r.replica().waiting == 3
        assert refused_as(await r.post(CHAT)) == "capacity"
        e.let(2)
        assert [(await a.answer())[0] for a in asked] == [200, 200]
        r.replica().waiting = 0  # the next report
        r.server.apply_load(r.replica())
        e.let()
        assert (await r.post(CHAT))[0] == 200


# --- waiting ---


@run
async def test_a_request_waits_until_a_replica_is_free() -> None:
    e = HeldEngine()
    async with router(e, pools=ONE) as r:
        first = await Asked.ask(r)
        await until(lambda: e.open == 1)
        second = await Asked.ask(r)
        await until(lambda: r.server.waiting == 1)
        assert len(e.requests) == 1
        await asyncio.sleep(0.05)  # a wait that is too long for the lowest bucket
        e.let(2)
        assert [(await a.answer())[0] for a in (first, second)] == [200, 200]
        waited = [s for s in r.server.metrics.snapshot(whole=True).series if s.labels[2] == "p"]
        counts, seconds = waited[0].histograms[3]
        assert (sum(counts), counts[0]) == (2, 1)
        assert seconds > 0
        await at_rest(r)


@run
async def test_no_more_than_max_waiting_wait() -> None:
    e = HeldEngine()
    async with router(e, pools={"p": {"max_in_flight": 1, "max_waiting": 2}}) as r:
        open_ones = [await Asked.ask(r)]
        await until(lambda: e.open == 1)
        open_ones += [await Asked.ask(r), await Asked.ask(r)]
        await until(lambda: r.server.waiting == 2)
        answer = await r.post(CHAT)
        assert refused_as(answer) == "capacity"
        assert b"2 requests wait already (max_waiting)" in answer[2]
        assert r.counted(REJECTED, "queue_full", "p") == 1
        e.let(3)
        assert [(await a.answer())[0] for a in open_ones] == [200] * 3
        await at_rest(r)


@run
async def test_nobody_waits_longer_than_max_wait() -> None:
    e = HeldEngine()
    async with router(e, pools={"p": {"max_in_flight": 1, "max_wait": 0.2}}) as r:
        first = await Asked.ask(r)
        await until(lambda: e.open == 1)
        answer = await r.post(CHAT)
        assert refused_as(answer) == "capacity"
        assert b"0.2 s (max_wait)" in answer[2]
        assert r.counted(REJECTED, "queue_timeout", "p") == 1
        e.let()
        assert (await first.answer())[0] == 200
        assert len(e.requests) == 1
        await at_rest(r)


@run
async def test_a_client_that_leaves_while_it_waits_is_forgotten() -> None:
    e = HeldEngine()
    async with router(e, pools=ONE) as r:
        first = await Asked.ask(r)
        await until(lambda: e.open == 1)
        second = await Asked.ask(r)
        await until(lambda: r.server.waiting == 1)
        second.leave()
        await until(lambda: r.server.waiting == 0)
        e.let(2)
        assert (await first.answer())[0] == 200
        await at_rest(r)
        assert len(e.requests) == 1
        assert r.server.metrics.disconnects == 1


@run
async def test_a_deadline_that_passes_while_a_request_waits_ends_it() -> None:
    e = HeldEngine()
    async with router(e, pools=ONE) as r:
        first = await Asked.ask(r)
        await until(lambda: e.open == 1)
        status, _, body = await r.post(CHAT, extra="x-request-timeout: 0.15\r\n")
        assert (status, code_of(body)) == (504, "deadline_exceeded")
        assert r.server.waiting == 0
        assert r.counted(REJECTED, "deadline", "p") == 1
        e.let(2)
        assert (await first.answer())[0] == 200
        await at_rest(r)
        assert len(e.requests) == 1


# --- in which order ---


@pytest.mark.skipif(compiled.active(), reason="a method of a compiled class can't be replaced")
@run
async def test_pools_that_share_a_replica_are_served_by_priority() -> None:
    e = HeldEngine()
    batch = {"match": {"headers": {"x-kind": "batch"}}, "priority": 2, "max_in_flight": 1}
    async with router(e, pools={"batch": batch, "live": {"max_in_flight": 1}}) as r:
        e.metrics["usage"] = 1.0
        await until(lambda: r.replica().kv_usage == 1.0)
        asked = []
        for n, extra in enumerate(("x-kind: batch\r\n", "", "x-kind: batch\r\n", "")):
            asked.append(await Asked.ask(r, extra=extra))
            await until(lambda n=n: r.server.waiting == n + 1)
        sent: list[str] = []
        send = r.server.send_waiting

        def noted(exchange: Any, replica: Any) -> None:
            sent.append(exchange.pool.name)
            send(exchange, replica)

        r.server.send_waiting = noted  # type: ignore[method-assign]
        e.metrics["usage"] = 0.0
        await until(lambda: sent)
        assert sent == ["live", "batch"]
        e.let(4)
        assert [(await a.answer())[0] for a in asked] == [200] * 4
        await at_rest(r)


def test_within_a_pool_tenants_are_served_by_their_priority(tmp_path: Path) -> None:
    async def go() -> None:
        file = tmp_path / "tenants.yaml"
        tenants = [
            {"name": n, "keys": [hashlib.sha256(n.encode()).hexdigest()], "priority": p}
            for n, p in (("slow", 5), ("fast", 0))
        ]
        file.write_text(yaml.safe_dump({"tenants": tenants}))
        e = HeldEngine()
        async with router(e, pools=ONE, tenants=str(file)) as r:
            asked = []
            for n, name in enumerate(("slow", "slow", "slow", "fast", "fast")):
                asked.append(await Asked.ask(r, extra=f"authorization: Bearer {name}\r\nx-n: {n}\r\n"))
                await until(lambda n=n: r.server.waiting + len(e.requests) == n + 1)
            e.let(5)
            assert [(await a.answer())[0] for a in asked] == [200] * 5
            assert e.asked == ["0", "3", "4", "1", "2"]
            await at_rest(r)

    uvloop.run(go())


@run
async def test_the_size_of_kv_caches_weighs_requests_the_smallest_counts() -> None:
    a, b = FakeEngine(), FakeEngine()
    a.kv_blocks, b.kv_blocks = 1000, 500
    async with router(a, b) as r:
        await until(lambda: {x.kv_tokens for x in r.server.replicas} == {16_000, 8_000})
        held = 8192 / (8_000 * r.server.settings.kv_cache_watermark)
        wanted = int(1001 * (0.5 + held) + 100 * (1 + held)) + 1
        await until(lambda: r.server.estimator.estimate("m", "", 4000, 100, None)[2] == wanted)


# --- fallback ---


@run
async def test_a_pool_that_is_full_lets_its_fallback_take_over_and_waits_when_that_is_full_too() -> None:
    own, other = HeldEngine(), HeldEngine()
    pools: dict[str, Any] = {
        "own": {
            "match": {"headers": {"x-own": "1"}},
            "replicas": ["r0"],
            "max_in_flight": 1,
            "fallback": "other",
        },
        "other": {"replicas": ["r1"], "max_in_flight": 1},
    }
    async with router(own, other, pools=pools) as r:
        asked = []
        for n in range(3):
            asked.append(await Asked.ask(r, extra="x-own: 1\r\n"))
            await until(lambda n=n: own.open + other.open + r.server.waiting == n + 1)
        assert (own.open, other.open) == (1, 1)
        by_name = {p.name: p for p in r.server.all_pools}
        assert (by_name["own"].open, by_name["own"].waiting, by_name["other"].open) == (2, 1, 1)
        assert r.counted("exaserve_router_fallbacks_total", "own", "other") == 1
        own.let(2)
        other.let()
        assert [(await a.answer())[0] for a in asked] == [200] * 3
        assert (len(own.requests), len(other.requests)) == (2, 1)
        await at_rest(r)


@run
async def test_a_request_whose_pool_has_nobody_left_is_tried_again_on_the_fallback() -> None:
    own, other = HeldEngine("reset"), HeldEngine("answer")
    pools: dict[str, Any] = {
        "other": {"match": {"headers": {"x-other": "1"}}, "replicas": ["r1"]},
        "own": {"replicas": ["r0"], "fallback": "other"},
    }
    async with router(own, other, pools=pools) as r:
        assert (await r.post(CHAT))[0] == 200
        assert (len(own.requests), len(other.requests)) == (1, 1)
        assert r.counted("exaserve_router_fallbacks_total", "own", "other") == 1
        await at_rest(r)


@run
async def test_those_that_wait_for_a_pool_go_to_its_fallback_when_nobody_is_left_to_wait_for() -> None:
    own, other = HeldEngine(), HeldEngine("answer")
    pools: dict[str, Any] = {
        "other": {"match": {"headers": {"x-other": "1"}}, "replicas": ["r1"], "max_in_flight": 1},
        "own": {"replicas": ["r0"], "max_in_flight": 1, "fallback": "other"},
    }
    async with router(own, other, pools=pools, silence_timeout=60, health_check_interval=40) as r:
        r.replica(1).drain(True)
        r.server.apply_state(r.replica(1))
        asked = [await Asked.ask(r) for _ in range(4)]
        await until(lambda: own.open == 1 and r.server.waiting == 3)
        r.replica(1).drain(False)
        r.server.apply_state(r.replica(1))
        assert r.server.waiting == 3  # its own replica is only full
        own.frozen.clear()  # or a probe has it back in a second
        r.health.out(r.replica(0), "frozen", "silent", "frozen")
        assert [(await a.answer())[0] for a in asked] == [200] * 4
        assert r.counted("exaserve_router_fallbacks_total", "own", "other") == 4
        await at_rest(r)


def test_a_fallback_is_no_way_into_a_pool_that_the_tenant_may_not_use(tmp_path: Path) -> None:
    async def go() -> None:
        own, other = HeldEngine(), HeldEngine()
        pools: dict[str, Any] = {
            "own": {
                "match": {"headers": {"x-own": "1"}},
                "replicas": ["r0"],
                "max_in_flight": 1,
                "fallback": "other",
            },
            "other": {"replicas": ["r1"]},
        }
        file = tmp_path / "tenants.yaml"
        key = hashlib.sha256(b"a").hexdigest()
        file.write_text(yaml.safe_dump({"tenants": [{"name": "a", "keys": [key], "pools": ["own"]}]}))
        async with router(own, other, pools=pools, tenants=str(file)) as r:
            asked = []
            for n in range(2):
                asked.append(await Asked.ask(r, extra="x-own: 1\r\nauthorization: Bearer a\r\n"))
                await until(lambda n=n: own.open + other.open + r.server.waiting == n + 1)
            assert (own.open, other.open, r.server.waiting) == (1, 0, 1)
            own.let(2)
            assert [(await a.answer())[0] for a in asked] == [200] * 2
            assert len(other.requests) == 0
            await at_rest(r)

    uvloop.run(go())


# --- limits of a pool ---


@run
async def test_max_in_flight_holds_for_each_replica_of_the_pool() -> None:
    a, b = HeldEngine(), HeldEngine()
    async with router(a, b, pools={"p": {"max_in_flight": 2}}) as r:
        asked = [await Asked.ask(r) for _ in range(7)]
        await until(lambda: r.server.waiting == 3 and a.open + b.open == 4)
        assert (a.open, b.open) == (2, 2)
        a.let(7)
        b.let(7)
        assert [(await x.answer())[0] for x in asked] == [200] * 7
        await at_rest(r)


@run
async def test_one_model_that_is_full_does_not_block_another_of_the_same_pool() -> None:
    a, b = HeldEngine(model="a"), HeldEngine(model="b")
    async with router(a, b, pools=ONE) as r:
        await until(lambda: len(r.server.all_pools[0].by_model) == 2)
        asked = [await Asked.ask(r, {**CHAT, "model": "a"}) for _ in range(2)]
        await until(lambda: r.server.waiting == 1)
        b.let()
        assert (await r.post({**CHAT, "model": "b"}))[0] == 200
        assert r.server.waiting == 1
        a.let(2)
        assert [(await x.answer())[0] for x in asked] == [200] * 2
        assert (len(a.requests), len(b.requests)) == (2, 1)
        await at_rest(r)


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_each_that_waited_is_sent_once_when_replicas_come_back_nearly_full(depth: int) -> None:
    """Sending one can take its replica out, which serves the others in the middle of serving."""

    async def go() -> None:
        engines = [HeldEngine("answer") for _ in range(4)]
        for e in engines:
            e.metrics["usage"] = 1.0
        async with router(*engines, max_queue_depth=depth, load_interval=60) as r:
            await until(lambda: all(x.kv_usage == 1.0 for x in r.server.replicas))
            asked = []
            for n in range(6):
                asked.append(await Asked.ask(r, extra=f"x-n: {n}\r\n"))
            await until(lambda: r.server.waiting == 6)
            nearly_full, *free = r.server.replicas
            nearly_full.kv_usage, nearly_full.waiting = 0.0, depth
            for replica in free:
                replica.kv_usage = 0.0
                r.server.all_pools[0].settle(replica)
            r.server.apply_load(nearly_full)
            assert r.server.waiting == 0
            assert [(await a.answer())[0] for a in asked] == [200] * 6
            assert sorted(n for e in engines for n in e.asked) == list("012345")
            await at_rest(r)

    uvloop.run(go())
