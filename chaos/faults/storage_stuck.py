"""Storage stuck: operations neither succeed nor fail, they wait. The kernel's word is D state, ``iowait``."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, Literal

from pydantic import Field

from chaos import steps
from chaos.engines import fuse, mounts, storage_reader
from chaos.fault import Fault, Parameters, Plan, Proof, Target

#: Seconds after which an operation counts as stuck.
_LIMIT = 1.2
#: File systems that fsfreeze(8) is for.
_FREEZABLE = ("ext3", "ext4", "xfs", "btrfs", "f2fs")
#: Where undo and the programs it needs lie; a file system that holds one of them is never frozen.
_NEEDED = ["/", *(f"/{name}" for name in "usr bin lib etc run tmp var home root proc sys dev".split())]  # noqa: SIM905
_TABLE = "exaserve_chaos_storage"


class Stuck(Parameters):
    operations: Literal["read", "write", "all"] = Field(
        "all", description="what waits: reads, changes, or everything (fsfreeze: write alone, NFS: all)"
    )
    path: str = Field(
        "*", min_length=1, description="shell pattern of files below the mount; * also matches /"
    )


class _Hangs:
    """What all engines prove alike: an operation does not come back."""

    operations: tuple[str, ...] = ("read", "write", "all")

    def before(self, target: Target, p: Stuck) -> Any:
        assert target.node is not None
        return storage_reader.some_file(target.node, target.mount, p.path)

    def prove(self, target: Target, p: Stuck, before: Any) -> Proof:
        assert target.node is not None
        what = {"read": "read", "write": "touch", "all": "names" if p.path == "*" else "read"}[p.operations]
        now = storage_reader.measure(target.node, target.mount, what, file=before or "", limit=_LIMIT)
        hung = now["hung"] == what
        words = (
            f"a {what} did not come back in {_LIMIT:g} s"
            if hung
            else f"a {what} came back: {now['errors'] or 'well'}"
        )
        return Proof(hung, words, _LIMIT if hung else None)


class Daemon(_Hangs, fuse.FaultFs):
    how = "the lab's own file system (FUSE) holds operations until the fault is over; SIGKILL frees their callers"

    def refusal(self, target: Target, p: Stuck) -> str | None:
        assert target.node is not None
        if (why := super().refusal(target, p)) is not None:
            return why
        if p.operations == "write":
            return None if p.path == "*" else "path: writes alone can only be proven for all files (path=*)"
        if p.operations == "all" and p.path == "*":
            return None
        found = storage_reader.some_file(target.node, target.mount, p.path)
        return None if found else f"no file in {target.mount} fits {p.path!r}, so nothing could prove it"

    def rules(self, target: Target, p: Stuck) -> list[dict[str, Any]]:
        return [{"fault": "hang", "path": p.path, "ops": ["*"] if p.operations == "all" else [p.operations]}]


class Nfs(_Hangs, mounts.MountEngine):
    name = "nfs-drop"
    how = "packets to the NFS server are dropped on the node (nftables), so a hard mount waits for it"

    def refusal(self, target: Target, p: Stuck) -> str | None:
        assert target.node is not None
        if (why := super().refusal(target, p)) is not None:
            return why
        mount = mounts.here(target)
        if not mount.fs_type.startswith("nfs"):
            return f"{target.mount} is {mount.fs_type}, not NFS"
        if p.operations != "all" or p.path != "*":
            return "without its server all of NFS waits (operations=all, path=*)"
        if not _server(mount):
            return f"{target.mount} does not tell its server's address"
        if target.node.read(["sh", "-c", "command -v nft"]).returncode:
            return "nft is missing on the node: sudo apt-get install nftables"
        return None

    def plan(self, target: Target, p: Stuck, duration: float) -> Plan:
        mount = mounts.here(target)
        address, port = _server(mount) or ("", "")
        family = "ip6" if ":" in address else "ip"
        rules = (
            f"table inet {_TABLE} {{ chain out {{ type filter hook output priority 0; policy accept;"
            f" {family} daddr {address} tcp dport {port} drop; }}\n}}\n"
        )
        undo = steps.run(
            ["nft", "delete", "table", "inet", _TABLE], node=target.node, absent=["No such file or directory"]
        )
        node = target.node.name if target.node else ""
        return Plan([steps.run(["nft", "-f", "-"], node=target.node, input=rules)], [undo], (f"nfs:{node}",))


class Freeze(_Hangs, mounts.MountEngine):
    name = "fsfreeze"
    how = "fsfreeze: writers wait, not killable, until it is thawed by the dead-man; readers go on"

    def refusal(self, target: Target, p: Stuck) -> str | None:
        assert target.node is not None
        if p.operations != "write" or p.path != "*":
            return "fsfreeze holds every change and no read (operations=write, path=*)"
        if (why := super().refusal(target, p)) is not None:
            return why
        mount = mounts.here(target)
        if mount.fs_type not in _FREEZABLE:
            return f"{target.mount} is {mount.fs_type}; fsfreeze is for {', '.join(_FREEZABLE)}"
        frozen = mount.device
        needed = {
            folder: storage_reader.mount_of(target.node, folder)
            for folder in (*_NEEDED, *_own_folders(target))
        }
        held = [folder for folder, on in needed.items() if on is not None and on.device == frozen]
        if held:
            return f"{target.mount} also holds {held[0]}: with it frozen nothing could undo the fault"
        return None

    def plan(self, target: Target, p: Stuck, duration: float) -> Plan:
        thaw = steps.run(
            ["fsfreeze", "--unfreeze", target.mount],
            node=mounts.keeper(target, target.mount),
            # Not frozen (any more), or not there.
            absent=["Invalid argument", "No such file or directory"],
        )
        freeze = steps.run(["fsfreeze", "--freeze", target.mount], node=target.node)
        return Plan([freeze], [thaw], (f"freeze:{mounts.here(target).device}",))


def _own_folders(target: Target) -> list[str]:
    """Folders in which the undo keeps its record, and ourselves."""
    if target.remote:
        return ["/opt", "/srv"]
    home = os.environ.get("EXASERVE_HOME") or os.path.expanduser("~/.exaserve")
    return [os.path.realpath(folder) for folder in (home, os.getcwd(), sys.prefix, os.path.dirname(__file__))]


def _server(mount: storage_reader.Mount) -> tuple[str, str] | None:
    """Address and port of the NFS server, from the mount's own options (nfs(5))."""
    found = dict(o.partition("=")[::2] for o in mount.super_options)
    address = found.get("addr", "")
    return (address, found.get("port") or "2049") if re.fullmatch(r"[0-9a-fA-F.:]+", address) else None


FAULT = Fault(
    name="storage_stuck",
    kind="storage",
    summary="operations neither succeed nor fail, they wait",
    engines=(Daemon("storage_stuck", unusable=True), Nfs(), Freeze()),
    parameters=Stuck,
    max_duration=300.0,
)
