"""Faults of nodes: in, measured, out, nothing left."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from chaos import identity, inject, perform
from chaos.engines import mounts, node_clock, node_life
from chaos.fault import Refused, Target
from chaos.place import Node
from tests.chaos.framework import Here, eventually
from tests.chaos.two_nodes import TwoNodes, needs_lab

pytestmark = [needs_lab, pytest.mark.xdist_group("two nodes")]


@pytest.mark.parametrize(
    ("fault", "parameters", "low", "high"),
    [
        pytest.param("node_cpu", {"busy": 0.9}, 1.3, 1000, id="node_cpu: times as long for a calculation"),
        pytest.param("node_memory", {"mib": 200}, 190, 400, id="node_memory: MiB taken"),
    ],
)
def test_each_fault_is_in_is_measured_and_leaves_nothing(
    two_nodes: TwoNodes, fault: str, parameters: dict[str, Any], low: float, high: float
) -> None:
    before = two_nodes.traces()
    with inject.held(fault, "node-1", two_nodes.place, 60, parameters) as (injection,):
        assert injection.proof is not None
        assert injection.proof.value is not None
        assert low <= injection.proof.value <= high, injection.proof.measured
        assert two_nodes.traces() != before
    assert eventually(lambda: two_nodes.traces() == before), two_nodes.traces()


def test_a_killed_node_is_gone_whole_and_comes_back_with_its_address_and_replica(two_nodes: TwoNodes) -> None:
    """Also with other faults of it in: what they had done to it went with it, and its new link is a whole one."""
    before, place = two_nodes.traces(), two_nodes.place
    hold = mounts.hold_of(Target("", place, two_nodes.node(), mount=two_nodes.node().mounts["local"]))
    with (
        inject.held("storage_gone", "node-1/local", place, 60),
        inject.held("link_slow", "node-1", place, 60, {"milliseconds": 20}),
        inject.held("node_killed", "node-1", place, 60) as (injection,),
    ):
        assert injection.proof is not None
        assert injection.proof.measured.startswith("0 of the node's ")
        assert two_nodes.node().init is None
        assert next(r for r in place.replicas() if r.node == "node-1").pid is None
        assert two_nodes.node("node-2").init is not None
    assert eventually(lambda: two_nodes.traces() == before, 90), two_nodes.traces()
    assert not Path(hold).exists()
    assert eventually(lambda: all(r.in_rotation for r in two_nodes.place.replicas()), 120)


def test_the_undo_of_a_killed_node_is_done_once_its_lab_is_gone() -> None:
    place = Here(nodes=[Node("node-1", init=identity.of(os.getpid()))])
    place.name = "lab:gone"
    plan = node_life.KillInit().plan(Target("node-1", place, place.nodes()[0]), None, 5)
    perform.execute(perform.Context("/nowhere/record", {}, undoing=True), plan.undo[0])
    with pytest.raises(perform.StepError, match="lab 'gone' is not up"):
        perform.execute(perform.Context("/nowhere/record", {}, undoing=False), plan.undo[0])


def test_a_node_that_is_down_and_the_control_node_are_no_targets(two_nodes: TwoNodes) -> None:
    with (
        pytest.raises(Refused, match="control"),
        inject.held("node_killed", "control", two_nodes.place, 10),
    ):
        pass


def test_the_clock_of_this_machine_is_never_touched(two_nodes: TwoNodes) -> None:
    with (
        pytest.raises(Refused, match="clock_skew sets the clock of one process"),
        inject.held("node_clock", "node-1", two_nodes.place, 10),
    ):
        pass


def test_the_undo_of_a_clock_is_the_offset_to_boot_time_so_that_twice_is_as_once(tmp_path: Any) -> None:
    """On a node that is entered by a command, which here only notes what it was asked."""
    log = tmp_path / "asked"
    script = tmp_path / "ssh"
    script.write_text(f'#!/bin/sh\ncase "$*" in *settime*) echo "$*" >> {log};; *) exec sh -c "$*";; esac\n')
    script.chmod(0o755)
    node = Node("far", prefix=[str(script)], remote=True)
    target = Target("far", Here(nodes=[node]), node=node)
    fault = node_clock.Settime()
    plan = fault.plan(target, type("P", (), {"seconds": 30.0}), 10)
    (do,), (undo,) = plan.do, plan.undo
    assert float(do["argv"][-1]) - float(undo["argv"][-1]) == pytest.approx(30.0, abs=1e-5)
    offset = float(subprocess.check_output(["python3", "-c", node_clock._READ]).split()[0])
    assert float(undo["argv"][-1]) == pytest.approx(offset, abs=0.05)
    assert not log.exists()
