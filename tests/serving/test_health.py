"""The poller on fake replicas: kept connections, a changing fleet, drains, ejections, panic, what it tells others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving.config_router import Router
from serving.fleet.ask import Asker
from serving.fleet.discovery import static
from serving.fleet.health import Health
from serving.fleet.panic import Panic
from serving.fleet.replica import Replica
from serving.fleet.silence import Silence
from serving.fleet.sweep import Sweep
from tests.fakes import FakeEngine
from tests.serving.on_loop import run, until

#: Asked often and judged late: this machine may stand still for a moment itself.
FAST: dict[str, Any] = {
    "health_check_interval": 0.3,
    "probe_timeout": 20,
    "degraded_after": 15,
    "silence_timeout": 20,
    "load_interval": 0.1,
}


class Engine(FakeEngine):
    """Counts connections and keeps the heads of what it was asked."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.connections = 0
        self.heads: list[str] = []
        self.plain_only = False  # knows /metrics, not /metrics/?name[]=…

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        until_head = reader.readuntil

        async def readuntil(mark: bytes) -> bytes:
            head = await until_head(mark)
            self.heads.append(head.decode())
            return head

        reader.readuntil = readuntil  # type: ignore[assignment, method-assign]
        await super()._serve(reader, writer)

    async def _send(self, writer: asyncio.StreamWriter, body: bytes, status: int = 200) -> bool:
        if self.plain_only and self.heads[-1].startswith("GET /metrics/"):
            body, status = b"not found", 404
        return await super()._send(writer, body, status)

    def asked(self, start: str) -> int:
        return sum(h.startswith(start) for h in self.heads)

    def idle(self, h: Health) -> bool:
        """Whether every connection has had its answer: nothing is on its way."""
        kept = [line for r, lines in h.asker._kept.items() if r.port == self.port for line in lines]
        return len(kept) == len(self._writers) > 0


