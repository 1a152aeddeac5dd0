"""Choosing what a fault is done to, and refusing what would break more than was asked for.

A target is a name (``replica-0``, ``node-2``), a list of them, ``any`` (one that serves), or a share (``25%`` of those
that serve, rounded up). Storage: ``node-2/shared`` (a node and one of its mounts; the mount alone may be left out where
there is one). Traffic: ``fleet``. Control: one of the fault's parts (``router``). At most ``max_affected`` targets are
broken at a time, those that are broken already counted: out of rotation, or with a fault in that the router may not
have noticed yet. The last replica in rotation is never taken unless ``allow_last`` is set.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection

from chaos.fault import Fault, Refused, Target
from chaos.place import Node, Place, Replica


def choose(
    place: Place,
    fault: Fault,
    text: str,
    max_affected: int = 1,
    allow_last: bool = False,
    broken: Collection[str] = (),
) -> list[Target]:
    """The targets. Raises Refused: no such one, too many, or nothing would be left. Traffic and control are one each.

    broken: nodes and replicas that have a fault in.
    """
    if max_affected < 1:
        raise Refused(f"max_affected must be at least 1, not {max_affected}")
    if fault.kind == "traffic":
        return [Target(_the_one(text, ("fleet",), fault), place)]
    if fault.kind == "control":
        return [_part(place, fault, text)]
    if fault.kind == "replica":
        return _replicas(place, text, max_affected, allow_last, broken)
    return _nodes(place, fault, text, max_affected, allow_last, broken)


def _the_one(text: str, allowed: tuple[str, ...], fault: Fault) -> str:
    if text == "any" and len(allowed) == 1:
        return allowed[0]
    if text not in allowed:
        raise Refused(f"{fault.name} is done to {' or '.join(allowed)}, not to {text!r}")
    return text


def _part(place: Place, fault: Fault, text: str) -> Target:
    """A part of the control node by its name; else a replica or a node, for faults that name these as targets."""
    name = text if text != "any" or len(fault.targets) > 1 else fault.targets[0]
    if "replica" in fault.targets:
        for replica in place.replicas():
            if replica.name == name:
                return Target(name, place, place.node_of(replica), replica)
    if "node" in fault.targets:
        for node in place.nodes():
            if node.name == name:
                return Target(name, place, node)
    parts = place.parts()
    if name in fault.targets and name in parts:
        return Target(name, place, part=parts[name])
    known = [t for t in fault.targets if t in parts or t in ("replica", "node")]
    what = " or ".join("the name of a " + t if t in ("replica", "node") else t for t in fault.targets)
    if name in fault.targets and name not in ("replica", "node"):
        raise Refused(f"{place.name} has no {name}, or its process can't be seen from here; nothing was done")
    raise Refused(f"{fault.name} is done to {what}, not to {text!r}" + ("" if known else " (none is here)"))


def _serving(replicas: list[Replica], broken: Collection[str]) -> list[str]:
    """Those that no fault is in, and that the router may send requests to as far as is known."""
    return sorted(
        r.name
        for r in replicas
        if r.in_rotation is not False and r.name not in broken and r.node not in broken
    )


def _replicas(
    place: Place, text: str, max_affected: int, allow_last: bool, broken: Collection[str]
) -> list[Target]:
    replicas = place.replicas()
    serving = _serving(replicas, broken)
    chosen = _named(text, [r.name for r in replicas], serving, "replica")
    by_name = {r.name: r for r in replicas}
    for name in chosen:
        if by_name[name].in_rotation is False:
            state = by_name[name].state or "out"
            raise Refused(f"{name} is {state}, not in rotation; nothing was done")
    out = sorted(set(by_name) - set(serving))
    _cap(chosen, out, max_affected, "replica")
    _last(replicas, serving, set(chosen), allow_last)
    return [Target(name, place, place.node_of(by_name[name]), by_name[name]) for name in chosen]


def _nodes(
    place: Place, fault: Fault, text: str, max_affected: int, allow_last: bool, broken: Collection[str]
) -> list[Target]:
    all_nodes = place.nodes()
    # What NVML tells of a GPU breaks no traffic, so that it may be the control node's too.
    nodes = [n for n in all_nodes if not n.control or fault.kind == "gpu"]
    wanted, _, mount = text.partition("/")
    control = next((n.name for n in all_nodes if n.control), None)
    if not nodes or (wanted == control and fault.kind != "gpu"):
        raise Refused(
            f"{control or place.name} is the control node (router, Prometheus): never the target of a {fault.kind} "
            f"fault; nothing was done. A lab has nodes to break: exaserve lab up, then --place lab"
        )
    replicas = place.replicas() if any(n.replicas for n in nodes) else []
    serving = _serving(replicas, broken)
    serve = {r.node for r in replicas if r.name in serving}
    up = sorted(n.name for n in nodes if n.name not in broken and (not n.replicas or n.name in serve))
    chosen = _named(wanted, [n.name for n in nodes], up, "node")
    _cap(chosen, sorted({n.name for n in nodes} - set(up) - set(chosen)), max_affected, "node")
    if fault.kind in ("node", "link"):
        _last(replicas, serving, {r.name for r in replicas if r.node in chosen}, allow_last)
    by_name = {n.name: n for n in nodes}
    return [_on_node(place, fault, by_name[name], mount) for name in chosen]


def _on_node(place: Place, fault: Fault, node: Node, mount: str) -> Target:
    if fault.kind != "storage":
        if mount:
            raise Refused(f"{fault.name} is done to a node; {node.name}/{mount} names a mount")
        return Target(node.name, place, node)
    if not mount and len(node.mounts) == 1:
        mount = next(iter(node.mounts))
    if mount not in node.mounts:
        there = ", ".join(f"{node.name}/{m}" for m in sorted(node.mounts)) or "none is known"
        raise Refused(f"no mount {mount or '(none named)'} on {node.name}; there: {there}")
    return Target(f"{node.name}/{mount}", place, node, mount=node.mounts[mount], mount_name=mount)


def _named(text: str, known: list[str], serving: list[str], what: str) -> list[str]:
    """Names that the text means. ``any`` and shares are taken from those that serve."""
    text = text.strip()
    if text == "any" or text.endswith("%"):
        if not serving:
            raise Refused(f"no {what} serves; nothing was done")
        count = 1 if text == "any" else _share(text, len(serving))
        return sorted(random.sample(serving, count))  # - which ones does not matter
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        there = ", ".join(sorted(known)) or "none"
        raise Refused(f"no {what} {unknown[0] if unknown else text!r} (there: {there})")
    return sorted(set(chosen))


def _share(text: str, of: int) -> int:
    try:
        share = float(text[:-1])
    except ValueError:
        share = -1.0
    if not 0 < share <= 100:
        raise Refused(f"a share is over 0 % and at most 100 %, not {text!r}")
    return math.ceil(of * share / 100)


def _cap(chosen: list[str], out: list[str], max_affected: int, what: str) -> None:
    out = [name for name in out if name not in chosen]
    if len(chosen) + len(out) <= max_affected:
        return
    already = f" ({', '.join(out)} already {'is' if len(out) == 1 else 'are'})" if out else ""
    count = len(chosen) + len(out)
    raise Refused(
        f"blast radius: with {', '.join(chosen)} {count} {what}s were broken or out of rotation{already}, at most "
        f"{max_affected} may (max_affected); nothing was done"
    )


def _last(replicas: list[Replica], serving: list[str], taken: set[str], allow_last: bool) -> None:
    """Refused if none of those that serve is left, and one is taken that the router still counts on."""
    counted = sorted(r.name for r in replicas if r.in_rotation is not False and r.name in taken)
    if counted and not set(serving) - taken and not allow_last:
        raise Refused(
            f"blast radius: {', '.join(counted)} {'is the last replica' if len(counted) == 1 else 'are the last replicas'}"
            " in rotation; nothing was done (allow_last)"
        )
