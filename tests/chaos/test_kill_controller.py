"""The controller dies at random moments: the lab is as it was before. Ten faults, ten times each: the benchmark.

``python -m tests.benchmarks.kill_controller``
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import kill_controller as benchmark
from tests.benchmarks.kill_controller import Kill
from tests.chaos import traces
from tests.chaos.framework import eventually, kill_both
from tests.chaos.two_nodes import TwoNodes, needs_lab


@needs_lab
@pytest.mark.xdist_group("two nodes")
@pytest.mark.parametrize("fault", ["replica_freeze", "link_loss", "storage_io_error"])
def test_all_is_as_before_within_the_duration_and_a_second(fault: str, two_nodes: TwoNodes) -> None:
    # Killed within its first four seconds, and long before its time is over: a busy machine has to prove it, and we have
    # to see that all is as before, in what is left.
    duration, draw, done = 14.0, random.Random(f"7:{fault}"), []
    for _ in range(2):
        # What the kill before has frozen is not back in the router's eyes as soon as it goes on.
        assert eventually(lambda: all(r.in_rotation for r in two_nodes.place.replicas()))
        done.append(benchmark.kill(two_nodes.name, two_nodes.home, fault, duration, draw.uniform(0.0, 4.0)))
    assert all(benchmark.in_time(one, duration) for one in done), done


@needs_lab
@pytest.mark.xdist_group("two nodes")
def test_a_node_and_the_controller_that_die_together_leave_nothing(two_nodes: TwoNodes) -> None:
    """As in a power cut: the fault's record is all that is left, and recover puts everything right, also twice."""
    undo = two_nodes.home / "chaos" / "undo"
    benchmark.settle(two_nodes.home)
    before = traces.everything(two_nodes.name, two_nodes.home)
    program = two_nodes.command("link_loss", "--duration", "60")
    env = {**os.environ, "EXASERVE_HOME": str(two_nodes.home)}
    command = subprocess.Popen(
        program, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert eventually(lambda: any(_in(path) for path in undo.glob("*.json")))
        (record,) = [json.loads(path.read_bytes()) for path in undo.glob("*.json")]
        init = two_nodes.node().init
        assert init is not None
        kill_both(command, record["deadman"])
        os.kill(init["pid"], signal.SIGKILL)
        assert eventually(lambda: two_nodes.node().init is None)
    finally:
        command.kill()
        command.wait()
        two_nodes.lab("node", "start", "node-1")
    place = f"lab:{two_nodes.name}"
    for _ in range(2):
        done = subprocess.run(
            [program[0], "chaos", "recover", "--place", place], env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    _as_before(two_nodes, before)


def _in(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_bytes())["state"] == "in")
    except (OSError, ValueError):
        return False


def _as_before(lab: TwoNodes, before: dict[str, Any]) -> None:
    if not eventually(lambda: traces.everything(lab.name, lab.home) == before):
        assert traces.differences(before, traces.everything(lab.name, lab.home)) == []


def test_only_what_is_as_before_in_time_counts() -> None:
    assert benchmark.in_time(Kill("f", 1.0, "in", 5.0), 4.0)
    assert not benchmark.in_time(Kill("f", 1.0, "in", 5.1), 4.0)
    assert not benchmark.in_time(Kill("f", 1.0, "in", None), 4.0)
    assert not benchmark.in_time(Kill("f", 1.0, "", 0.1, error="refused"), 4.0)


def test_the_table_has_worst_and_how_many_were_in_time() -> None:
    done = [
        Kill("link_loss", 1.0, "in", 0.2),
        Kill("link_loss", 0.1, "", 0.1),
        Kill("node_cpu", 1.0, "in", None),
    ]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in benchmark.summary(done, 4.0).splitlines()[2:]
    ]
    assert rows == [
        ["link_loss", "2", "1 in, 1 no record", "0.20", "0.20", "2 of 2"],
        ["node_cpu", "1", "1 in", "–", "never", "0 of 1"],
    ]


def test_differences_say_where_and_what() -> None:
    before = {"links": ["a"], "nodes": {"node-1": ["x"]}, "records": []}
    now = {"links": ["a"], "nodes": {"node-1": ["y"]}, "records": ["r.json"]}
    assert traces.differences(before, now) == [
        "/nodes/node-1: + y",
        "/nodes/node-1: - x",
        "/records: + r.json",
    ]
