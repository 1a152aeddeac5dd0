"""Faults on real child processes: what they do, what they refuse, and that a freeze heals whoever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chaoslib.exceptions import ActivityFailed

from chaos import actions, fleet, processes
from chaos.faults import replica_crash, replica_freeze


def eventually(true: Callable[[], Any], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return False


def seen(replica: Any) -> fleet.Replica:
    return fleet.Replica(replica.name, replica.url, "ready", 0, "")


def write_stack(home: Path, replica: Any, pid: int) -> None:
    """As ``exaserve up`` writes it, of the parts that matter here."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    parts = [
        {"name": "router", "address": "", "identity": None},
        {"name": replica.name, "address": replica.url, "identity": {"pid": pid, "ticks": ticks, "boot": ""}},
    ]
    (home / "run").mkdir(parents=True)
    (home / "run" / "stack.json").write_text(json.dumps({"parts": parts}))


# --- crash ---


def test_a_crash_kills_the_process_and_it_is_gone(make_stack: Any) -> None:
    stack = make_stack(restart=60)
    victim = stack.replicas["replica-0"]
    result = actions.kill_replica(stack.url, "replica-0")
    assert result == {"replica": "replica-0", "pid": victim.process.pid, "children_left": []}
    assert victim.process.wait(5) == -signal.SIGKILL
    assert stack.replicas["replica-1"].process.poll() is None


def test_any_takes_one_that_is_in_rotation(make_stack: Any) -> None:
    stack = make_stack(restart=60)
    assert actions.kill_replica(stack.url, "any")["replica"] in stack.replicas


def test_a_second_replica_and_the_last_one_are_refused_unless_told(make_stack: Any) -> None:
    stack = make_stack(restart=60)
    actions.kill_replica(stack.url, "replica-0")
    assert eventually(lambda: stack.ready() == ["replica-1"])
    with pytest.raises(ActivityFailed, match="replica-0 is down, not in rotation"):
        actions.kill_replica(stack.url, "replica-0")
    with pytest.raises(ActivityFailed, match=r"2 replicas were out of rotation \(replica-0 already is\)"):
        actions.kill_replica(stack.url, "replica-1")
    with pytest.raises(ActivityFailed, match="replica-1 is the last replica in rotation"):
        actions.kill_replica(stack.url, "replica-1", max_affected=2)
    assert stack.replicas["replica-1"].process.poll() is None
    actions.kill_replica(stack.url, "replica-1", max_affected=2, allow_last=True)
    assert stack.replicas["replica-1"].process.wait(5) == -signal.SIGKILL


def test_unknown_names_and_dead_routers_are_said(make_stack: Any) -> None:
    stack = make_stack()
    with pytest.raises(
        ActivityFailed, match=r"no replica 'nobody' in the fleet \(there: replica-0, replica-1\)"
    ):
        actions.kill_replica(stack.url, "nobody")
    with pytest.raises(ActivityFailed, match="can't be read"):
        actions.kill_replica("http://127.0.0.1:9", "replica-0")
    with pytest.raises(ActivityFailed, match="answered 404"):
        actions.kill_replica(f"{stack.url}/elsewhere", "replica-0")


def test_a_port_nobody_listens_on_and_another_machine_are_refused(make_stack: Any) -> None:
    with pytest.raises(ActivityFailed, match="no process that this user can see listens"):
        replica_crash.inject(fleet.Replica("r", "http://127.0.0.1:9", "ready", 0, ""))
    with pytest.raises(ActivityFailed, match="not on this machine"):
        replica_crash.inject(fleet.Replica("r", "http://192.0.2.1:80", "ready", 0, ""))


def test_the_experiments_own_process_is_refused(make_stack: Any) -> None:
    stack = make_stack()
    with pytest.raises(ActivityFailed, match="runs this experiment"):
        replica_crash.inject(fleet.Replica("r", stack.url, "ready", 0, ""))


def test_a_process_that_is_not_the_one_written_down_is_refused(make_stack: Any, own_home: Path) -> None:
    stack = make_stack()
    first, second = stack.replicas.values()
    write_stack(own_home, first, second.process.pid)
    with pytest.raises(ActivityFailed, match=f"replica-0 was started as {second.process.pid}"):
        replica_crash.inject(seen(first))
    assert first.process.poll() is None


def test_the_process_written_down_is_taken(make_stack: Any, own_home: Path) -> None:
    stack = make_stack(restart=60)
    first = stack.replicas["replica-0"]
    write_stack(own_home, first, first.process.pid)
    assert replica_crash.inject(seen(first))["pid"] == first.process.pid


