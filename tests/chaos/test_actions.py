"""Actions of experiments on a stand-in fleet: what they return, what they refuse, and that they die with their process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chaoslib.exceptions import ActivityFailed

from chaos import actions, timeline
from tests.chaos.framework import eventually, records


def test_a_replica_is_killed(make_stack: Any, own_home: Path) -> None:
    stack = make_stack(restart=60)
    victim = stack.replicas["replica-0"]
    (done,) = actions.kill_replica(stack.url, "replica-0")
    assert (done["fault"], done["engine"], done["target"]) == ("replica_crash", "signals", "replica-0")
    assert done["proof"] == f"process {victim.process.pid} is gone"
    assert timeline.start() == done["injected_at"] <= done["proven_at"]
    assert victim.process.wait(30) == -signal.SIGKILL
    assert stack.replicas["replica-1"].process.poll() is None
    assert records(own_home) == []


def test_a_second_replica_and_the_last_one_are_refused_unless_told(make_stack: Any) -> None:
    stack = make_stack(restart=60)
    actions.kill_replica(stack.url, "any")
    assert eventually(lambda: len(stack.ready()) == 1)
    (left,) = stack.ready()
    down = ({"replica-0", "replica-1"} - {left}).pop()
    with pytest.raises(ActivityFailed, match=f"{down} is down, not in rotation"):
        actions.kill_replica(stack.url, down)
    with pytest.raises(
        ActivityFailed, match=rf"2 replicas were broken or out of rotation \({down} already is\)"
    ):
        actions.kill_replica(stack.url, left)
    with pytest.raises(ActivityFailed, match=f"{left} is the last replica in rotation"):
        actions.kill_replica(stack.url, left, max_affected=2)
    assert stack.replicas[left].process.poll() is None
    actions.kill_replica(stack.url, left, max_affected=2, allow_last=True)
    assert stack.replicas[left].process.wait(30) == -signal.SIGKILL


def test_a_freeze_and_its_undo(make_stack: Any, own_home: Path) -> None:
    stack = make_stack()
    victim = stack.replicas["replica-0"]
    (done,) = actions.freeze_replica(stack.url, "replica-0", duration=60)
    assert victim.stopped
    assert victim.answers() == "frozen"
    assert [p.stem for p in records(own_home)] == [done["id"]]
    # Until the router has noticed, the record alone refuses it, in other words (test_inject).
    assert eventually(lambda: victim.state == "frozen")
    with pytest.raises(ActivityFailed, match="replica-0 is frozen, not in rotation"):
        actions.freeze_replica(stack.url, "replica-0", duration=60)
    assert actions.thaw_replica("replica-0") == [done["id"]]
    assert eventually(lambda: victim.answers() == "ready")
    assert records(own_home) == []
    assert actions.thaw_replica("replica-0") == [], "thawing twice is no error"
    assert actions.recover() == {"undone": [], "leftovers": []}


def test_undo_takes_out_only_what_is_named(make_stack: Any, own_home: Path) -> None:
    stack = make_stack(replicas=3)
    for name in ("replica-0", "replica-1"):
        actions.inject_fault("replica_freeze", name, 60, admin=stack.url, max_affected=2)
    actions.undo_fault("replica_freeze", "replica-0")
    assert not stack.replicas["replica-0"].stopped
    assert stack.replicas["replica-1"].stopped
    actions.undo_fault()
    assert not stack.replicas["replica-1"].stopped


def test_a_freeze_ends_when_its_process_is_killed(make_stack: Any, own_home: Path) -> None:
    stack = make_stack()
    victim = stack.replicas["replica-0"]
    code = (
        "import sys, time; from chaos import actions; "
        "actions.freeze_replica(sys.argv[1], 'replica-0', 600); print('frozen', flush=True); time.sleep(600)"
    )
    controller = subprocess.Popen([sys.executable, "-c", code, stack.url], stdout=subprocess.PIPE, text=True)
    assert controller.stdout is not None
    try:
        assert controller.stdout.readline() == "frozen\n"
        assert victim.stopped
    finally:
        controller.kill()
        controller.communicate()
    assert eventually(lambda: not victim.stopped and records(own_home) == [])


def test_an_injection_that_failed_is_remembered_by_the_probes(make_stack: Any) -> None:
    stack = make_stack()
    with pytest.raises(ActivityFailed, match=r"no replica 'nobody' \(there: replica-0, replica-1\)"):
        actions.inject_fault("replica_freeze", "nobody", 10, admin=stack.url)
    with pytest.raises(ActivityFailed, match="nothing to wait for: replica_freeze on nobody was not done"):
        timeline.start()


def test_dead_routers_and_odd_places_are_said(make_stack: Any, own_home: Path) -> None:
    with pytest.raises(ActivityFailed, match="can't be read"):
        actions.kill_replica("http://127.0.0.1:9", "replica-0")
    with pytest.raises(ActivityFailed, match="answered 404"):
        actions.kill_replica(f"{make_stack().url}/elsewhere", "replica-0")
    with pytest.raises(ActivityFailed, match=r"no stack is up here .*exaserve up starts one"):
        actions.inject_fault("replica_crash", "any", 10)
    with pytest.raises(ActivityFailed, match="no place 'moon'"):
        actions.inject_fault("replica_crash", "any", 10, place="moon")
