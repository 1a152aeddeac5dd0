"""The benchmark's tools measure what they say: clients against the fake replicas, goals against known numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from tests.benchmarks import clients, ours, report, upstreams


@pytest.fixture(scope="module")
def fakes() -> Iterator[upstreams.Upstreams]:
    with upstreams.running(2, 0.01) as running:
        yield running


def test_a_closed_loop_gets_one_answer_for_each_request(fakes: upstreams.Upstreams) -> None:
    before = fakes.counts()["requests"]
    load = uvloop.run(clients.closed_loop(fakes.ports[0], clients.requests(8, 600), 50, 4))
    assert (load.done, load.failed) == (50, 0)
    assert fakes.counts()["requests"] - before == 50


def test_a_closed_loop_says_what_was_refused() -> None:
    async def refusing() -> None:
        import asyncio

        def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(clients.Refused, match="401 Unauthorized"):
            await clients.closed_loop(port, clients.requests(1, 600), 1, 1)
        server.close()

    uvloop.run(refusing())


def test_an_open_loop_sends_what_arrives_and_times_each_from_when_it_was_due(
    fakes: upstreams.Upstreams,
) -> None:
    load = clients.open_loop(fakes.ports[0], clients.requests(8, 600), rate=200, seconds=0.5)
    assert load.done == len(load.latencies) == len(load.lag) > 50
    assert all(latency >= lag for latency, lag in zip(sorted(load.latencies), sorted(load.lag), strict=True))


def test_streams_count_every_event(fakes: upstreams.Upstreams) -> None:
    """A role, five tokens, the end, the usage, [DONE]: nine events a stream."""

    async def run() -> clients.Streams:
        load = clients.Streams(fakes.ports[1])
        await load.start_all(clients.requests(4, 600, streaming=True, max_tokens=5), 4)
        await load.all_ended(60)
        return load

    load = uvloop.run(run())
    assert (load.whole, load.failed, load.chunks) == (4, 0, 36)


def test_aborted_streams_are_gone_at_the_replica(fakes: upstreams.Upstreams) -> None:
    before = fakes.counts()["aborted"]

    async def run() -> clients.Streams:
        load = clients.Streams(fakes.ports[0], abort_at_first=True)
        for request in clients.requests(5, 600, streaming=True, max_tokens=1000):
            await load.whole_or_not(request)
        return load

    load = uvloop.run(run())
    assert (load.aborted, load.failed) == (5, 0)
    end = time.monotonic() + 60
    while (gone := fakes.counts()["aborted"] - before) < 5 and time.monotonic() < end:
        time.sleep(0.05)  # the replica notices when it comes to it
    assert gone == 5


def test_requests_differ_and_are_as_long_as_asked_for() -> None:
    made = clients.requests(32, 600, ["key-a", "key-b"])
    bodies = [r.partition(b"\r\n\r\n")[2] for r in made]
    assert len(set(bodies)) == 32
    assert all(530 < len(b) < 670 for b in bodies)
    assert b"authorization: Bearer key-b" in made[1]


def test_everything_on_is_a_configuration_that_this_version_takes(tmp_path: Path) -> None:
    said = ours.everything_on({"router": {}}, tmp_path, "http://127.0.0.1:4318")
    assert said == dict.fromkeys(ours.FEATURES, "on")


def view(*runs: float) -> dict[str, object]:
    return {"us": sorted(runs)[len(runs) // 2], "runs": list(runs), "bundled_share": 0.0}


def test_a_ratio_is_the_median_of_the_rounds_ratios_against_the_cheapest_peer() -> None:
    costs = {
        "exaserve": view(30, 60, 33),
        "haproxy": view(20, 40, 30),  # the second round was disturbed for both
        "vllm-router": view(500, 500, 500),
        "vllm-router-rr": view(100, 200, 100),
    }
    result = {"parts": ["json"], "cpu": {name: {"costs": {"json": v}} for name, v in costs.items()}}
    found = {g.name: (g.measured.partition(" (")[0], g.verdict) for g in report.goals(result)}
    assert found == {
        "JSON request ≤ 0.5 × vllm-router": ("0.30 × vllm-router-rr", "PASS"),
        "JSON request ≤ 2.5 × HAProxy": ("1.50 × haproxy", "PASS"),
        "JSON request ≤ 1.5 × HAProxy (wished for)": ("1.50 × haproxy", "PASS"),
    }


def test_a_goal_that_was_not_measured_says_so() -> None:
    goals = report.goals({"parts": ["json", "streams", "aborts", "choice"]})
    assert {g.verdict for g in goals} == {"not measured"}
    assert len(goals) == 6


def test_memory_is_not_judged_on_few_aborted_streams() -> None:
    aborts = {"growth_mib": 1.2, "growth_files": 0, "in_flight": 0, "failed": 0, "aborted": 5000}
    assert report.goals({"parts": ["aborts"], "aborts": aborts})[0].ok is None
    assert report.goals({"parts": ["aborts"], "aborts": aborts | {"aborted": 100_000}})[0].ok is False
    assert report.goals({"parts": ["aborts"], "aborts": aborts | {"in_flight": 1}})[0].ok is False
