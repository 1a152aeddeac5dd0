"""A link without carrier: its interface set down, once or in turns with up.

In a lab the bridge's end of the node's link is set down, so the node sees its carrier go, as with a pulled cable. On a
cluster it is the node's own interface, never the one that carries the ssh connection to it.
"""

from __future__ import annotations

import sys
from typing import Any

from chaos import steps
from chaos.engines import link_probe, rights
from chaos.fault import Engine, Plan, Proof, Target
from chaos.place import Node, Place

_ABSENT = ("Cannot find device", "No such device", "does not exist")
# Down for a share of each period; leaves it up at its end.
_FLAP = """
import signal, subprocess, sys, time
device, period, share = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
def put(state):
    subprocess.run(["ip", "link", "set", "dev", device, state], check=False)
def end(*_):
    put("up")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    put("down"); time.sleep(period * share)
    put("up"); time.sleep(period * (1 - share))
"""


def on(target: Target) -> tuple[str, Node | None]:
    """The interface to set down, and the node to do it on (None: here)."""
    node = target.node
    assert node is not None
    if node.remote:
        return node.device, node
    return node.control_device or "", None


class Link(Engine):
    """What both have in common: which interface, and whether it may be touched."""

    name = "ip"
    prove_within = 15.0

    def missing(self, place: Place) -> str | None:
        return rights.lacking(place, "set links down")

    def refusal(self, target: Target, p: Any) -> str | None:
        device, node = on(target)
        assert target.node is not None
        if not device:
            return f"{target.node.name} has no link of its own: faults of links need a lab or a cluster"
        if node is None:
            return None
        return rights.lacking_on(node, "set links down") or carries_ssh(node)

    def before(self, target: Target, p: Any) -> Any:
        assert target.node is not None
        return link_probe.echoes(target.node.address, 20), changes(target)


def carries_ssh(node: Node) -> str | None:
    """A sentence where the node's device is what we reach it by: nothing could put it up again in time but the dead-man."""
    client = node.read(["sh", "-c", 'set -- $SSH_CONNECTION; ip -o route get "$1"']).stdout
    words = client.split()
    if "dev" in words and words[words.index("dev") + 1] == node.device:
        return (
            f"{node.device} of {node.name} carries the ssh connection to it; name another device in the inventory, "
            "or take node_isolated, which lets ssh through"
        )
    return None


def changes(target: Target) -> int:
    """How often the carrier of the node's device has come or gone (sysfs); -1 if that can't be read."""
    assert target.node is not None
    text = target.node.read(["cat", f"/sys/class/net/{target.node.device}/carrier_changes"]).stdout.strip()
    return int(text) if text.isdigit() else -1


class Down(Link):
    """Set down for the whole duration."""

    how = "ip link set down: the node loses its carrier"

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        device, node = on(target)
        return Plan(
            [steps.run(["ip", "link", "set", "dev", device, "down"], node)],
            [steps.run(["ip", "link", "set", "dev", device, "up"], node, absent=_ABSENT)],
            claims=(f"link:{device}",),
        )

    def prove(self, target: Target, p: Any, before: Any) -> Proof:
        assert target.node is not None
        if not before[0].received:
            return Proof(
                False, f"{target.node.name} answered no echo before the fault: nothing can be compared"
            )
        now = changes(target)
        seen = link_probe.echoes(target.node.address, 20, wait=0.3)
        told = f"{seen.received} of {seen.sent} echoes came back, the carrier went {now - before[1]} times"
        return Proof(seen.received == 0 and now > before[1], told, seen.loss)


class Flap(Link):
    """Down and up in turns; parameters ``period`` (seconds) and ``down`` (share of it)."""

    how = "ip link set down and up in turns"

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        device, node = on(target)
        python = "python3" if target.remote else sys.executable
        argv = [python, "-I", "-c", _FLAP, device, f"{p.period:g}", f"{p.down:g}"]
        return Plan(
            [steps.spawn("flap", argv, node, ready="ready")],
            [
                steps.stop("flap"),
                steps.run(["ip", "link", "set", "dev", device, "up"], node, absent=_ABSENT),
            ],
            claims=(f"link:{device}",),
        )

    def prove(self, target: Target, p: Any, before: Any) -> Proof:
        times = changes(target) - before[1]
        return Proof(times >= 3, f"the carrier came or went {times} times", float(times))


class InfinibandPort(Engine):
    """The switch port's physical state (infiniband-diags); it needs a fabric whose subnet manager allows it."""

    name = "ibportstate"
    how = "ibportstate disables the port of the switch that the node is connected to"

    def missing(self, place: Place) -> str | None:
        return (
            "the switch port of a node is not known to the inventory, and a port that is disabled through the fabric "
            "can only be enabled through it: disable it by hand (ibportstate LID PORT disable), see "
            "exaserve runbook ExaServeFabricPortDown"
        )
