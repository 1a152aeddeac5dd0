"""Open loops: several processes play one schedule exactly, no request waits for another's answer, none is skipped.

Everything runs in this process: the workers are Dispatchers, the master a Conductor, messages are calls.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent
import pytest

from loadtest._lib import _clock, _conduct
from loadtest._lib._arrivals import Stage
from loadtest._lib._ask import Answer, Ask, Session
from loadtest._lib._conduct import HERE, PACE, PLAY, Conductor
from loadtest._lib._dispatch import Dispatcher
from loadtest._lib._plan import Plan
from loadtest._lib._play import Play, dues
from loadtest._lib._run import Run
from loadtest._lib._traces import read


@dataclass
class FakeSender:
    """Remembers what was sent when; an answer takes ``seconds``."""

    seconds: float = 0.0
    sent: list[tuple[float, Ask]] = field(default_factory=list)
    lag: list[float] = field(default_factory=list)
    not_sent: list[tuple[float, str, Ask]] = field(default_factory=list)
    ended: int = 0
    listener: Callable[[Ask], None] | None = None

    def send(self, ask: Ask, due: float) -> Answer:
        self.lag.append(_clock.now() - due)
        self.sent.append((due, ask))
        gevent.sleep(self.seconds)
        self.ended += 1
        return Answer(True, "")

    def unsent(self, ask: Ask, due: float, why: str, reason: str | None = None) -> None:
        self.not_sent.append((due, why, ask))


@dataclass
class Client:
    state: str = "running"


class FakeRunner:
    """A master's: hands messages to workers in this process."""

    def __init__(self) -> None:
        self.clients: dict[str, Client] = {}
        self.workers: dict[str, Dispatcher] = {}
        self.conductor: Conductor | None = None

    def send_message(self, kind: str, data: Any, client_id: str | None = None) -> None:
        assert kind == PLAY
        assert client_id is not None
        if client_id in self.workers:
            self.workers[client_id].play(dict(data))

    def get_worker_index(self, node: str) -> int:
        return list(self.workers).index(node)

    def join(
        self, name: str, run: Run, plan: Plan, sender: Any, profiles: dict[str, Any] | None = None
    ) -> Dispatcher:
        def report(pace: dict[str, Any]) -> None:
            assert self.conductor is not None
            self.conductor.paced(name, pace)

        self.clients[name] = Client()
        worker = Dispatcher(run, sender, plan, profiles or {"chat": single}, len(self.workers), report)
        self.workers[name] = worker
        assert self.conductor is not None
        self.conductor.here(name, {"run": run.name})
        return worker


def single(draw: random.Random, unique: str) -> Session:
    yield Ask("chat", {"unique": unique})


def run_of(seed: int = 3) -> Run:
    run = Run("run", "chat", "http://127.0.0.1:1", "m", seed, 0.0)
    run.warmup = {"seconds": 0.0, "rule": "none"}
    run.limits = {"lag": 0.05}
    return run


