"""A node that goes down whole: all processes of it at once, without a word to anybody."""

from __future__ import annotations

import sys
from typing import Any

from chaos import identity, steps
from chaos.fault import Engine, Plan, Proof, Target
from chaos.place import Place

#: What it says when there is no lab any more, so that there is no node to start.
_NO_LAB = (" is not up (looked in ",)
_START = "import sys; from chaos.lab.cli import app; app(sys.argv[1:])"


class KillInit(Engine):
    """SIGKILL to the process that holds a lab's node together; the kernel ends everything in it."""

    name = "lab"
    how = "SIGKILL to the node's first process, with which everything of it goes; undo starts the node again"

    def refusal(self, target: Target, p: Any) -> str | None:
        node = target.node
        assert node is not None
        if not target.place.name.startswith("lab:"):
            return f"{node.name} is no node of a lab"
        return None if node.init is not None else f"{node.name} is down already"

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        node = target.node
        assert node is not None
        assert node.init is not None
        argv = [
            sys.executable,
            "-c",
            _START,
            "node",
            "start",
            node.name,
            "--name",
            target.place.lab,
            "--no-wait",
        ]
        return Plan(
            [steps.signal(node.init, "SIGKILL")],
            [steps.run(argv, timeout=60, absent=_NO_LAB)],
            claims=(f"node:{node.name}",),
        )

    def before(self, target: Target, p: Any) -> Any:
        assert target.node is not None
        assert target.node.init is not None
        return identity.tree(target.node.init["pid"])

    def prove(self, target: Target, p: Any, before: Any) -> Proof:
        there = sum(identity.alive(who) for who in before)
        return Proof(there == 0, f"{there} of the node's {len(before)} processes are left", float(there))


class Restart(Engine):
    """sysrq-b: the machine starts again at once, without syncing or unmounting."""

    name = "sysrq"
    how = "the kernel restarts the machine at once (sysrq b), as after a power cut; it comes back by itself"
    momentary = True
    prove_within = 30.0

    def missing(self, place: Place) -> str | None:
        return None if any(n.remote for n in place.nodes()) else "only for nodes of a cluster"

    def refusal(self, target: Target, p: Any) -> str | None:
        node = target.node
        assert node is not None
        if not node.remote:
            return f"{node.name} is this machine"
        if node.read(["test", "-w", "/proc/sysrq-trigger"]).returncode:
            return f"/proc/sysrq-trigger of {node.name} can't be written: the inventory's user must be root"
        return None

    def before(self, target: Target, p: Any) -> str:
        assert target.node is not None
        return target.node.read(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip()

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        # A moment later, so that the command that asks for it still returns.
        later = "(sleep 1; echo b > /proc/sysrq-trigger) >/dev/null 2>&1 &"
        return Plan([steps.run(["sh", "-c", later], target.node)])

    def prove(self, target: Target, p: Any, before: str) -> Proof:
        assert target.node is not None
        seen = target.node.read(["cat", "/proc/sys/kernel/random/boot_id"], timeout=3)
        if seen.returncode:
            return Proof(True, f"it answers no more ({seen.stderr.strip()[-80:]})")
        return Proof(seen.stdout.strip() != before, f"boot id {seen.stdout.strip()}, {before} before")
