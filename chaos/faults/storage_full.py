"""Storage full: nothing can be written any more; reading and removing still work."""

from __future__ import annotations

import re
from typing import Any

from chaos import steps
from chaos.engines import fuse, mounts, storage_reader
from chaos.fault import Fault, Parameters, Plan, Proof, Refused, Target

#: The file that fills a file system; below the mount, removed by the undo.
FILL = ".exaserve-chaos-fill"
#: Bytes that the proof tries to write.
_BLOCK = 65536
# $1: the file, $2: bytes that are available. Reserved and metadata blocks make fewer of them usable, hence the
# steps; the rest is written until nothing more fits.
_FILL = (
    'f=$1 n=$2; : > "$f" || exit 1; while [ "$n" -gt 0 ] && ! fallocate -l "$n" "$f" 2>/dev/null; do'
    ' n=$((n - 1048576)); done; head -c 16M /dev/zero 2>/dev/null >> "$f" 2>/dev/null; sync "$f" 2>/dev/null; exit 0'
)


class _NoSpace:
    """What all engines prove alike: a small write fails for want of space."""

    def prove(self, target: Target, p: Parameters, before: Any) -> Proof:
        assert target.node is not None
        # The space last: of a fault that comes between the two, the write would tell and the space would not.
        now = storage_reader.measure(target.node, target.mount, "write", "space", size=_BLOCK)
        free = now.get("space", {}).get("available")
        error = now["errors"].get("write", "works")
        words = f"writing {_BLOCK} bytes: {error}, {free} bytes available"
        return Proof(error in ("ENOSPC", "EDQUOT"), words, free)


class Daemon(_NoSpace, fuse.FaultFs):
    def rules(self, target: Target, p: Parameters) -> list[dict[str, Any]]:
        return [{"fault": "full"}]


class Shrink(_NoSpace, mounts.MountEngine):
    name = "tmpfs-size"
    how = "remount,size= of a tmpfs to what is in use; its size of before comes back"

    def refusal(self, target: Target, p: Parameters) -> str | None:
        if (why := super().refusal(target, p)) is not None:
            return why
        mount = mounts.here(target)
        if mount.fs_type != "tmpfs":
            return f"{target.mount} is {mount.fs_type}, no tmpfs"
        return None if _size(mount) else f"the tmpfs at {target.mount} has no size of its own to come back to"

    def plan(self, target: Target, p: Parameters, duration: float) -> Plan:
        mount = mounts.here(target)
        space = _space(target)
        if space is None or (size := _size(mount)) is None:
            raise Refused(f"{target.name}: its space can't be read; nothing was done")
        # Whole pages; 0 would mean no limit at all.
        used = max(4096, -(-(space["size"] - space["free"]) // 4096) * 4096)
        return Plan(
            [mounts.remount(target, mount, size=str(used))],
            [mounts.remount(target, mount, size=size)],
            (f"space:{target.name}",),
        )


class Fill(_NoSpace, mounts.MountEngine):
    name = "fill"
    how = f"one file ({FILL}) takes all free blocks (fallocate); it is removed again"

    def refusal(self, target: Target, p: Parameters) -> str | None:
        assert target.node is not None
        if (why := super().refusal(target, p)) is not None:
            return why
        mount = mounts.here(target)
        if mount.fs_type in ("tmpfs", "ramfs", fuse.FS_TYPE):
            return (
                f"{target.mount} is {mount.fs_type}: filling it would take memory, or the disk below the lab"
            )
        if mount.options[0] == "ro" or "ro" in mount.super_options:
            return f"{target.mount} is read-only"
        root = storage_reader.mount_at(target.node, "/")
        if root is not None and root.device == mount.device:
            return f"{target.mount} lies on the root file system: filling it would stop the whole machine"
        return None

    def plan(self, target: Target, p: Parameters, duration: float) -> Plan:
        assert target.node is not None
        space = _space(target)
        if space is None:
            raise Refused(f"{target.name}: its space can't be read; nothing was done")
        file, size = f"{target.mount}/{FILL}", space["free"]
        fill = steps.run(["sh", "-c", _FILL, "sh", file, str(size)], node=target.node, timeout=60.0)
        remove = steps.run(["rm", "-f", file], node=mounts.keeper(target, file))
        return Plan([fill], [remove], (f"space:{target.name}",))


def _space(target: Target) -> dict[str, int] | None:
    """As the probe tells it; None if it can't be read."""
    assert target.node is not None
    found = storage_reader.measure(target.node, target.mount, "space", limit=storage_reader.BEFORE)
    space: dict[str, int] | None = found.get("space")
    return space


def _size(mount: storage_reader.Mount) -> str | None:
    """``size=`` of a tmpfs as it was given, such as ``65536k``."""
    found = [o[5:] for o in mount.super_options if re.fullmatch(r"size=[0-9]+[kmg]?", o)]
    return found[0] if found else None


FAULT = Fault(
    name="storage_full",
    kind="storage",
    summary="nothing can be written any more: no space left",
    engines=(Daemon("storage_full"), Shrink(), Fill()),
)
