"""A router in this process, in front of fake replicas; raw clients for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from serving.config import Config
from serving.fleet import probe
from serving.fleet.discovery import static
from serving.router import server, websocket
from serving.router.link import LocalLink, number
from serving.router.server import Server
from serving.router.shared import Counts
from tests.fakes import FakeEngine
from tests.serving.on_loop import run, until

__all__ = ["FAST", "STRICT", "Running", "read_answer", "request", "router", "run", "until"]

#: Replicas are asked often, and judged late: a probe, a silence, a client's pause of some seconds may be this machine's
#: own, which has other things to do.
FAST: dict[str, Any] = {
    "health_check_interval": 0.3,
    "probe_timeout": 20,
    "degraded_after": 15,
    "silence_timeout": 20,
    "load_interval": 0.1,
    "request_timeout": 20,
    "admission": {"max_wait": 60},
}
#: For tests of how replicas are judged.
STRICT: dict[str, Any] = {"probe_timeout": 0.5, "silence_timeout": 0.6}
server.CONNECT_SECONDS = websocket.CONNECT_SECONDS = probe.PAGE_SECONDS = 20.0  # as patient as FAST


class Running:
    def __init__(self, server: Server, port: int, engines: list[FakeEngine]) -> None:
        self.server = server
        self.port = port
        self.engines = engines

    @property
    def health(self) -> Any:
        return self.server.link.health  # type: ignore[union-attr]

    def counted(self, name: str, *labels: str) -> float:
        """A counter of the data plane, over all labels after the given ones."""
        found = self.server.metrics.snapshot().counters
        return sum(v for n, have, v in found if n == name and have[: len(labels)] == labels)

    def replica(self, i: int = 0) -> Any:
        return self.server.replicas[i]

    async def raw(self, data: bytes, timeout: float = 30) -> bytes:
        """Send these bytes, read until the router closes (or has answered and idles)."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            return await asyncio.wait_for(read_answer(reader), timeout)
        finally:
            writer.transport.abort()

    async def post(
        self, body: Any, path: str = "/v1/chat/completions", extra: str = ""
    ) -> tuple[int, bytes, bytes]:
        """(status, head, body) of a POST."""
        answer = await self.raw(request(body, path, extra))
        head, _, content = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), head.lower(), content


def request(body: Any, path: str = "/v1/chat/completions", extra: str = "", method: str = "POST") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\n{extra}content-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """One answer, whole, framed by Content-Length, chunks or close."""
    head = b""
    while not head or head.startswith(b"HTTP/1.1 100"):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as e:
            return e.partial
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        body = b""
        try:
            while not body.endswith(b"0\r\n\r\n"):
                size = await reader.readline()
                body += size + await reader.readexactly(int(size, 16) + 2)
        except (asyncio.IncompleteReadError, ValueError) as e:
            body += getattr(e, "partial", b"")
        return head + body
    if b"content-length:" in lower:
        n = int(lower.split(b"content-length:")[1].split(b"\r\n")[0])
        try:
            return head + await reader.readexactly(n)
        except asyncio.IncompleteReadError as e:
            return head + e.partial
    return head + await reader.read()


@asynccontextmanager
async def router(
    *engines: FakeEngine, wait: bool = True, pools: Any = None, tenants: Any = None, **settings: Any
) -> AsyncIterator[Running]:
    """A data plane and Health in this process; settings are those of the router section."""
    for e in engines:
        if not e.port:
            await e.start()
    replicas = [static.parse(f"r{i}={e.url}") for i, e in enumerate(engines)]
    number(replicas)
    config = Config.model_validate(
        {"router": FAST | settings, "pools": pools or {}, "tenants": {"file": tenants}}
    )
    link = LocalLink()
    plane = Server(config, replicas, link, Counts.local())
    link.attach(plane)
    listener = await asyncio.get_running_loop().create_server(plane.new_client, "127.0.0.1", 0)
    link.health.start()
    sweeper = asyncio.create_task(plane.expire_clients())
    running = Running(plane, listener.sockets[0].getsockname()[1], list(engines))
    try:
        if wait:
            await until(lambda: all(r.state == "ready" for r in replicas))
        yield running
    finally:
        listener.close()
        sweeper.cancel()
        for c in list(plane.clients):
            c.abort()
        await plane.close()
        await link.stop()
        for e in engines:
            await e.kill()
