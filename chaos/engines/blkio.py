"""A block device's bytes per second limited for a node's replicas: cgroup v1 ``blkio.throttle``, v2 ``io.max``.

v1: the replicas' processes move into a group of ours and back to where they were. v2: the limit is set on the
group that they are in already (a unit, a job, a container), which keeps whoever manages it unaware. v1 does not
see buffered writes, only reads and direct writes (kernel: admin-guide/cgroup-v1/blkio-controller). Storage
without a block device (tmpfs, NFS, FUSE) has no such limit.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from chaos import steps
from chaos.engines import cgroups, storage_reader
from chaos.fault import Engine, Plan, Refused, Target
from chaos.place import Node, Place

V1 = "/sys/fs/cgroup/blkio"
V2 = "/sys/fs/cgroup"


class Throttle(Engine):
    """Base: the parameters have ``bytes_per_second``."""

    name = "blkio"
    how = "the kernel's cgroups limit the bytes per second that the node's replicas move on the block device"

    def missing(self, place: Place) -> str | None:
        if any(node.remote for node in place.nodes()):
            return None
        if os.geteuid() != 0:
            return "only root may limit cgroups"
        return None if _version() else "neither cgroup v1 blkio nor v2 io is mounted below /sys/fs/cgroup"

    def refusal(self, target: Target, p: Any) -> str | None:
        assert target.node is not None
        if target.remote:
            return "cgroups of another machine are not reached yet; limit the link to the storage instead"
        mount = storage_reader.mount_of(target.node, target.mount)
        if mount is None or mount.device.startswith("0:"):
            return f"{target.mount} is {mount.fs_type if mount else 'not there'}: there is no block device to limit"
        if not self.groups(target):
            return f"no process of a replica of {target.node.name} is there to limit"
        if _version() == 2 and any(not Path(g, "io.max").exists() for g in self.groups(target).values()):
            return "the replicas' cgroup has no io.max (the root group, or io is not enabled for it)"
        return None

    def groups(self, target: Target) -> dict[int, str]:
        """pid -> folder of its cgroup, of the node's replicas."""
        assert target.node is not None
        found: dict[int, str] = {}
        for replica in target.place.replicas():
            if replica.node == target.node.name and replica.pid is not None:
                try:
                    pids = [who["pid"] for who in target.place.processes(replica)]
                except Refused:
                    continue
                found |= {pid: group for pid in pids if (group := _group_of(pid))}
        return found

    def ours(self, target: Target) -> str:
        return f"{V1}/{cgroups.name(target, 'io')}"

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        disk, limit, groups = self.disk(target), int(p.bytes_per_second), self.groups(target)
        claim = (f"blkio:{target.name}",)
        if _version() == 2:
            files = sorted({f"{group}/io.max" for group in groups.values()})
            do = [steps.put(file, f"{disk} rbps={limit} wbps={limit}\n") for file in files]
            return Plan(do, [steps.put(file, f"{disk} {_limits(file, disk)}\n") for file in files], claim)
        group = self.ours(target)
        rule, where = f"{disk} {limit}\n", sorted(groups.items())
        do = [
            steps.mkdir(group),
            steps.put(f"{group}/blkio.throttle.read_bps_device", rule),
            steps.put(f"{group}/blkio.throttle.write_bps_device", rule),
            steps.run(["sh", "-c", cgroups.MOVE, "sh", group, *(str(pid) for pid, _ in where)]),
        ]
        back = [f"{pid}={home}" for pid, home in where]
        return Plan(do, [steps.run(["sh", "-c", cgroups.BACK, "sh", group, where[0][1], *back])], claim)

    def disk(self, target: Target) -> str:
        """``major:minor`` of the whole disk, which is what can be limited."""
        assert target.node is not None
        mount = storage_reader.mount_of(target.node, target.mount)
        if mount is None:
            raise Refused(f"{target.mount} is not there any more; nothing was done")
        block = Path("/sys/dev/block", mount.device)
        if (block / "partition").exists():
            return (block.resolve().parent / "dev").read_text().strip()
        return mount.device

    def read(self, target: Target, file: str, size: int, limit: float) -> dict[str, Any]:
        """A probe's read from within the limited group (see ``storage_probe.py``)."""
        assert target.node is not None
        group = self.ours(target) if _version() == 1 else next(iter(self.groups(target).values()), "")
        return storage_reader.measure(
            _within(target.node.name, group), target.mount, "read", file=file, size=size, limit=limit
        )


def _within(name: str, group: str) -> Node:
    """This machine, entered by way of the group."""
    enter = 'echo 0 > "$0/cgroup.procs" && exec "$@"'
    return Node(name, prefix=["sh", "-c", enter, group])


def _version() -> int | None:
    if Path(V1, "blkio.throttle.read_bps_device").exists():
        return 1
    try:
        return 2 if "io" in Path(V2, "cgroup.controllers").read_text().split() else None
    except OSError:
        return None


def _group_of(pid: int) -> str | None:
    """The folder of the process's group in the hierarchy that limits; None if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if _version() == 1 and "blkio" in controllers.split(","):
            return f"{V1}{path}".rstrip("/")
        if _version() == 2 and number == "0":
            return f"{V2}{path}".rstrip("/")
    return None


def _limits(file: str, disk: str) -> str:
    """The group's own limits on the disk, to be set again; ``max`` where it had none."""
    found = {"rbps": "max", "wbps": "max"}
    try:
        for line in Path(file).read_text().splitlines():
            if line.startswith(f"{disk} "):
                found |= {k: v for k, _, v in (w.partition("=") for w in line.split()[1:]) if k in found}
    except OSError:
        pass
    return " ".join(f"{k}={v}" for k, v in found.items())
