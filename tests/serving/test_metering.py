"""Tenants and the audit log as requests through the router meet them: what each costs, and the line it leaves."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import uvloop
import yaml

from tests.serving.held_engine import CHAT, STREAM, USAGE, Asked, HeldEngine, at_rest, code_of
from tests.serving.routing import Running, read_answer, request, router, until

KEY = "authorization: Bearer acme\r\n"
WITH_USAGE = {**STREAM, "stream_options": {"include_usage": True}}
SECRET = "nobody-may-read-this"
NO_EJECTION = {"enabled": False}


def tenants_file(folder: Path, **limits: Any) -> str:
    """One tenant, acme, whose key is its name."""
    file = folder / "tenants.yaml"
    entry = {"name": "acme", "keys": [hashlib.sha256(b"acme").hexdigest()], **limits}
    file.write_text(yaml.safe_dump({"tenants": [entry]}))
    return str(file)


def numbers(head: bytes) -> dict[str, int]:
    """x-ratelimit-…: in requests, tokens and milliseconds."""
    lines = [x.decode().partition(": ") for x in head.split(b"\r\n") if x.startswith(b"x-ratelimit")]
    return {name.removeprefix("x-ratelimit-"): int(value.removesuffix("ms")) for name, _, value in lines}


# --- tenants ---


def test_without_a_key_there_is_a_401_that_openai_clients_understand(tmp_path: Path) -> None:
    async def go() -> None:
        e = HeldEngine("answer")
        async with router(e, tenants=tenants_file(tmp_path)) as r:
            for extra in (
                "",
                "authorization: Bearer wrong\r\n",
                "authorization: acme\r\n",
                "x-api-key: no\r\n",
            ):
                for body in (CHAT, {**CHAT, "pad": "x" * 200_000}):
                    status, head, content = await r.post(body, extra=extra)
                    error = json.loads(content)["error"]
                    assert (status, error["code"]) == (401, "invalid_api_key")
                    assert b'\r\nwww-authenticate: bearer realm="exaserve"' in head
            assert (await r.raw(request(b"", "/v1/models", method="GET"))).startswith(b"HTTP/1.1 401")
            assert e.requests == []
            assert (await r.post(CHAT, extra="x-api-key: acme\r\n"))[0] == 200
            await at_rest(r)

    uvloop.run(go())


def test_a_replica_gets_the_routers_token_and_never_the_tenants_key(tmp_path: Path) -> None:
    async def go() -> None:
        token = tmp_path / "token"
        token.write_text("t0ken\n")
        e = HeldEngine("answer")
        settings = {"replica_token_file": str(token)}
        async with router(e, tenants=tenants_file(tmp_path), **settings) as r:
            reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
            for extra in (
                KEY,
                KEY,
                f"X-Api-Key: acme\r\n{KEY}",
                KEY + KEY,
                KEY + "Authorization: Bearer acme\r\n",
            ):
                writer.write(request(CHAT, extra=extra))
                assert (await read_answer(reader)).startswith(b"HTTP/1.1 200")
            writer.write(request(b"", "/v1/files", extra=KEY, method="GET"))
            assert (await read_answer(reader)).startswith(b"HTTP/1.1 200")
            assert len(e.requests) == 6
            for _, headers, _ in e.requests:
                assert headers["authorization"] == "Bearer t0ken"
                assert "x-api-key" not in headers
                assert not any("acme" in v for v in headers.values())
            assert all(head.count(b"uthorization") == 1 for head in e.heads[-6:])
            writer.close()

    uvloop.run(go())


def test_a_tenants_file_that_changes_counts_on_connections_that_are_open(tmp_path: Path) -> None:
    async def go() -> None:
        file = tenants_file(tmp_path)
        async with router(HeldEngine("answer"), tenants=file) as r:
            reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
            statuses = []
            for key in ("acme", "acme", "other"):
                tenant = {"name": "acme", "keys": [hashlib.sha256(key.encode()).hexdigest()]}
                Path(file).write_text(yaml.safe_dump({"tenants": [tenant]}))
                r.server.apply_tenants()
                writer.write(request(CHAT, extra=KEY))
                statuses.append((await read_answer(reader))[9:12])
            assert statuses == [b"200", b"200", b"401"]
            writer.close()

    uvloop.run(go())


def test_rates_are_kept_and_told_and_429_says_when_to_come_back(tmp_path: Path) -> None:
    async def go() -> None:
        e = HeldEngine("answer")
        file = tenants_file(tmp_path, requests_per_minute=3, tokens_per_minute=100_000)
        async with router(e, tenants=file) as r:
            left = []
            for _ in range(3):
                status, head, _ = await r.post(CHAT, extra=KEY)
                assert status == 200
                found = numbers(head)
                assert (found["limit-requests"], found["limit-tokens"]) == (3, 100_000)
                left.append(found["remaining-requests"])
            assert left == [2, 1, 0]
            status, head, body = await r.post(CHAT, extra=KEY)
            assert (status, code_of(body)) == (429, "rate_limit_exceeded")
            assert b"\r\nretry-after: " in head
            assert numbers(head)["remaining-requests"] == 0
            assert r.counted("exaserve_router_rate_limited_requests_total", "acme", "requests") == 1
            assert (
                r.counted("exaserve_router_rejected_requests_total", "tenant_requests", "default", "acme")
                == 1
            )
            assert len(e.requests) == 3
            await at_rest(r)

    uvloop.run(go())


@pytest.mark.parametrize(("how", "body"), [("usage", CHAT), ("usage_stream", WITH_USAGE)])
def test_the_engines_usage_is_what_a_tenant_pays(tmp_path: Path, how: str, body: Any) -> None:
    async def go() -> None:
        async with router(HeldEngine(how), tenants=tenants_file(tmp_path, tokens_per_minute=10_000)) as r:
            budget = r.server.tenants.by_name["acme"].budget
            for n in range(1, 4):
                budget._at = float("inf")  # no refill
                assert (await (await Asked.ask(r, body, KEY)).answer())[0] == 200
                await at_rest(r)
                assert budget.tokens == 10_000 - n * (USAGE["prompt_tokens"] + USAGE["completion_tokens"])

    uvloop.run(go())


def test_what_the_router_could_not_serve_costs_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        e = HeldEngine("answer")
        e.metrics["usage"] = 1.0
        file = tenants_file(tmp_path, tokens_per_minute=10_000, requests_per_minute=10)
        async with router(e, tenants=file, admission={"max_waiting": 0}) as r:
            await until(lambda: r.replica().kv_usage == 1.0)
            budget = r.server.tenants.by_name["acme"].budget
            budget._at = float("inf")
            assert (await r.post(CHAT, extra=KEY))[0] == 503
            assert (budget.tokens, budget.requests, budget.in_flight) == (10_000, 10, 0)

    uvloop.run(go())


ENDINGS = {
    "answer": "ok", "usage": "ok", "status_500": "error", "status_404": "ok", "reset": "rejected", "die_mid_stream": "cut",
    "die_mid_chunk": "cut", "deadline": "rejected", "deadline_stream": "cut", "leave": "aborted", "leave_stream": "aborted",
    "bad": "rejected", "waited_out": "rejected",
}  # fmt: skip


async def end(r: Running, e: HeldEngine, how: str) -> None:
    """One request that ends so."""
    extra, body = KEY, {**STREAM, "messages": [{"role": "user", "content": SECRET}]}
    if how.startswith(("deadline", "leave")):
        e.script[:] = ["held_stream" if how.endswith("stream") else "held"]
        if how.startswith("deadline"):  # after the first byte, where it cuts a stream
            extra += f"x-request-timeout: {3 if how.endswith('stream') else 0.15}\r\n"
    elif how == "waited_out":
        r.replica().kv_usage = 1.0
        r.server.apply_load(r.replica())
    else:
        e.script[:] = [how]
    asked = await Asked.ask(r, b"{" + SECRET.encode() if how == "bad" else body, extra)
    if how.startswith("leave"):
        await until(lambda: e.open == 1)
        if how.endswith("stream"):
            await asked.reader.readuntil(b"\r\n\r\n")
        asked.leave()
    else:
        await asked.answer()
    await until(lambda: not any(c.exchange for c in r.server.clients) and e.open == 0)
    if how == "waited_out":
        r.replica().kv_usage = 0.0
        r.server.apply_load(r.replica())


def audit_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(x) for f in sorted(folder.glob("*.jsonl")) for x in f.read_text().splitlines()]


def test_every_ending_is_one_audit_line_and_gives_the_tenants_place_back(tmp_path: Path) -> None:
    async def go() -> None:
        e = HeldEngine()
        file = tenants_file(tmp_path, max_in_flight=1, tokens_per_minute=10**9)
        settings = {
            "audit": {"enabled": True, "folder": str(tmp_path / "audit")}, "ejection": NO_EJECTION,
            "admission": {"max_wait": 0.1}, "load_interval": 60,
        }  # fmt: skip
        async with router(e, tenants=file, **settings) as r:
            for how in ENDINGS:
                await end(r, e, how)
                await at_rest(r)

    uvloop.run(go())
    lines = audit_lines(tmp_path / "audit")
    assert [(how, x["outcome"]) for how, x in zip(ENDINGS, lines, strict=True)] == list(ENDINGS.items())
    by = dict(zip(ENDINGS, lines, strict=True))
    assert all(x["tenant"] == "acme" and x["route"] == "chat_completions" for x in lines)
    assert len({x["request_id"] for x in lines}) == len(lines)
    assert (by["usage"]["input_tokens"], by["usage"]["output_tokens"], by["usage"]["tokens_estimated"]) == (
        11,
        7,
        False,
    )
    assert by["answer"]["tokens_estimated"]
    assert {how: by[how]["status"] for how in ("status_500", "reset", "deadline", "leave", "waited_out")} == {
        "status_500": 500, "reset": 502, "deadline": 504, "leave": 499, "waited_out": 503,
    }  # fmt: skip
    assert {how: by[how]["decision"] for how in ("answer", "deadline", "bad", "reset", "waited_out")} == {
        "answer": "admitted", "deadline": "deadline", "bad": "invalid_json", "reset": "replica_failed",
        "waited_out": "queue_timeout",
    }  # fmt: skip
    assert SECRET not in json.dumps(lines)


def test_no_audit_line_is_lost_when_the_router_closes_under_load(tmp_path: Path) -> None:
    async def go() -> None:
        e = HeldEngine("answer")
        async with router(e, audit={"enabled": True, "folder": str(tmp_path)}) as r:
            for _ in range(50):
                await r.post(CHAT)
            e.script[:] = ["held"]
            asked = [await Asked.ask(r) for _ in range(20)]
            await until(lambda: e.open == len(asked))

    uvloop.run(go())
    assert [x["outcome"] for x in audit_lines(tmp_path)] == ["ok"] * 50 + ["aborted"] * 20
