"""Whoever dies, and whenever: the system is as it was, by the dead-man while it lives, by ``recover`` otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from chaos import identity, inject, steps
from chaos import recover as recovering
from tests.chaos.framework import (
    BRIEF,
    Here,
    controller,
    eventually,
    fault,
    kill_both,
    records,
    recover,
    the_record,
)

#: A step that nobody waits for to its end.
PAUSE = steps.run(["sleep", "100"], timeout=110.0)


def touch(path: Path) -> dict[str, Any]:
    return steps.write(str(path), "here\n")


def gone(path: Path) -> dict[str, Any]:
    return steps.remove(str(path))


def state(home: Path) -> str:
    record = the_record(home)
    return str(record["state"]) if record else ""


def deadman(home: Path) -> dict[str, Any] | None:
    record = the_record(home)
    return record["deadman"] if record else None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_controller_that_dies_leaves_nothing(number: int, tmp_path: Path, own_home: Path) -> None:
    """The pipe's end wakes the dead-man: it undoes at once, long before the duration is over."""
    mark = tmp_path / "mark"
    process = controller(60, do=[touch(mark)], undo=[gone(mark)], proof=str(mark))
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    assert mark.exists()
    process.send_signal(number)
    assert eventually(lambda: not mark.exists(), 30)
    assert eventually(lambda: records(own_home) == [])
    process.communicate()


def test_a_controller_that_hangs_loses_the_fault_at_its_end(tmp_path: Path, own_home: Path) -> None:
    mark = tmp_path / "mark"
    process = controller(BRIEF, do=[touch(mark)], undo=[gone(mark)], proof=str(mark))
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    process.send_signal(signal.SIGSTOP)
    assert eventually(lambda: not mark.exists() and records(own_home) == [], BRIEF + 20)
    process.kill()
    process.communicate()


def test_a_controller_that_dies_in_the_middle_of_the_steps_leaves_nothing(
    tmp_path: Path, own_home: Path
) -> None:
    """Also the program that a step runs then is ended, not waited for."""
    first, second = tmp_path / "1", tmp_path / "2"
    process = controller(60, do=[touch(first), PAUSE, touch(second)], undo=[gone(first), gone(second)])
    assert eventually(first.exists)
    process.kill()
    assert eventually(lambda: not first.exists() and records(own_home) == [], 50)  # of the pause's 100 s
    assert not second.exists()
    process.communicate()


def test_a_controller_that_dies_while_it_measures_before_leaves_no_record(
    tmp_path: Path, own_home: Path
) -> None:
    """Nothing was done, so nothing is undone; a record that stayed would refuse the next fault of its kind."""
    undone = tmp_path / "undone"
    process = controller(60, do=[], undo=[touch(undone)], before=20.0)
    assert eventually(lambda: state(own_home) == "planned")
    process.kill()
    process.communicate()
    assert eventually(lambda: records(own_home) == [])
    assert not undone.exists()
    with inject.held(fault(do=[], undo=[]), "fleet", Here(), 30):
        pass


def before_the_record(home: Path, first: Path) -> bool:
    return True


def after_the_record(home: Path, first: Path) -> bool:
    record = the_record(home)
    return record is not None and record["deadman"] is not None


def between_steps(home: Path, first: Path) -> bool:
    return first.exists()


def during_proof(home: Path, first: Path) -> bool:
    return state(home) == "in"


POINTS: dict[str, tuple[Callable[[Path, Path], bool], dict[str, Any]]] = {
    "before the record": (before_the_record, {}),
    "after the record": (after_the_record, {"do": [PAUSE]}),
    "between steps": (between_steps, {"do": ["first", PAUSE, "second"]}),
    "during proof": (during_proof, {"do": ["first", "second"], "proof": "/nowhere", "within": 30.0}),
    "while it is in": (during_proof, {"do": ["first", "second"]}),
}


@pytest.mark.parametrize("point", POINTS)
def test_both_killed_at_any_point_recover_puts_it_right(point: str, tmp_path: Path, own_home: Path) -> None:
    reached, given = POINTS[point]
    marks = {"first": tmp_path / "1", "second": tmp_path / "2"}
    do = [touch(marks[s]) if isinstance(s, str) else s for s in given.get("do", ["first"])]
    options = {k: v for k, v in given.items() if k != "do"}
    with ExitStack() as held:
        if reached is before_the_record:  # it gets no further, however late we come
            held.enter_context(recovering.alone("plan"))
        process = controller(60, do=do, undo=[gone(m) for m in marks.values()], **options)
        assert eventually(lambda: reached(own_home, marks["first"]))
        kill_both(process, deadman(own_home))
    assert recovering.recover().failed == []
    assert not any(mark.exists() for mark in marks.values())
    assert records(own_home) == []
    assert recovering.recover() == recovering.Recovered(), "twice is no error"


