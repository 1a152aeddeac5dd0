"""Second attempts through the router: when there may be one, how many, and how hedges and deadlines end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

from serving.router.retry import RESERVE, RetryBudget
from tests.fakes import CHUNKS, JSON_ANSWER, chunk
from tests.serving.held_engine import CHAT, STREAM, Asked, HeldEngine, at_rest, code_of
from tests.serving.routing import read_answer, request, router, run, until

RETRIES = "exaserve_router_retries_total"
DENIED = "exaserve_router_retries_denied_total"
REJECTED = "exaserve_router_rejected_requests_total"
HEDGES = "exaserve_router_hedges_total"
NO_EJECTION = {"enabled": False}


# --- the budget ---


def test_the_budget_is_a_share_of_requests_and_a_few() -> None:
    b = RetryBudget(0.1)
    assert sum(b.take() for _ in range(50)) == RESERVE
    taken = 0
    for _ in range(1000):
        b.request()
        taken += b.take()
    assert 99 <= taken <= 100
    none = RetryBudget(0.0)
    none.request()
    assert not none.take()


@run
async def test_retries_do_not_become_the_load_when_every_replica_fails() -> None:
    engines = [HeldEngine("reset") for _ in range(3)]
    async with router(*engines, ejection=NO_EJECTION) as r:
        codes = {}
        for _ in range(200):
            status, _, body = await r.post(CHAT)
            assert status == 502
            codes[code_of(body)] = codes.get(code_of(body), 0) + 1
        attempts = sum(len(e.requests) for e in engines)
        assert 200 < attempts <= 200 + 200 * 0.1 + RESERVE
        assert r.counted(RETRIES) == attempts - 200
        assert r.counted(DENIED, "budget") + r.counted(DENIED, "attempts") == 200
        await at_rest(r)


@run
async def test_all_that_a_replica_had_open_is_moved_whatever_the_budget() -> None:
    frozen, good = HeldEngine(), HeldEngine("answer")
    async with router(frozen, good, strategy="round_robin", retry={"budget": 0}, silence_timeout=60) as r:
        asked = [await Asked.ask(r) for _ in range(50)]
        await until(lambda: frozen.open == 25)
        r.health.out(r.replica(), "frozen", "silent", "frozen")
        assert [(await a.answer())[0] for a in asked] == [200] * 50
        assert r.counted(RETRIES, "frozen") == 25


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_request_takes_more_than_max_attempts(most: int) -> None:
    async def go() -> None:
        engines = [HeldEngine("reset") for _ in range(4)]
        async with router(*engines, ejection=NO_EJECTION, retry={"max_attempts": most}) as r:
            status, _, body = await r.post(CHAT)
            assert (status, code_of(body)) == (502, "replica_failed")
            assert sum(len(e.requests) for e in engines) == most
            assert r.counted(DENIED, "attempts") == 1
            await at_rest(r)

    uvloop.run(go())


# --- which answers are tried elsewhere ---


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_an_answer_that_says_not_me_goes_to_another_replica(status: int) -> None:
    async def go() -> None:
        bad, good = HeldEngine(f"status_{status}"), HeldEngine("answer")
        async with router(bad, good, ejection=NO_EJECTION, strategy="round_robin", retry={"budget": 1}) as r:
            for _ in range(4):
                got, head, body = await r.post(CHAT)
                assert (got, body) == (200, JSON_ANSWER)
                assert b"x-exaserve-replica: r1" in head
            assert r.counted(RETRIES, "status") == len(bad.requests) > 0
            await at_rest(r)

    uvloop.run(go())


@pytest.mark.parametrize("status", [400, 404, 422, 500, 501])
def test_any_other_answer_passes_as_it_is(status: int) -> None:
    async def go() -> None:
        engines = HeldEngine(f"status_{status}"), HeldEngine(f"status_{status}")
        async with router(*engines, ejection=NO_EJECTION) as r:
            for n in range(1, 4):
                got, _, body = await r.post(CHAT)
                assert (got, body) == (status, b'{"error":{"message":"as told"}}')
                assert sum(len(e.requests) for e in engines) == n
            await at_rest(r)

    uvloop.run(go())


@run
async def test_a_replica_that_says_it_is_full_gets_nothing_more_until_its_next_load_report() -> None:
    full, good = HeldEngine("status_429"), HeldEngine("answer")
    async with router(full, good, strategy="round_robin", load_interval=60) as r:
        await until(lambda: r.replica().waiting == 0)
        for _ in range(50):
            assert (await r.post(CHAT))[0] == 200
        assert (len(full.requests), len(good.requests)) == (1, 50)
        r.replica().waiting = 0  # the next report
        r.server.apply_load(r.replica())
        for _ in range(4):
            assert (await r.post(CHAT))[0] == 200
        assert len(full.requests) == 2
        await at_rest(r)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_the_answer_of_the_only_replica_passes_whatever_it_is(status: int) -> None:
    async def go() -> None:
        async with router(HeldEngine(f"status_{status}"), ejection=NO_EJECTION) as r:
            for _ in range(3):  # the second and third with a head that is known
                got, _, body = await r.post(CHAT)
                assert (got, body) == (status, b'{"error":{"message":"as told"}}')
            await at_rest(r)

    uvloop.run(go())


@pytest.mark.parametrize("how", ["die_mid_stream", "die_mid_chunk", "half_json"])
def test_after_the_first_byte_there_is_no_second_attempt(how: str) -> None:
    async def go() -> None:
        engines = HeldEngine(how), HeldEngine(how)
        async with router(*engines, ejection=NO_EJECTION) as r:
            a = await Asked.ask(r, STREAM)
            status, _, body = await a.answer()
            assert status in (200, 0)  # a reset may overtake what came before it
            assert b'"code": "replica_failed"' in body or not body.endswith(b"0\r\n\r\n")
            assert sum(len(e.requests) for e in engines) == 1
            assert r.counted(RETRIES) == 0
            assert r.server.metrics.value("exaserve_router_cut_answers_total", model="m") == 1
            await at_rest(r)

    uvloop.run(go())


@run
async def test_connections_that_a_replica_had_closed_cost_two_tries_and_no_blame() -> None:
    e = HeldEngine("answer")
    async with router(e) as r:
        asked = [await Asked.ask(r) for _ in range(6)]
        assert [(await a.answer())[0] for a in asked] == [200] * 6
        await until(lambda: len(r.replica().idle) > 1)
        e.script[:] = ["reset"]  # of a connection that was used before, it looks as if it had been closed
        status, _, body = await r.post(CHAT)
        assert (status, code_of(body)) == (502, "replica_failed")
        assert (
            r.counted(RETRIES, "stale") == 1
        )  # the second try is on a new connection, where it is a failure
        assert len(e.requests) == 8
        e.script[:] = ["answer"]
        assert (await r.post(CHAT))[0] == 200
        await at_rest(r)


# --- hedging ---


class Slow(HeldEngine):
    """Its first answer is held, all others come at once."""

    def __init__(self) -> None:
        super().__init__("held", "answer")


@run
async def test_a_hedge_that_answers_first_wins_and_the_first_attempt_stops() -> None:
    a, b = HeldEngine("held"), HeldEngine("held")
    async with router(a, b, retry={"hedge_after": 0.1}) as r:
        asked = await Asked.ask(r)
        await until(lambda: (a.open, b.open) == (1, 1))
        assert [x.in_flight for x in r.server.replicas] == [1, 1]
        hedge = next(iter(r.server.clients)).exchange.hedge
        winner, loser = (a, b) if hedge.replica is r.replica(0) else (b, a)
        winner.let()
        status, head, _ = await asked.answer()
        assert status == 200
        assert b"x-exaserve-replica: %s" % (b"r0" if winner is a else b"r1") in head
        await until(lambda: loser.open == 0)
        assert (loser.aborted, winner.aborted) == (1, 0)
        assert [r.counted(HEDGES, x) for x in ("sent", "won", "lost")] == [1, 1, 0]
        await at_rest(r)


@run
async def test_a_hedge_that_is_slower_is_dropped() -> None:
    a, b = HeldEngine("held"), HeldEngine("held")
    async with router(a, b, retry={"hedge_after": 0.1}) as r:
        asked = await Asked.ask(r)
        await until(lambda: (a.open, b.open) == (1, 1))
        hedge = next(iter(r.server.clients)).exchange.hedge
        slower, first = (a, b) if hedge.replica is r.replica(0) else (b, a)
        first.let()
        assert (await asked.answer())[0] == 200
        await until(lambda: slower.aborted == 1)
        assert [r.counted(HEDGES, x) for x in ("sent", "won", "lost")] == [1, 0, 1]
        await at_rest(r)


@run
async def test_a_client_that_leaves_ends_both_attempts() -> None:
    a, b = HeldEngine("held"), HeldEngine("held")
    async with router(a, b, retry={"hedge_after": 0.1}) as r:
        asked = await Asked.ask(r)
        await until(lambda: (a.open, b.open) == (1, 1))
        asked.leave()
        await until(lambda: (a.aborted, b.aborted) == (1, 1))
        await at_rest(r)


@run
async def test_when_both_attempts_fail_the_client_gets_one_error() -> None:
    a, b = HeldEngine("silent"), HeldEngine("silent")
    async with router(a, b, retry={"hedge_after": 0.1}, ejection=NO_EJECTION) as r:
        asked = await Asked.ask(r)
        await until(lambda: (a.open, b.open) == (1, 1))
        exchange = next(iter(r.server.clients)).exchange

        def all_failed() -> bool:
            """The first attempt may be followed by another, where the hedge has failed before it."""
            for replica in r.server.replicas:
                for attempt in list(replica.attempts):
                    attempt.fail_attempt("reset")
            return bool(exchange.done)

        await until(all_failed)
        status, _, body = await asked.answer()
        assert (status, code_of(body)) == (502, "replica_failed")
        assert r.counted(HEDGES, "sent") == r.counted(HEDGES, "won") + r.counted(HEDGES, "lost") == 1
        await at_rest(r)


@run
async def test_a_hedge_goes_on_alone_when_the_first_attempt_fails() -> None:
    for connected in (True, False):
        a, b = HeldEngine("held"), HeldEngine("held")
        async with router(a, b, retry={"hedge_after": 0.1}, ejection=NO_EJECTION) as r:
            asked = await Asked.ask(r)
            await until(lambda: r.counted(HEDGES, "sent") == 1)
            if connected:
                await until(lambda a=a, b=b: (a.open, b.open) == (1, 1))
            exchange = next(iter(r.server.clients)).exchange
            exchange.fail_attempt("reset")
            assert not exchange.done
            a.let()
            b.let()
            assert (await asked.answer())[0] == 200
            assert r.counted(HEDGES, "won") == 1
            await at_rest(r)


@run
async def test_hedges_take_from_the_budget() -> None:
    a, b = HeldEngine("held"), HeldEngine("held")
    async with router(a, b, retry={"hedge_after": 0.05, "budget": 0}) as r:
        asked = await Asked.ask(r)
        await asyncio.sleep(0.2)
        assert r.counted(HEDGES, "sent") == 0
        a.let()
        b.let()
        assert (await asked.answer())[0] == 200


# --- deadlines ---


@pytest.mark.parametrize("settings", [{}, {"max_request_time": 2}])
def test_a_deadline_before_the_first_byte_is_a_504_and_the_engine_stops(settings: dict[str, Any]) -> None:
    async def go() -> None:
        e = HeldEngine("held")
        async with router(e, **settings) as r:
            asked = await Asked.ask(r, extra="" if settings else "x-request-timeout: 2\r\n")
            status, _, body = await asked.answer()
            assert (status, code_of(body)) == (504, "deadline_exceeded")
            await until(lambda: e.aborted == 1)
            assert r.counted(REJECTED, "deadline", "default") == 1
            await at_rest(r)

    uvloop.run(go())


@run
async def test_a_deadline_after_the_first_byte_ends_the_stream_with_an_error() -> None:
    e = HeldEngine("held_stream")
    async with router(e) as r:
        asked = await Asked.ask(r, STREAM, "x-request-timeout: 3\r\n")
        status, _, body = await asked.answer()
        assert status == 200
        assert body.startswith(chunk(CHUNKS[0]) + chunk(CHUNKS[1]))
        assert b"its deadline has passed" in body
        assert body.endswith(b"0\r\n\r\n")
        assert b"[DONE]" not in body
        await until(lambda: e.aborted == 1)
        await at_rest(r)


@run
async def test_the_shorter_of_the_clients_and_the_routers_time_counts() -> None:
    e = HeldEngine("held")
    async with router(e, max_request_time=0.2) as r:
        asked = await Asked.ask(r, extra="x-request-timeout: 1000\r\n")
        assert (await asked.answer())[0] == 504
        await at_rest(r)


@run
async def test_a_deadline_that_is_none_is_refused_and_names_the_header() -> None:
    async with router(HeldEngine("answer")) as r:
        for bad in ("0", "-1", "soon", "nan", "inf", "1e9", "", "5 s", "\xff"):
            status, _, body = await r.post(CHAT, extra=f"x-request-timeout: {bad}\r\n")
            assert (status, code_of(body)) == (400, "invalid_timeout"), bad
            assert b'"param": "x-request-timeout"' in body
        assert (await r.post(CHAT, extra="x-request-timeout: 2.5\r\n"))[0] == 200
        await at_rest(r)


@run
async def test_a_deadline_holds_for_one_request_of_a_connection_only() -> None:
    e = HeldEngine("answer", "held")
    async with router(e) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(request(CHAT, extra="x-request-timeout: 2\r\n"))
        await read_answer(reader)
        writer.write(request(CHAT))
        await until(lambda: e.open == 1)
        await asyncio.sleep(2.1)
        e.let()
        assert (await read_answer(reader)).startswith(b"HTTP/1.1 200")
        writer.close()
