"""A node's clock set wrong. Undone from the time since boot, which no change of the clock moves: exact, and safe twice."""

from __future__ import annotations

import time
from typing import Any

from chaos import steps
from chaos.engines import rights
from chaos.fault import Engine, Plan, Proof, Target
from chaos.place import Place

# CLOCK_REALTIME is 0, CLOCK_BOOTTIME 7 (time.h). The argument: what their difference is to be, in seconds.
_SET = "import time, sys; time.clock_settime(0, time.clock_gettime(7) + float(sys.argv[1]))"
_READ = "import time; print(time.clock_gettime(0) - time.clock_gettime(7), time.clock_gettime(0))"


def read(target: Target) -> tuple[float, float] | None:
    """(clock less time since boot, clock) of the node, seconds; None if that can't be read."""
    assert target.node is not None
    try:
        offset, now = map(float, target.node.read(["python3", "-c", _READ]).stdout.split())
    except ValueError:
        return None
    return offset, now


class Settime(Engine):
    """Parameter ``seconds``: by how much it is put forward, or back if below 0."""

    name = "settime"
    how = (
        "clock_settime on the node; a time service that runs there puts it right again, which the proof sees"
    )

    def missing(self, place: Place) -> str | None:
        if any(n.remote for n in place.nodes()):
            return None
        return (
            "nodes of a lab share this machine's clock, which namespaces can't tell apart, and it is not touched; "
            "clock_skew sets the clock of one process"
        )

    def refusal(self, target: Target, p: Any) -> str | None:
        assert target.node is not None
        if not target.remote:
            return f"{target.name} is this machine, whose clock is not touched"
        if why := rights.lacking_on(target.node, "set the clock"):
            return why
        return None if read(target) else f"the clock of {target.name} can't be read (python3 is needed there)"

    def before(self, target: Target, p: Any) -> float:
        found = read(target)
        return found[1] - time.time() if found else 0.0

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        found = read(target)
        offset = found[0] if found else 0.0
        return Plan(
            [steps.run(["python3", "-c", _SET, f"{offset + p.seconds:.6f}"], target.node)],
            [steps.run(["python3", "-c", _SET, f"{offset:.6f}"], target.node)],
            claims=(f"clock:{target.name}",),
        )

    def prove(self, target: Target, p: Any, before: float) -> Proof:
        found = read(target)
        if found is None:
            return Proof(False, "the clock can't be read")
        skew = found[1] - time.time() - before
        told = f"the clock is {skew:+.1f} s against what it was"
        return Proof(abs(skew - p.seconds) < max(1.0, abs(p.seconds) * 0.1), told, skew)
