"""What a router costs beyond CPU time: added latency, memory of open streams, what aborted streams leave behind."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import uvloop

from tests.benchmarks import clients, ours
from tests.benchmarks.cpu import spent
from tests.benchmarks.peers import Proxy

Say = Callable[[str], None]

# --- added latency ---


@dataclass
class Capacity:
    """The highest rate at which the router keeps up, requests a second, and what ended the search."""

    rate: float
    ended_by: str
    core_share: float


def capacity(proxy: Proxy, made: Sequence[bytes], seconds: float, say: Say) -> Capacity:
    """Open-loop steps of × 1.25 until one is not kept up with: too few answers, or a P99 above 50 ms."""
    load = uvloop.run(clients.closed_loop(proxy.port, made, 2000))
    rate, best, ended, share = 0.3 * load.done / load.seconds, 0.0, "the last step", 0.0
    for _ in range(12):
        before = proxy.cpu()
        load = clients.open_loop(proxy.port, made, rate, seconds)
        busy = spent(proxy, before).total / load.seconds
        late = quantile(load.lag, 0.99) if load.lag else 9.9
        p99 = quantile(load.latencies, 0.99) if load.latencies else 9.9
        say(
            f"capacity: {rate:.0f}/s offered, p99 {p99 * 1e3:.1f} ms, {busy:.0%} of a core, sent {late * 1e3:.1f} ms late"
        )
        if load.failed or p99 > 0.05 or load.seconds > seconds * 1.15:
            ended = "the router" if busy > 0.85 else "the client and the fake replicas"
            share = busy
            break
        best, share, rate = rate, busy, rate * 1.25
    return Capacity(best or rate, ended, share)


def quantile(values: Sequence[float], q: float) -> float:
    """The value at rank q, as it was measured."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def latency(
    ports: dict[str, int], made: Mapping[str, Sequence[bytes]], rate: float, seconds: float, rounds: int
) -> dict[str, dict[str, float]]:
    """P50 and P99 in milliseconds per target at ``rate`` a second: medians over rounds that take each in turn.

    ports: target -> port; the one named "direct" is what the others are compared with.
    """
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ports}
    for i in range(rounds):
        names = list(ports)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            load = clients.open_loop(ports[name], made[name], rate, seconds, seed=i + 1)
            if load.failed or not load.latencies:
                raise clients.Refused(f"{name}: {load.failed} failed: {load.first_error}")
            p50, p99 = quantile(load.latencies, 0.5), quantile(load.latencies, 0.99)
            found[name].append((p50 * 1e3, p99 * 1e3, quantile(load.lag, 0.99) * 1e3))
    rows = {
        name: dict(
            zip(("p50", "p99", "lag_p99"), map(statistics.median, zip(*runs, strict=True)), strict=True)
        )
        for name, runs in found.items()
    }
    for row in rows.values():
        row["added_p50"] = row["p50"] - rows["direct"]["p50"]
        row["added_p99"] = row["p99"] - rows["direct"]["p99"]
    return rows


# --- open streams ---


def open_streams(proxy: Proxy, made: Sequence[bytes], count: int) -> dict[str, Any]:
    """Memory while ``count`` streams are open, each with its first chunk out, and after they are gone.

    The replicas must hold their streams open (a long gap). Kernel memory of the sockets is not in it.
    """

    async def run() -> dict[str, Any]:
        warm = clients.Streams(proxy.port)
        await warm.start_all(made, 64)
        await asyncio.sleep(0.5)
        warm.abort_all()
        await asyncio.sleep(0.5)
        before, files = proxy.memory(), proxy.files()
        load, began = clients.Streams(proxy.port), time.monotonic()
        await load.start_all(made, count)
        while load.chunks < count and not load.failed and time.monotonic() < began + 60:
            await asyncio.sleep(0.1)
        opened = time.monotonic() - began
        await asyncio.sleep(1)
        during, most_files = proxy.memory(), proxy.files()
        streams, failed, errors = len(load.open), load.failed, dict(load.errors)
        load.abort_all()
        await asyncio.sleep(3)
        return {
            "streams": streams,
            "failed": failed,
            "errors": errors,
            "seconds_to_open": round(opened, 2),
            "kib_per_stream": round((during - before) / max(streams, 1) / 1024, 2),
            "mib_before": round(before / 2**20, 1),
            "mib_during": round(during / 2**20, 1),
            "mib_after": round(proxy.memory() / 2**20, 1),
            "files_before": files,
            "files_during": most_files,
            "files_after": proxy.files(),
        }

    return uvloop.run(run())


# --- aborted streams ---


@dataclass
class Left:
    """What the router holds at one moment."""

    aborted: int
    mib: float
    files: int
    in_flight: int


def aborted_streams(
    proxy: Proxy, made: Sequence[bytes], count: int, say: Say, at_once: int = 48
) -> dict[str, Any]:
    """``count`` clients that go away after their first chunk; what the router holds after 10 % and after all."""
    marks: list[Left] = []

    async def some(number: int) -> clients.Streams:
        load = clients.Streams(proxy.port, abort_at_first=True)
        left = number

        async def one_after_another() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await load.whole_or_not(made[left % len(made)])

        await asyncio.gather(*(one_after_another() for _ in range(at_once)))
        return load

    failed, done, began = 0, 0, time.monotonic()
    errors: dict[str, int] = {}
    for share in (0.1, 0.4, 0.7, 1.0):
        load = uvloop.run(some(int(count * share) - done))
        done = int(count * share)
        failed += load.failed
        errors |= load.errors
        time.sleep(2)
        marks.append(Left(done, round(proxy.memory() / 2**20, 2), proxy.files(), ours.in_flight(proxy)))
        say(
            f"aborts: {done} of {count}, {marks[-1].mib} MiB, {marks[-1].files} files, {marks[-1].in_flight} in flight"
        )
    return {
        "aborted": count,
        "failed": failed,
        "errors": errors,
        "seconds": round(time.monotonic() - began, 1),
        "marks": [asdict(m) for m in marks],
        "growth_mib": round(marks[-1].mib - marks[0].mib, 2),
        "growth_files": marks[-1].files - marks[0].files,
        "in_flight": marks[-1].in_flight,
    }
