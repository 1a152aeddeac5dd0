"""Whether a game day can begin: every node reached, with the rights, programs and devices that faults need there.

Reads only. One answer a node and question, so that what is wrong can be put right before people have met.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from chaos import fault as faults
from chaos.fault import ActivityFailed, Fault, Target
from chaos.place import Node, Place

#: Program -> what is not possible without it. ``python3`` is asked for apart.
PROGRAMS = {
    "ip": "faults of links",
    "tc": "capped and slow links",
    "nft": "lossy, one-way and isolated links",
    "stress-ng": "load on processors and memory",
    "sh": "most faults",
}
#: Seconds by which a node's clock may differ, so that records and graphs can be laid side by side.
CLOCK = 1.0
_TIMEOUT = 20.0
# One program for everything, so that a node is entered once. Python 3.8, standard library.
_LOOK = """
import json, os, shutil, sys, time
asked = json.loads(sys.argv[1])
def folder(path):
    path = os.path.expanduser(path)
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    return os.access(path, os.W_OK) and bool(os.statvfs(path).f_blocks)  # proc and its like take no files
def records(path):
    try:
        return [n for n in os.listdir(os.path.expanduser(path)) if n.endswith(".json")]
    except OSError:
        return []
def link(name):
    try:
        with open("/sys/class/net/%s/operstate" % name) as f:
            return f.read().strip()
    except OSError:
        return ""
