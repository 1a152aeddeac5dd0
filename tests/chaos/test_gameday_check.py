"""Before a game day: what ``exaserve chaos check`` finds on nodes that are reached by a stand-in for ssh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chaos import places
from chaos.gameday import check
from chaos.gameday.check import Line
from tests.chaos.test_places_cluster import cluster  # noqa: F401 - a fixture
from tests.conftest import exaserve


def found(lines: list[Line], node: str, what: str) -> Line:
    (line,) = [x for x in lines if (x.node, x.what) == (node, what)]
    return line


@pytest.fixture
def inventory(cluster: Any, tmp_path: Path) -> Any:  # noqa: F811
    """A function that writes the inventory with keys of node-1 changed, and opens it."""
    stack, path, records = cluster
    (tmp_path / "lustre").mkdir()

    def write(**keys: Any) -> Any:
        node: dict[str, Any] = {
            "name": "node-1",
            "address": "127.0.0.1",
            "login": "chaos@node-1",
            "device": "lo",
        }
        node |= {"mounts": {"shared": str(tmp_path / "lustre")}, **keys}
        head = {"name": "head", "address": "192.0.2.1", "control": True}
        path.write_text(json.dumps({"admin": stack.url, "nodes": [node, head]}))
        return places.open(str(path))

    write.records, write.path = records, path  # type: ignore[attr-defined]
    return write


def test_a_node_that_has_everything_is_well(inventory: Any) -> None:
    lines = check.check(inventory())
    assert [x for x in lines if x.state == "wrong"] == []
    for what in ("reached", "python3", "clock", "device", "mounts", "undo records", "left behind"):
        assert found(lines, "node-1", what).state == "ok", what
    assert found(lines, "head", "role").text.startswith("control node")
    assert found(lines, "", "replicas").text == "2 of 2 in rotation"


def test_a_node_that_is_not_reached_is_wrong_and_says_what_ssh_said(inventory: Any) -> None:
    line = found(check.check(inventory(login="gone")), "node-1", "reached")
    assert line.state == "wrong"
    assert "No route to host" in line.text


@pytest.mark.parametrize(
    ("keys", "what", "said"),
    [
        ({"device": "nic9"}, "device", "there is no nic9"),
        ({"mounts": {"shared": "/nowhere"}}, "mounts", "shared (/nowhere)"),
        ({"state_folder": "/proc/undo"}, "undo records", "/proc/undo"),
    ],
)
def test_what_is_missing_is_named(inventory: Any, keys: dict[str, Any], what: str, said: str) -> None:
    line = found(check.check(inventory(**keys)), "node-1", what)
    assert (line.state, said in line.text) == ("wrong", True), line


def test_what_another_day_left_behind_is_found_with_the_cure(inventory: Any) -> None:
    inventory.records.mkdir(parents=True)
    (inventory.records / "link_loss-node-1-x.json").write_text("{}")
    line = found(check.check(inventory()), "node-1", "left behind")
    assert line.state == "wrong"
    assert "link_loss-node-1-x.json" in line.text
    assert "exaserve chaos recover --place" in line.text


def test_without_a_control_node_the_day_cannot_begin(inventory: Any) -> None:
    inventory()
    data = json.loads(inventory.path.read_text())
    inventory.path.write_text(json.dumps(data | {"nodes": data["nodes"][:1]}))
    assert found(check.check(places.open(str(inventory.path))), "", "control node").state == "wrong"


def test_every_fault_is_asked_on_each_node(inventory: Any) -> None:
    lines = check.check(inventory(), with_faults=True)
    told = found(lines, "node-1", "faults").text.split(", ") + [x.what for x in lines if "_" in x.what]
    assert {"link_down", "node_cpu", "storage_slow", "node_killed"} <= set(told)


def test_the_command_ends_with_a_verdict(inventory: Any) -> None:
    inventory()
    done = exaserve("chaos", "check", "--place", str(inventory.path))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "the day can begin"), (
        done.stdout + done.stderr
    )
    inventory(device="nic9")
    done = exaserve("chaos", "check", "--place", str(inventory.path), "--json")
    assert done.returncode == 1
    assert any(line["state"] == "wrong" for line in json.loads(done.stdout))
    done = exaserve("chaos", "check", "--place", "nowhere.yaml")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