def play_of(plan: Plan, run: Run, classes: list[list[Any]] | None = None) -> Play:
    stages = [[s.start, s.end, s.seconds] for s in plan.stages]
    return Play(
        "run", plan.kind, run.seed, begin=0.0, since=0.0, elapsed=0.0, share=0, of=1, cv=plan.cv,
        stages=stages, classes=classes or [["chat", 1]],  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Starts a conductor with so many workers; gives it, its runner and the senders."""
    monkeypatch.setattr(_conduct, "_START", 0.05)
    monkeypatch.setattr(_conduct, "LEAD", 0.4)
    begun: list[tuple[Conductor, FakeRunner]] = []

    def start(
        plan: Plan, workers: int, run: Run, **more: Any
    ) -> tuple[Conductor, FakeRunner, list[FakeSender]]:
        runner, lost = FakeRunner(), FakeSender()
        over = gevent.event.Event()
        conductor = Conductor(runner, run, plan, more.get("classes", [["chat", 1]]), lost.unsent, over.set)
        runner.conductor = conductor
        senders = [FakeSender(more.get("seconds", 0.0)) for _ in range(workers)]
        for number, sender in enumerate(senders):
            runner.join(f"w{number}", run, plan, sender, more.get("profiles"))
        begun.append((conductor, runner))
        conductor.finished = over  # type: ignore[attr-defined]
        return conductor, runner, [*senders, lost]

    yield start
    for conductor, runner in begun:
        conductor.greenlet.kill()
        for worker in runner.workers.values():
            worker.stop(0)


def zero(conductor: Conductor) -> float:
    return conductor._zero


def wait(conductor: Conductor) -> None:
    assert conductor.finished.wait(60)  # type: ignore[attr-defined]


def has_sent(sender: FakeSender, number: int) -> None:
    """Wait for it."""
    with gevent.Timeout(60):
        while len(sender.sent) < number:
            gevent.sleep(0.01)


def same(senders: list[FakeSender], at: float, play: Play, plan: Plan) -> bool:
    """Whether just the schedule was sent: as many, each at its time."""
    sent = sorted(due - at for sender in senders for due, _ in sender.sent)
    wanted = [due[0] for due in dues(play, plan)]
    return len(sent) == len(wanted) and all(abs(a - b) < 1e-4 for a, b in zip(sent, wanted, strict=True))


@pytest.mark.parametrize("workers", [1, 3])
def test_all_processes_together_send_the_schedule_exactly_once(played, workers: int) -> None:  # type: ignore[no-untyped-def]
    plan, run = Plan("poisson", [Stage(100, 100, 1.0)]), run_of()
    conductor, _, senders = played(plan, workers, run)
    wait(conductor)
    play = play_of(plan, run)
    assert same(senders[:-1], zero(conductor), play, plan)
    assert run.arrivals["due"] == run.arrivals["scheduled"] == len(list(dues(play, plan)))
    assert run.stopping == zero(conductor) + 1.0


def test_a_due_time_waits_for_no_answer(played) -> None:  # type: ignore[no-untyped-def]
    plan, run = Plan("constant", [Stage(50, 50, 1.0)]), run_of()
    conductor, _, (sender, _) = played(plan, 1, run, seconds=60.0)
    wait(conductor)
    assert len(sender.sent) == 50
    assert sender.ended == 0


def test_a_request_over_the_bound_is_kept_as_unsent_with_the_reason(played) -> None:  # type: ignore[no-untyped-def]
    plan, run = Plan("constant", [Stage(50, 50, 1.0)], max_open=10), run_of()
    conductor, _, (sender, _) = played(plan, 1, run, seconds=60.0)
    wait(conductor)
    assert (len(sender.sent), len(sender.not_sent)) == (10, 40)
    assert sender.not_sent[0][1] == "10 requests were open in this process (--max-open)"


def test_a_worker_that_joins_takes_its_share_and_nothing_is_sent_twice(played) -> None:  # type: ignore[no-untyped-def]
    # Long enough that a share is left to take on a machine that stands still for some seconds after the wait.
    plan, run = Plan("constant", [Stage(100, 100, 4.0)]), run_of()
    conductor, runner, senders = played(plan, 1, run)
    has_sent(senders[0], 10)
    late = FakeSender()
    runner.join("late", run, plan, late)
    wait(conductor)
    play = play_of(plan, run)
    assert same([senders[0], late], zero(conductor), play, plan)
    assert len(late.sent) >= 20


def test_what_a_lost_worker_had_to_send_is_kept_as_unsent(played) -> None:  # type: ignore[no-untyped-def]
    plan, run = Plan("constant", [Stage(100, 100, 4.0)]), run_of()
    conductor, runner, (first, second, lost) = played(plan, 2, run)
    has_sent(second, 10)
    runner.workers["w1"].stop(0)
    sent = len(second.sent) + len(second.not_sent)  # the latter: due already when it was stopped
    conductor.received[1] = sent - 3  # three of its records never came
    runner.clients["w1"].state = "missing"
    wait(conductor)
    assert lost.not_sent
    assert lost.not_sent[0][1] == "the worker that had to send it was lost"
    assert len(first.sent) + sent + len(lost.not_sent) == 400
    assert run.arrivals["due"] == 400
    assert run.arrivals["lost_with_workers"] == 3
    assert run.lost_workers == [1]


@pytest.mark.parametrize("begun", [0, 251])
def test_a_worker_that_is_stopped_late_says_how_far_it_has_accounted_for_its_share(
    begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the conductor, which keeps the rest as unsent, keeps none of it once more."""
    now = [1000.0]
    monkeypatch.setattr(_clock, "now", lambda: now[0])
    plan, run = Plan("constant", [Stage(1000, 1000, math.inf)]), run_of()
    sender, told = FakeSender(), list[dict[str, Any]]()
    worker = Dispatcher(run, sender, plan, {"chat": single}, 0, told.append)  # type: ignore[arg-type]
    worker.play(play_of(plan, run).as_dict() | {"stages": [[1000, 1000, None]]})
    if begun:
        now[0] += 0.25
        has_sent(sender, begun)
    now[0] += 0.5
    worker.stop(0)
    elapsed = now[0] - 1000.0
    assert len(sender.sent) + len(sender.not_sent) == elapsed * 1000
    # Where its turn comes just now, some are begun before it ends.
    assert begun <= len(sender.sent) <= begun + 100
    assert (told[-1]["due"], told[-1]["upto"]) == (elapsed * 1000, elapsed)


def test_a_late_stop_keeps_what_was_due_as_unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_clock, "now", lambda: 1000.0)
    plan, run = Plan("constant", [Stage(1000, 1000, math.inf)]), run_of()
    sender = FakeSender()
    worker = Dispatcher(run, sender, plan, {"chat": single}, 0, lambda _: None)  # type: ignore[arg-type]
    message = play_of(plan, run).as_dict() | {"stages": [[1000, 1000, None]], "elapsed": 0.5}
    worker.play(message)
    worker.stop(0)  # before it came to anything
    assert len(sender.sent) == 0
    assert len(sender.not_sent) == 500
    assert sender.not_sent[0][1] == "the client was too slow to begin it"


