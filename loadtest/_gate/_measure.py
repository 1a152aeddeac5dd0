"""The runs of a gate: which, in what order, each as a locust of its own; those that are there are not repeated.

A folder of a gate::

    gate.json               what is measured; the same command goes on where it stopped, more --runs add to it
    runs/01-chat-baseline/  folders of runs, as locust writes them (and 01-chat-baseline.log, its words)
    runs/01-chat-baseline.void-1/    a run that was void or broke off, kept, and measured again
    result.json  report.md  report.html
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _runs
from ._stack import Stack

SIDES = ("baseline", "candidate")
LOCUSTFILES = Path(__file__).resolve().parents[1]
#: locust's own start and the end of open requests come on top of a run's time.
START_SECONDS, GRACE_SECONDS = 5.0, 60.0
#: Exit statuses of a run (README of the load tests): whoever asks wrongly ends the gate.
USAGE = 2


class MeasureError(Exception):
    """The gate can't go on; the message says why and what to do. usage: the command was wrong."""

    def __init__(self, message: str, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


@dataclass(frozen=True)
class Step:
    """One run: pair 1, 2, …; its side; what is played."""

    pair: int
    workload: str
    side: str

    @property
    def name(self) -> str:
        return f"{self.pair:02d}-{self.workload}-{self.side}"


@dataclass
class Plan:
    """What is measured. rates: workload -> requests a second. seconds: measured ones, by workload.

    arguments: further ones for locust. keep: the commands' servers stay up side by side, not one at a time.
    """

    addresses: dict[str, str]
    commands: dict[str, str | None]
    rates: dict[str, float]
    seconds: dict[str, float]
    runs: int
    seed: int
    arrivals: str
    warmup: float
    processes: int
    arguments: list[str]
    ready_timeout: float
    settle: float
    keep: bool

    def settings(self) -> dict[str, Any]:
        """What has to be the same for runs of a folder to belong together."""
        left_out = {"runs", "ready_timeout", "settle"}
        return {k: v for k, v in vars(self).items() if k not in left_out}


def order(plan: Plan) -> list[Step]:
    """Pair by pair, so that slow changes of the machine meet both sides; which side is first is drawn.

    With addresses, or servers that stay up, sides change from run to run; a server that is started anew plays all
    workloads in one go.
    """
    steps = []
    for pair in range(1, plan.runs + 1):
        draw = random.Random(f"{plan.seed}/{pair}")  # noqa: S311  of a pair alone: more runs keep the earlier ones
        if any(plan.commands.values()) and not plan.keep:
            sides = draw.sample(SIDES, 2)
            steps += [Step(pair, workload, side) for side in sides for workload in plan.rates]
        else:
            steps += [Step(pair, workload, side) for workload in plan.rates for side in draw.sample(SIDES, 2)]
    return steps


def command(plan: Plan, step: Step, folder: Path) -> list[str]:
    """The locust of one run, as a user would type it."""
    # One seed: every run has the same arrivals, words and lengths. Its name stands in front of its prompts, so that
    # no run finds those of an earlier one in a prefix cache.
    seconds = plan.seconds[step.workload] + plan.warmup
    words = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILES / f"{step.workload}.py"), "--headless"]
    words += ["-H", plan.addresses[step.side], "-u", "1", "-t", f"{math.ceil(seconds)}s"]
    words += ["--arrivals", plan.arrivals, "--rate", f"{plan.rates[step.workload]:g}"]
    words += ["--warmup", f"{plan.warmup:g}", "--seed", str(plan.seed), "--run-folder", str(folder)]
    if plan.processes > 1:
        port = str(_free_port())  # locust's own default is taken if somebody else runs one here
        words += ["--processes", str(plan.processes), "--master-bind-port", port, "--master-port", port]
    return words + plan.arguments


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def same_settings(folder: Path, plan: Plan) -> None:
    """Writes gate.json, or raises MeasureError where the folder was made with other settings."""
    path, now = folder / "gate.json", plan.settings()
    if path.is_file():
        try:
            before = json.loads(path.read_text())
            other = [k for k in now if before.get(k) != now[k]]
        except (OSError, ValueError, AttributeError) as error:
            raise MeasureError(f"{path} can't be read ({error}); give another --folder", usage=True) from None
        if other:
            key = other[0]
            raise MeasureError(
                f"{folder} was measured with {key} {before.get(key)!r}, now it is {now[key]!r}: "
                "give the same settings to go on, or another --folder",
                usage=True,
            )
        return
    try:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(now, indent=1))
        temporary.rename(path)
    except OSError as error:
        raise MeasureError(f"--folder {folder}: {error.strerror or error}", usage=True) from None


