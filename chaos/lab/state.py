"""What a lab consists of: names, addresses and folders, and the file that holds them.

Everything is derived from the lab's name and written before anything is made, and all that is made can be
found by name: ``teardown.py`` needs no file. The schema of ``lab.json`` (version 1):

    version, name, folder, phase (building, ready, ending), created (unix seconds), profile,
    builder (identity of the process that builds it; None once it is built)
    bridge, subnet, control (the machine's own address on the bridge)
    regions: name, router, admin, prometheus, alertmanager (base URLs; None without them), run, nodes
    nodes: name, number, region, address, device (its interface, seen inside), port (the bridge's end of it),
           engine, cpus, mounts {local, shared}, run ($EXASERVE_RUN of its stack), exporter,
           init (identity of its process 1; None while it was never started),
           replicas: name, url, port
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from chaos import identity

VERSION = 1
MAX_NODES, MAX_REPLICAS, MAX_REGIONS = 64, 16, 8
#: In the environment of every process of a lab: its folder.
MARK = "EXASERVE_LAB"
REPLICA_PORT, EXPORTER_PORT = 8100, 9420
#: Ports of the control node are taken from here: below those that the kernel gives to clients.
_PORTS = range(20_000, 32_000)

State = dict[str, Any]


class LabError(Exception):
    """What is wrong and its cure, for the user. usage: whether it is how the command was called."""

    def __init__(self, message: str, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


def check_name(name: str) -> str:
    """The name, if interfaces can bear it (15 characters). Raises LabError."""
    if not re.fullmatch(r"[a-z][a-z0-9]{0,5}", name):
        raise LabError(f"--name: {name!r} must be a letter and at most 5 letters or digits, all small", True)
    return name


def base() -> Path:
    """Where labs lie: ``lab`` in ``$EXASERVE_RUN`` if that is set, else in ``$EXASERVE_HOME``."""
    own = os.environ.get("EXASERVE_RUN") or os.environ.get("EXASERVE_HOME") or Path.home() / ".exaserve"
    return Path(own).expanduser().absolute().resolve() / "lab"


def folder(name: str) -> Path:
    return base() / check_name(name)


def read(name: str) -> State | None:
    """The lab's state; None if there is none, or none that can be read."""
    try:
        found = json.loads((folder(name) / "lab.json").read_bytes())
        whole = found["version"] == VERSION and found["name"] == name and _is(found, _LAB)
        whole = whole and found["folder"] == str(folder(name))
        return found if whole and found["regions"] and found["nodes"] else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


_REPLICA = {"name": str, "url": str, "port": int}
_IDENTITY = {"pid": int, "ticks": int, "boot": str}
_NODE = {
    **dict.fromkeys(("name", "region", "address", "device", "port", "engine", "run", "exporter"), str),
    "number": int,
    "cpus": list,
    "mounts": {"local": str, "shared": str},
    "init": (_IDENTITY, None),
    "replicas": [_REPLICA],
}
_REGION = {
    **dict.fromkeys(("name", "router", "admin", "run"), str),
    "prometheus": (str, None),
    "alertmanager": (str, None),
    "nodes": [str],
}
_LAB = {
    **dict.fromkeys(("name", "folder", "phase", "profile", "bridge", "subnet", "control"), str),
    "created": float,
    "builder": (_IDENTITY, None),
    "regions": [_REGION],
    "nodes": [_NODE],
}


def _is(value: Any, shape: Any) -> bool:
    """Whether JSON has a shape: a type, a list of one, a mapping of keys, or a pair of which one is None."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(
            key in value and _is(value[key], s) for key, s in shape.items()
        )
    if isinstance(shape, list):
        return isinstance(value, list) and all(_is(one, shape[0]) for one in value)
    if isinstance(shape, tuple):
        return value is None or _is(value, shape[0])
    return isinstance(value, shape)


def write(state: State) -> None:
    """Write ``lab.json`` whole. Raises OSError."""
    place = Path(state["folder"])
    place.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=place, prefix=".lab.json.")
    with os.fdopen(fd, "w") as f:
        json.dump(state, f, indent=1)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, place / "lab.json")


def mark_ending(name: str) -> None:
    """From now on the lab is up for nobody. A disk on which that can't be written keeps nobody from removing it."""
    found = read(name)
    if found is None:
        return
    try:
        write(found | {"phase": "ending"})
    except OSError:  # full: removing a file needs no room, and without it the lab is not up either
        with suppress(OSError):
            (Path(found["folder"]) / "lab.json").unlink()


