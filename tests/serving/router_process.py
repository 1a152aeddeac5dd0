"""The router as the processes that users run, in front of fake replicas."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import free_ports
from tests.fakes import FakeEngine

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def two_ports() -> tuple[int, int]:
    first = free_ports(2)
    return first, first + 1


class Process:
    """lines: what it has said so far, both outputs."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, admin: int) -> None:
        self.process = process
        self.port = port
        self.admin = f"http://127.0.0.1:{admin}"
        self.lines: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.lines.append(line.decode().rstrip("\n"))

    def said(self, words: str) -> bool:
        return any(words in line for line in self.lines)

    async def says(self, words: str, seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not self.said(words):
                assert not self._reader.done() or self.said(words), self.lines
                await asyncio.sleep(0.02)

    async def get(self, path: str, **kw: Any) -> httpx.Response:
        async with httpx.AsyncClient(timeout=60) as client:
            return await client.get(self.admin + path, **kw)

    async def post(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(timeout=60) as client:
            return await client.post(self.admin + path)

    async def total(self, name: str, **labels: str) -> float:
        """Sum of the samples of that name whose labels include these."""
        page = (await self.get("/metrics")).text
        return sum(
            s.value
            for family in text_string_to_metric_families(page)
            for s in family.samples
            if s.name == name and labels.items() <= s.labels.items()
        )

    async def until(self, seconds: float, condition: Any) -> None:
        """``condition`` is an async function of no arguments."""
        async with asyncio.timeout(seconds):
            while not await condition():
                await asyncio.sleep(0.05)

    async def ready(self, replicas: int = 1) -> None:
        async def enough() -> bool:
            answer = await self.get("/readyz")
            return answer.status_code == 200 and answer.json()["replicas_in_rotation"] >= replicas

        await self.until(60, enough)


@asynccontextmanager
async def process(
    *engines: FakeEngine, options: Sequence[str] = (), named: bool = True
) -> AsyncIterator[Process]:
    """``exaserve router`` over these engines (r0, r1, …) and with these options, listening."""
    for e in engines:
        if not e.port:
            await e.start()
    port, admin = two_ports()
    replicas = [x for i, e in enumerate(engines) for x in ("--replica", f"r{i}={e.url}")] if named else []
    p = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "serving.router", "--port", str(port), "--admin-port", str(admin)),
        *(*replicas, *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    running = Process(p, port, admin)
    try:
        await running.says("router on http")
        yield running
    finally:
        if p.returncode is None:
            p.kill()
            await p.wait()
        for e in engines:
            await e.kill()
