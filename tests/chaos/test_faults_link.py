"""Faults of links: in, measured, out, nothing left; also where whoever put them in was killed."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

import pytest

from chaos import inject, undo
from chaos import recover as recovering
from chaos.engines import iplink, link_probe, nftables, shaper, tc
from chaos.fault import Refused
from tests.chaos.framework import eventually, kill_both
from tests.chaos.two_nodes import TwoNodes, needs_lab

pytestmark = [needs_lab, pytest.mark.xdist_group("two nodes")]


def as_fast_as_before(two_nodes: TwoNodes) -> None:
    """What waited for the link goes first; the next test compares with how fast it is."""

    def fast() -> bool:
        seen = link_probe.echoes(two_nodes.node().address, 5, wait=0.5)
        return seen.received == 5 and (seen.rtt or 1) < 0.02

    assert eventually(fast)


@pytest.mark.parametrize(
    ("fault", "parameters", "low", "high"),
    [
        pytest.param("link_down", {}, 1.0, 1.0, id="link_down: share of echoes lost"),
        pytest.param("link_flapping", {"period": 0.6}, 3, 200, id="link_flapping: changes of the carrier"),
        pytest.param(
            "link_loss", {"percent": 20}, 0.22, 0.50, id="link_loss: share lost of round trips, 0.36 wanted"
        ),
        pytest.param(
            "link_loss", {"percent": 30, "direction": "out"}, 0.18, 0.42, id="link_loss out: 0.3 wanted"
        ),
        pytest.param(
            "link_slow", {"milliseconds": 60}, 0.042, 2.0, id="link_slow: seconds more a round trip"
        ),
        pytest.param("link_capped", {"megabits": 20}, 1e6, 25e6, id="link_capped: bits per second"),
        pytest.param(
            "link_one_way", {"direction": "in"}, 1.0, 1.0, id="link_one_way in: share of echoes lost"
        ),
        pytest.param(
            "link_one_way", {"direction": "out"}, 1.0, 1.0, id="link_one_way out: share of echoes lost"
        ),
        pytest.param("link_mtu", {"bytes": 1000}, 1.0, 1.0, id="link_mtu: share lost of large packets"),
        pytest.param("node_isolated", {}, 1.0, 1.0, id="node_isolated: share of echoes lost"),
    ],
)
def test_each_fault_is_in_is_measured_and_leaves_nothing(
    two_nodes: TwoNodes, fault: str, parameters: dict[str, Any], low: float, high: float
) -> None:
    before = two_nodes.traces()
    other = two_nodes.node("node-2").address
    with inject.held(fault, "node-1", two_nodes.place, 30, parameters) as (injection,):
        assert injection.proof is not None
        assert injection.proof.value is not None
        assert low <= injection.proof.value <= high, injection.proof.measured
        assert two_nodes.traces() != before
        assert link_probe.echoes(other, 5).received == 5  # nobody else has it
    assert eventually(lambda: two_nodes.traces() == before), two_nodes.traces()
    as_fast_as_before(two_nodes)


@pytest.mark.parametrize("fault", ["link_down", "link_slow", "link_loss"])
def test_a_killed_controller_leaves_the_link_to_the_dead_man(two_nodes: TwoNodes, fault: str) -> None:
    before = two_nodes.traces()
    process = subprocess.Popen(
        two_nodes.command(fault, "--duration", "60"), stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    assert "is in node-1" in process.stdout.readline()
    process.kill()
    assert eventually(lambda: two_nodes.traces() == before), two_nodes.traces()
    process.communicate()
    as_fast_as_before(two_nodes)


@pytest.mark.parametrize("fault", ["link_down", "link_slow", "link_capped"])
def test_recover_puts_the_link_right_where_the_dead_man_was_killed_too(
    two_nodes: TwoNodes, fault: str
) -> None:
    before = two_nodes.traces()
    process = subprocess.Popen(
        two_nodes.command(fault, "--duration", "60"), stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    assert "is in node-1" in process.stdout.readline()
    (record,) = [undo.read(path) for path in (two_nodes.home / "chaos" / "undo").glob("*.json")]
    kill_both(process, record["deadman"])
    assert two_nodes.traces() != before
    for _ in range(2):
        assert recovering.recover().failed == []
        assert eventually(lambda: two_nodes.traces() == before), two_nodes.traces()
    as_fast_as_before(two_nodes)


def test_the_kernel_ends_a_filter_by_itself(two_nodes: TwoNodes) -> None:
    """No controller, no dead-man: the set's elements have a time of their own."""
    node = two_nodes.node()
    life = 6.0  # a machine that stands still between the rules and the look is not to find them over
    rules = nftables.ruleset("exaserve_test", node, ("", ""), life)
    argv = [*node.prefix, "nft", "-f", "-"]
    try:
        begin = time.monotonic()
        subprocess.run(argv, input=rules, text=True, check=True)
        assert link_probe.echoes(node.address, 5, wait=0.2).received == 0
        assert eventually(lambda: link_probe.echoes(node.address, 5, wait=0.2).received == 5)
        assert time.monotonic() - begin > life - 0.1
        assert nftables.leftovers(two_nodes.place) == ["node-1: nftables table exaserve_test"]
    finally:
        assert nftables.clear_leftovers(two_nodes.place) == ["node-1: nftables table exaserve_test"]
    assert nftables.leftovers(two_nodes.place) == []


def test_two_faults_that_would_be_in_each_others_way_are_refused(two_nodes: TwoNodes) -> None:
    with (
        inject.held("link_slow", "node-1", two_nodes.place, 30, {"milliseconds": 50}),
        pytest.raises(Refused, match="exal-"),
        inject.held("link_down", "node-1", two_nodes.place, 30),
    ):
        pass


def test_a_discipline_that_somebody_set_is_not_lost(two_nodes: TwoNodes) -> None:
    device = two_nodes.node().control_device
    assert device is not None
    set_one = [
        "tc",
        "qdisc",
        "add",
        "dev",
        device,
        "root",
        "tbf",
        "rate",
        "1gbit",
        "burst",
        "1mb",
        "latency",
        "9ms",
    ]
    subprocess.run(set_one, check=True)
    try:
        with (
            pytest.raises(Refused, match="queueing discipline of its own"),
            inject.held("link_capped", "node-1", two_nodes.place, 30),
        ):
            pass
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", device, "root"], check=True)


def test_parameters_out_of_range_are_named(two_nodes: TwoNodes) -> None:
    with (
        pytest.raises(
            Refused, match=r"jitter must not be above milliseconds \(parameters: milliseconds, jitter\)"
        ),
        inject.held("link_slow", "node-1", two_nodes.place, 30, {"milliseconds": 10, "jitter": 20}),
    ):
        pass


def test_links_of_a_single_machine_are_refused_in_words() -> None:
    from chaos.fault import Target
    from tests.chaos.framework import Here

    place = Here()
    target = Target("here", place, node=place.nodes()[0])
    for engine in (iplink.Down(), tc.Cap(), tc.NetemDelay(), shaper.Delay()):
        assert "lab" in (engine.refusal(target, None) or "") or "cluster" in (
            engine.refusal(target, None) or ""
        )
