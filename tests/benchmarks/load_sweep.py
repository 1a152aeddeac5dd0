"""What it costs to read the load of a whole fleet once, by each way of asking for it.

    .venv/bin/python tests/benchmarks/load_sweep.py [--replicas 3072] [--sweeps 5]

The replicas' pages are a recorded one of vLLM 0.32, served by a process of its own from as many ports; measured is
the process that asks: CPU seconds and bytes read of one sweep, and its wall time with 256 questions open at once.
The last two rows are what the router does, spread over an interval of a second: only CPU and bytes matter there.
What a page costs the engine is not in it. vLLM 0.32 on one CPU core, its process, 200 questions each: whole page
4.8 ms, name[] of the lines 0.45 ms, /load 0.3 ms; an answer that carries the ORCA header 3 ms more than without.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import multiprocessing
import resource
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import uvloop

from serving.config_router import Router
from serving.fleet import load
from serving.fleet.ask import Asker
from serving.fleet.discovery import static
from serving.fleet.health import Health
from serving.fleet.replica import Replica
from serving.fleet.sweep import Sweep

PAGE = (Path(__file__).parents[1] / "fixtures" / "vllm-0.32.0-metrics.txt").read_bytes()
OPEN_AT_ONCE = 256


# --- the fleet ---


def short_page(names: list[str]) -> bytes:
    """The families of ``names`` alone, as prometheus_client renders them for ``name[]``."""
    lines, kept = PAGE.decode().splitlines(keepends=True), []
    for i, line in enumerate(lines):
        if line.split("{")[0] in names:
            kept += [x for x in lines[max(0, i - 2) : i] if x.startswith("#")] + [line]
    return "".join(kept).encode()


def answers() -> dict[bytes, bytes]:
    """Request line -> whole answer."""
    short = short_page(parse_qs(urlsplit(load.PAGES[0]).query)["name[]"])
    head = b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2029 00:00:00 GMT\r\nserver: uvicorn\r\n%scontent-length: %d\r\n"
    kind = b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n\r\n"

    def answer(body: bytes, more: bytes = b"") -> bytes:
        return head % (more, len(body)) + kind + body

    return {
        b"GET /metrics HTTP/1.1": answer(PAGE),
        b"GET /metrics/ HTTP/1.1": answer(gzip.compress(PAGE), b"content-encoding: gzip\r\n"),
        f"GET {load.PAGES[0]} HTTP/1.1".encode(): answer(short),
        b"GET /load HTTP/1.1": answer(b'{"server_load":14}'),
        b"GET /v1/models HTTP/1.1": answer(b'{"data":[{"id":"m"}]}'),
        b"POST /v1/completions HTTP/1.1": answer(b'{"choices":[{"text":"2"}]}'),
    }


class _Replica(asyncio.Protocol):
    answers = answers()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.answers[data[: data.index(b"\r\n")]])
        if b"connection: close" in data:
            self.transport.close()


def serve(n: int, pipe: Connection) -> None:
    """``n`` replicas in this process; their ports go into the pipe."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(_Replica, "127.0.0.1", 0, backlog=16) for _ in range(n)]
        pipe.send([s.sockets[0].getsockname()[1] for s in servers])
        await asyncio.Event().wait()

    raise_file_limit()
    uvloop.run(main())


def raise_file_limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# --- ways of asking ---


class Total:
    bytes_read = 0


def kept(path: str, asker: Asker, read: Callable[[bytes], object]) -> Callable[[Replica], Awaitable[None]]:
    """Over a kept connection."""

    async def ask(replica: Replica) -> None:
        status, body = await asker.ask(replica, "GET", path)
        assert status == 200
        read(body)

    return ask