def test_what_another_stack_wrote_down_does_not_count(make_stack: Any, own_home: Path) -> None:
    stack = make_stack(restart=60)
    first = stack.replicas["replica-0"]
    elsewhere = fleet.Replica("replica-0", "http://127.0.0.1:1", "ready", 0, "")
    write_stack(own_home, elsewhere, os.getpid())
    assert processes.of_replica(seen(first)).pid == first.process.pid


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to start a process of another user")
def test_another_users_process_is_refused() -> None:
    code = (
        "import os,socket,time; s=socket.create_server(('127.0.0.1',0)); os.setuid(65534); "
        "print(s.getsockname()[1],flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        with pytest.raises(ActivityFailed, match="is another user's"):
            replica_crash.inject(fleet.Replica("r", f"http://127.0.0.1:{port}", "ready", 0, ""))
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()


def test_a_child_that_inherited_the_socket_is_not_mistaken_for_the_replica() -> None:
    code = (
        "import os,socket,time; s=socket.create_server(('127.0.0.1',0)); p=os.fork(); "
        "p and print(s.getsockname()[1],p,flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    port, child = map(int, parent.stdout.readline().split())
    try:
        replica = fleet.Replica("r", f"http://127.0.0.1:{port}", "ready", 0, "")
        assert processes.of_replica(replica).pid == parent.pid
        assert replica_crash.inject(replica)["children_left"] == [child]
    finally:
        parent.kill()
        os.kill(child, signal.SIGKILL)
        parent.communicate()


# --- freeze ---


def test_a_freeze_stops_the_process_and_thaw_continues_it(make_stack: Any, own_home: Path) -> None:
    stack = make_stack()
    victim = stack.replicas["replica-0"]
    result = actions.freeze_replica(stack.url, "replica-0", duration=60)
    assert result["pids"] == [victim.process.pid]
    assert victim.stopped
    assert victim.answers() == "frozen"
    assert len(list((own_home / "run" / "chaos").iterdir())) == 1
    assert actions.thaw_replica("replica-0") == [victim.process.pid]
    assert eventually(lambda: victim.answers() == "ready")
    assert list((own_home / "run" / "chaos").iterdir()) == []
    assert actions.thaw_replica("replica-0") == [], "thawing twice is no error"


def test_a_freeze_ends_by_itself_after_its_duration(make_stack: Any, own_home: Path) -> None:
    stack = make_stack()
    victim = stack.replicas["replica-0"]
    replica_freeze.inject(seen(victim), 0.6)
    assert victim.stopped
    assert eventually(lambda: not victim.stopped)
    assert eventually(lambda: list((own_home / "run" / "chaos").iterdir()) == [])
    assert replica_freeze.undo("replica-0") == []


def test_a_freeze_ends_when_the_controller_is_killed(make_stack: Any, own_home: Path) -> None:
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
    assert eventually(lambda: not victim.stopped)
    assert eventually(lambda: list((own_home / "run" / "chaos").iterdir()) == [])


def test_recover_heals_from_the_record_when_controller_and_deadman_are_dead(
    make_stack: Any, own_home: Path
) -> None:
    stack = make_stack()
    victim = stack.replicas["replica-0"]
    replica_freeze.inject(seen(victim), 600)
    watcher = replica_freeze._deadmen.pop("replica-0")
    watcher.kill()
    watcher.wait()
    assert watcher.stdin is not None
    watcher.stdin.close()
    assert victim.stopped
    with pytest.raises(ActivityFailed, match="already frozen"):
        replica_freeze.inject(seen(victim), 600)
    assert actions.recover() == {"replica-0": [victim.process.pid]}
    assert not victim.stopped
    assert actions.recover() == {}


def test_a_replica_that_died_while_frozen_leaves_nothing_to_undo(make_stack: Any) -> None:
    stack = make_stack(restart=60)
    victim = stack.replicas["replica-0"]
    replica_freeze.inject(seen(victim), 60)
    victim.process.kill()
    victim.process.wait()
    assert replica_freeze.undo("replica-0") == []


def test_bad_durations_and_scopes_are_refused_before_anything_stops(make_stack: Any, own_home: Path) -> None:
    stack = make_stack()
    victim = stack.replicas["replica-0"]
    for duration, scope, why in (
        (0, "tree", "over 0"),
        (1e9, "tree", "at most 600"),
        (5, "all", "scope 'all'"),
    ):
        with pytest.raises(ActivityFailed, match=why):
            replica_freeze.inject(seen(victim), duration, scope)
    with pytest.raises(ActivityFailed, match="nothing to freeze with scope 'children'"):
        replica_freeze.inject(seen(victim), 5, "children")
    assert not victim.stopped
    assert not (own_home / "run").exists()


def test_without_an_undo_record_there_is_no_fault(make_stack: Any, own_home: Path) -> None:
    stack = make_stack()
    victim = stack.replicas["replica-0"]
    own_home.write_text("a file where the folder should be")
    with pytest.raises(ActivityFailed, match="no undo record, so no fault"):
        replica_freeze.inject(seen(victim), 5)
    assert not victim.stopped
