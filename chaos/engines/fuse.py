"""The lab's shared storage does wrong what a file in its control folder says (``chaos/lab/faultfs.py``).

A fault brings its rules and its proof; everything else is here. One file for each fault, so that two faults on one
mount come and go independently. The file carries the end of the fault's duration, so that it lapses by itself even
when nobody is left to take it away. Out of reach: what a process has copied into its own memory, and pages of a
private mapping that it has written to; all other pages, mapped ones too, are dropped when the rules change.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from chaos import steps
from chaos.engines import storage_reader
from chaos.fault import Engine, Plan, Target
from chaos.place import Node, Place

#: As mountinfo shows these mounts.
FS_TYPE = "fuse.exaserve"
#: Seconds after the fault's own end at which its rules lapse, whoever is dead. It has to be more than what passes
#: between plan and injection, or they would lapse while the fault is in: earlier targets are proven first.
BELT = 120.0


def control_folder(mount: str) -> str:
    """Where the rules of a mount lie: beside it, under its name, outside of it."""
    return f"{mount}.control"


# $1: the daemon's state, $2: our file's name. Until the daemon has let go of the rules, and of what it had the kernel
# keep; at most 2 s, and not for a daemon that is gone.
_WAIT = (
    'i=0; while [ $i -lt 100 ] && grep -q "\\"$2\\": \\"" "$1" 2>/dev/null; do'
    ' kill -0 "$(sed -n \'s/.*"pid": \\([0-9]*\\).*/\\1/p\' "$1")" 2>/dev/null || break;'
    " sleep 0.02; i=$((i + 1)); done; exit 0"
)


class FaultFs(Engine):
    """Base: writes ``rules(target, p)`` into the control folder and removes them again."""

    name = "faultfs"
    how = "the lab's own file system (FUSE) does it, told by a file beside the mount; cached and mapped pages too"

    def __init__(self, fault: str, unusable: bool = False) -> None:
        """unusable: nothing can be done to the mount meanwhile, other faults of it are refused."""
        self.fault, self.unusable = fault, unusable

    def rules(self, target: Target, p: Any) -> list[dict[str, Any]]:
        """As ``chaos/lab/faultrules.py`` reads them."""
        raise NotImplementedError

    def missing(self, place: Place) -> str | None:
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            return "/dev/fuse can't be opened: FUSE is not in this kernel, or this user may not use it"
        return None

    def refusal(self, target: Target, p: Any) -> str | None:
        assert target.node is not None
        if target.remote:
            return "only the lab's storage obeys a control file, not a mount of another machine"
        mount = storage_reader.mount_at(target.node, target.mount)
        if mount is None or mount.fs_type != FS_TYPE:
            kind = f"is {mount.fs_type}" if mount else "is no mount point"
            return f"{target.mount} {kind}, not the lab's own file system (shared storage of a lab)"
        if daemon(target.mount) is None:
            name = target.place.lab
            option = "" if name == "lab" else f" --name {name}"
            return f"the process behind {target.mount} is gone; `exaserve lab up{option}` mounts it anew"
        return None

    def file(self, target: Target) -> str:
        return f"{control_folder(target.mount)}/{self.fault}.json"

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        text = json.dumps({"rules": self.rules(target, p), "until": round(time.time() + duration + BELT, 1)})
        path = self.file(target)
        told = f"{control_folder(target.mount)}/state"
        lifted = steps.run(["sh", "-c", _WAIT, "sh", told, f"{self.fault}.json"])
        claims = (f"faultfs:{path}", *((f"mount:{target.name}",) if self.unusable else ()))
        return Plan([steps.write(path, text)], [steps.remove(path), lifted], claims)

    def obeyed(self, target: Target) -> str | None:
        """None if the daemon obeys our file; what is wrong otherwise."""
        told = state(target.mount).get("files", {}).get(f"{self.fault}.json")
        return (
            None if told == "ok" else f"the file system has not taken the rules up ({told or 'not seen yet'})"
        )


def state(mount: str) -> dict[str, Any]:
    """What the daemon says of itself (``faultrules.py``); empty if it said nothing."""
    try:
        found = json.loads(Path(control_folder(mount), "state").read_bytes())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def daemon(mount: str) -> int | None:
    """The pid of the process behind the mount; None if it is gone."""
    pid = state(mount).get("pid")
    try:
        if pid and b"faultfs" in Path(f"/proc/{int(pid)}/cmdline").read_bytes():
            return int(pid)
    except (OSError, ValueError):
        pass
    return None


def _ours(place: Place) -> list[tuple[Node, str]]:
    found = []
    for node in place.nodes():
        if node.remote:
            continue
        points = {m.point for m in storage_reader.mounts(node) if m.fs_type == FS_TYPE}
        found += [(node, path) for path in node.mounts.values() if path in points]
    return found


def leftovers(place: Place) -> list[str]:
    """Rules that are still there, and mounts whose process is gone. Asked when no record is left."""
    found = []
    for node, path in _ours(place):
        found += [f"{node.name}: rules {file}" for file in sorted(Path(control_folder(path)).glob("*.json"))]
        if daemon(path) is None:
            found.append(f"{node.name}: the mount {path} is dead, its process is gone")
    return found


def clear_leftovers(place: Place) -> list[str]:
    """Remove such rules and dead mounts. Returns what was done; a dead mount only comes back with its lab."""
    done = []
    for node, path in _ours(place):
        for file in sorted(Path(control_folder(path)).glob("*.json")):
            file.unlink(missing_ok=True)
            done.append(f"{node.name}: removed {file}")
        if daemon(path) is None:
            # In the node it may be a mount of its own; unmounting here reaches it through propagation.
            for inside in ([], node.prefix):
                argv = [*inside, "umount", "-l", path]
                Node(node.name, prefix=[]).read(argv, timeout=5.0)
            done.append(f"{node.name}: unmounted {path}, whose process is gone")
    return done