def measure(plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
    """Does what is still missing. Raises MeasureError, StackError, KeyboardInterrupt; what is done stays done."""
    same_settings(folder, plan)
    with _alone(folder) as lock:
        _do_missing(plan, folder, say, lock)


@contextmanager
def _alone(folder: Path) -> Iterator[int]:
    """Nobody else measures into the folder meanwhile. Yields a file to pass on to each locust: it holds the lock as long
    as one of them lives, also where the gate itself was killed. Raises MeasureError.
    """
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise MeasureError(
                f"{folder}: another gate measures into it, or a run of one that was killed goes on; wait for it, or give "
                "another --folder",
                usage=True,
            ) from None
        yield lock.fileno()


def _do_missing(plan: Plan, folder: Path, say: Callable[[str], None], lock: int) -> None:
    steps = [s for s in order(plan) if not _done(plan, folder, s)]
    total, left = len(order(plan)), _Left(plan, steps)
    if not steps:
        say(f"all {total} runs are there")
        return
    say(f"{len(steps)} of {total} runs to do, about {left.text()}")
    stacks = {
        side: Stack(
            side, plan.addresses[side], plan.commands[side], folder / f"{side}.log", plan.ready_timeout
        )
        for side in SIDES
    }
    up: set[str] = set()
    last: Step | None = None
    try:
        for step in steps:
            # Started anew for each pair: how a start turned out is part of what differs between runs.
            fresh = last is None or (last.pair, last.side) != (step.pair, step.side)
            if fresh and not plan.keep and plan.commands[step.side]:
                _end(stacks, up)
            if step.side not in up:
                up.add(step.side)  # before it is: what came half up has to end too
                stacks[step.side].start(say, plan.settle)
            last = step
            began = time.monotonic()
            said = _run(plan, step, folder, lock)
            left.done(step, time.monotonic() - began)
            say(f"[{total - left.steps}/{total}] {step.name}: {said}; {left.text()} left")
    finally:
        _end(stacks, up)


def _end(stacks: dict[str, Stack], up: set[str]) -> None:
    for side in list(up):
        stacks[side].stop()
        up.discard(side)


class _Left:
    """Time left, from the planned times and what runs took beyond them so far."""

    def __init__(self, plan: Plan, steps: list[Step]) -> None:
        self._plan, self._todo, self._over = plan, list(steps), [START_SECONDS]

    @property
    def steps(self) -> int:
        return len(self._todo)

    def _planned(self, step: Step) -> float:
        return self._plan.seconds[step.workload] + self._plan.warmup

    def done(self, step: Step, took: float) -> None:
        self._todo.remove(step)
        self._over.append(took - self._planned(step))

    def text(self) -> str:
        over = sum(self._over) / len(self._over)
        seconds = sum(self._planned(s) + max(0.0, over) for s in self._todo)
        return f"{seconds / 3600:.1f} h" if seconds > 5400 else f"{seconds / 60:.1f} min"


def _done(plan: Plan, folder: Path, step: Step) -> bool:
    """Whether the run is there, went on to its end and is usable; one that is not is moved aside."""
    path = folder / "runs" / step.name
    if not path.exists():
        return False
    try:
        # A run whose every request failed says something about its server; a void one does not.
        run = _runs.read(path)
        whole = run.seconds is not None and run.seconds >= plan.seconds[step.workload] - 1
        usable = whole and (not run.unusable or "failed" in run.unusable)
    except _runs.RunError:
        usable = False
    if not usable:
        number = 1
        while (aside := path.with_name(f"{path.name}.void-{number}")).exists():
            number += 1
        path.rename(aside)
    return usable


def _run(plan: Plan, step: Step, folder: Path, lock: int) -> str:
    """Plays one run to its end and says how it went. Raises MeasureError where the same would happen again."""
    path = folder / "runs" / step.name
    words = command(plan, step, path)
    limit = plan.seconds[step.workload] + plan.warmup + START_SECONDS + GRACE_SECONDS + 120
    log_path = path.with_suffix(".log")
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            pass_fds=(lock,),
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"did not end within {limit:.0f} s and was killed; not used"
        except KeyboardInterrupt:
            process.terminate()
            try:
                process.wait(30 + GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    if status == USAGE:
        raise MeasureError(f"locust refused the options: {_last_line(log_path)} (see {log_path})", usage=True)
    try:
        run = _runs.read(path)
    except _runs.RunError as error:
        if not path.exists():
            raise MeasureError(
                f"locust ended with status {status} and left no run: {_last_line(log_path)} (see {log_path})"
            ) from None
        return f"not usable: {error}"
    if run.unusable:
        return f"not used ({run.unusable})"
    group = next(iter(run.groups.values()), None)
    if group is None:
        return "no requests of the measured phase"
    times = ", ".join(
        f"{m} P50 {_seconds(group.times[m, 0.5])} P99 {_seconds(group.times[m, 0.99])}"
        for m in ("ttft", "e2e")
        if (m, 0.5) in group.times
    )
    return f"{group.completed} of {group.offered} requests, {times}"


def _seconds(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "(it said nothing)"


def stored(folder: Path) -> dict[str, list[_runs.Run]]:
    """The runs of a gate's folder by side; those that were put aside as void are there as unusable."""
    found: dict[str, list[_runs.Run]] = {side: [] for side in SIDES}
    for path in sorted((folder / "runs").iterdir()) if (folder / "runs").is_dir() else ():
        name, aside, _ = path.name.partition(".void-")
        side = name.rpartition("-")[2]
        if path.is_dir() and side in found:
            try:
                run = _runs.read(path)
            except _runs.RunError as error:
                run = _runs.Run(path, str(error), {})
            if aside:
                run = _runs.Run(path, run.unusable or "broke off", {})
            found[side].append(run)
    return found