class Told:
    """What the poller told, in its order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []

    def out(self, replica: Replica, reason: str) -> None:
        self.events.append(("out", replica.name, reason))

    def state(self, replica: Replica) -> None:
        self.events.append(("state", replica.name, replica.state))

    def load(self, replica: Replica) -> None:
        self.events.append(("load", replica.name))

    def panic(self, pool: str, on: bool) -> None:
        self.events.append(("panic", pool, "on" if on else "off"))

    def of(self, kind: str) -> list[tuple[str, ...]]:
        return [e[1:] for e in self.events if e[0] == kind]


@asynccontextmanager
async def health(
    *engines: FakeEngine, headers: bytes = b"", wait: bool = True, **settings: Any
) -> AsyncIterator[tuple[Health, Told]]:
    for e in engines:
        await e.start()
    replicas = [static.parse(f"r{i}={e.url}") for i, e in enumerate(engines)]
    told = Told()
    h = Health(
        Router(**(FAST | settings)), replicas, told.out,
        on_state=told.state, on_load=told.load, on_panic=told.panic, headers=headers,
    )  # fmt: skip
    h.start()
    try:
        if wait:
            await until(lambda: all(r.state == "ready" for r in h.replicas))
        yield h, told
    finally:
        await h.stop()
        for e in engines:
            await e.kill()


# --- connections ---


@run
async def test_probes_and_load_reads_share_a_kept_connection() -> None:
    e = Engine()
    async with health(e):
        await until(lambda: e.probes >= 3 and e.asked("GET /metrics") >= 5)
        assert e.connections <= 2  # two where a load read came while a probe was open


@run
async def test_a_kept_connection_that_the_replica_closed_is_opened_anew_without_a_word() -> None:
    e = Engine()
    async with health(e) as (h, told):
        await until(lambda: e.probes >= 2 and e.idle(h))
        told.events.clear()
        for w in list(e._writers):
            w.transport.abort()
        before = e.probes
        await until(lambda: e.probes >= before + 2)
        assert told.of("out") == []
        assert h.replicas[0].probe_results["error"] == 0


@run
async def test_every_question_carries_the_token() -> None:
    e = Engine()
    async with health(e, headers=b"authorization: Bearer secret\r\n") as (h, _):
        await until(lambda: e.asked("GET /metrics") >= 1 and e.probes >= 1 and e.idle(h))
        assert all("authorization: Bearer secret" in head for head in e.heads)
        h.set_access(b"authorization: Bearer other\r\n", None)
        e.heads.clear()
        await until(lambda: e.asked("GET /metrics") >= 2 and e.asked("POST") >= 1)
        assert all("Bearer other" in head for head in e.heads)


@run
async def test_an_engine_without_the_short_page_gives_the_whole_one() -> None:
    e = Engine()
    e.plain_only = True
    e.metrics["running"] = 3
    async with health(e) as (h, _):
        await until(lambda: h.replicas[0].running == 3)
        await until(lambda: e.asked("GET /metrics HTTP") >= 3)
        assert e.asked("GET /metrics/?name[]=vllm:num_requests_running&") == 1


@run
async def test_an_answer_in_pieces_without_length_and_one_that_breaks_off() -> None:
    answers = [
        b"HTTP/1.1 200 OK\r\n\r\nall of ", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nhalf", b"",
        b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ]  # fmt: skip

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        answer = answers.pop(0)
        writer.write(answer)
        if answer.endswith(b"all of "):
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write(b"it")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    replica = static.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    asker = Asker()
    assert await asker.ask(replica, "GET", "/") == (200, b"all of it")
    errors = []
    for _ in range(3):
        try:
            await asker.ask(replica, "GET", "/")
        except (OSError, ValueError) as e:
            errors.append(f"{type(e).__name__}: {e}"[:60])
    assert errors[:2] == ["ConnectionResetError: closed before it answered"] * 2
    assert errors[2].startswith("ValueError: answered something that is not HTTP")
    assert await asker.ask(replica, "GET", "/") == (200, b"ok")
    asker.close()
    server.close()


@run
async def test_a_question_that_is_given_up_leaves_no_connection() -> None:
    e = await Engine().start()
    e.frozen.clear()
    asker = Asker()
    try:
        async with asyncio.timeout(0.1):
            await asker.ask(static.parse(e.url), "GET", "/metrics")
    except TimeoutError:
        pass
    e.frozen.set()
    await until(lambda: not e._writers)
    assert asker._kept == {}
    await e.kill()


# --- a changing fleet ---


@run
async def test_replicas_come_and_go_while_the_others_are_left_alone() -> None:
    a, b, c = Engine(), Engine(), Engine()
    await c.start()
    async with health(a, b) as (h, told):
        connections = a.connections
        new = static.parse(f"r2={c.url}")
        h.set_replicas([h.replicas[0], new])
        await until(lambda: new.state == "ready")
        await until(lambda: a.probes >= 3)
        assert [r.name for r in h.replicas] == ["r0", "r2"]
        assert a.connections <= max(connections, 2)
        assert told.of("out") == []
        assert ("r1", "draining") in told.of("state")
        asked = b.asked("")
        await asyncio.sleep(0.5)
        assert b.asked("") == asked
        h.remove(new)
        assert new.state == "draining"
        h.add(new)
        assert not new.draining
        told.events.clear()
        h.replicas[0].base_weight = 2.0
        h.set_replicas(h.replicas)
        assert told.of("state") == [("r0", "ready")]
        await until(lambda: c.probes >= 3)
    await c.kill()


@run
async def test_new_settings_hold_from_the_next_turn() -> None:
    e = Engine()
    async with health(e) as (h, _):
        await until(lambda: e.idle(h))
        reads, probes = e.asked("GET /metrics"), e.probes
        h.set_settings(Router(**(FAST | {"load_interval": 30.0, "health_check_interval": 30.0})))
        await until(lambda: e.asked("GET /metrics") > reads and e.probes > probes and e.idle(h))
        e.heads.clear()
        await asyncio.sleep(0.5)
        assert e.heads == []


@run
async def test_a_model_that_the_fleet_file_named_is_still_learned() -> None:
    e = await Engine(model="llama").start()
    replica = static.make("r0", e.url, model="guess")
    h = Health(Router(**FAST), [replica])
    h.start()
    await until(lambda: replica.state == "ready")
    assert replica.model == "llama"
    await h.stop()
    await e.kill()


# --- draining ---


@run
async def test_a_drained_replica_stays_drained_though_probes_pass_and_comes_back_by_undrain() -> None:
    e = Engine()
    async with health(e, Engine()) as (h, told):
        r = h.replicas[0]
        r.attempts.add("open")
        h.drain(r)
        probes = e.probes
        await until(lambda: e.probes >= probes + 2)
        assert (r.state, r.in_rotation) == ("draining", False)
        assert told.of("out") == []  # what is open may end
        h.undrain(r)
        assert r.state == "ready"
        r.attempts.clear()


@run
async def test_a_drained_replica_that_dies_is_down_and_drained_again_when_it_is_back() -> None:
    e = Engine()
    async with health(e, Engine()) as (h, told):
        r = h.replicas[0]
        r.attempts.add("open")
        h.drain(r)
        await until(lambda: e.idle(h))  # a question that is cut off says less than a port that is closed
        await e.kill()
        await until(lambda: r.state == "down")
        assert told.of("out")[0] == ("r0", "refused")
        await e.start()
        await until(lambda: r.state == "draining")
        r.attempts.clear()


# --- ejection ---


@run
async def test_an_ejected_replica_keeps_its_open_requests_and_is_told_of() -> None:
    e = Engine()
    async with health(e, Engine(), Engine()) as (h, told):
        r = h.replicas[0]
        r.attempts.add("open")
        h.observe(r, 0, 10)
        assert r.state == "ejected"
        probes = e.probes
        await until(lambda: e.probes >= probes + 2)
        assert r.state == "ejected"  # a probe that passes is no news
        assert told.of("out") == []
        assert told.of("state").count(("r0", "ejected")) >= 1
        view = r.view()
        assert view["ejected_until"] > view["since"]
        assert view["ejected_why"].startswith("10 of its last 10 answers failed")
        r.attempts.clear()


@run
async def test_a_workers_report_that_the_share_forbids_is_answered_with_the_state() -> None:
    async with health(Engine(), Engine()) as (h, told):
        assert h.eject(h.replicas[0], "test")
        told.events.clear()
        assert not h.eject(h.replicas[1], "test")
        assert told.of("state") == [("r1", "ready")]


@run
async def test_a_replica_that_was_down_returns_with_a_small_share() -> None:
    e = Engine()
    async with health(e, Engine(), ejection={"slow_start": 600}) as (h, _):
        await e.kill()
        await until(lambda: h.replicas[0].state == "down")
        await e.start()
        await until(lambda: h.replicas[0].state == "ready")
        assert h.replicas[0].weight < 0.2
        assert h.replicas[1].weight == 1.0


# --- panic ---


@run
async def test_when_every_probe_fails_the_pool_panics_once_and_comes_out_of_it() -> None:
    engines = Engine(), Engine()
    async with health(*engines) as (h, told):
        for e in engines:
            e.probe_status = 500
        await until(lambda: h.panicking == {"default"})
        assert [r.reachable for r in h.replicas] == [True, True]
        await asyncio.sleep(0.5)
        for e in engines:
            e.probe_status = 200
        await until(lambda: not h.panicking)
        assert told.of("panic") == [("default", "on"), ("default", "off")]


@run
async def test_nobody_panics_over_replicas_where_nobody_listens() -> None:
    engines = Engine(), Engine()
    async with health(*engines) as (h, told):
        await until(lambda: all(e.idle(h) for e in engines))
        for e in engines:
            await e.kill()
        await until(lambda: all(r.state == "down" for r in h.replicas))
        assert told.of("panic") == []
        assert not any(r.reachable for r in h.replicas)


@run
async def test_requests_that_a_frozen_replica_got_in_a_panic_do_not_wait_for_ever() -> None:
    engines = Engine(), Engine()
    async with health(*engines, probe_timeout=0.5, silence_timeout=0.6) as (h, told):
        for e in engines:
            e.frozen.clear()
        await until(lambda: h.panicking == {"default"})
        told.events.clear()
        h.replicas[0].attempts.add("open")
        await until(lambda: ("r0", "frozen") in told.of("out"))
        h.replicas[0].attempts.clear()
        for e in engines:
            e.frozen.set()


def _members(*states: str) -> list[Replica]:
    replicas = []
    for i, state in enumerate(states):
        r = static.parse(f"r{i}=http://127.0.0.1:{8000 + i}")
        r.enter("down" if state == "refused" else state, "")
        r.refused = state == "refused"
        replicas.append(r)
    return replicas


def _panics(*states: str, allowed: bool = True) -> bool:
    panic = Panic(allowed, lambda pool, on: None)
    panic.set_pools({"p": _members(*states)})
    return bool(panic.pools)


def test_who_panics() -> None:
    assert _panics("down", "refused")
    assert _panics("frozen", "frozen")
    assert _panics("down")
    assert not _panics("down", "ready")
    assert not _panics("down", "degraded")
    assert not _panics("refused", "refused")
    assert not _panics("starting", "starting")
    assert not _panics("frozen")  # one alone says nothing about a common cause
    assert not _panics("down", "down", allowed=False)


def test_panic_follows_each_replica_of_a_pool() -> None:
    said: list[bool] = []
    panic = Panic(True, lambda pool, on: said.append(on))
    members = _members("ready", "ready", "ready")
    panic.set_pools({"p": members})
    for i, state in ((0, "down"), (1, "frozen"), (2, "down"), (2, "ready"), (2, "down"), (0, "ready")):
        members[i].enter(state, "")
        panic.look(members[i])
    assert said == [True, False, True, False]
    for r in members:
        r.drain(True)
        panic.look(r)
    # With the last healthy one drained the others are better than none, until they are drained on purpose too.
    assert said == [True, False, True, False, True, False]


def test_a_pool_whose_fallback_serves_does_not_panic() -> None:
    said: list[tuple[str, bool]] = []
    panic = Panic(True, lambda pool, on: said.append((pool, on)))
    home, away = _members("down", "frozen"), _members("ready")
    panic.set_pools({"home": home, "away": away}, {"home": "away"})
    assert panic.pools == set()
    away[0].enter("down", "")
    panic.look(away[0])
    assert panic.pools == {"home", "away"}
    away[0].enter("ready", "")
    panic.look(away[0])
    assert panic.pools == set()
    assert sorted(said) == [("away", False), ("away", True), ("home", False), ("home", True)]


def test_panic_ends_when_it_is_switched_off_or_the_pool_changes() -> None:
    said: Counter[tuple[str, bool]] = Counter()
    panic = Panic(True, lambda pool, on: said.update([(pool, on)]))
    panic.set_pools({"p": _members("down"), "q": _members("down")})
    panic.allow(False)
    panic.allow(True)
    panic.set_pools({"p": _members("ready")})
    assert panic.pools == set()
    assert said == {("p", True): 2, ("p", False): 2, ("q", True): 2, ("q", False): 1}


# --- the watchdog and the sweep, on a clock of their own ---


def test_silence_counts_only_while_a_question_is_open() -> None:
    (r,) = _members("ready")
    asked: dict[Replica, float] = {}
    silent: list[float] = []
    watch = Silence(asked, lambda _: True, lambda _, seconds: silent.append(seconds))
    watch.add(r)
    now = 1000.0
    watch.look(now, 4.0, 1.0)

    def pass_time(seconds: float) -> None:
        nonlocal now
        for _ in range(int(seconds * 4)):
            now += 0.25
            watch.look(now, 4.0, 1.0)

    pass_time(20)
    assert silent == []
    asked[r] = now
    pass_time(3.75)
    assert silent == []
    r.heard += 1
    pass_time(4)
    assert silent == []
    pass_time(0.25)
    assert silent == [4.0]


def test_a_poller_that_stood_still_blames_nobody() -> None:
    (r,) = _members("ready")
    silent: list[float] = []
    watch = Silence({r: 0.0}, lambda _: True, lambda _, seconds: silent.append(seconds))
    watch.add(r)
    for now in (1000.0, 1060.0, 1060.25, 1063.75):
        watch.look(now, 4.0, 1.0)
    assert silent == []


class Asked:
    """An asker that answers when it is told to."""

    bytes_read = 0

    def __init__(self) -> None:
        self.open: list[tuple[str, Any]] = []
        self.cancelled = 0

    def question(self, replica: Replica, method: str, path: str, body: bytes = b"") -> bytes:
        return path.encode()

    def begin(self, replica: Replica, data: bytes, then: Any) -> Any:
        self.open.append((replica.name, then))
        return self

    def cancel(self) -> None:
        self.cancelled += 1


def test_reads_of_a_large_fleet_are_spread_and_an_open_one_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replicas = _members(*["ready"] * 1000)
    asker = Asked()
    sweep = Sweep(asker, 1.0, 12.0, lambda r: None, lambda r: None)  # type: ignore[arg-type]
    begin = 1000.0
    monkeypatch.setattr("serving.fleet.sweep.time", SimpleNamespace(monotonic=lambda: begin))
    for i, r in enumerate(replicas):
        sweep.add(r, i / 1000)
    sweep.turn(begin + 0.5)
    assert 490 <= len(asker.open) <= 510
    sweep.turn(begin + 1.2)
    assert len(asker.open) == 1000  # each once while its question is open
    sweep.turn(begin + 12.6)
    assert asker.cancelled > 450
    sweep.remove(replicas[-1])
    assert replicas[-1] not in sweep.asked


PAGE = Path(__file__).parents[1] / "fixtures" / "vllm-0.32.0-metrics.txt"


def test_others_hear_of_each_load_of_a_busy_replica_and_once_of_an_idle_one() -> None:
    (r,) = _members("ready")
    asker, heard = Asked(), list[Replica]()
    sweep = Sweep(asker, 0.0, 12.0, heard.append, lambda r: None)  # type: ignore[arg-type]
    sweep.add(r)
    busy = PAGE.read_bytes()
    idle = busy.replace(b'"} 14.0', b'"} 0.0').replace(b'm"} 4.0', b'm"} 0.0')
    for page, times in ((busy, 2), (idle, 3), (idle, 3)):
        sweep.turn(1e12)
        asker.open.pop()[1](200, page, None)
        if page is busy:
            assert (r.running, r.waiting, r.kv_usage, r.tokens) == (14, 4, 0.6363636363636364, 5211.0)
            sweep.turn(1e12)
            asker.open.pop()[1](200, page, None)
        assert len(heard) == times
    assert (r.running, r.waiting) == (0, 0)
