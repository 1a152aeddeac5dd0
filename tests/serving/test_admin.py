"""The router as a process: its command line, admin API, metrics, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from exporters.catalog import CATALOG
from tests.fakes import FakeEngine
from tests.serving.routing import request, run, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def two_ports() -> tuple[int, int]:
    with socket.socket() as a, socket.socket() as b:
        a.bind(("127.0.0.1", 0))
        b.bind(("127.0.0.1", 0))
        return a.getsockname()[1], b.getsockname()[1]


class Process:
    def __init__(self, process: asyncio.subprocess.Process, port: int, admin: int) -> None:
        self.process = process
        self.port = port
        self.admin = f"http://127.0.0.1:{admin}"

    async def get(self, path: str, **kw: Any) -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await client.get(self.admin + path, **kw)


@asynccontextmanager
async def process(*engines: FakeEngine) -> AsyncIterator[Process]:
    for e in engines:
        await e.start()
    port, admin = two_ports()
    arguments = [x for i, e in enumerate(engines) for x in ("--replica", f"r{i}={e.url}")]
    p = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "serving.router",
            "--port",
            str(port),
            "--admin-port",
            str(admin),
            *arguments,
        ),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert p.stdout is not None
        assert b"router on http://127.0.0.1:" in await asyncio.wait_for(p.stdout.readline(), 30)
        yield Process(p, port, admin)
    finally:
        if p.returncode is None:
            p.kill()
            await p.wait()
        for e in engines:
            await e.kill()


async def ready(r: Process) -> None:
    async with asyncio.timeout(20):
        while (await r.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.05)


@run
async def test_the_admin_api_shows_fleet_discovery_and_readiness() -> None:
    async with process(FakeEngine(), FakeEngine()) as r:
        assert (await r.get("/livez")).json() == {"status": "alive"}
        await ready(r)
        fleet = (await r.get("/fleet")).json()
        assert [x["name"] for x in fleet["replicas"]] == ["r0", "r1"]
        assert set(fleet["replicas"][0]) == {
            *("name", "url", "model", "state", "since", "reason", "in_flight", "running", "waiting"),
            *("kv_usage", "probe_seconds", "consecutive_failures"),
        }
        assert set(fleet["router"]) == {"version", "uptime_seconds", "client_connections"}
        sd = (await r.get("/sd")).json()
        assert sd[0]["labels"]["replica"] == "r0"
        assert sd[0]["targets"][0].startswith("127.0.0.1:")


@run
async def test_the_metrics_page_has_what_the_catalogue_says_and_nothing_else() -> None:
    async with process(FakeEngine(), FakeEngine()) as r:
        await ready(r)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{r.port}") as client:
            for i in range(3):
                assert (
                    await client.post("/v1/chat/completions", json={**CHAT, "stream": i > 0})
                ).status_code == 200
            await client.post("/v1/chat/completions", json={})
            for i in range(50):  # names that clients choose must not become series
                await client.get(f"/made-up-{i}")
        page = (await r.get("/metrics")).text
        families = {f.name: f for f in text_string_to_metric_families(page)}
        for f in families.values():
            m = CATALOG[f.name + "_total" if f.type == "counter" else f.name]
            assert m.kind == f.type
            for s in f.samples:
                assert set(s.labels) - {"le"} == set(m.labels), s
        ours = {
            m.name.removesuffix("_total")
            for m in CATALOG.values()
            if m.name.startswith(("exaserve_router_", "exaserve_replica_"))
        }
        assert set(families) == ours
        counts = {
            (s.labels["route"], s.labels["code"]): s.value
            for s in families["exaserve_router_requests"].samples
        }
        assert counts == {
            ("chat_completions", "200"): 3,
            ("chat_completions", "400"): 1,
            ("other", "200"): 50,
        }
        (count,) = [
            s.value
            for s in families["exaserve_router_time_to_first_token_seconds"].samples
            if s.name.endswith("_count")
        ]
        assert count == 2
        assert (await r.get("/metrics", headers={"accept": "application/openmetrics-text"})).text.endswith(
            "# EOF\n"
        )


@run
async def test_sigterm_lets_a_stream_end_and_refuses_new_work() -> None:
    e = FakeEngine("stream")
    e.gap = 0.5
    async with process(e) as r:
        await ready(r)
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(request({**CHAT, "stream": True}))
        await until(lambda: e.open == 1)
        r.process.send_signal(signal.SIGTERM)
        body = await asyncio.wait_for(reader.read(), 20)
        assert body.endswith(b"0\r\n\r\n")
        assert b"[DONE]" in body
        assert await asyncio.wait_for(r.process.wait(), 20) == 0
        writer.close()


@run
async def test_sigterm_when_idle_ends_at_once() -> None:
    async with process(FakeEngine()) as r:
        await ready(r)
        _, writer = await asyncio.open_connection("127.0.0.1", r.port)
        started = time.monotonic()
        r.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(r.process.wait(), 20) == 0
        assert time.monotonic() - started < 8  # not the ten seconds that open streams get
        writer.close()


def test_bad_arguments_end_with_one_line_and_exit_code_2() -> None:
    for arguments, words in (
        (["--replica", "nonsense"], "http://HOST:PORT"),
        (["--replica", "http://x:1", "--port", "0"], "port"),
        (["--replica", "http://x:1", "--port", "x"], "port"),
        ([], "replica"),
    ):
        p = subprocess.run(
            [sys.executable, "-m", "serving.router", *arguments], capture_output=True, text=True
        )
        assert p.returncode == 2, p.stderr
        assert words in p.stderr
        assert "Traceback" not in p.stderr


def test_a_port_in_use_is_named_with_its_key_and_exit_code_1() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port, free = taken.getsockname()[1], two_ports()[0]
        for flags, key in (
            (["--port", str(port), "--admin-port", str(free)], "router.port"),
            (["--port", str(free), "--admin-port", str(port)], "router.admin_port"),
        ):
            p = subprocess.run(
                [sys.executable, "-m", "serving.router", "--replica", "http://127.0.0.1:1", *flags],
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert p.returncode == 1
            assert key in p.stderr
            assert str(port) in p.stderr
            assert "Traceback" not in p.stderr
