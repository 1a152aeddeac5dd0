"""Several workers behind one port: what they share, and what becomes of it when one dies or stands still."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.fakes import FakeEngine
from tests.serving.held_engine import HeldEngine
from tests.serving.router_process import CHAT, Process, process
from tests.serving.routing import request, run, until

STREAM = {**CHAT, "stream": True}


@asynccontextmanager
async def streams(r: Process, n: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """So many open streams, each with a first byte."""
    opened = [await asyncio.open_connection("127.0.0.1", r.port) for _ in range(n)]
    try:
        for _, writer in opened:
            writer.write(request(STREAM))
        for reader, _ in opened:
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).startswith(b"HTTP/1.1 200")
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.transport.abort()


@asynccontextmanager
async def configured(text: str, *engines: FakeEngine) -> AsyncIterator[tuple[Process, Path]]:
    """A router with a configuration file of this text, and the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exaserve.yaml"
        path.write_text(text)
        async with process(*engines, options=["--config", str(path)]) as r:
            yield r, path


def rewrite(path: Path, text: str) -> None:
    new = path.with_name("new")
    new.write_text(text)
    os.replace(new, path)


def gone(p: psutil.Process) -> bool:
    try:
        return not p.is_running() or p.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def open_requests(r: Process) -> list[int]:
    return [w["open_requests"] for w in (await r.get("/workers")).json()]


async def in_flight(r: Process) -> list[int]:
    return [x["in_flight"] for x in (await r.get("/fleet")).json()["replicas"]]


async def pids(r: Process) -> list[int]:
    return [w["pid"] for w in (await r.get("/workers")).json()]


@run
async def test_a_killed_worker_is_replaced_and_its_counts_disappear_while_the_other_goes_on() -> None:
    a, b = FakeEngine("endless"), FakeEngine("endless")
    async with process(a, b, options=["--workers", "2"]) as r:
        await r.ready(2)
        async with streams(r, 24) as readers:

            async def all_counted() -> bool:
                return sum(await in_flight(r)) == 24 and sum(await open_requests(r)) == 24

            await r.until(60, all_counted)
            first, second = await open_requests(r)
            assert first > 0, "the kernel spread 24 connections over one socket: one in 2^23"
            assert second > 0
            assert abs(a.open - b.open) <= 2, "each worker counts the other's requests"
            done = await r.total("exaserve_replica_requests_total")
            victim = (await pids(r))[0]
            os.kill(victim, signal.SIGKILL)

            async def replaced() -> bool:
                found = (await r.get("/workers")).json()[0]
                return found["state"] == "serving" and found["pid"] != victim

            await r.until(60, replaced)
            assert await open_requests(r) == [0, second]
            assert sum(await in_flight(r)) == second
            assert await r.total("exaserve_replica_in_flight_requests") == second
            await until(lambda: a.open + b.open == second)  # the engines were told
            alive = sum(await asyncio.gather(*(goes_on(reader) for reader in readers)))
            assert alive == second
            assert await r.total("exaserve_router_worker_restarts_total", why="died", worker="0") == 1
            assert await r.total("exaserve_replica_requests_total") >= done
            assert r.said("worker 0 ended: signal SIGKILL")
        a.script = b.script = ["answer"]
        answers = await asyncio.gather(*(ask(r) for _ in range(8)))
        assert answers == [200] * 8


async def goes_on(reader: asyncio.StreamReader) -> bool:
    """Whether a stream has not ended after a second of reading what comes."""
    try:
        async with asyncio.timeout(1):
            while await reader.read(65536):
                pass
    except TimeoutError:
        return True
    except ConnectionError:
        pass
    return False


