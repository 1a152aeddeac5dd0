"""The gate's runs: their order, what is not repeated, what ends it. A small program stands in for locust."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest._gate import _measure, _stack
from loadtest._gate._measure import MeasureError, Plan, Step
from tests.loadtest import gate_runs

#: argv: folder, exit status, whether the run is void. Writes what locust would.
_LOCUST = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.loadtest import gate_runs
folder, status, void = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "void"
if status == 2:
    print("--rate: so many are not offered here")
if status == 9:
    sys.exit(9)
gate_runs.write(Path(folder), void=void, void_reasons=["lag"] if void else [])
sys.exit(status)
"""


def plan(**changes: object) -> Plan:
    made = Plan(
        addresses={"baseline": "http://a:1", "candidate": "http://b:1"},
        commands={"baseline": None, "candidate": None},
        rates={"chat": 4.0, "code": 2.0},
        seconds={"chat": 10.0, "code": 20.0},
        runs=3,
        seed=1,
        arrivals="poisson",
        warmup=5.0,
        processes=1,
        arguments=[],
        ready_timeout=20.0,
        settle=0.0,
        keep=False,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def locust(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Puts the stand-in in place; returns the list of runs that it was asked for. outcomes: run -> (status, void)."""
    root = str(Path(__file__).parents[2])
    monkeypatch.setattr(_stack.Stack, "start", lambda *_: None)

    def use(outcomes: dict[str, tuple[int, str]] | None = None) -> list[str]:
        asked: list[str] = []

        def command(_: Plan, step: Step, folder: Path) -> list[str]:
            asked.append(step.name)
            status, void = (outcomes or {}).get(step.name, (0, ""))
            return [sys.executable, "-c", _LOCUST.format(root=root), str(folder), str(status), void]

        monkeypatch.setattr(_measure, "command", command)
        return asked

    return use


def test_each_pair_has_both_sides_side_by_side_in_an_order_that_is_drawn() -> None:
    steps = _measure.order(plan(runs=20))
    assert len(steps) == 80
    for a, b in zip(steps[::2], steps[1::2], strict=True):
        assert (a.pair, a.workload, {a.side, b.side}) == (b.pair, b.workload, {"baseline", "candidate"})
    first = [s.side for s in steps[::2]]
    assert 10 < first.count("baseline") < 30


def test_more_runs_keep_the_earlier_ones_and_the_seed_decides() -> None:
    assert _measure.order(plan(runs=5))[:12] == _measure.order(plan(runs=3))
    assert _measure.order(plan(runs=20)) != _measure.order(plan(runs=20, seed=2))


def test_a_server_that_is_started_plays_all_workloads_before_it_ends() -> None:
    started = plan(commands={"baseline": "up a", "candidate": "up b"})
    steps = _measure.order(started)
    assert [s.workload for s in steps[:4]] == ["chat", "code"] * 2
    assert len({s.side for s in steps[:2]}) == 1
    assert _measure.order(replace(started, keep=True)) == _measure.order(plan())


def test_the_locust_command_is_what_a_user_would_type() -> None:
    words = _measure.command(
        plan(arguments=["--max-tokens", "64"], processes=1), Step(2, "code", "candidate"), Path("f")
    )
    assert words[1:4] == ["-m", "locust", "-f"]
    assert words[4].endswith("loadtest/code.py")
    assert " ".join(words[5:]) == (
        "--headless -H http://b:1 -u 1 -t 25s --arrivals poisson --rate 2 --warmup 5 --seed 1 --run-folder f "
        "--max-tokens 64"
    )


def test_runs_that_are_there_are_not_repeated(tmp_path: Path, locust: Callable[..., list[str]]) -> None:
    asked, said = locust(), list[str]()
    _measure.measure(plan(runs=2), tmp_path, said.append)
    assert len(asked) == 8
    assert said[-1].startswith("[8/8] ")
    assert said[-1].endswith("; 0.0 min left")
    asked.clear()
    _measure.measure(plan(runs=3), tmp_path, said.append)
    assert sorted(asked) == [f"03-{w}-{s}" for w in ("chat", "code") for s in ("baseline", "candidate")]
    _measure.measure(plan(runs=3), tmp_path, said.append)
    assert said[-1] == "all 12 runs are there"
    assert [len(v) for v in _measure.stored(tmp_path).values()] == [6, 6]


def test_a_server_that_is_started_begins_anew_for_each_pair(
    tmp_path: Path, locust: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, seen = locust(), list[str]()
    monkeypatch.setattr(_stack.Stack, "start", lambda self, *_: seen.append(f"start {self.side}"))
    monkeypatch.setattr(_stack.Stack, "stop", lambda self, *_: seen.append(f"stop {self.side}"))
    _measure.measure(plan(commands={"baseline": "a", "candidate": "b"}, runs=2), tmp_path, lambda _: None)
    sides = [name.rpartition("-")[2] for name in asked[::2]]
    assert seen == [f"{what} {side}" for side in sides for what in ("start", "stop")]
    assert len(sides) == 4


def test_a_void_run_is_put_aside_and_measured_again(tmp_path: Path, locust: Callable[..., list[str]]) -> None:
    only = plan(rates={"chat": 4.0}, runs=2)
    said: list[str] = []
    locust({"01-chat-baseline": (3, "void")})
    _measure.measure(only, tmp_path, said.append)
    assert any("01-chat-baseline: not used (void: lag)" in line for line in said)
    asked = locust()
    _measure.measure(only, tmp_path, said.append)
    assert asked == ["01-chat-baseline"]
    runs = _measure.stored(tmp_path)["baseline"]
    assert [(r.name, r.unusable) for r in runs] == [
        ("01-chat-baseline", ""),
        ("01-chat-baseline.void-1", "void: lag"),
        ("02-chat-baseline", ""),
    ]


def test_options_that_locust_refuses_end_the_gate_with_its_words(
    tmp_path: Path, locust: Callable[..., list[str]]
) -> None:
    locust({s.name: (2, "") for s in _measure.order(plan())})
    with pytest.raises(MeasureError, match="--rate: so many are not offered here") as refused:
        _measure.measure(plan(), tmp_path, lambda _: None)
    assert refused.value.usage


def test_a_locust_that_leaves_no_run_ends_the_gate(tmp_path: Path, locust: Callable[..., list[str]]) -> None:
    locust({s.name: (9, "") for s in _measure.order(plan())})
    with pytest.raises(MeasureError, match="ended with status 9 and left no run"):
        _measure.measure(plan(), tmp_path, lambda _: None)


def test_other_settings_need_another_folder(tmp_path: Path) -> None:
    _measure.same_settings(tmp_path, plan())
    _measure.same_settings(tmp_path, plan(runs=9, settle=3.0))
    with pytest.raises(MeasureError, match=r"measured with arrivals 'poisson', now it is 'constant'"):
        _measure.same_settings(tmp_path, plan(arrivals="constant"))


def test_a_command_is_started_waited_for_and_ended_with_all_its_processes(
    tmp_path: Path, free_port: int
) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "models").write_text("{}")
    line = f"sh -c '{sys.executable} -m http.server -b 127.0.0.1 -d {tmp_path} {free_port}; true'"
    stack = _stack.Stack("candidate", f"http://127.0.0.1:{free_port}/", line, tmp_path / "log", 60.0)
    said: list[str] = []
    stack.start(said.append, 0.0)
    assert said == [f"candidate: starting `{line}`"]
    assert stack._problem() is None
    second = _stack.Stack("baseline", stack.address, "true", tmp_path / "log", 60.0)
    with pytest.raises(_stack.StackError, match=r"baseline: something answers at .* already"):
        second.start(said.append, 0.0)
    stack.stop(patience=5.0)
    assert stack._problem() is not None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("no-such-program-here", "can't be started: No such file or directory"),
        ("sh -c 'exit 7'", "ended with status 7 (its words:"),
        ("true", "ended with status 0; give a command that stays in the foreground"),
    ],
)
def test_a_command_that_does_not_come_up_is_told(
    tmp_path: Path, free_port: int, line: str, said: str
) -> None:
    stack = _stack.Stack("candidate", f"http://127.0.0.1:{free_port}", line, tmp_path / "log", 60.0)
    with pytest.raises(_stack.StackError) as error:
        stack.start(lambda _: None, 0.0)
    assert said in str(error.value)


def test_a_run_that_was_broken_off_is_put_aside_and_measured_again(
    tmp_path: Path, locust: Callable[..., list[str]]
) -> None:
    """A locust that is ended by a signal sums up what it has, as if no more had been asked for."""
    only = plan(rates={"chat": 4.0}, runs=1)
    gate_runs.write(tmp_path / "runs" / "01-chat-baseline", measured_seconds=3.0)
    asked = locust()
    _measure.measure(only, tmp_path, lambda _: None)
    assert sorted(asked) == ["01-chat-baseline", "01-chat-candidate"]
    runs = _measure.stored(tmp_path)["baseline"]
    assert [(r.name, r.unusable) for r in runs] == [
        ("01-chat-baseline", ""),
        ("01-chat-baseline.void-1", "broke off"),
    ]


def test_two_gates_do_not_measure_into_one_folder(tmp_path: Path, locust: Callable[..., list[str]]) -> None:
    asked = locust()
    with (
        _measure._alone(tmp_path),
        pytest.raises(MeasureError, match="another gate measures into it") as refused,
    ):
        _measure.measure(plan(), tmp_path, lambda _: None)
    assert refused.value.usage
    assert asked == []


def test_a_run_that_outlives_its_gate_keeps_the_folder_to_itself(tmp_path: Path) -> None:
    with _measure._alone(tmp_path) as lock:
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock,))
    with pytest.raises(MeasureError, match="a run of one that was killed goes on"), _measure._alone(tmp_path):
        pass
    process.communicate()
    with _measure._alone(tmp_path):
        pass
