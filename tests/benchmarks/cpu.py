"""CPU time of a proxy per JSON request and per streamed chunk.

A round takes every proxy in turn under the same load, so that what the machine does meanwhile meets all of them;
the figure is the median of the rounds. Time is user and system time of all the proxy's processes and threads.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import uvloop

from tests.benchmarks import clients
from tests.benchmarks.peers import Proxy

#: A share of chunks that came in one read with others above which a round says little about single chunks.
MAX_BUNDLED = 0.05


class Spent(NamedTuple):
    """Seconds of CPU of a proxy: all of it but ``aside``, of its child processes, of the kernel in its name.

    aside: of the process that looks at what a classifier is not sure of, which no request has to wait for.
    """

    total: float
    workers: float
    kernel: float
    aside: float


@dataclass
class Cost:
    """One kind of work on one proxy, over the rounds. Microseconds of CPU per unit of work."""

    runs: list[float] = field(default_factory=list)
    worker_runs: list[float] = field(default_factory=list)  # the child processes' part of it
    kernel_runs: list[float] = field(default_factory=list)  # the kernel's part of it, to some 5 %
    aside_runs: list[float] = field(default_factory=list)  # of the second stage's process, not part of it
    rates: list[float] = field(default_factory=list)  # units a second
    busy: list[float] = field(default_factory=list)  # share of one core
    bundled: list[float] = field(default_factory=list)  # share of chunks that came with others
    failed: str = ""

    @property
    def median(self) -> float | None:
        return statistics.median(self.runs) if self.runs else None

    def add(self, cpu: Spent, units: int, seconds: float, bundled: float = 0.0) -> None:
        self.runs.append(cpu.total / units * 1e6)
        self.worker_runs.append(cpu.workers / units * 1e6)
        self.kernel_runs.append(cpu.kernel / units * 1e6)
        self.aside_runs.append(cpu.aside / units * 1e6)
        self.rates.append(units / seconds)
        self.busy.append(cpu.total / seconds)
        self.bundled.append(bundled)

    def view(self) -> dict[str, object]:
        """For --json."""
        if not self.runs:
            return {"failed": self.failed}
        return {
            "us": round(self.median or 0.0, 2),
            "low": round(min(self.runs), 2),
            "high": round(max(self.runs), 2),
            "runs": [round(x, 2) for x in self.runs],
            "workers_us": round(statistics.median(self.worker_runs), 2),
            "kernel_us": round(statistics.mean(self.kernel_runs), 2),
            "aside_us": round(statistics.median(self.aside_runs), 2),
            "per_second": round(statistics.median(self.rates)),
            "core_share": round(statistics.median(self.busy), 3),
            "bundled_share": round(max(self.bundled), 4),
            "failed": self.failed,
        }


def spent(proxy: Proxy, before: dict[int, tuple[float, float]]) -> Spent:
    """CPU since ``before``, which is an earlier ``proxy.cpu()``."""
    root, total, workers, kernel, aside = proxy.process.pid, 0.0, 0.0, 0.0, 0.0
    for pid, (seconds, system) in proxy.cpu().items():
        used = seconds - before.get(pid, (0.0, 0.0))[0]
        if proxy.is_aside(pid):
            aside += used
            continue
        total += used
        workers += used if pid != root else 0.0
        kernel += system - before.get(pid, (0.0, 0.0))[1]
    return Spent(total, workers, kernel, aside)


def json_round(
    cost: Cost, proxy: Proxy, made: Sequence[bytes], seconds: float, connections: int = 32
) -> None:
    """About ``seconds`` of requests over ``connections``, each of which asks again when it has its answer."""
    load = uvloop.run(clients.closed_loop(proxy.port, made, 400, connections))
    proxy.put_aside()
    count = max(400, int(seconds * load.done / load.seconds))
    before = proxy.cpu()
    load = uvloop.run(clients.closed_loop(proxy.port, made, count, connections))
    cost.add(spent(proxy, before), count, load.seconds)


def chunk_round(cost: Cost, proxy: Proxy, made: Sequence[bytes], seconds: float, streams: int = 256) -> None:
    """``streams`` open streams; only what comes while all of them are open is counted.

    Where the machine lets chunks pile up, so that one read brings several, the round is taken again, once.
    """
    for _ in range(2):
        cpu, chunks, took, bundled = uvloop.run(_chunks(proxy, made, seconds, streams))
        if bundled <= MAX_BUNDLED:
            break
    cost.add(cpu, chunks, took, bundled)


async def _chunks(
    proxy: Proxy, made: Sequence[bytes], seconds: float, streams: int
) -> tuple[Spent, int, float, float]:
    loop = asyncio.get_running_loop()
    load = clients.Streams(proxy.port)
    await load.start_all(made, streams)
    async with asyncio.timeout(30):
        while load.chunks < 3 * streams and not load.failed:
            await asyncio.sleep(0.02)
    before, chunks, bundled, began = proxy.cpu(), load.chunks, load.bundled, loop.time()
    await asyncio.sleep(seconds)
    cpu, took = spent(proxy, before), loop.time() - began
    chunks, bundled = load.chunks - chunks, load.bundled - bundled
    failed, still_open = load.failed, len(load.open)
    load.abort_all()
    await asyncio.sleep(0.3)
    if failed or still_open < streams or not chunks:
        raise clients.Refused(f"{failed} of {streams} streams failed, {still_open} were open: {load.errors}")
    return cpu, chunks, took, bundled / chunks


@dataclass
class Kind:
    """A kind of work: its name in the table and one round of it on one proxy."""

    name: str
    once: Callable[[Cost, Proxy], None]


def kinds(seconds: float, streams: int, wanted: Sequence[str]) -> list[Kind]:
    """What is measured, ``seconds`` at a time."""
    made = {size: _by_key(size) for size in (600, 3500)}
    streaming = _by_key(600, streaming=True, max_tokens=50_000)  # longer than any round: then it is aborted
    every = {
        "json": [
            Kind("json", lambda c, p: json_round(c, p, made[600](p), seconds)),
            Kind("json-3.5k", lambda c, p: json_round(c, p, made[3500](p), seconds)),
        ],
        "chunk": [Kind("chunk", lambda c, p: chunk_round(c, p, streaming(p), seconds, streams))],
    }
    return [kind for name in wanted for kind in every[name]]


def _by_key(size: int, streaming: bool = False, max_tokens: int = 64) -> Callable[[Proxy], list[bytes]]:
    """The requests for a proxy: made once for those that want keys and once for those that don't."""
    cache: dict[bool, list[bytes]] = {}

    def requests(proxy: Proxy) -> list[bytes]:
        keyed = bool(proxy.start.keys)
        if keyed not in cache:
            cache[keyed] = clients.requests(512, size, proxy.start.keys, streaming, max_tokens)
        return cache[keyed]

    return requests


def idle(proxy: Proxy, seconds: float, sleep: Callable[[float], None]) -> float:
    """Milliseconds of CPU a second that the proxy takes without any request."""
    before = proxy.cpu()
    sleep(seconds)
    return spent(proxy, before).total / seconds * 1e3