print(json.dumps({
    "python": list(sys.version_info[:2]), "root": os.geteuid() == 0, "time": time.time(),
    "missing": [p for p in asked["programs"] if shutil.which(p) is None],
    "link": link(asked["device"]) if asked["device"] else None,
    "mounts": {n: os.path.isdir(p) for n, p in asked["mounts"].items()},
    "state": folder(asked["state"]), "records": records(asked["state"]),
}))
"""


@dataclass(frozen=True)
class Line:
    """One finding. state: ``ok``, ``warning`` (some faults are not possible), ``wrong`` (the day can't begin)."""

    node: str
    what: str
    state: str
    text: str


def check(place: Place, with_faults: bool = False) -> list[Line]:
    """Every finding, the router's first, then node by node. with_faults: also try every fault's refusal on each node."""
    lines = _router(place)
    try:
        nodes = place.nodes()
    except ActivityFailed as error:
        return [*lines, Line("", "nodes", "wrong", str(error))]
    if not any(n.control for n in nodes):
        text = "no node has `control: true`: the machine of router and monitoring has to be named, so that it is spared"
        lines.append(Line("", "control node", "wrong", text))
    broken = [n for n in nodes if not n.control]
    if not broken:
        lines.append(Line("", "nodes", "wrong", "there is no node but the control node"))
    with ThreadPoolExecutor(max(1, min(16, len(nodes)))) as pool:
        for found in pool.map(lambda n: _node(place, n, with_faults), nodes):
            lines += found
    return lines


def _router(place: Place) -> list[Line]:
    lines = []
    for part in ("router", "admin", "prometheus", "alertmanager"):
        if not place.addresses.get(part):
            state = "wrong" if part == "admin" else "warning"
            lines.append(Line("", part, state, "its address is not given"))
    try:
        replicas = place.replicas()
    except ActivityFailed as error:
        return [*lines, Line("", "replicas", "wrong", str(error))]
    serving = [r.name for r in replicas if r.in_rotation]
    lines.append(
        Line(
            "",
            "replicas",
            "ok" if len(serving) > 1 else "wrong",
            f"{len(serving)} of {len(replicas)} in rotation",
        )
    )
    lost = [f"{r.name} ({r.url})" for r in replicas if not r.node]
    if lost:
        text = (
            f"on no node of the inventory: {', '.join(lost)}; address has to be the host of the replica's URL"
        )
        lines.append(Line("", "replicas", "warning", text))
    return lines


def _node(place: Place, node: Node, with_faults: bool) -> list[Line]:
    if node.control:
        return [
            Line(node.name, "role", "ok", "control node: left alone by faults of nodes, links and storage")
        ]
    asked = {
        "programs": list(PROGRAMS),
        "device": node.device,
        "mounts": node.mounts,
        "state": node.state_folder,
    }
    began = time.time()
    done = node.read(["python3", "-I", "-c", _LOOK, json.dumps(asked)], timeout=_TIMEOUT)
    took = time.time() - began
    try:
        seen: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        why = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return [Line(node.name, "reached", "wrong", f"no python3 answers there: {why[0]}")]
    lines = [Line(node.name, "reached", "ok", f"in {took:.1f} s")]

    def note(what: str, good: bool, yes: str, no: str, otherwise: str = "warning") -> None:
        lines.append(Line(node.name, what, "ok" if good else otherwise, yes if good else no))

    note("python3", seen["python"] >= [3, 8], "3.8 or newer", f"{seen['python']}; 3.8 is needed", "wrong")
    note("rights", seen["root"], "root", "not root: only faults of its own processes are possible")
    # Its clock was read between the call and the answer; what that leaves open is no difference.
    ahead = seen["time"] - began - took / 2
    note(
        "clock", abs(ahead) <= CLOCK + took / 2, f"{ahead:+.2f} s", f"{ahead:+.1f} s from here: set it by NTP"
    )
    without = [f"{p} ({PROGRAMS[p]})" for p in seen["missing"]]
    note("programs", not without, ", ".join(PROGRAMS), f"not there: {', '.join(without)}")
    if seen["link"] is None:
        note("device", False, "", "none is given: no faults of its link")
    else:
        note(
            "device",
            bool(seen["link"]),
            f"{node.device} {seen['link']}",
            f"there is no {node.device}",
            "wrong",
        )
    gone = [f"{name} ({node.mounts[name]})" for name, there in seen["mounts"].items() if not there]
    note("mounts", not gone, ", ".join(node.mounts) or "none given", f"not there: {', '.join(gone)}", "wrong")
    note(
        "undo records",
        seen["state"],
        f"{node.state_folder} can be written",
        f"{node.state_folder} can't",
        "wrong",
    )
    left = ", ".join(seen["records"])
    cure = f"{left} from another time: exaserve chaos recover --place {place.name}"
    note("left behind", not left, "nothing", cure, "wrong")
    if not node.replicas:
        lines.append(Line(node.name, "replicas", "warning", "no replica that the router knows is there"))
    return lines + (_faults(place, node) if with_faults else [])


def _faults(place: Place, node: Node) -> list[Line]:
    """Which faults of nodes, links and storage are possible there, as their engines say."""
    can, lines = [], []
    for name in faults.names():
        fault = faults.load(name)
        if fault.kind not in ("node", "link", "storage"):
            continue
        why = _refusal(place, node, fault)
        if why is None:
            can.append(name)
        else:
            lines.append(Line(node.name, name, "warning", why))
    return [
        Line(node.name, "faults", "ok" if can else "warning", ", ".join(can) or "none is possible"),
        *lines,
    ]


def _refusal(place: Place, node: Node, fault: Fault) -> str | None:
    """Why no engine can, on any of the node's mounts where it is one of storage; None if one can."""
    mounts = list(node.mounts.items()) if fault.kind == "storage" else [("", "")]
    said = [] if mounts else ["the node has no mounts in the inventory"]
    for name, path in mounts:
        target = Target(
            f"{node.name}/{name}" if name else node.name, place, node, mount_name=name, mount=path
        )
        for engine in fault.engines:
            why = _attempt(lambda e=engine, t=target: e.missing(place) or e.refusal(t, fault.parse({})))  # type: ignore[misc]
            if why is None:
                return None
            said.append(f"{engine.name}: {why}")
    return "; ".join(dict.fromkeys(said))


def _attempt(ask: Callable[[], str | None]) -> str | None:
    try:
        return ask()
    except (ActivityFailed, OSError, ValueError, KeyError) as error:
        return str(error) or type(error).__name__
