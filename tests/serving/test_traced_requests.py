"""Traces through the router: what a replica sees of them, and which spans arrive at a collector."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from tests.serving.held_engine import CHAT, STREAM, Asked, HeldEngine, at_rest
from tests.serving.otlp_receiver import Receiver, attributes
from tests.serving.routing import read_answer, request, router, until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"traceparent: 00-{TRACE}-{PARENT}-01\r\ntracestate: a=1\r\n"
NO_EJECTION = {"enabled": False}


def traced(*engines: HeldEngine, spans: int, sample: float = 0.0, **settings: Any) -> Any:
    """Decorator: ``test(r)`` runs with a collector; returns the spans that it got."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> list[Any]:
        receiver = Receiver()

        async def go() -> None:
            tracing = {"endpoint": receiver.url, "sample": sample}
            async with router(*engines, tracing=tracing, **settings) as r:
                await test(r)
                await at_rest(r)

        uvloop.run(asyncio.wait_for(go(), 60))  # closing exports what waits
        try:
            return list(receiver.wait(spans))
        finally:
            receiver.close()

    return decorate


def parts(engine: HeldEngine, i: int = 0) -> list[str]:
    return engine.requests[i][1]["traceparent"].split("-")


def test_the_replica_sees_the_attempts_span_as_its_parent() -> None:
    e = HeldEngine("answer")

    @traced(e, spans=2)
    async def spans(r: Any) -> None:
        assert (await r.post(CHAT, extra=SAMPLED))[0] == 200

    version, trace, parent, flags = parts(e)
    assert (version, trace, flags) == ("00", TRACE, "01")
    assert e.requests[0][1]["tracestate"] == "a=1"
    by_id = {s.span_id.hex(): s for s in spans}
    assert len(by_id) == 2
    attempt = by_id[parent]
    whole = by_id[attempt.parent_span_id.hex()]
    assert whole.parent_span_id.hex() == PARENT
    assert all(s.trace_id.hex() == TRACE for s in spans)
    assert attributes(whole)["exaserve.replica"] == "r0"


def test_a_retry_is_a_second_attempt_with_its_own_span() -> None:
    engines = [HeldEngine("reset"), HeldEngine("reset")]

    @traced(*engines, spans=3, ejection=NO_EJECTION)
    async def spans(r: Any) -> None:
        assert (await r.post(CHAT, extra=SAMPLED))[0] == 502

    seen = {parts(e)[2] for e in engines}
    assert len(seen) == 2
    by_id = {s.span_id.hex(): s for s in spans}
    assert seen < set(by_id)
    assert [attributes(by_id[x])["error.type"] for x in seen] == ["reset", "reset"]
    whole = by_id[by_id[seen.pop()].parent_span_id.hex()]
    assert attributes(whole)["exaserve.retries"] == 1
    assert "exaserve.retry" in [e.name for e in whole.events]


def test_a_hedge_is_an_attempt_too() -> None:
    engines = [HeldEngine("held"), HeldEngine("held")]

    @traced(*engines, spans=3, retry={"hedge_after": 0.1})
    async def spans(r: Any) -> None:
        asked = await Asked.ask(r, CHAT, SAMPLED)
        await until(lambda: all(e.open == 1 for e in engines))
        hedge = next(iter(r.server.clients)).exchange.hedge
        engines[0 if hedge.replica is r.replica(0) else 1].let()
        assert (await asked.answer())[0] == 200

    seen = {parts(e)[2] for e in engines}
    by_id = {s.span_id.hex(): s for s in spans}
    assert len(seen) == 2
    assert seen < set(by_id)
    assert sorted(attributes(by_id[x]).get("error.type", "") for x in seen) == ["", "aborted"]
    whole = by_id[by_id[seen.pop()].parent_span_id.hex()]
    assert "exaserve.hedge" in [e.name for e in whole.events]


def test_every_request_of_a_kept_connection_has_a_trace_of_its_own_and_unsampled_ones_say_so() -> None:
    e = HeldEngine("stream")

    @traced(e, spans=0)
    async def spans(r: Any) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        for extra in ("", "", "traceparent: nonsense\r\ntracestate: b=2\r\n", SAMPLED.replace("-01", "-00")):
            writer.write(request(STREAM, extra=extra))
            await read_answer(reader)
        writer.close()

    assert spans == []
    found = [parts(e, i) for i in range(4)]
    assert len({p[1] for p in found}) == 4
    assert [p[3] for p in found] == ["00"] * 4
    assert found[3][1:3] == [TRACE, PARENT]
    assert "tracestate" not in e.requests[2][1]
    assert e.requests[3][1]["tracestate"] == "a=1"


def test_a_client_that_leaves_and_a_stream_that_breaks_are_errors() -> None:
    e = HeldEngine("held")

    @traced(e, spans=4, sample=1.0, ejection=NO_EJECTION)
    async def spans(r: Any) -> None:
        asked = await Asked.ask(r, CHAT)
        await until(lambda: e.open == 1)
        asked.leave()
        await until(lambda: e.aborted == 1)
        e.script[:] = ["die_mid_stream"]
        await (await Asked.ask(r, STREAM)).answer()

    wholes = [attributes(s) for s in spans if not s.parent_span_id]
    assert [w["error.type"] for w in wholes] == ["client_disconnected", "cut"]
    assert [w["http.response.status_code"] for w in wholes] == [499, 200]
