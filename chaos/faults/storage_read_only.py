"""Storage read-only: as after an error that made the kernel or the server give up writing."""

from __future__ import annotations

from typing import Any

from chaos.engines import fuse, mounts, storage_reader
from chaos.fault import Fault, Parameters, Plan, Proof, Target


class _NoWrite:
    """What both engines prove alike: a write says EROFS, a listing works."""

    def prove(self, target: Target, p: Parameters, before: Any) -> Proof:
        assert target.node is not None
        now = storage_reader.measure(target.node, target.mount, "names", "write")
        error = now["errors"].get("write", "works")
        words = f"writing: {error}, listing: {now['errors'].get('names', 'works')}"
        return Proof(error == "EROFS" and "names" in now, words)


class Remount(_NoWrite, mounts.MountEngine):
    name = "remount"
    how = "mount -o remount,bind,ro of this mount point, in this node's view alone"

    def refusal(self, target: Target, p: Parameters) -> str | None:
        if (why := super().refusal(target, p)) is not None:
            return why
        mount = mounts.here(target)
        return (
            f"{target.mount} is read-only already"
            if "ro" in (mount.options[0], *mount.super_options)
            else None
        )

    def plan(self, target: Target, p: Parameters, duration: float) -> Plan:
        mount = mounts.here(target)
        return Plan(
            [mounts.remount(target, mount, read="ro")],
            [mounts.remount(target, mount, read="rw")],
            (f"mount:{target.name}",),
        )


class Daemon(_NoWrite, fuse.FaultFs):
    how = "the lab's own file system (FUSE) answers every change with EROFS; works with files open for writing too"

    def rules(self, target: Target, p: Parameters) -> list[dict[str, Any]]:
        return [{"fault": "error", "errno": "EROFS", "ops": ["write"]}]


FAULT = Fault(
    name="storage_read_only",
    kind="storage",
    summary="every change fails, reading works",
    engines=(Remount(), Daemon("storage_read_only")),
)