def test_both_killed_during_the_undo_recover_ends_it(tmp_path: Path, own_home: Path) -> None:
    first, second, on = tmp_path / "1", tmp_path / "2", tmp_path / "on"
    wait = steps.run(["sh", "-c", f"until [ -e {on} ]; do sleep 0.02; done"], timeout=100.0)
    undo = [gone(first), wait, gone(second)]
    process = controller(60, do=[touch(first), touch(second)], undo=undo)
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    process.kill()
    assert eventually(lambda: not first.exists())
    assert state(own_home) == "undoing"
    kill_both(process, deadman(own_home))
    assert second.exists()
    on.touch()
    assert recovering.recover().failed == []
    assert not second.exists()
    assert records(own_home) == []


def test_a_program_that_outlives_its_deadman_is_ended_before_the_undo(tmp_path: Path, own_home: Path) -> None:
    """Or it would do again what is undone already, and no record would tell of it."""
    first, second = tmp_path / "1", tmp_path / "2"
    program = steps.run(["sh", "-c", f"touch {first}; sleep 2; touch {second}"])
    process = controller(60, do=[program], undo=[gone(first), gone(second)])
    assert eventually(first.exists)
    kill_both(process, deadman(own_home))
    assert recovering.recover().failed == []
    assert not eventually(lambda: first.exists() or second.exists(), 3)


def test_nothing_is_put_in_while_recover_clears(own_home: Path) -> None:
    (own_home / "chaos" / "undo").mkdir(parents=True)
    recover_ = threading.Thread(target=recovering.recover)
    with recovering.alone("plan"):
        recover_.start()
        recover_.join(0.5)
        assert recover_.is_alive()
    recover_.join(60)
    assert not recover_.is_alive()


def test_recover_ends_a_fault_that_a_living_controller_holds(tmp_path: Path, own_home: Path) -> None:
    """It asks the dead-man first, so that never two of them undo one record."""
    mark = tmp_path / "mark"
    process = controller(60, do=[touch(mark)], undo=[gone(mark)], proof=str(mark))
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    code, said = recover()
    assert code == 0
    assert "undone: of_test-fleet-" in said
    assert not mark.exists()
    assert records(own_home) == []
    process.kill()
    process.communicate()


def test_helpers_die_with_the_deadman_and_recover_ends_those_that_left_it(
    tmp_path: Path, own_home: Path
) -> None:
    """A helper that made itself a daemon is found by the mark in its environment."""
    code = "import os,time; os.fork() and os._exit(0); os.setsid(); open({!r},'w').write(str(os.getpid())); time.sleep(60)"
    pidfile = tmp_path / "pid"
    do = [
        steps.spawn(
            "plain",
            [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)"],
            ready="ready",
        ),
        steps.run([sys.executable, "-c", "pass"]),
        steps.spawn("daemon", ["sh", "-c", f'{sys.executable} -c "{code.format(str(pidfile))}"; sleep 60']),
    ]
    process = controller(60, do=do, undo=[steps.stop("plain"), steps.stop("daemon")])
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    assert eventually(lambda: pidfile.exists() and pidfile.read_text())
    record = the_record(own_home)
    assert record is not None
    plain, daemon = record["spawned"]["plain"], identity.of(int(pidfile.read_text()))
    kill_both(process, record["deadman"])
    assert eventually(lambda: not identity.alive(plain)), "the kernel ends it with its parent"
    assert identity.alive(daemon)
    assert recovering.recover().failed == []
    assert not identity.alive(daemon)


def test_a_helper_whose_record_is_gone_is_cleared(tmp_path: Path, own_home: Path) -> None:
    record = own_home / "chaos" / "undo" / "some.json"
    record.parent.mkdir(parents=True)
    helper = subprocess.Popen(["sleep", "60"], env={**os.environ, identity.MARK: str(record)})
    other = subprocess.Popen(["sleep", "60"], env={**os.environ, identity.MARK: "/elsewhere/undo/some.json"})
    try:
        said = recovering.recover().leftovers
        assert said == [f"helper process {helper.pid} of some had no record; it was ended"]
        assert helper.wait(30) == -signal.SIGKILL
        assert other.poll() is None, "another home's helper is not ours"
    finally:
        for process in (helper, other):
            process.kill()
            process.wait()


def test_the_time_counts_from_the_injection(tmp_path: Path, own_home: Path) -> None:
    mark = tmp_path / "mark"
    given = fault(do=[touch(mark)], undo=[gone(mark)], proof=str(mark))
    injection = inject.start(given, "fleet", Here(), BRIEF)[0]
    assert injection.until == pytest.approx(injection.injected_at + BRIEF)
    record = the_record(own_home)
    assert record is not None
    # The dead-man's own time begins when it gets the word, and is not begun anew by the proof.
    assert injection.until <= record["until"] <= (injection.proven_at or 0) + BRIEF
    assert injection.wait(60)
    assert injection.until - 0.01 <= time.time() <= record["until"] + 20
    assert not mark.exists()
    injection.undo()