def test_open_requests_get_their_grace_and_are_then_given_up() -> None:
    plan, run = Plan("constant", [Stage(100, 100, 0.1)]), run_of()
    for seconds, ended in ((0.3, 10), (60.0, 0)):
        sender = FakeSender(seconds)
        worker = Dispatcher(run, sender, plan, {"chat": single}, 0, lambda _: None)  # type: ignore[arg-type]
        worker.play(play_of(plan, run).as_dict())
        gevent.sleep(0.2)
        worker.stop(10.0 if ended else 0.0)
        assert (len(sender.sent), sender.ended) == (10, ended)


def test_classes_split_the_rate_by_weight(played) -> None:  # type: ignore[no-untyped-def]
    def other(draw: random.Random, unique: str) -> Session:
        yield Ask("code", {})

    plan, run = Plan("constant", [Stage(500, 500, 1.0)]), run_of()
    profiles = {"chat": single, "code": other}
    conductor, _, senders = played(plan, 2, run, profiles=profiles, classes=[["chat", 3], ["code", 1]])
    wait(conductor)
    asked = [ask.profile for sender in senders for _, ask in sender.sent]
    play = play_of(plan, run, [["chat", 3], ["code", 1]])
    drawn = [due[2] for due in dues(play, plan)]
    assert sorted(asked) == sorted(drawn)
    assert 90 <= asked.count("code") <= 160


def test_a_session_with_a_turn_to_ask_goes_before_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes on once the answer is there: a request that is late is sent beside the next, which then begins anew."""
    now = [1000.0]
    monkeypatch.setattr(_clock, "now", lambda: now[0])

    def talk(draw: random.Random, unique: str) -> Session:
        for turn in range(5):
            yield Ask("chat", {"turn": turn}, session=unique, think=60.0)

    plan, run, sender = Plan("constant", [Stage(20, 20, 1.0)]), run_of(), FakeSender()
    worker = Dispatcher(run, sender, plan, {"chat": talk}, 0, lambda _: None)  # type: ignore[arg-type]
    worker.play(play_of(plan, run).as_dict())
    for number in range(20):
        now[0] = 1000.01 + number / 20
        with gevent.Timeout(60):
            while sender.ended <= number:
                gevent.sleep(0.001)
    worker.stop(0)
    assert [ask.body["turn"] for _, ask in sender.sent] == [0, 1, 2, 3, 4] * 4


def test_stages_and_warm_up_are_in_the_records(played) -> None:  # type: ignore[no-untyped-def]
    plan, run = Plan("constant", [Stage(20, 20, 0.5), Stage(40, 40, 0.5)]), run_of()
    run.warmup = {"seconds": 0.25, "rule": "test"}
    conductor, _, (sender, _) = played(plan, 1, run)
    wait(conductor)
    assert [ask.step for _, ask in sender.sent] == [0] * 10 + [1] * 20
    assert [ask.phase for _, ask in sender.sent] == ["warmup"] * 5 + ["measured"] * 25
    assert run.warmup_until == zero(conductor) + 0.25


def test_a_trace_is_played_at_its_times(played, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "trace"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2023-11-16 18:17:0{i},100,{i + 1}\n" for i in (0, 1, 4)
    ))  # fmt: skip
    plan, run = Plan("trace", trace=read(path, "azure"), speed=4.0), run_of()
    conductor, _, senders = played(plan, 2, run, classes=[["trace", 1]])
    wait(conductor)
    got = sorted((due, ask.body["max_tokens"]) for sender in senders for due, ask in sender.sent)
    assert [(round(due - zero(conductor), 3), tokens) for due, tokens in got] == [
        (0.0, 1),
        (0.25, 2),
        (1.0, 5),
    ]


def test_messages_of_another_run_are_none_of_ours(played) -> None:  # type: ignore[no-untyped-def]
    plan, run = Plan("constant", [Stage(10, 10, 0.2)]), run_of()
    conductor, runner, (sender, _) = played(plan, 1, run)
    runner.workers["w0"].play(play_of(plan, run).as_dict() | {"run": "other", "stages": [[1000, 1000, 10]]})
    conductor.here("ghost", {"run": "other"})
    conductor.paced("ghost", {"run": "other"})
    wait(conductor)
    assert len(sender.sent) == 2
    assert {HERE, PACE, PLAY} == {"exaserve_here", "exaserve_pace", "exaserve_play"}


@pytest.mark.parametrize(("ahead", "believed"), [(0.0, True), (-0.3, True), (5.0, False), (-5.0, False)])
def test_a_clock_that_is_another_is_not_believed(
    ahead: float, believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ahead: of the sender's clock; -0.3 looks like a message that took 0.3 s."""
    monkeypatch.setattr(_clock, "now", lambda: 1000.0)
    plan, run = Plan("constant", [Stage(1, 1, 1.0)]), run_of()
    worker = Dispatcher(run, FakeSender(), plan, {"chat": single}, 0, lambda _: None)  # type: ignore[arg-type]
    now = _clock.now()
    worker.play(play_of(plan, run).as_dict() | {"zero": now + 0.5 + ahead, "elapsed": -0.5})
    assert worker.elapsed() == pytest.approx(-0.5 - ahead if believed else -0.5)
    worker.stop(0)
