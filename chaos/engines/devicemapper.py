"""A logical volume's linear table exchanged for one that fails or delays, while it is mounted: dmsetup(8).

For clusters with LVM volumes whose kernel has device-mapper. The volume's own table is read when the fault is
planned and loaded again by the undo; nothing on the disk changes. Table formats: the kernel's
Documentation/admin-guide/device-mapper (dm-flakey, dm-delay).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from chaos import steps
from chaos.engines import storage_reader
from chaos.fault import Engine, Plan, Refused, Target
from chaos.place import Node, Place

# Without flushing: what waits must not have to succeed first. Resumed in any case, or all of it would hang.
_LOAD = 'dmsetup load "$1" --table "$2"; s=$?; dmsetup suspend --noflush --nolockfs "$1"; dmsetup resume "$1" && exit $s'


@dataclass(frozen=True, slots=True)
class Linear:
    """A volume that is one piece of one device. sectors, offset: 512 bytes each. device: ``major:minor``."""

    name: str
    sectors: int
    device: str
    offset: int

    @property
    def table(self) -> str:
        return f"0 {self.sectors} linear {self.device} {self.offset}"


class DeviceMapper(Engine):
    """Base: ``table(linear, p)`` is what replaces the volume's own table."""

    def table(self, linear: Linear, p: Any) -> str:
        raise NotImplementedError

    def missing(self, place: Place) -> str | None:
        if any(node.remote for node in place.nodes()):
            return None  # asked on the node itself
        return _lacks(Node("here"))

    def refusal(self, target: Target, p: Any) -> str | None:
        assert target.node is not None
        if target.remote and (why := _lacks(target.node)):
            return f"{target.node.name}: {why}"
        found = linear(target)
        return found if isinstance(found, str) else None

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        found = linear(target)
        if isinstance(found, str):
            raise Refused(f"{target.name}: {found}")
        do, undo = self.table(found, p), found.table
        return Plan(
            [steps.run(["sh", "-c", _LOAD, "sh", found.name, do], node=target.node)],
            # Not inside a lab's node: volumes are the machine's and outlive it.
            [steps.run(["sh", "-c", _LOAD, "sh", found.name, undo], absent=["does not exist"])],
            (f"dm:{target.node.name if target.node else ''}:{found.name}",),
        )


def _lacks(node: Node) -> str | None:
    if "device-mapper" not in node.read(["cat", "/proc/misc"]).stdout:
        return "this kernel has no device-mapper (it is not in /proc/misc)"
    if node.read(["sh", "-c", "command -v dmsetup"]).returncode:
        return "dmsetup is missing: sudo apt-get install dmsetup"
    if node.read(["id", "-u"]).stdout.strip() != "0" or (not node.remote and os.geteuid() != 0):
        return "only root may use dmsetup"
    return None


def linear(target: Target) -> Linear | str:
    """The volume below the target's mount, or why there is none that could be exchanged."""
    assert target.node is not None
    mount = storage_reader.mount_at(target.node, target.mount)
    if mount is None:
        return f"{target.mount} is no mount point"
    if mount.point == "/":
        return "it is the root file system; without it nothing on the node could undo the fault"
    name = target.node.read(["cat", f"/sys/dev/block/{mount.device}/dm/name"]).stdout.strip()
    if not name:
        return f"{mount.source} ({mount.fs_type}) is no device-mapper volume"
    return parse(name, target.node.read(["dmsetup", "table", name]).stdout)


def parse(name: str, table: str) -> Linear | str:
    """``dmsetup table``'s words for a volume of one linear piece; a sentence for any other."""
    lines = table.splitlines()
    words = lines[0].split() if len(lines) == 1 else []
    if len(words) != 5 or words[0] != "0" or words[2] != "linear":
        kinds = (
            ", ".join(sorted({w[2] for line in lines if len(w := line.split()) > 2})) or "nothing readable"
        )
        return f"{name} is not one linear piece of a device ({len(lines)} pieces: {kinds})"
    return Linear(name, int(words[1]), words[3], int(words[4]))