async def anew(replica: Replica) -> None:
    """A connection each, the whole page."""
    reader, writer = await asyncio.open_connection(replica.host, replica.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    page = await reader.read(-1)
    Total.bytes_read += len(page)
    writer.transport.abort()
    assert load.read(page).tokens is not None


async def stopped(replica: Replica) -> None:
    """A connection each, closed as soon as the last of the lines has come."""
    reader, writer = await asyncio.open_connection(replica.host, replica.port, limit=4096)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    page = b""
    while b"\nvllm:generation_tokens_total{" not in page:
        page += await reader.read(4096)
    Total.bytes_read += len(page)
    writer.transport.abort()
    assert load.read(page).tokens is not None


async def sweep_once(replicas: list[Replica], ask: Callable[[Replica], Awaitable[None]]) -> None:
    left = iter(replicas)

    async def some() -> None:
        for replica in left:
            await ask(replica)

    await asyncio.gather(*(some() for _ in range(OPEN_AT_ONCE)))


async def measure(replicas: list[Replica], sweeps: int) -> list[tuple[str, float, float, float]]:
    """(way, CPU seconds, bytes, wall seconds) of one sweep."""
    rows = []
    ways: list[tuple[str, Callable[[Asker], Callable[[Replica], Awaitable[None]]]]] = [
        ("connection each, whole page", lambda _: anew),
        ("connection each, closed after the lines", lambda _: stopped),
        ("kept, whole page", lambda a: kept("/metrics", a, load.read)),
        ("kept, whole page in gzip", lambda a: kept("/metrics/", a, lambda b: load.read(gzip.decompress(b)))),
        ("kept, /load (no KV usage, no queue)", lambda a: kept("/load", a, json.loads)),
        ("kept, name[] of five lines", lambda a: kept(load.PAGES[0], a, load.read)),
    ]
    for name, way in ways:
        asker = Asker()
        ask = way(asker)
        await sweep_once(replicas, ask)  # opens what is kept
        asker.bytes_read = Total.bytes_read = 0
        cpu, wall = time.process_time(), time.monotonic()
        for _ in range(sweeps):
            await sweep_once(replicas, ask)
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        rows.append((name, cpu / sweeps, (asker.bytes_read + Total.bytes_read) / sweeps, wall / sweeps))
        asker.close()
        await asyncio.sleep(0.5)
    rows.append(await as_the_router(replicas, sweeps))
    rows.append(await with_probes(replicas, sweeps))
    return rows


async def as_the_router(replicas: list[Replica], seconds: int) -> tuple[str, float, float, float]:
    asker = Asker()
    sweep = Sweep(asker, 1.0, 12.0, lambda r: None, lambda r: None)
    for i, replica in enumerate(replicas):
        sweep.add(replica, i / len(replicas))
    task = asyncio.create_task(sweep.run())
    await asyncio.sleep(2)
    asker.bytes_read = 0
    cpu, wall = time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    task.cancel()
    size = len(_Replica.answers[f"GET {load.PAGES[0]} HTTP/1.1".encode()])
    sweeps = asker.bytes_read / size / len(replicas)
    asker.close()
    assert all(r.running == 14 and r.tokens for r in replicas)
    return "the router: name[] spread over 1 s", cpu / sweeps, asker.bytes_read / sweeps, wall / sweeps


async def with_probes(replicas: list[Replica], seconds: int) -> tuple[str, float, float, float]:
    """All that the poller does, per second."""
    health = Health(Router(), replicas)
    health.start()
    await asyncio.sleep(7)
    health.asker.bytes_read = 0
    cpu = time.process_time()
    await asyncio.sleep(seconds)
    cpu = time.process_time() - cpu
    out = [f"{r.name} {r.state} ({r.reason})" for r in replicas if not r.in_rotation]
    assert not out, out[:5]
    row = "the poller a second: and probes every 5 s", cpu / seconds, health.asker.bytes_read / seconds, 1.0
    await health.stop()
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=3072)
    parser.add_argument("--sweeps", type=int, default=5)
    options = parser.parse_args()
    raise_file_limit()
    ours, theirs = multiprocessing.Pipe()
    fleet = multiprocessing.get_context("spawn").Process(
        target=serve, args=(options.replicas, theirs), daemon=True
    )
    fleet.start()
    try:
        replicas = [static.parse(f"r{i}=http://127.0.0.1:{port}") for i, port in enumerate(ours.recv())]
        rows = uvloop.run(measure(replicas, options.sweeps))
    finally:
        fleet.terminate()
    print(f"one sweep of {options.replicas} replicas, page of {len(PAGE)} bytes")
    print(f"{'way':<42}{'CPU s':>8}{'µs each':>9}{'MB':>8}{'wall s':>8}")
    for name, cpu, size, wall in rows:
        each = cpu / options.replicas * 1e6
        print(f"{name:<42}{cpu:>8.3f}{each:>9.1f}{size / 1e6:>8.2f}{wall:>8.2f}")


if __name__ == "__main__":
    main()
