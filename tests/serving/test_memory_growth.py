"""Nothing is left of clients that went away: no object, no memory, no count. EXASERVE_ABORTED sets how many."""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
from collections import Counter
from typing import Any

from serving.router.client import Client
from serving.router.exchange import Exchange
from serving.router.hedge import Hedge
from serving.router.upstream import Upstream
from tests.fakes import FakeEngine
from tests.serving.invariants import check_rest
from tests.serving.routing import Running, request, router, run, until

ABORTED = int(os.environ.get("EXASERVE_ABORTED", "2000"))
AT_ONCE = 40
STREAM = request({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]})
WHOLE = request({"model": "m", "messages": [{"role": "user", "content": "x" * 70_000}]})


def objects() -> Counter[str]:
    gc.collect()
    kinds = (Client, Exchange, Hedge, Upstream)
    return Counter(type(o).__name__ for o in gc.get_objects() if isinstance(o, kinds))


async def abort_some(running: Running, number: int) -> None:
    """Clients that leave: before the body is whole, before the answer, in the middle of it, one after reading."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    if number % 4 == 0:
        writer.write(WHOLE[:30_000])
    elif number % 4 == 1:
        writer.write(WHOLE)
    else:
        writer.write(STREAM)
        await reader.readuntil(b"Par")
    if number % 8 < 4:
        await asyncio.sleep(0)
    writer.transport.abort()


async def abort_many(running: Running, count: int) -> None:
    for first in range(0, count, AT_ONCE):
        await asyncio.gather(*(abort_some(running, n) for n in range(first, first + AT_ONCE)))
    await until(lambda: not running.server.clients)
    await until(lambda: not running.server._tasks)
    await until(lambda: not any(e.open for e in running.engines))
    for e in running.engines:
        e.requests.clear()
        e.heads.clear()


@run
async def test_aborted_requests_leave_no_object_and_no_memory() -> None:
    engines = [FakeEngine("endless"), FakeEngine("endless")]
    settings: Any = {"retry": {"hedge_after": 0.02}, "max_request_time": 60}
    async with router(*engines, request_timeout=5, **settings) as running:
        await abort_many(running, 400)  # caches and pools of the interpreter fill up
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            await abort_many(running, ABORTED)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        idle = sum(len(r.idle) for r in running.server.replicas)
        assert objects() == Counter({"Upstream": idle} if idle else {})
        check_rest(running.server, running.server.replicas)
        assert after - before < ABORTED * 50, f"{(after - before) / ABORTED:.0f} bytes a request"


@run
async def test_a_client_that_does_not_read_is_not_answered_into_memory() -> None:
    """Answers that are small enough to be complete before the router notices; request after request."""
    engine = FakeEngine("large")

    async def large(_: object, writer: asyncio.StreamWriter) -> bool:
        return await engine._send(writer, b'{"x":"' + b"y" * 200_000 + b'"}')

    engine._large = large  # type: ignore[attr-defined]
    async with router(engine, send_timeout=0.4) as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=2**16)
        await until(lambda: running.server.clients)
        client = next(iter(running.server.clients))
        most = 0
        try:
            for _ in range(200):
                writer.write(STREAM)
                await asyncio.sleep(0.003)
                if client.transport is not None:
                    most = max(most, client.transport.get_write_buffer_size())
        except (ConnectionError, RuntimeError):
            pass
        assert most < 2**20
        await until(lambda: not running.server.clients)  # cut by send_timeout
        writer.transport.abort()
