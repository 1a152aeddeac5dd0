"""Mounts taken away, made read-only, shrunk or covered by a file, in a node's own view of them: mount(8), umount(8).

The pieces that storage faults build their engines from. Every change can be put right without knowing how the
file system was mounted: what is taken away is first held at a second place (a bind mount below ``HOLD``), and is
bound back from there. Needs root on the node.
"""

from __future__ import annotations

import hashlib
from typing import Any

from chaos import steps
from chaos.engines import rights, storage_reader
from chaos.engines.storage_reader import Mount
from chaos.fault import Engine, Refused, Target
from chaos.place import Node, Place
from chaos.steps import Step

#: Where mounts are held that were taken away. Gone after a restart, as they are.
HOLD = "/run/exaserve-chaos"

# $1: where it is held, $2: where it belongs. From any state: never two mounts at $2, and none is lost.
_TAKE = 'mount --bind "$2" "$1" && mount --make-private "$1" && umount -l "$2"'
_BRING = (
    'if mountpoint -q "$1"; then mountpoint -q "$2" || mount --bind "$1" "$2" || exit 1; umount -l "$1"; fi;'
    ' rmdir "$1" 2>/dev/null; rmdir "${1%/*}" 2>/dev/null; [ ! -e "$1" ]'
)


# $1: the node's first process, $2: the folder. With a node that was killed its mounts are gone, the empty folder is
# not. While the node lives it stays: removing it would take the mount away that is held there.
_FORGET = '[ -e "/proc/$1/ns/mnt" ] || rmdir "$2" "${2%/*}" 2>/dev/null; exit 0'


class MountEngine(Engine):
    """Base of the engines that use mount(8): what they all lack or refuse."""

    def missing(self, place: Place) -> str | None:
        return rights.lacking(place, "change mounts")

    def refusal(self, target: Target, p: Any) -> str | None:
        assert target.node is not None
        if target.remote and (why := rights.lacking_on(target.node, "change mounts")):
            return why
        mount = storage_reader.mount_at(target.node, target.mount)
        if mount is None:
            on = storage_reader.mount_of(target.node, target.mount)
            return f"{target.mount} is no mount point (it lies on {on.point if on else 'nothing'})"
        if mount.point == "/":
            return "it is the root file system; without it nothing on the node could undo the fault"
        return None


def here(target: Target) -> Mount:
    """The mount of a target that was not refused. Raises Refused if it has gone since."""
    assert target.node is not None
    mount = storage_reader.mount_at(target.node, target.mount)
    if mount is None:
        raise Refused(f"{target.mount} is not mounted any more; nothing was done")
    return mount


def below(target: Target) -> str | None:
    """A mount below the target's; None if there is none."""
    assert target.node is not None
    inside = [m.point for m in storage_reader.mounts(target.node) if m.point.startswith(f"{target.mount}/")]
    return inside[0] if inside else None


def keeper(target: Target, path: str) -> Node | None:
    """Where to undo what was done to the file system at the path itself; None: here.

    A lab's storage is mounted here and only seen in the node, so what was done to it outlives the node, and a step
    inside a node that is gone does nothing. What only the node has mounted ends with it.
    """
    node = target.node
    assert node is not None
    if node.init is None:
        return node
    there, ours = storage_reader.mount_of(node, path), storage_reader.mount_of(Node("here"), path)
    if there is None or ours is None:
        return node
    same = (there.point, there.root, there.device) == (ours.point, ours.root, ours.device)
    return None if same else node


def hold_of(target: Target) -> str:
    """The folder at which this target's mount is held."""
    assert target.node is not None
    which = hashlib.sha256(f"{target.node.name}\n{target.mount}".encode()).hexdigest()[:12]
    return f"{HOLD}/{which}"


def take_away(target: Target) -> list[Step]:
    """Hold the mount elsewhere, then unmount it lazily: open files live on, new opens find nothing."""
    hold = hold_of(target)
    return [steps.mkdir(hold), _shell(target, _TAKE, hold, target.mount)]


def bring_back(target: Target) -> list[Step]:
    """The opposite, from any state."""
    assert target.node is not None
    hold, init = hold_of(target), target.node.init
    back = [_shell(target, _BRING, hold, target.mount)]
    return back if init is None else [*back, steps.run(["sh", "-c", _FORGET, "sh", str(init["pid"]), hold])]


def remount(target: Target, mount: Mount, **change: str) -> Step:
    """Remount with the mount's own options, but ``read="ro"`` or ``size="4096"`` (tmpfs) instead.

    ``read`` changes this mount point alone, in this node's view; ``size`` the whole file system.
    """
    node = target.node
    if "size" in change:
        node = keeper(target, target.mount)
        options = f"remount,size={change['size']}"
    else:
        # Without its other flags a bind remount would take nosuid, nodev … away.
        kept = [o for o in mount.options if o not in ("ro", "rw")]
        options = ",".join(["remount", "bind", change["read"], *kept])
    gone = ("not mounted", "no mount point", "mount point does not exist", "not found in")
    return steps.run(["mount", "-i", "-o", options, target.mount], node=node, absent=gone)


def _shell(target: Target, script: str, *arguments: str) -> Step:
    return steps.run(["sh", "-c", script, "sh", *arguments], node=target.node)


def leftovers(place: Place) -> list[str]:
    """Mounts that are still held at ``HOLD``. Asked when no record is left."""
    return [
        f"{node.name}: a mount is held at {m.point}"
        for node in place.nodes()
        for m in storage_reader.mounts(node)
        if m.point.startswith(f"{HOLD}/")
    ]


def clear_leftovers(place: Place) -> list[str]:
    """Bring back what is held and whose place is known by the node's mounts; let go of the rest."""
    done = []
    for node in place.nodes():
        held = {m.point for m in storage_reader.mounts(node) if m.point.startswith(f"{HOLD}/")}
        for name, path in node.mounts.items():
            target = Target(f"{node.name}/{name}", place, node, mount=path, mount_name=name)
            if (hold := hold_of(target)) in held:
                node.read(["sh", "-c", _BRING, "sh", hold, path])
                held.discard(hold)
                done.append(f"{node.name}: brought {path} back")
        for hold in sorted(held):
            node.read(["sh", "-c", 'umount -l "$1"; rmdir "$1"; rmdir "${1%/*}"', "sh", hold])
            done.append(f"{node.name}: let go of {hold}, which belongs to no mount of it")
    return done
