"""A link's queueing discipline replaced by tc(8): netem for delay and loss, tbf for a cap.

In a lab at both ends of the node's link, so that both directions have it; on a cluster on the node's own interface,
so that what it sends has it. Deleting the discipline brings the kernel's default back, which is why an interface that
somebody has given another one is refused.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from chaos import steps
from chaos.engines import link_probe
from chaos.fault import Engine, Plan, Proof, Target
from chaos.place import Node, Place

_ABSENT = (
    "Cannot delete qdisc with handle of zero",
    "Cannot find device",
    "No such device",
    "No such file or directory",
)
#: What interfaces have unless somebody has configured them.
_DEFAULTS = frozenset(("noqueue", "mq", "fq_codel", "pfifo_fast", "fq", "pfifo", ""))
# A network of its own, which goes with the command: nothing that is there is touched.
_TRY = ["unshare", "-n", "tc", "qdisc", "add", "dev", "lo", "root"]


def ends(target: Target) -> list[tuple[str, Node | None]]:
    """(interface, node to act on or None for here) of the node's link, the end that sends to the node first."""
    node = target.node
    assert node is not None
    there = (node.device, node)
    if node.remote or node.control_device is None:
        return [there]
    return [(node.control_device, None), there]


class Qdisc(Engine):
    """kind: of the discipline. arguments: those of a harmless try, to see whether the kernel has it."""

    kind = ""
    arguments: tuple[str, ...] = ()
    prove_within = 15.0

    def missing(self, place: Place) -> str | None:
        if any(n.remote for n in place.nodes()):
            return None  # asked on the node itself, by ``refusal``
        if os.geteuid() != 0:
            return "only root may change queueing disciplines (run it with sudo)"
        try:
            done = subprocess.run(
                [*_TRY, self.kind, *self.arguments], capture_output=True, text=True, timeout=10, check=False
            )
        except FileNotFoundError as error:
            return f"{error.filename} is missing; on Debian: sudo apt-get install iproute2 util-linux"
        return _why(self.kind, done)

    def refusal(self, target: Target, p: Any) -> str | None:
        node = target.node
        assert node is not None
        if not node.device:
            return f"{node.name} has no link of its own: faults of links need a lab or a cluster"
        if node.remote:
            why = _why(self.kind, node.read([*_TRY, self.kind, *self.arguments]))
            if why is not None:
                return f"{node.name}: {why}"
        for device, where in ends(target):
            kind = _root(device, where)
            if kind not in _DEFAULTS:
                return f"{device} has a queueing discipline of its own ({kind}), which would be lost"
        return None

    def options(self, p: Any, number: int) -> list[str]:
        """Arguments of the discipline at one of ``number`` ends."""
        raise NotImplementedError

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        both = ends(target)
        do, undo = [], []
        for device, node in both:
            options = self.options(p, len(both))
            do.append(steps.run(["tc", "qdisc", "replace", "dev", device, "root", self.kind, *options], node))
            undo.append(steps.run(["tc", "qdisc", "del", "dev", device, "root"], node, absent=_ABSENT))
        return Plan(do, undo, claims=tuple(f"qdisc:{device}" for device, _ in both[:1]))


def _why(kind: str, done: subprocess.CompletedProcess[str]) -> str | None:
    if done.returncode == 0:
        return None
    if "qdisc kind is unknown" in done.stderr or "not found" in done.stderr.lower():
        return f"the kernel has no {kind} (module sch_{kind})"
    said = " ".join(done.stderr.split()) or f"status {done.returncode}"
    return f"tc can't set {kind}: {said}"


def _root(device: str, node: Node | None) -> str:
    """Kind of an interface's discipline; "" where it can't be told."""
    argv = ["tc", "-json", "qdisc", "show", "dev", device, "root"]
    if node is not None:
        text = node.read(argv).stdout
    else:
        text = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False).stdout
    try:
        return str(json.loads(text)[0]["kind"])
    except (ValueError, LookupError, TypeError):
        return ""


class NetemDelay(Qdisc):
    """Parameters ``milliseconds`` (added to a round trip) and ``jitter`` (milliseconds)."""

    name = "netem"
    how = "netem delays packets; on a cluster what the node sends, in a lab half of it in each direction"
    kind = "netem"
    arguments = ("delay", "1ms")

    def options(self, p: Any, number: int) -> list[str]:
        jitter = [f"{p.jitter / number:g}ms"] if p.jitter else []
        return ["delay", f"{p.milliseconds / number:g}ms", *jitter]

    def before(self, target: Target, p: Any) -> float | None:
        return round_trip(target)

    def prove(self, target: Target, p: Any, before: float | None) -> Proof:
        return slower(target, p, before)


class NetemLoss(Qdisc):
    """Parameters ``percent`` and ``direction``: only both can be had."""

    name = "netem"
    how = "netem loses packets at random; on a cluster of what the node sends"
    kind = "netem"
    arguments = ("loss", "1%")

    def refusal(self, target: Target, p: Any) -> str | None:
        if p.direction != "both":
            return "netem acts on what an interface sends: direction in or out is left to nftables"
        return super().refusal(target, p)

    def options(self, p: Any, number: int) -> list[str]:
        return ["loss", f"{p.percent:g}%"]

    def before(self, target: Target, p: Any) -> Any:
        assert target.node is not None
        return link_probe.echoes(target.node.address, 20)

    def prove(self, target: Target, p: Any, before: Any) -> Proof:
        from chaos.engines import nftables

        assert target.node is not None
        return nftables.judge_loss(p, target.node)


class Cap(Qdisc):
    """A token bucket; parameter ``megabits`` a second. Each direction has its own."""

    name = "tbf"
    how = "tbf lets no more than the rate out of the interface; in a lab at both ends"
    kind = "tbf"
    arguments = ("rate", "100mbit", "burst", "64kb", "latency", "50ms")
    prove_within = 30.0

    def options(self, p: Any, number: int) -> list[str]:
        # At least what comes within a tick of 4 ms, or the rate is not reached; never less than a large segment.
        burst = max(65_536, int(p.megabits * 1e6 / 8 * 0.004))
        return ["rate", f"{p.megabits:g}mbit", "burst", str(burst), "latency", "50ms"]

    def before(self, target: Target, p: Any) -> float:
        assert target.node is not None
        return link_probe.throughput(target.node)

    def prove(self, target: Target, p: Any, before: float) -> Proof:
        assert target.node is not None
        now = link_probe.throughput(target.node)
        told = f"{now / 1e6:.1f} Mbit/s to it, {before / 1e6:.0f} before (cap {p.megabits:g})"
        return Proof(0 < now <= p.megabits * 1.25e6 and now < before * 0.8, told, now)


def round_trip(target: Target) -> float | None:
    """Median of 20 echoes, seconds; None if none came back."""
    assert target.node is not None
    return link_probe.echoes(target.node.address, 20).rtt


def slower(target: Target, p: Any, before: float | None) -> Proof:
    """The median round trip has grown by at least 0.7 of what is asked for."""
    if before is None:
        return Proof(False, "no echo came back before the fault: nothing can be compared")
    assert target.node is not None
    seen = link_probe.echoes(target.node.address, 30, wait=1.0 + p.milliseconds / 1000)
    if seen.rtt is None:
        return Proof(False, f"none of {seen.sent} echoes came back")
    grown = (seen.rtt - before) * 1000
    told = f"round trip {seen.rtt * 1000:.1f} ms, {before * 1000:.1f} ms before"
    return Proof(grown >= 0.7 * p.milliseconds, told, grown / 1000)
