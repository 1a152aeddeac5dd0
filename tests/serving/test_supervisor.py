"""The supervisor with small shell commands as parts: restarts, back-off, a failed start, the end in order."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from serving import supervisor
from serving.config import Fleet
from serving.engines import Launch
from serving.launch.local import Process, identity
from serving.parts import Part
from serving.record import Record
from serving.supervisor import StartError, Supervisor, said

#: Takes no notice of SIGTERM from its first word on.
DEAF = "trap '' TERM; echo; while :; do sleep 1; done"
#: Listens on the port it is given; has no HTTP to speak.
LISTENER = "import socket,sys,time; s=socket.create_server(('127.0.0.1',int(sys.argv[1]))); time.sleep(1000)"


class FakeRouter:
    """Answers /fleet with ``states`` and anything else with 200."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fleet = [{"name": n, "state": s, "reason": "why"} for n, s in outer.states.items()]
                body = json.dumps({"replicas": fleet}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    fake = FakeRouter()
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


class Stage:
    """A supervisor of the given parts and what it said."""

    def __init__(
        self, parts: list[Part], router: FakeRouter, remote_router: bool = False, **fleet: float
    ) -> None:
        me = identity(1)
        assert me is not None
        self.said: list[str] = []
        settings = Fleet(**{"restart_backoff": 0.05, **fleet})  # type: ignore[arg-type]
        record = Record(me, time.time())
        self.supervisor = Supervisor(
            parts, record, settings, f"{router.url}/fleet", self.said.append, remote_router
        )

    def until(self, done: Callable[[], object], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, "\n".join(self.said)
            self.supervisor.tick()
            time.sleep(0.02)

    def pid(self, name: str) -> int:
        return next(p.identity.pid for p in self.supervisor.record.parts if p.name == name and p.identity)

    def state(self, name: str) -> str:
        return next(p.state for p in self.supervisor.record.parts if p.name == name)

    def has_written(self, name: str) -> bool:
        """As a shell does here when it has set its traps."""
        return any(
            r.process and r.process.has_written() for r in self.supervisor.running if r.part.name == name
        )

    def restarts(self, name: str) -> int:
        return next(p.restarts for p in self.supervisor.record.parts if p.name == name)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stage]]:
    monkeypatch.setenv("EXASERVE_RUN", str(tmp_path))
    made: list[Stage] = []

    def make(parts: list[Part], router: FakeRouter, remote_router: bool = False, **fleet: float) -> Stage:
        made.append(Stage(parts, router, remote_router, **fleet))
        return made[-1]

    yield make
    for one in made:
        one.supervisor.stop(lambda: True)


def shell(name: str, script: str, url: str, required: bool = True, **more: float) -> Part:
    launch = Launch(["/bin/sh", "-c", script])
    return Part(name, "service", lambda: launch, url, url, required=required, **more)  # type: ignore[arg-type]


def replica(port: int) -> Part:
    launch = Launch([sys.executable, "-c", LISTENER, str(port)])
    return Part("replica-0", "replica", lambda: launch, f"http://127.0.0.1:{port}", port=port)


