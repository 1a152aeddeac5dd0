"""The data plane against replicas that misbehave in every way that a script can."""

from __future__ import annotations

import asyncio
import json
import random

from tests.fakes import CHUNKS, JSON_ANSWER, FakeEngine, chunk
from tests.serving.routing import STRICT, Running, read_answer, request, router, run, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}
WHOLE = b"".join(map(chunk, CHUNKS)) + b"0\r\n\r\n"


# --- relaying ---


@run
async def test_a_plain_answer_arrives_byte_for_byte() -> None:
    async with router(FakeEngine()) as r:
        status, head, body = await r.post(CHAT)
        assert (status, body) == (200, JSON_ANSWER)
        assert b"x-exaserve-replica: r0" in head
        assert b"x-request-id: " in head


@run
async def test_a_stream_arrives_byte_for_byte_and_as_it_comes() -> None:
    e = FakeEngine()
    e.gap = 0.3
    async with router(e) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(request(STREAM))
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(len(chunk(CHUNKS[0]))) == chunk(CHUNKS[0])
        assert e.open == 1  # the first chunk is here while the engine still works
        assert await reader.readexactly(len(WHOLE) - len(chunk(CHUNKS[0]))) == WHOLE[len(chunk(CHUNKS[0])) :]
        writer.close()


@run
async def test_the_request_reaches_the_replica_as_it_was_sent() -> None:
    body = (
        b'{ "messages":[{"role":"user","content":"\\u00e9"}], "x": 123456789012345678901234567890,"x": 1.10 }'
    )
    e = FakeEngine()
    async with router(e) as r:
        await r.post(body, extra="authorization: Bearer k\r\nx-request-id: abc\r\nconnection: x\r\nx: 1\r\n")
        line, headers, arrived = e.requests[0]
        assert (line, arrived) == ("POST /v1/chat/completions", body)
        assert headers["authorization"] == "Bearer k"
        assert headers["x-request-id"] == "abc"
        assert "connection" not in headers


@run
async def test_other_paths_pass_with_query_and_method() -> None:
    e = FakeEngine()
    async with router(e) as r:
        assert (await r.raw(request(b"x", "/v1/audio/x?y=1", method="PUT")))[:12] == b"HTTP/1.1 200"
        assert e.requests[0][0] == "PUT /v1/audio/x?y=1"
        head = await asyncio.wait_for(
            r.raw(b"HEAD /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"), 30
        )
        assert head.startswith(b"HTTP/1.1 200")


@run
async def test_an_http_1_0_client_gets_the_body_without_chunks() -> None:
    async with router(FakeEngine("stream")) as r:
        body = json.dumps(STREAM).encode()
        answer = await r.raw(
            b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )
        assert answer.partition(b"\r\n\r\n")[2] == b"".join(CHUNKS)


@run
async def test_connections_are_kept_on_both_sides() -> None:
    e = FakeEngine()
    async with router(e) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        for _ in range(3):
            writer.write(request(CHAT))
            assert (await read_answer(reader)).endswith(JSON_ANSWER)
        assert len(r.replica().idle) == 1
        writer.close()


@run
async def test_expect_100_continue_is_answered() -> None:
    async with router(FakeEngine()) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        body = json.dumps(CHAT).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(body))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await read_answer(reader)).endswith(JSON_ANSWER)
        writer.close()


@run
async def test_a_slow_reader_holds_the_engine_back_instead_of_filling_memory() -> None:
    e = FakeEngine("flood")
    async with router(e) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port, limit=4096)
        writer.write(request(STREAM))
        await reader.readuntil(b"\r\n\r\n")
        before = -1
        while before != e.sent:  # until the engine waits
            before = e.sent
            await asyncio.sleep(0.5)
        assert e.sent < 40 * 2**20
        rest = await read_all(reader)
        assert rest.endswith(b"0\r\n\r\n")
        writer.close()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    tail, size = b"", 0
    while not tail.endswith(b"0\r\n\r\n"):
        data = await reader.read(2**20)
        assert data
        size += len(data)
        tail = (tail + data)[-16:]
    assert size > 64 * 10**6
    return tail


# --- choosing ---


async def works_for_others(r: Running, engine: FakeEngine) -> None:
    """Wait until the router knows. What a replica has beyond our requests counts from the second report on."""

    def known() -> bool:
        engine.metrics["tokens"] += 1
        return max(r.server.all_pools[0].everyone.eligible.extra) > 1000

    await until(known)


@run
async def test_work_goes_to_the_replica_with_less_of_it() -> None:
    slow, idle = FakeEngine("endless"), FakeEngine()
    async with router(slow, idle) as r:
        readers = [await asyncio.open_connection("127.0.0.1", r.port) for _ in range(6)]
        slow.metrics["running"] = 50
        await works_for_others(r, slow)
        for _, w in readers:
            w.write(request(CHAT))
        for reader, _ in readers:
            await read_answer(reader)
        assert (len(slow.requests), len(idle.requests)) == (0, 6)


