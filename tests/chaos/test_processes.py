"""The process behind a replica: found by its port, and refused where it is not the one that was meant."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chaoslib.exceptions import ActivityFailed

from chaos import fleet, identity, processes


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


def test_a_port_nobody_listens_on_and_another_machine_are_refused(make_stack: Any) -> None:
    with pytest.raises(ActivityFailed, match="no process that this user can see listens"):
        processes.of_replica(fleet.Replica("r", "http://127.0.0.1:9", "ready", 0, ""))
    with pytest.raises(ActivityFailed, match="not on this machine"):
        processes.of_replica(fleet.Replica("r", "http://192.0.2.1:80", "ready", 0, ""))


def test_the_experiments_own_process_is_refused(make_stack: Any) -> None:
    stack = make_stack()
    with pytest.raises(ActivityFailed, match="runs this experiment"):
        processes.of_replica(fleet.Replica("r", stack.url, "ready", 0, ""))


def test_a_process_that_is_not_the_one_written_down_is_refused(make_stack: Any, own_home: Path) -> None:
    stack = make_stack()
    first, second = stack.replicas.values()
    write_stack(own_home, first, second.process.pid)
    with pytest.raises(ActivityFailed, match=f"replica-0 was started as {second.process.pid}"):
        processes.of_replica(seen(first))
    assert first.process.poll() is None


def test_the_process_written_down_is_taken(make_stack: Any, own_home: Path) -> None:
    stack = make_stack(restart=60)
    first = stack.replicas["replica-0"]
    write_stack(own_home, first, first.process.pid)
    assert processes.of_replica(seen(first)).pid == first.process.pid


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
            processes.of_replica(fleet.Replica("r", f"http://127.0.0.1:{port}", "ready", 0, ""))
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
        assert [who["pid"] for who in identity.tree(parent.pid)] == [parent.pid, child]
    finally:
        parent.kill()
        os.kill(child, signal.SIGKILL)
        parent.communicate()
