"""Delay without netem, in a lab: a process between the bridge and the node's link that holds each frame for a while.

The bridge's end of the node's link is taken out of the bridge, and a TAP interface put into it; frames go between the
two through ``shaper_process.py``. Undo ends the process, with which the TAP goes, and puts the link back.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from chaos import steps
from chaos.engines import tc
from chaos.fault import Engine, Plan, Proof, Target
from chaos.place import Place

_ABSENT = ("Cannot find device", "No such device", "does not exist")
PROGRAM = Path(__file__).with_name("shaper_process.py")


class Delay(Engine):
    """Parameters ``milliseconds`` (added to a round trip, half in each direction) and ``jitter``."""

    name = "shaper"
    how = "a process between the lab's bridge and the node's link holds each frame for a while"
    prove_within = 15.0

    def missing(self, place: Place) -> str | None:
        if os.geteuid() != 0:
            return "only root may put an interface in between (run it with sudo)"
        if not os.path.exists("/dev/net/tun"):
            return "there is no /dev/net/tun (sudo modprobe tun)"
        return None

    def refusal(self, target: Target, p: Any) -> str | None:
        node = target.node
        assert node is not None
        if node.remote or node.control_device is None:
            return f"{node.name}'s link does not end at a bridge of ours; on a cluster netem is needed (module sch_netem)"
        if _bridge(node.control_device) is None:
            return f"{node.control_device} is in no bridge: another fault has taken it out"
        return None

    def before(self, target: Target, p: Any) -> float | None:
        return tc.round_trip(target)

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        assert target.node is not None
        assert target.node.control_device is not None
        port = target.node.control_device
        bridge = _bridge(port) or port.rpartition("-")[0]
        tap = f"{port}t"[:15]
        argv = [sys.executable, "-I", str(PROGRAM), port, bridge, tap]
        argv += [f"{p.milliseconds / 2000:g}", f"{p.jitter / 2000:g}"]
        return Plan(
            [steps.spawn("shaper", argv, ready="ready")],
            [
                steps.stop("shaper"),
                steps.run(["ip", "link", "del", "dev", tap], absent=_ABSENT),
                steps.run(["ip", "link", "set", "dev", port, "master", bridge], absent=_ABSENT),
            ],
            claims=(f"qdisc:{port}", f"link:{port}"),
        )

    def prove(self, target: Target, p: Any, before: float | None) -> Proof:
        return tc.slower(target, p, before)


def _bridge(port: str) -> str | None:
    """The bridge that an interface of this machine is in."""
    try:
        return os.path.basename(os.readlink(f"/sys/class/net/{port}/master"))
    except OSError:
        return None
