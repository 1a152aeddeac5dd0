"""Packets dropped by nftables on the node's own interface: lost at random, in one direction, above a size, all.

One table a fault on the node, ``exaserve_<fault>``, so that undo is the deletion of that table. Its rules match only
while the elements of a set live, whose time is the fault's duration: the kernel ends the fault by itself, also where
nothing of ours is left to do so. Loopback is never touched. Where the node is entered over ssh, that connection's
packets are let through.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from chaos import steps
from chaos.engines import link_probe, rights
from chaos.engines.link_probe import Echoes
from chaos.fault import Engine, Plan, Proof, Target
from chaos.place import Node, Place

_ABSENT = ("No such file or directory",)
_SSH_PORT = 22


def table(fault: str) -> str:
    return f"exaserve_{fault}"


class Drop(Engine):
    """rules(p) -> nftables statements for (in, out), each a condition, "" for all packets, None for none.

    expected(p) -> what the echoes have to show, see ``judge``.
    """

    name = "nftables"
    prove_within = 15.0

    def __init__(
        self,
        fault: str,
        how: str,
        rules: Callable[[Any], tuple[str | None, str | None]],
        judge: Callable[[Any, Node], Proof],
    ) -> None:
        self.fault, self.how = fault, how
        self._rules, self._judge = rules, judge

    def missing(self, place: Place) -> str | None:
        return rights.lacking(place, "filter packets")

    def refusal(self, target: Target, p: Any) -> str | None:
        node = target.node
        assert node is not None
        if not node.device:
            return f"{node.name} has no interface of its own to filter on: faults of links need a lab or a cluster"
        done = node.read(["nft", "list", "tables"])
        if done.returncode == 0:
            return None
        if "Operation not permitted" in done.stderr:
            return f"only root may filter packets, and {node.name} is entered as another user"
        why = done.stderr.strip().splitlines()[-1:] or ["no answer"]
        return f"nft does not work on {node.name} ({why[0]}); on Debian: sudo apt-get install nftables"

    def before(self, target: Target, p: Any) -> Echoes:
        assert target.node is not None
        return link_probe.echoes(target.node.address, 20)

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        node = target.node
        assert node is not None
        script = ruleset(table(self.fault), node, self._rules(p), duration)
        return Plan(
            [steps.run(["nft", "-f", "-"], node, input=script)],
            [steps.run(["nft", "delete", "table", "inet", table(self.fault)], node, absent=_ABSENT)],
            claims=(f"nft:{node.name}:{self.fault}",),
        )

    def prove(self, target: Target, p: Any, before: Echoes) -> Proof:
        assert target.node is not None
        if not before.received:
            return Proof(
                False, f"{target.node.name} answered no echo before the fault: nothing can be compared"
            )
        return self._judge(p, target.node)


def ruleset(name: str, node: Node, rules: tuple[str | None, str | None], duration: float) -> str:
    """The input of ``nft -f -``. The set holds every protocol for the fault's time, and then nothing."""
    life = f"{max(1, math.ceil(duration * 1000))}ms"
    elements = ", ".join(f"{protocol} timeout {life}" for protocol in ("tcp", "udp", "icmp", "ipv6-icmp"))
    lines = [
        f"table inet {name} {{",
        "  set alive {",
        "    type inet_proto; flags timeout;",
        f"    elements = {{ {elements} }}",
        "  }",
    ]
    for hook, condition, word in (("input", rules[0], "iifname"), ("output", rules[1], "oifname")):
        if condition is None:
            continue
        lines.append(f"  chain {hook} {{")
        lines.append(f"    type filter hook {hook} priority -310; policy accept;")
        lines.append(f'    {word} != "{node.device}" accept')
        if node.remote:
            lines.append(f"    tcp {'dport' if hook == 'input' else 'sport'} {_SSH_PORT} accept")
        lines.append(" ".join(filter(None, ("    meta l4proto @alive", condition, "counter drop"))))
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def lost_share(p: Any) -> float:
    """Share of round trips that fail when each of the directions loses ``percent`` of its packets."""
    share = float(p.percent) / 100
    return 1 - (1 - share) ** 2 if p.direction == "both" else share


def judge_loss(p: Any, node: Node) -> Proof:
    """The echoes' loss is at least half of what is expected, and at most that with four standard deviations."""
    expected, count = lost_share(p), 400
    seen = link_probe.echoes(node.address, count, gap=0.003)
    spread = 4 * math.sqrt(expected * (1 - expected) / count)
    told = f"{seen.loss:.1%} of {seen.sent} round trips were lost (expected {expected:.1%})"
    return Proof(
        max(expected / 2, expected - spread - 0.01) <= seen.loss <= expected + spread + 0.01, told, seen.loss
    )


def judge_gone(p: Any, node: Node) -> Proof:
    """No echo comes back."""
    seen = link_probe.echoes(node.address, 20, wait=0.5)
    return Proof(seen.received == 0, f"{seen.received} of {seen.sent} echoes came back", seen.loss)


def judge_black_hole(p: Any, node: Node) -> Proof:
    """Small packets pass, packets above the limit vanish without a word."""
    small = link_probe.echoes(node.address, 10, size=56, wait=0.5)
    large = link_probe.echoes(node.address, 10, size=min(p.bytes + 1 - 28, 1472), wait=0.5)
    told = (
        f"{small.received} of {small.sent} small packets passed, {large.received} of {large.sent} of over "
        f"{p.bytes} bytes"
    )
    return Proof(small.received == small.sent and large.received == 0, told, large.loss)


def leftovers(place: Place) -> list[str]:
    """Our tables on the place's nodes, as ``node: table``."""
    return [f"{node.name}: nftables table {name}" for node, name in _tables(place)]


def clear_leftovers(place: Place) -> list[str]:
    """Delete them; those that were there."""
    cleared = []
    for node, name in _tables(place):
        done = node.read(["nft", "delete", "table", "inet", name])
        if done.returncode == 0:
            cleared.append(f"{node.name}: nftables table {name}")
    return cleared


def _tables(place: Place) -> list[tuple[Node, str]]:
    found = []
    for node in place.nodes():
        if node.control or not node.device:
            continue
        for line in node.read(["nft", "list", "tables"]).stdout.splitlines():
            words = line.split()
            if len(words) == 3 and words[1] == "inet" and words[2].startswith("exaserve_"):
                found.append((node, words[2]))
    return found