@contextmanager
def alone(name: str, seconds: float = 60.0) -> Iterator[None]:
    """Only one command at a time changes a lab. Raises LabError if another one does not end within ``seconds``."""
    path = folder(name).with_name(f".{name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        end = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise LabError(
                        f"another `exaserve lab` command works on lab {name!r} ({path}); wait for it"
                    ) from None
                time.sleep(0.1)
        yield


def plan(
    name: str, nodes: int, replicas: int, real: int, regions: int, profile: str, taken: list[str]
) -> State:
    """The state of a lab that is still to be made.

    real: the first nodes that get real replicas. taken: networks that this machine has, as ``10.1.2.0/24``.
    Raises LabError if the name's networks are all taken.
    """
    place, subnet = folder(name), _subnet(name, taken)
    prefix = subnet.rsplit(".", 1)[0]
    control = f"{prefix}.254"
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // real) if real else 0
    all_nodes = []
    for i in range(nodes):
        address, home = f"{prefix}.{i + 1}", place / f"node-{i + 1}"
        first = (i * share) % len(cores)
        all_nodes.append(
            {
                "name": f"node-{i + 1}",
                "number": i + 1,
                "region": f"region-{i * regions // nodes + 1}",
                "address": address,
                "device": "exal0",
                "port": f"exal-{name}-{i + 1}",
                "engine": "vllm" if i < real else "simulated",
                "cpus": cores[first : first + share] if i < real else [],
                "mounts": {"local": str(home / "local"), "shared": str(home / "shared")},
                "run": str(home / "run"),
                "exporter": f"http://{address}:{EXPORTER_PORT}",
                "init": None,
                "replicas": [
                    {
                        "name": f"replica-{i * replicas + r}",
                        "url": f"http://{address}:{REPLICA_PORT + r}",
                        "port": REPLICA_PORT + r,
                    }
                    for r in range(replicas)
                ],
            }
        )
    ports = _free_ports(4 * regions)
    all_regions = []
    for i in range(regions):
        region = f"region-{i + 1}"
        router, admin, prometheus, alertmanager = ports[4 * i : 4 * i + 4]
        all_regions.append(
            {
                "name": region,
                "router": f"http://127.0.0.1:{router}",
                "admin": f"http://{control}:{admin}",
                "prometheus": f"http://127.0.0.1:{prometheus}",
                "alertmanager": f"http://127.0.0.1:{alertmanager}",
                "run": str(place / region),
                "nodes": [n["name"] for n in all_nodes if n["region"] == region],
            }
        )
    return {
        "version": VERSION,
        "name": name,
        "folder": str(place),
        "phase": "building",
        "builder": identity.of(os.getpid()),
        "created": time.time(),
        "profile": profile,
        "bridge": f"exal-{name}",
        "subnet": subnet,
        "control": control,
        "regions": all_regions,
        "nodes": all_nodes,
    }


def node_of(state: State, name: str) -> State:
    """One node's part of the state. Raises LabError if there is none of that name."""
    for node in state["nodes"]:
        if node["name"] == name:
            return dict(node)
    raise LabError(f"no node {name!r}; there are: {', '.join(n['name'] for n in state['nodes'])}", True)


def _subnet(name: str, taken: list[str]) -> str:
    """A /24 of 10.200-253 that belongs to the name, or the next that this machine does not have."""
    first = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
    for i in range(256):
        number = (first + i) % (54 * 250)
        prefix = f"10.{200 + number // 250}.{number % 250 + 1}."
        if not any(network.startswith(prefix) for network in taken):
            return f"{prefix}0/24"
    raise LabError("this machine has routes to all networks that the lab could use (10.200-253.*)")


def _free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on, another lab's start included as far as chance goes."""
    offset, found = int.from_bytes(os.urandom(4)), []
    for i in range(len(_PORTS)):
        port = _PORTS[(offset + i) % len(_PORTS)]
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise LabError(f"no {count} free ports between {_PORTS.start} and {_PORTS.stop}")