def healthy_replica(port: int) -> Part:
    """Says 200 to /health while a file of that name is in the run folder, else 404."""
    launch = Launch([sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"])
    return Part("replica-0", "replica", lambda: launch, f"http://127.0.0.1:{port}", port=port)


def test_replicas_that_a_router_elsewhere_cannot_tell_of_are_asked_themselves(
    stage: Callable[..., Stage], router: FakeRouter, free_port: int, tmp_path: Path
) -> None:
    s = stage([healthy_replica(free_port)], router, remote_router=True, restart_frozen_after=3.5)
    s.until(lambda: s.state("replica-0") == "probing")
    (tmp_path / "health").write_text("well")
    s.until(lambda: s.state("replica-0") == "ready")  # the router does not list it
    pid = s.pid("replica-0")
    router.states["replica-0"] = "down"  # it can't reach it: a cut link, since the replica answers here
    end = time.monotonic() + 6
    s.until(lambda: time.monotonic() > end)
    s.until(lambda: s.state("replica-0") == "ready")  # unless it was slow to answer just then
    assert (s.pid("replica-0"), s.restarts("replica-0")) == (pid, 0)
    router.states["replica-0"] = "degraded"
    s.until(lambda: s.state("replica-0") == "degraded")  # what the router can tell is its word


def test_a_replica_that_is_silent_itself_is_killed_without_a_router_too(
    stage: Callable[..., Stage], router: FakeRouter, free_port: int, tmp_path: Path
) -> None:
    (tmp_path / "health").write_text("well")
    s = stage([healthy_replica(free_port)], router, remote_router=True, restart_frozen_after=0.5)
    s.until(lambda: s.state("replica-0") == "ready")
    os.kill(s.pid("replica-0"), signal.SIGSTOP)
    s.until(lambda: s.restarts("replica-0") == 1)
    s.until(lambda: s.state("replica-0") == "ready")


def test_a_part_that_dies_is_restarted_with_doubling_pauses(
    stage: Callable[..., Stage], router: FakeRouter
) -> None:
    s = stage([shell("part", "exit 7", "http://127.0.0.1:9/", required=False)], router)
    s.until(lambda: s.restarts("part") == 3)
    found = [line.split("; ")[1] for line in s.said if "restarting" in line]
    assert found == ["restart 1 in 0.1 s", "restart 2 in 0.1 s", "restart 3 in 0.2 s"]
    assert "ended with status 7" in s.said[-1]


def test_a_required_part_that_dies_at_every_start_ends_the_start_with_its_last_lines(
    stage: Callable[..., Stage], router: FakeRouter
) -> None:
    s = stage([shell("part", "echo out of memory; exit 1", "http://127.0.0.1:9/")], router)
    with pytest.raises(
        StartError, match=r"part ended with status 1 at every start; .*whole log: .*part\.log"
    ):
        s.until(lambda: False)
    assert s.said.count("    | out of memory") == 2


def test_a_program_that_is_not_there_is_said_so(stage: Callable[..., Stage], router: FakeRouter) -> None:
    launch = Launch(["/nowhere/engine"])
    s = stage([Part("part", "service", lambda: launch, "http://127.0.0.1:9")], router)
    with pytest.raises(
        StartError, match=r"part could not be started \(No such file or directory: /nowhere/engine"
    ):
        s.until(lambda: False)


def test_a_replica_is_ready_when_the_router_says_so_and_its_port_is_open(
    stage: Callable[..., Stage], router: FakeRouter, free_port: int
) -> None:
    s = stage([replica(free_port)], router)
    s.until(lambda: s.state("replica-0") == "probing")
    assert not s.supervisor.all_ready()
    router.states["replica-0"] = "ready"
    s.until(s.supervisor.all_ready)
    assert s.state("replica-0") == "ready"


def test_a_killed_replica_comes_back_and_is_counted(
    stage: Callable[..., Stage], router: FakeRouter, free_port: int
) -> None:
    router.states["replica-0"] = "ready"
    s = stage([replica(free_port)], router)
    s.until(s.supervisor.all_ready)
    first = identity(s.pid("replica-0"))
    assert first is not None
    first.signal(signal.SIGKILL)
    s.until(lambda: s.restarts("replica-0") == 1 and s.supervisor.all_ready())
    assert s.pid("replica-0") != first.pid
    assert any("restarting ended by SIGKILL" in line for line in s.said)


@pytest.mark.parametrize("state", ["frozen", "down"])
def test_a_replica_that_stays_frozen_or_down_is_killed_and_restarted(
    stage: Callable[..., Stage], router: FakeRouter, free_port: int, state: str
) -> None:
    router.states["replica-0"] = "ready"
    s = stage([replica(free_port)], router, restart_frozen_after=1.0)
    s.until(s.supervisor.all_ready)
    router.states["replica-0"] = state
    s.until(lambda: s.state("replica-0") == state)
    router.states["replica-0"] = "ready"  # back in time: nothing happens
    s.until(lambda: s.state("replica-0") == "ready")
    router.states["replica-0"] = state
    s.until(lambda: s.restarts("replica-0") == 1)
    assert any(re.search(rf"{state} for [1-9]\d* s: killed", line) for line in s.said)


def test_a_replica_that_never_gets_ready_is_killed_after_start_timeout(
    stage: Callable[..., Stage], router: FakeRouter, free_port: int
) -> None:
    s = stage([replica(free_port)], router, start_timeout=0.5)
    s.until(lambda: s.restarts("replica-0") == 1)
    assert any("not ready after 0.5 s (fleet.start_timeout): killed" in line for line in s.said)


def test_the_end_goes_by_rank_and_kills_what_does_not_listen(
    stage: Callable[..., Stage], router: FakeRouter
) -> None:
    url = router.url
    parts = [
        shell("last", "exec sleep 1000", url, stop_rank=2),
        shell("deaf", DEAF, url, stop_rank=1, stop_seconds=0.5),
        shell("first", "exec sleep 1000", url, stop_rank=0),
    ]
    s = stage(parts, router)
    s.until(lambda: s.supervisor.all_ready() and s.has_written("deaf"))
    s.supervisor.stop(lambda: False)
    assert [line.split()[2] for line in s.said if "ended" in line] == ["first", "deaf", "last"]
    assert all(p.identity is None for p in s.supervisor.record.parts)


def test_a_second_ctrl_c_ends_everything_at_once(stage: Callable[..., Stage], router: FakeRouter) -> None:
    s = stage([shell("deaf", DEAF, router.url, stop_seconds=1000)], router)
    s.until(lambda: s.supervisor.all_ready() and s.has_written("deaf"))
    s.supervisor.stop(lambda: True)
    assert s.state("deaf") == "ended"


def test_what_sigkill_does_not_end_is_named_and_the_rest_ends(
    stage: Callable[..., Stage], router: FakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = stage([shell("held", DEAF, router.url), shell("other", "exec sleep 1000", router.url)], router)
    s.until(lambda: s.supervisor.all_ready() and s.has_written("held"))
    pid = s.pid("held")
    with monkeypatch.context() as patched:
        patched.setattr(supervisor, "_KILL_SECONDS", 3.0)
        patched.setattr(Process, "kill", lambda self: None)  # as if the kernel held it
        s.supervisor.stop(lambda: True)
    assert [(p.name, p.identity and p.identity.pid) for p in s.supervisor.left()] == [("held", pid)]
    assert [line.split("held")[1].split() for line in s.said if "stuck" in line] == [
        f"stuck pid {pid} lives 3 s after SIGKILL; going on without".split()
    ]
    assert s.state("other") == "ended"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "ended with status 0"),
        (-9, "ended by SIGKILL"),
        (-64, "ended by SIGRTMAX"),
        (-70, "ended by signal 70"),
    ],
)
def test_exit_statuses_in_words(status: int, words: str) -> None:
    assert said(status) == words


def test_an_argument_that_no_program_can_get_is_said_so(
    stage: Callable[..., Stage], router: FakeRouter
) -> None:
    launch = Launch(["/bin/true", "\0"])
    s = stage([Part("part", "service", lambda: launch, "http://127.0.0.1:9")], router)
    with pytest.raises(StartError, match=r"part could not be started .*null byte"):
        s.until(lambda: False)
