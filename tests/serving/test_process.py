"""The router as processes, one worker: its command line, admin API, metrics, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time

import httpx
from prometheus_client.parser import text_string_to_metric_families

from exporters.catalog import CATALOG
from tests.fakes import FakeEngine
from tests.serving.router_process import CHAT, process, two_ports
from tests.serving.routing import request, run, until


@run
async def test_the_admin_api_shows_fleet_discovery_and_readiness() -> None:
    async with process(FakeEngine(), FakeEngine()) as r:
        assert (await r.get("/livez")).json() == {"status": "alive"}
        await r.ready()
        fleet = (await r.get("/fleet")).json()
        assert [x["name"] for x in fleet["replicas"]] == ["r0", "r1"]
        assert set(fleet["replicas"][0]) >= {
            *("name", "url", "model", "state", "since", "reason", "in_flight", "running", "waiting"),
            *("kv_usage", "probe_seconds", "consecutive_failures"),
        }
        assert set(fleet["router"]) == {"version", "uptime_seconds", "client_connections", "workers"}
        assert [p["name"] for p in fleet["pools"]] == ["default"]
        assert [w["state"] for w in (await r.get("/workers")).json()] == ["serving"]
        sd = (await r.get("/sd")).json()
        assert sd[0]["labels"]["replica"] == "r0"
        assert sd[0]["targets"][0].startswith("127.0.0.1:")


@run
async def test_the_metrics_page_has_what_the_catalogue_says_and_nothing_else() -> None:
    async with process(FakeEngine(), FakeEngine()) as r:
        await r.ready()
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
        counts: dict[tuple[str, str], float] = {}
        for s in families["exaserve_router_requests"].samples:
            key = (s.labels["route"], s.labels["code"])
            counts[key] = counts.get(key, 0) + s.value
        assert counts == {
            ("chat_completions", "200"): 3,
            ("chat_completions", "400"): 1,
            ("other", "200"): 50,
        }
        first_tokens = families["exaserve_router_time_to_first_token_seconds"].samples
        assert sum(s.value for s in first_tokens if s.name.endswith("_count")) == 2
        assert (await r.get("/metrics", headers={"accept": "application/openmetrics-text"})).text.endswith(
            "# EOF\n"
        )


@run
async def test_sigterm_lets_a_stream_end_and_refuses_new_work() -> None:
    e = FakeEngine("stream")
    e.gap = 0.5
    async with process(e) as r:
        await r.ready()
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(request({**CHAT, "stream": True}))
        await until(lambda: e.open == 1)
        r.process.send_signal(signal.SIGTERM)
        body = await asyncio.wait_for(reader.read(), 60)
        assert body.endswith(b"0\r\n\r\n")
        assert b"[DONE]" in body
        assert await asyncio.wait_for(r.process.wait(), 60) == 0
        writer.close()


@run
async def test_sigterm_when_idle_ends_at_once() -> None:
    async with process(FakeEngine()) as r:
        await r.ready()
        _, writer = await asyncio.open_connection("127.0.0.1", r.port)
        started = time.monotonic()
        r.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(r.process.wait(), 60) == 0
        assert time.monotonic() - started < 20  # not the 30 s that open streams get
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
                timeout=120,
            )
            assert p.returncode == 1
            assert key in p.stderr
            assert str(port) in p.stderr
            assert "Traceback" not in p.stderr
