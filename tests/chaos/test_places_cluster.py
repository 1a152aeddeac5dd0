"""A cluster by ssh: the dead-man goes to the node. Here ssh is a script that runs the command on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chaos import agent, identity, inject, places, recover, steps
from chaos.fault import Fault, Refused
from tests.chaos.framework import Steps, eventually, records

# What sshd does of it: the words after the host, joined by blanks, go to the user's shell. Its home is the node's.
_SSH = """#!/bin/sh
while [ "$1" != -- ]; do host=$1; shift; done
shift
[ "$host" = gone ] && { echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255; }
cd "$NODE_HOME" && HOME=$NODE_HOME exec sh -c "$*"
"""


@pytest.fixture
def cluster(make_stack: Any, tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """(stand-in stack, inventory file, folder of the node's records)."""
    tools, node_home = tmp_path / "bin", tmp_path / "node"
    tools.mkdir()
    node_home.mkdir()
    (tools / "ssh").write_text(_SSH)
    (tools / "ssh").chmod(0o755)
    (tools / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("NODE_HOME", str(node_home))
    stack = make_stack()
    inventory = tmp_path / "cluster.yaml"
    inventory.write_text(
        f"admin: {stack.url}\n"
        "nodes:\n"
        "  - {name: node-1, address: 127.0.0.1, login: chaos@node-1, mounts: {shared: /lustre}}\n"
        "  - {name: head, address: 192.0.2.1, control: true}\n"
    )
    return stack, inventory, node_home / ".exaserve" / "chaos" / "undo"


def test_replicas_belong_to_the_node_of_their_address(cluster: Any) -> None:
    _, inventory, _ = cluster
    place = places.open(str(inventory))
    assert [(n.name, n.replicas, n.control, n.remote) for n in place.nodes()] == [
        ("node-1", ["replica-0", "replica-1"], False, True),
        ("head", [], True, True),
    ]


def test_a_freeze_on_a_node_is_held_there_and_taken_out(cluster: Any, own_home: Path) -> None:
    stack, inventory, remote = cluster
    victim = stack.replicas["replica-0"]
    with inject.held("replica_freeze", "replica-0", places.open(str(inventory)), 60) as (injection,):
        assert victim.stopped
        there = json.loads((remote / f"{injection.id}.json").read_text())
        assert there["state"] == "in"
        deadman = there["deadman"]
        assert os.getsid(deadman["pid"]) == deadman["pid"], (
            "its own session: a cut connection does not end it"
        )
    assert eventually(lambda: not victim.stopped)
    assert records(own_home) == []
    assert list(remote.iterdir()) == []
    assert not identity.alive(deadman)


def test_a_controller_that_dies_leaves_nothing_on_the_node(cluster: Any, own_home: Path) -> None:
    """Its own record is left, which says where to look; recover finds the node clean."""
    stack, inventory, remote = cluster
    victim = stack.replicas["replica-0"]
    code = (
        "import sys, time; from chaos import inject, places; "
        "inject.start('replica_freeze', 'replica-0', places.open(sys.argv[1]), 60); print('in', flush=True); time.sleep(60)"
    )
    controller = subprocess.Popen(
        [sys.executable, "-c", code, str(inventory)], stdout=subprocess.PIPE, text=True
    )
    assert controller.stdout is not None
    assert controller.stdout.readline() == "in\n"
    controller.kill()
    controller.communicate()
    assert eventually(lambda: not victim.stopped and list(remote.iterdir()) == [])
    assert len(records(own_home)) == 1
    assert eventually(
        lambda: victim.state == "ready"
    )  # it is the record that is to refuse it, not the router
    with pytest.raises(Refused, match="Nobody takes it out any more, but: exaserve chaos recover"):
        inject.start("replica_freeze", "replica-0", places.open(str(inventory)), 60)
    assert len(recover.recover().undone) == 1
    assert records(own_home) == []


def test_a_node_that_can_not_keep_a_record_gets_no_fault(cluster: Any, own_home: Path) -> None:
    _, inventory, remote = cluster
    remote.parents[1].write_text("a file where its folder should be")
    with pytest.raises(Refused, match=r"no undo record, so no fault: .*; nothing was done"):
        inject.start("replica_freeze", "replica-0", places.open(str(inventory)), 60)
    assert records(own_home) == []


def test_a_restart_of_the_node_that_takes_the_deadman_with_it_is_well(
    cluster: Any, own_home: Path, tmp_path: Path
) -> None:
    _, inventory, remote = cluster
    mark, done = tmp_path / "mark", tmp_path / "done"

    class Restart(Steps):
        momentary = True

        def prove(self, target: Any, p: Any, before: Any) -> Any:
            done.touch()  # asked for once the dead-man has said that it is done
            assert eventually(mark.exists)
            return super().prove(target, p, before)

    later = f"(until [ -e {done} ]; do sleep 0.02; done; kill -9 $PPID; touch {mark}) &"
    restart = Restart([steps.run(["sh", "-c", later])], [], str(mark))
    place = places.open(str(inventory))
    (injection,) = inject.start(
        Fault("restart", "node", "", (restart,)), "node-1", place, 30, allow_last=True
    )
    assert injection.over
    assert records(own_home) == list(remote.iterdir()) == []


def test_controller_and_deadman_killed_recover_heals_the_node(cluster: Any, own_home: Path) -> None:
    stack, inventory, remote = cluster
    victim = stack.replicas["replica-0"]
    place = places.open(str(inventory))
    injection = inject.start("replica_freeze", "replica-0", place, 60)[0]
    deadman = json.loads((remote / f"{injection.id}.json").read_text())["deadman"]
    os.kill(deadman["pid"], signal.SIGKILL)
    assert eventually(lambda: injection.over)
    assert victim.stopped
    assert recover.recover(place).undone == [injection.id]
    assert not victim.stopped
    assert list(remote.iterdir()) == []
    assert recover.recover(place) == recover.Recovered()


def test_records_that_only_the_node_has_are_undone_with_its_place(cluster: Any, own_home: Path) -> None:
    stack, inventory, _remote = cluster
    place = places.open(str(inventory))
    injection = inject.start("replica_freeze", "replica-0", place, 60)[0]
    injection.path.unlink()
    found = recover.recover(place)
    assert found.undone == [f"{injection.id} (node-1)"]
    assert not stack.replicas["replica-0"].stopped


def test_a_node_that_can_not_be_reached_is_said_and_its_record_kept(cluster: Any, own_home: Path) -> None:
    stack, inventory, _ = cluster
    injection = inject.start("replica_freeze", "replica-0", places.open(str(inventory)), 60)[0]
    record = json.loads(injection.path.read_text())
    record["remote"]["host"] = ["ssh", "gone", "--"]
    injection.path.write_text(json.dumps(record))
    found = recover.recover()
    assert "No route to host; run recover again once it can be reached" in found.failed[0][1]
    assert injection.path.exists()
    injection.undo()
    assert not stack.replicas["replica-0"].stopped


def test_a_node_that_can_not_be_reached_gets_no_fault(cluster: Any, own_home: Path) -> None:
    _stack, inventory, _ = cluster
    inventory.write_text(inventory.read_text().replace("chaos@node-1", "gone"))
    with pytest.raises(
        Refused, match=r"nothing was done. signals: node-1 can't be asked: ssh: .*No route to host"
    ):
        inject.start("replica_freeze", "replica-0", places.open(str(inventory)), 60)
    assert records(own_home) == []


def test_what_a_shell_would_take_for_its_own_reaches_the_node_as_it_is(cluster: Any) -> None:
    place = places.open(str(cluster[1]))
    word = "$(id) `id`; x > y & 'z' \"w\" *\\"
    assert place.nodes()[0].read(["printf", "%s", word]).stdout == word


@pytest.mark.parametrize("said", ["123", "[]", '"ready"', "x" * 300])
def test_a_node_that_says_something_else_first_gets_no_fault(said: str, cluster: Any, own_home: Path) -> None:
    _, inventory, _ = cluster
    place = places.open(str(inventory))
    ssh = inventory.parent / "bin" / "ssh"
    ssh.write_text(ssh.read_text().replace("cd ", f"echo '{said}'; cd "))
    with pytest.raises(Refused, match="it said"):
        inject.start("replica_freeze", "replica-0", place, 60)
    assert records(own_home) == []


def test_a_connection_that_ssh_keeps_for_the_next_one_keeps_nobody_waiting(cluster: Any) -> None:
    """ControlPersist: a process in the background holds ssh's error output open."""
    _, inventory, _ = cluster
    place = places.open(str(inventory))
    (inventory.parent / "bin" / "ssh").write_text(
        "#!/bin/sh\nsleep 100 <&- >&- &\necho no route >&2\nexit 255\n"
    )
    began = time.monotonic()
    with pytest.raises(Refused, match="no route"):
        agent.ask(place.nodes()[0], {"op": "processes", "ports": []})
    assert time.monotonic() - began < 60


def test_the_control_node_and_nodes_without_name_are_refused(cluster: Any, tmp_path: Path) -> None:
    _, inventory, _ = cluster

    def two(second: str) -> str:
        return f"admin: http://x\nnodes:\n  - {{name: a, address: b}}\n  - {second}\n"

    for text, why in (
        ("nodes: [", "is no YAML"),
        ("admin: http://x\nnodes: []\n", "nodes: List should have at least 1 item"),
        ("admin: http://x\nnodes: [{name: a, adress: b}]\n", r"nodes\.0\.address: Field required"),
        ("nodes: [{name: a, address: b}]\n", "admin: Field required"),
        (
            "admin: file:///etc/passwd\nnodes: [{name: a, address: b}]\n",
            "admin: 'file:///etc/passwd' can't be that",
        ),
        (two("{name: a, address: c}"), "nodes: two nodes have the name a"),
        (two("{name: b, address: b}"), "nodes: two nodes have the address b"),
        (two("{name: any, address: c}"), "no node can be called any"),
        (
            two("{name: b, address: -oProxyCommand=id}"),
            r"nodes\.1\.address: '-oProxyCommand=id' can't be that",
        ),
        (two("{name: b, address: c, login: -oProxyCommand=id}"), r"login: '-oProxyCommand=id' can't be that"),
        (two("{name: b, address: c, login: 'a b@c'}"), r"login: 'a b@c' can't be that"),
        (two("{name: b, address: c, device: 'eth0\" accept'}"), r"nodes\.1\.device: "),
        (two("{name: b, address: c, device: -j}"), r"nodes\.1\.device: '-j' can't be that"),
        (
            two("{name: b, address: c, mounts: {shared: 'relative'}}"),
            r"mounts\.shared: 'relative' can't be that",
        ),
        (two("{name: b, address: c, mounts: {'../x': /x}}"), r"'\.\./x' can't be that"),
        (two("{name: b, address: c, state_folder: 'x;id'}"), r"state_folder: 'x;id' can't be that"),
    ):
        inventory.write_text(text)
        with pytest.raises(Refused, match=why):
            places.open(str(inventory))
    with pytest.raises(Refused, match="No such file"):
        places.open(str(tmp_path / "none.yaml"))