@run
async def test_a_replica_above_queue_depth_or_watermark_gets_nothing_new() -> None:
    full, hot = FakeEngine(), FakeEngine()
    async with router(full, hot, max_queue_depth=2, admission={"max_wait": 0.5}) as r:
        full.metrics["waiting"] = 3
        hot.metrics["usage"] = 0.9
        await until(lambda: r.replica(0).waiting == 3 and r.replica(1).kv_usage == 0.9)
        status, head, body = await r.post(CHAT)
        assert (status, json.loads(body)["error"]["code"]) == (503, "capacity")
        assert b"retry-after: " in head
        full.metrics["waiting"] = 0
        await until(lambda: r.replica(0).waiting == 0)
        assert (await r.post(CHAT))[0] == 200
        assert len(hot.requests) == 0


@run
async def test_models_are_merged_over_the_fleet() -> None:
    async with router(FakeEngine(model="a"), FakeEngine(model="b"), FakeEngine(model="a")) as r:
        answer = await r.raw(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        body = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert [m["id"] for m in body["data"]] == ["a", "b"]


# --- failing ---


@run
async def test_a_killed_replica_is_replaced_unseen_and_out_at_once() -> None:
    a, b = FakeEngine(), FakeEngine()
    async with router(a, b, health_check_interval=60) as r:
        await a.kill()
        for _ in range(4):
            assert (await r.post(CHAT))[0] == 200
        assert len(b.requests) == 4
        await until(lambda: r.replica(0).state == "down", 20)  # before the next probe


@run
async def test_a_request_that_failed_before_the_first_byte_goes_to_another_replica_once() -> None:
    for how, stream in (("reset", False), ("reset_after_head", True)):
        a, b = FakeEngine(how), FakeEngine(how, "auto")
        async with router(a, b) as r:
            status, _, body = await r.post(STREAM if stream else CHAT)
            tried = len(a.requests) + len(b.requests)
            assert (status, json.loads(body)["error"]["code"]) == (502, "replica_failed")
            assert tried == 2
            assert r.counted("exaserve_router_rejected_requests_total", "replica_failed") == 1
        a, b = FakeEngine(how), FakeEngine()
        async with router(a, b) as r:
            for _ in range(4):
                status, head, body = await r.post(STREAM if stream else CHAT)
                assert status == 200
                assert b"x-exaserve-replica: r1" in head
                assert body == (WHOLE if stream else JSON_ANSWER)


@run
async def test_a_stream_cut_between_chunks_ends_with_an_error_event_and_no_done() -> None:
    async with router(FakeEngine("die_mid_stream"), FakeEngine("die_mid_stream")) as r:
        status, _, body = await r.post(STREAM)
        assert status == 200
        assert body.startswith(b"".join(map(chunk, CHUNKS[:2])))
        assert b'data: {"error": {' in body
        assert body.endswith(b"\r\n0\r\n\r\n")
        assert b"[DONE]" not in body
        assert sum(len(e.requests) for e in r.engines) == 1  # never a replay


@run
async def test_a_client_whose_stream_was_cut_goes_on_over_the_same_connection() -> None:
    async with router(FakeEngine("die_mid_stream", "auto")) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(request(STREAM))
        assert b'"code": "replica_failed"' in await read_answer(reader)
        writer.write(request(CHAT))
        assert (await read_answer(reader)).endswith(JSON_ANSWER)
        writer.close()


@run
async def test_an_answer_cut_inside_a_chunk_or_a_json_body_never_looks_complete() -> None:
    for how in ("die_mid_chunk", "half_json"):
        async with router(FakeEngine(how)) as r:
            try:
                answer = await r.raw(request(STREAM))
            except ConnectionError:
                answer = b""
            assert not answer.endswith((b"0\r\n\r\n", b"}"))


@run
async def test_an_idle_connection_that_the_replica_closed_costs_no_retry_elsewhere() -> None:
    e = FakeEngine("close_after")
    async with router(e) as r:
        for _ in range(5):
            assert (await r.post(CHAT))[0] == 200
        assert r.replica().state == "ready"


@run
async def test_a_5xx_of_the_engine_is_passed_on_as_it_is() -> None:
    async with router(FakeEngine("error_500")) as r:
        assert (await r.post(CHAT))[::2] == (500, b'{"error":{"message":"boom"}}')
        assert r.replica().outcomes["error"] == 1


@run
async def test_without_any_replica_the_answer_says_which_and_why() -> None:
    e = await FakeEngine().start()
    await e.kill()
    async with router(e, wait=False) as r:
        await until(lambda: "refused" in r.replica().reason)
        status, head, body = await r.post(CHAT)
        error = json.loads(body)["error"]
        assert (status, error["code"], error["type"]) == (503, "no_replica_ready", "server_error")
        assert "r0 is starting (connection refused)" in error["message"]
        assert b"retry-after: " in head


# --- freezing ---


@run
async def test_a_frozen_replica_is_out_its_requests_move_and_it_comes_back_by_itself() -> None:
    a, b = FakeEngine("silent"), FakeEngine()
    async with router(a, b, **STRICT | {"health_check_interval": 60}) as r:
        b.metrics["running"] = 9  # so that the request goes to a
        await works_for_others(r, b)
        waiting = asyncio.create_task(r.post(CHAT))
        await until(lambda: a.requests)
        a.frozen.clear()
        status, head, _ = await asyncio.wait_for(waiting, 30)
        assert status == 200
        assert b"x-exaserve-replica: r1" in head
        assert r.replica(0).state == "frozen"
        assert r.replica(0).reason.startswith("silent for ")
        a.frozen.set()
        await until(lambda: r.replica(0).state == "ready")


@run
async def test_a_stream_on_a_frozen_replica_ends_with_an_error_event() -> None:
    a = FakeEngine("endless")
    async with router(a, **STRICT) as r:
        task = asyncio.create_task(r.post(STREAM))
        await until(lambda: a.open == 1)
        await asyncio.sleep(0.1)
        a.frozen.clear()
        _, _, body = await asyncio.wait_for(task, 30)
        assert b'"code": "replica_failed"' in body


@run
async def test_a_stuck_engine_whose_front_end_answers_is_found_by_the_probe() -> None:
    a, b = FakeEngine(), FakeEngine()
    async with router(a, b, **STRICT) as r:
        stuck = asyncio.Event()

        async def never(*_: object) -> bool:
            await stuck.wait()
            return False

        real = a._send

        async def send(writer: asyncio.StreamWriter, body: bytes, status: int = 200) -> bool:
            return await (never() if body == a.probe() else real(writer, body, status))

        a._send = send  # type: ignore[method-assign]
        await until(lambda: r.replica(0).state == "frozen")
        assert "one-token inference" in r.replica(0).reason
        assert r.replica(0).probe_results["timeout"] >= 1


@run
async def test_a_busy_replica_whose_token_count_moves_is_degraded_not_condemned() -> None:
    a = FakeEngine()
    async with router(a, **STRICT) as r:
        real = a._send

        async def send(writer: asyncio.StreamWriter, body: bytes, status: int = 200) -> bool:
            if body == a.probe():
                await asyncio.sleep(30)
            a.metrics["tokens"] += 5
            return await real(writer, body, status)

        a._send = send  # type: ignore[method-assign]
        await until(lambda: r.replica().probe_results["busy"] >= 2)
        assert r.replica().state == "degraded"
        assert (await r.post(CHAT))[0] == 200


@run
async def test_a_slow_probe_makes_a_replica_degraded() -> None:
    a = FakeEngine()
    async with router(a, wait=False, degraded_after=0.000001) as r:
        await until(lambda: r.replica().state == "degraded")
        assert r.replica().probe_results["slow"] >= 1
        assert (await r.post(CHAT))[0] == 200


# --- clients that leave ---


@run
async def test_a_client_that_leaves_aborts_the_replicas_work() -> None:
    for how in ("endless", "silent"):
        a = FakeEngine(how)
        async with router(a) as r:
            _, writer = await asyncio.open_connection("127.0.0.1", r.port)
            writer.write(request(STREAM))
            await until(lambda a=a: a.open == 1)
            await asyncio.sleep(0.1)
            writer.close()
            await until(lambda a=a: a.open == 0)
            assert a.aborted == 1
            assert r.replica().in_flight == 0
            assert r.replica().outcomes["aborted"] == 1
            assert r.server.metrics.disconnects == 1


@run
async def test_in_flight_never_drifts_through_a_storm_of_failures() -> None:
    rng = random.Random(7)
    hows = ["auto", "reset", "die_mid_stream", "die_mid_chunk", "half_json", "error_500", "close_after"]
    engines = [FakeEngine(*rng.choices(hows, k=200), "auto") for _ in range(3)]
    for e in engines:
        e.gap = 0.001
    async with router(*engines) as r:

        async def client() -> None:
            for _ in range(25):
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", r.port)
                    writer.write(request(rng.choice((CHAT, STREAM))))
                    await asyncio.sleep(rng.random() * 0.02)
                finally:
                    writer.transport.abort() if rng.random() < 0.5 else writer.close()

        await asyncio.gather(*(client() for _ in range(12)))
        await until(lambda: all(x.in_flight == 0 for x in r.server.replicas))
        await until(lambda: not r.server.clients)
        sent = sum(sum(x.outcomes.values()) for x in r.server.replicas)
        assert sent > 200
        assert (await r.post(CHAT))[0] in (200, 500, 502)
