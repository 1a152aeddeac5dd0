"""Runs the rows one after the other on a lab, and builds the lab if none is given. Its output is the progress."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from chaos import places
from chaos.acceptance.bench import Bench
from chaos.acceptance.result import Result
from chaos.acceptance.rows import Row
from chaos.fault import ActivityFailed
from chaos.lab import build, state

#: Of the lab that is built: its monitoring looks often enough for rows of seconds, and engines may queue as by default,
#: which the row of the peak makes shorter.
LAB = ("--nodes", "4", "--regions", "2")
SETTINGS = ("monitoring.scrape_interval=1.0", "router.max_queue_depth=32")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Say = Callable[[str], None]


class LabFailed(Exception):
    """There is no lab of our own: it could not be built (what it said is on the screen), or somebody has one."""


@contextmanager
def own_lab(name: str, say: Say) -> Iterator[str]:
    """A lab of that name, taken down at the end whatever happens. Raises LabFailed, KeyboardInterrupt (SIGTERM too).

    One that is up is refused: it is somebody's, or what a run that was killed has left, with whatever it changed.
    """
    _refuse_one_that_is_up(name)
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    with _interruptible():
        try:
            if _lab(say, "up", "--name", name, *LAB, *settings):
                raise LabFailed(
                    f"the lab could not be built; see above, or try: exaserve lab up --name {name}"
                )
            yield f"lab:{name}"
        finally:
            for number in _SIGNALS:  # a second Ctrl-C must not leave half a lab
                signal.signal(number, signal.SIG_IGN)
            _lab(say, "down", "--name", name)


def _refuse_one_that_is_up(name: str) -> None:
    try:
        found = state.read(name)
        if found is None or not (build.is_up(found) or build.being_built(found)):
            return
    except state.LabError as error:
        raise LabFailed(str(error)) from None
    raise LabFailed(
        f"--name: a lab {name!r} is up already, and rows change and remove theirs. If nobody needs it: "
        f"exaserve lab down --name {name}; else give another --name, or try it as it is: --place lab:{name}"
    )


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP are as Ctrl-C, so that what was put in is taken out. What is ignored (nohup) stays so."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if before[number] != signal.SIG_IGN:
                signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(
    rows: Sequence[Row], place: str, folder: Path, say: Say, own: bool, keep: Callable[[list[Result]], None]
) -> list[Result]:
    """Every row's result. place: of a lab. keep: called after each row with all so far. Raises ActivityFailed."""
    lab = places.open(place)
    whole = place.partition("/")[0]
    first = places.open(f"{whole}/region-1") if getattr(lab, "regions", None) and "/" not in place else lab
    results: list[Result] = []
    for i, row in enumerate(rows, 1):
        head = f"[{i}/{len(rows)}] {row.title}"
        bench = Bench(first, lab, folder, lambda text, head=head: say(f"{head}: {text}"), own)  # type: ignore[misc]
        results.append(one(row, bench))
        _tell(results[-1], head, say)
        keep(results)
    return results


def one(row: Row, bench: Bench) -> Result:
    """One row. What could not be carried out is ``not run``, with the reason; the fleet is whole before and after."""
    result = Result(row.key, row.title)
    if row.act is None:
        result.state, result.reason = "not built", row.missing
        return result
    began = time.monotonic()
    bench.say("begins")
    try:
        if bench.wait_ready() is None:
            raise ActivityFailed("not every replica was in rotation before it began")
        row.act(bench, result)
        result.judge()
    except (ActivityFailed, OSError) as error:
        result.reason = str(error) or type(error).__name__
    result.seconds = time.monotonic() - began
    return result


def _tell(result: Result, head: str, say: Say) -> None:
    say(f"{head}: {result.state.upper()}" + (f" after {result.seconds:.0f} s" if result.seconds else ""))
    if result.reason:
        say(f"      {result.reason}")
    for check in result.checks:
        say(f"      {'ok  ' if check.held else 'MISS'} {check.expected}: {check.seen}")


def _lab(say: Say, *arguments: str) -> int:
    """``exaserve lab``, its output as ours; its exit status."""
    with subprocess.Popen(
        [sys.executable, "-m", "serving.cli", "lab", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(os.environ),
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            say(f"  {line.rstrip()}")
    return process.returncode
