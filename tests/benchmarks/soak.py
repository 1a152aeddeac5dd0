"""Thousands of streams through ExaServe's router: what must not happen at 3,000, and at the limit of open files.

``many_streams`` keeps a number of streams open for a while and says what failed, how long ``/livez`` took and how
many files were open. ``at_the_file_limit`` gives the router too few files for its clients: those beyond must get an
answer or a closed connection, the others their streams, and the log must name the limit. The short version of both
that tests run is ``tests/serving/test_many_streams.py``.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import uvloop

from tests.benchmarks import clients, ours, peers, upstreams
from tests.benchmarks.limits import quantile
from tests.benchmarks.peers import Proxy

GAP = 0.25  # seconds between chunks: 3,000 streams are 12,000 chunks a second


class Livez(threading.Thread):
    """Asks ``/livez`` four times a second; ``seconds`` are the times of the answers, ``failed`` what was none."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(daemon=True)
        self.proxy = proxy
        self.seconds: list[float] = []
        self.failed: list[str] = []
        self.most_files = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.25):
            began = time.perf_counter()
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.proxy.start.admin_port, timeout=10)
                connection.request("GET", "/livez")
                answer = connection.getresponse()
                answer.read()
                connection.close()
                if answer.status != 200:
                    self.failed.append(f"status {answer.status}")
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(repr(error))
            self.seconds.append(time.perf_counter() - began)
            self.most_files = max(self.most_files, self.proxy.files())


def many_streams(
    proxy: Proxy, streams: int, seconds: float, tokens: int = 40, gap: float = GAP
) -> dict[str, Any]:
    """``streams`` open at any time for ``seconds``: one that ends is followed by the next.

    A stream has ``tokens`` chunks, one each ``gap`` seconds if the replicas keep up.
    """
    made = clients.requests(256, 600, proxy.start.keys, True, tokens)
    load = clients.Streams(proxy.port)
    livez = Livez(proxy)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds

        async def one_after_another(i: int) -> None:
            await asyncio.sleep(2.0 * i / streams)  # not all in the same instant
            while loop.time() < end:
                await load.whole_or_not(made[i % len(made)])

        async with asyncio.timeout(seconds + tokens * gap * 4 + 30):
            await asyncio.gather(*(one_after_another(i) for i in range(streams)))

    files = proxy.files()
    livez.start()
    began = time.monotonic()
    try:
        uvloop.run(run())
    except TimeoutError:
        load.note("streams that did not end in time")
        load.failed += len(load.open)
    took = time.monotonic() - began
    livez.ended.set()
    livez.join()
    time.sleep(1)
    return {
        "streams": streams,
        "seconds": round(took, 1),
        "whole": load.whole,
        "failed": load.failed,
        "errors": load.errors,
        "chunks_per_second": round(load.chunks / took),
        "livez_max_s": round(max(livez.seconds), 3),
        "livez_p90_s": round(quantile(livez.seconds, 0.9), 3),
        "livez_failed": livez.failed[:5],
        "files_before": files,
        "files_most": livez.most_files,
        "files_after": proxy.files(),
        "in_flight_after": ours.in_flight(proxy),
    }


def at_the_file_limit(
    urls: Sequence[str], cores: Iterable[int], limit: int = 1024, streams: int = 1000
) -> dict[str, Any]:
    """A router that may open ``limit`` files and ``streams`` clients; two files a stream are more than that."""
    with peers.running("exaserve", ours.everything, urls, cores, ours.ready, limit) as proxy:
        made = clients.requests(64, 600, proxy.start.keys, True, 50_000)
        load = clients.Streams(proxy.port)

        async def run() -> dict[str, Any]:
            async with asyncio.timeout(60):
                await load.start_all(made, streams)
                await asyncio.sleep(3)
            served = sum(s.begun for s in load.open)
            waiting = len(load.open) - served  # neither an answer nor a closed connection
            livez = await asyncio.to_thread(_alive, proxy)
            files = proxy.files()
            load.abort_all()
            await asyncio.sleep(2)
            return {
                "served": served,
                "hanging": waiting,
                "refused": load.failed,
                "livez": livez,
                "files": files,
            }

        found = uvloop.run(run())
        found["answered_503"] = load.errors.get("HTTP/1.1 503 Service Unavailable", 0)
        found["errors"] = load.errors
        again = clients.requests(8, 600, proxy.start.keys)
        try:
            found["serves_again"] = uvloop.run(clients.closed_loop(proxy.port, again, 64, 4)).done == 64
        except (clients.Refused, OSError, TimeoutError) as error:
            found["serves_again"] = str(error)[:200]
        lines = proxy.log.read_text(errors="replace").splitlines()
        named = [line for line in lines if str(limit) in line and ("open files" in line or "ulimit" in line)]
        return found | {"limit": limit, "log_lines": len(lines), "log_names_limit": named[:1]}


def _alive(proxy: Proxy) -> bool:
    try:
        return json.loads(ours.admin(proxy, "/livez"))["status"] == "alive"
    except (OSError, ValueError):
        return False


def soak(
    cores: Iterable[int], rest: Iterable[int], streams: int = 3000, seconds: float = 60
) -> dict[str, Any]:
    """Both, with routers and fake replicas of their own."""
    with upstreams.running(16, GAP, rest) as fakes:
        with peers.running("exaserve", ours.everything, fakes.urls, cores, ours.ready) as proxy:
            many = many_streams(proxy, streams, seconds)
        return {"many": many, "limit": at_the_file_limit(fakes.urls, cores)}