async def ask(r: Process, body: Any = CHAT) -> int:
    """Status of one request over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
    writer.write(request(body, extra="connection: close\r\n"))
    head = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return int(head.split()[1])


@run
async def test_counters_do_not_fall_when_a_worker_dies() -> None:
    async with process(FakeEngine(), options=["--workers", "2"]) as r:
        await r.ready()
        assert await asyncio.gather(*(ask(r) for _ in range(20))) == [200] * 20
        assert await r.total("exaserve_router_requests_total", code="200") == 20, "right at once"
        for pid in await pids(r):
            os.kill(pid, signal.SIGKILL)
        await r.says("worker 0 serves again")
        await r.says("worker 1 serves again")
        assert await ask(r) == 200
        assert await r.total("exaserve_router_requests_total", code="200") == 21


@run
async def test_drain_waits_for_open_streams_of_all_workers_and_undo_ends_it() -> None:
    a, b = FakeEngine("endless"), FakeEngine("endless")
    async with process(a, b, options=["--workers", "2"]) as r:
        await r.ready(2)

        def drain(*more: str) -> Any:
            argv = [sys.executable, "-m", "serving.cli", "drain", "r0", "--admin", r.admin, *more]
            return asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

        async with streams(r, 12):
            waits = await drain("--timeout", "60")
            lines = [(await asyncio.wait_for(waits.stdout.readline(), 60)).decode()]
            assert "in flight" in lines[0]
            before = b.open
            async with streams(r, 4):
                assert b.open == before + 4, "new requests go to the other one"
            late = await drain("--timeout", "0")
            assert await asyncio.wait_for(late.wait(), 60) == 1
        assert await asyncio.wait_for(waits.wait(), 60) == 0
        assert b"r0 is drained" in await waits.stdout.read()
        undo = await drain("--undo")
        assert await asyncio.wait_for(undo.wait(), 60) == 0

        async def back() -> bool:
            states = [x["state"] for x in (await r.get("/fleet")).json()["replicas"]]
            assert "draining" not in states
            return states == ["ready", "ready"]

        await r.until(60, back)  # not degraded, where a probe took long


@run
async def test_a_second_sigterm_ends_everything_at_once() -> None:
    e = FakeEngine("endless")
    async with process(e, options=["--workers", "2"]) as r:
        await r.ready()
        family = psutil.Process(r.process.pid).children()
        async with streams(r, 2):
            r.process.send_signal(signal.SIGTERM)
            await r.says("stopping")
            assert (await r.get("/readyz")).status_code == 503

            async def refused() -> bool:
                """Each worker closes its port when it hears of it."""
                try:
                    (await asyncio.open_connection("127.0.0.1", r.port))[1].close()
                except ConnectionRefusedError:
                    return True
                except ConnectionError:
                    pass
                return False

            await r.until(60, refused)
            r.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(r.process.wait(), 25) == 0  # not the 30 s that open streams get
        await until(lambda: all(map(gone, family)))


@run
async def test_streams_that_outlast_the_drain_are_cut_and_counted() -> None:
    e = FakeEngine("endless")
    async with configured("router: {drain_timeout: 0.3, workers: 2}", e) as (r, _):
        await r.ready()
        async with streams(r, 3):
            r.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(r.process.wait(), 60) == 0
            await r.says("stopped, 3 requests cut")


@run
async def test_workers_of_a_dead_master_end_though_nobody_reads_what_they_say() -> None:
    async with process(FakeEngine(), options=["--workers", "2"]) as r:
        await r.ready()
        family = psutil.Process(r.process.pid).children()
        r.process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        r.process.kill()
        await r.process.wait()
        await until(lambda: all(map(gone, family)), 60)


@run
async def test_workers_of_a_dead_master_finish_their_streams_and_leave_the_port() -> None:
    e = FakeEngine("stream")
    e.gap = 0.5
    async with process(e, options=["--workers", "2"]) as r:
        await r.ready()
        family = psutil.Process(r.process.pid).children()
        async with streams(r, 4) as readers:
            r.process.kill()
            await r.process.wait()
            with socket.socket() as again:
                again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

                def left() -> bool:
                    try:
                        again.bind(("127.0.0.1", r.port))
                    except OSError:
                        return False
                    return True

                await until(left)
            for reader in readers:
                assert (await asyncio.wait_for(reader.readuntil(b"[DONE]"), 60)).endswith(b"[DONE]")
        await until(lambda: all(map(gone, family)), 60)


@run
async def test_a_changed_file_reaches_every_worker_and_a_bad_one_none() -> None:
    async with configured("router: {workers: 2, max_body_bytes: 65536}", FakeEngine()) as (r, path):
        await r.ready()
        large = {**CHAT, "user": "x" * 200_000}
        assert await asyncio.gather(*(ask(r, large) for _ in range(8))) == [413] * 8
        rewrite(path, "router: {workers: 3, max_body_bytes: 1048576}")
        await r.says("router.max_body_bytes: 65536 -> 1048576")
        await r.says("not taken before a restart: router.workers")
        assert await asyncio.gather(*(ask(r, large) for _ in range(8))) == [200] * 8
        reloaded = await r.total("exaserve_router_config_last_reload_success_timestamp_seconds")
        rewrite(path, "router: {max_body_bytes: 1}")
        await r.says("not reloaded, what ran before goes on")
        await r.says("router.max_body_bytes")
        assert await r.total("exaserve_router_config_last_reload_successful") == 0
        assert await ask(r, large) == 200
        rewrite(path, "router: {workers: 2, max_body_bytes: 1048576}")
        r.process.send_signal(signal.SIGHUP)

        async def well() -> bool:
            return await r.total("exaserve_router_config_last_reload_successful") == 1

        await r.until(60, well)
        assert await r.total("exaserve_router_config_last_reload_success_timestamp_seconds") > reloaded
        os.kill((await pids(r))[0], signal.SIGKILL)
        await r.says("worker 0 serves again")
        assert await asyncio.gather(*(ask(r, large) for _ in range(8))) == [200] * 8, "a new one has it too"


@run
async def test_a_unix_socket_serves_beside_the_port_and_is_removed_at_the_end() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "router.sock"
        text = f"router: {{workers: 2, unix_socket: '{path}'}}"
        async with configured(text, FakeEngine()) as (r, _):
            await r.ready()
            for _ in range(4):
                reader, writer = await asyncio.open_unix_connection(str(path))
                writer.write(request(CHAT, extra="connection: close\r\n"))
                assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 200")
                writer.close()
            assert await ask(r) == 200
            r.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(r.process.wait(), 60) == 0
            assert not path.exists()


@run
async def test_replicas_come_and_go_without_a_lost_request() -> None:
    a, b = FakeEngine("stream"), FakeEngine("stream")
    a.gap = b.gap = 0.3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replicas.yaml"
        await a.start()
        await b.start()
        path.write_text(f"- {{name: r0, url: '{a.url}'}}\n")
        options = ["--workers", "2", "--replicas-file", str(path)]
        async with process(a, b, options=options, named=False) as r:
            await r.ready()
            stopping = asyncio.Event()
            statuses: list[int] = []

            async def load() -> None:
                while not stopping.is_set():
                    statuses.append(await ask(r, CHAT))

            async with streams(r, 4) as readers:
                a.script = b.script = ["answer"]
                tasks = [asyncio.create_task(load()) for _ in range(4)]
                rewrite(path, f"- {{name: r1, url: '{b.url}'}}\n")
                await r.says("replicas: 1 added, 0 leave, 2 in all")  # until the new one is ready
                await r.says("replicas: 0 added, 1 leave, 1 in all")
                for reader in readers:
                    assert (await asyncio.wait_for(reader.readuntil(b"[DONE]"), 60)).endswith(b"[DONE]")
                await r.says("replica r0 has left")
                await until(lambda: len(b.requests) > 4)
                stopping.set()
                await asyncio.gather(*tasks)
            assert set(statuses) == {200}
            page = (await r.get("/metrics")).text
            assert 'replica="r1"' in page
            assert 'replica="r0"' not in page
            rewrite(path, "nonsense")
            await r.says("replicas not reloaded")
            assert await ask(r) == 200


@run
async def test_a_replica_that_refused_one_request_is_asked_again_though_its_load_is_what_it_was() -> None:
    """An idle replica's load is told to workers only when it changes."""
    once, other = HeldEngine("status_429", "answer"), HeldEngine("held")
    async with process(once, other) as r:
        await r.ready(2)
        tasks: list[asyncio.Task[int]] = []

        async def asked_again() -> bool:
            tasks.append(asyncio.create_task(ask(r)))
            await asyncio.sleep(0.1)
            return len(once.requests) >= 3  # the refused one, and then usual ones

        await r.until(60, asked_again)
        other.let(len(tasks))
        assert set(await asyncio.gather(*tasks)) == {200}
