"""Storage gone: the node's mount disappears, as when its server or its link to it is lost.

``open_files=live`` is what a lazy unmount does: files that are open or mapped go on, new opens find an empty
folder. ``open_files=fail`` is harder (lab only): every use fails, also of open and mapped files.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from chaos.engines import fuse, mounts, storage_reader
from chaos.fault import Fault, Parameters, Plan, Proof, Target


class Gone(Parameters):
    open_files: Literal["live", "fail"] = Field(
        "live", description="what becomes of files that are open: they live on, or their every use fails"
    )
    error: Literal["ENOTCONN", "ESTALE", "EIO", "ENOENT"] = Field(
        "ENOTCONN", description="how uses fail with open_files=fail (a name of errno)"
    )


class Unmount(mounts.MountEngine):
    name = "umount"
    how = "umount -l on the node; the mount is held elsewhere meanwhile and bound back from there"

    def refusal(self, target: Target, p: Gone) -> str | None:
        if p.open_files == "fail":
            return "umount -l leaves open files alive (open_files=live)"
        if (why := super().refusal(target, p)) is not None:
            return why
        inside = mounts.below(target)
        return f"{inside} is mounted below it and would go too" if inside else None

    def before(self, target: Target, p: Gone) -> Any:
        assert target.node is not None
        return storage_reader.measure(target.node, target.mount, "device", limit=storage_reader.BEFORE)

    def plan(self, target: Target, p: Gone, duration: float) -> Plan:
        claim = f"mount:{target.name}"
        return Plan(mounts.take_away(target), mounts.bring_back(target), (claim,))

    def prove(self, target: Target, p: Gone, before: Any) -> Proof:
        assert target.node is not None
        there = storage_reader.mount_at(target.node, target.mount)
        now = storage_reader.measure(target.node, target.mount, "device", "names")
        gone = there is None and "device" in now and now["device"] != before.get("device")
        names = len(now.get("names", []))
        what = f"no mount point any more, {names} names in the folder below"
        return Proof(
            gone, what if gone else f"it is still there ({there.fs_type if there else now['errors']})"
        )


class Fails(fuse.FaultFs):
    how = "the lab's own file system (FUSE) answers every use with the error, of open and mapped files too"

    def refusal(self, target: Target, p: Gone) -> str | None:
        if p.open_files == "live":
            return "it fails open files too (open_files=fail)"
        return super().refusal(target, p)

    def rules(self, target: Target, p: Gone) -> list[dict[str, Any]]:
        return [{"fault": "error", "errno": p.error, "ops": ["*"]}]

    def prove(self, target: Target, p: Gone, before: Any) -> Proof:
        assert target.node is not None
        now = storage_reader.measure(target.node, target.mount, "names", "space")
        seen = {now["errors"].get("names"), now["errors"].get("space")}
        words = f"listing it: {now['errors'].get('names', 'works')}, statvfs: {now['errors'].get('space', 'works')}"
        return Proof(seen == {p.error}, words)


FAULT = Fault(
    name="storage_gone",
    kind="storage",
    summary="the node's mount disappears",
    engines=(Unmount(), Fails("storage_gone", unusable=True)),
    parameters=Gone,
)
