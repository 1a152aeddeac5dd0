"""Intents through the router: what is labelled with them, and who waits for the second stage."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from tests.serving.held_engine import Asked, HeldEngine, at_rest
from tests.serving.routing import Running, router, run, until


class SecondStage:
    """Says ``found`` when it is let."""

    def __init__(self, found: tuple[str, float] | Exception | None) -> None:
        self.found = found
        self.turn = asyncio.Event()

    async def classify(self, _: str) -> tuple[str, float] | None:
        await self.turn.wait()
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    async def close(self) -> None:
        pass


@contextlib.asynccontextmanager
async def with_intents(e: HeldEngine, second: Any, pools: Any = None) -> AsyncIterator[Running]:
    async with router(e, pools=pools) as r:
        r.server.classifier = SimpleNamespace(  # type: ignore[assignment]
            fast=lambda text: ("legal", 0.9) if "law" in text else ("general", 0.2),
            second=second, labels=["legal", "general", "medical"],
        )  # fmt: skip
        yield r


def text(words: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": words}]}


CLASSIFIED = "exaserve_router_classifications_total"
LAW = {"law": {"match": {"intents": ["legal"]}}, "med": {"match": {"intents": ["medical"]}}, "rest": {}}


@run
async def test_a_request_that_the_first_stage_knows_never_meets_the_second() -> None:
    async with with_intents(HeldEngine("answer"), SecondStage(None), LAW) as r:
        assert (await r.post(text("law")))[0] == 200
        assert r.counted(CLASSIFIED, "legal", "first") == r.counted(CLASSIFIED) == 1
        labels = [s.labels for s in r.server.metrics.snapshot(whole=True).series]
        assert labels == [("chat_completions", "m", "law", "legal", "")]


@pytest.mark.parametrize(
    ("found", "pool", "stage"),
    [(("medical", 0.8), "med", "second"), (None, "rest", "timeout"), (OSError("gone"), "rest", "timeout")],
)
def test_a_pool_that_needs_the_intent_holds_the_request_for_the_second_stage(
    found: Any, pool: str, stage: str
) -> None:
    async def go() -> None:
        e, second = HeldEngine("answer"), SecondStage(found)
        async with with_intents(e, second, LAW) as r:
            asked = await Asked.ask(r, text("?"))
            await until(lambda: any(c.exchange and c.exchange.pending for c in r.server.clients))
            assert e.requests == []
            second.turn.set()
            assert (await asked.answer())[0] == 200
            assert [s.labels[2] for s in r.server.metrics.snapshot(whole=True).series] == [pool]
            assert r.counted(CLASSIFIED) == 1
            assert r.counted(CLASSIFIED, "medical" if pool == "med" else "general", stage) == 1
            await at_rest(r)

    uvloop.run(go())


@run
async def test_without_such_a_pool_nobody_is_held_and_a_client_may_leave_meanwhile() -> None:
    e, second = HeldEngine("answer"), SecondStage(("medical", 0.8))
    async with with_intents(e, second) as r:
        assert (await r.post(text("?")))[0] == 200
    e, second = HeldEngine("answer"), SecondStage(("medical", 0.8))
    async with with_intents(e, second, LAW) as r:
        asked = await Asked.ask(r, text("?"))
        await until(lambda: any(c.exchange and c.exchange.pending for c in r.server.clients))
        asked.leave()
        await until(lambda: not r.server.clients)
        second.turn.set()
        await until(lambda: not r.server._tasks)
        assert e.requests == []
        await at_rest(r)


@run
async def test_the_configuration_says_whether_there_is_a_second_stage_and_how_long_it_may_take() -> None:
    async with router(HeldEngine("answer"), intent={"enabled": True, "second_stage": False}) as r:
        assert r.server.classifier is not None
        assert r.server.classifier.second is None
    async with router(HeldEngine("answer"), intent={"enabled": True, "time_limit": 0.5}) as r:
        assert r.server.classifier is not None
        assert r.server.classifier.second is not None
        assert r.server.classifier.second.time_limit == 0.5
