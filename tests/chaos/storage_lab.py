"""A node with storage of every kind that the machine can make: what storage faults are tried on.

The node is a process with a mount namespace of its own, as a lab's node is; its storage is mounted on the machine
and seen in it: ``shared`` (the lab's FUSE file system), ``local`` (tmpfs), ``disk`` (ext4 on a loop device).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chaos import identity, recover
from chaos.engines import storage_reader
from chaos.engines.mounts import HOLD
from chaos.fault import Refused
from chaos.lab.faultrules import STATE
from chaos.place import Identity, Node, Place, Replica

MIB = 2**20
#: Bytes of the file that stands for weights.
SIZE = MIB // 4


def lacks() -> str | None:
    """Why it can't be built here; None if it can."""
    if os.geteuid() != 0:
        return "needs root for mounts"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or not shutil.which("fusermount3"):
        return "needs FUSE (/dev/fuse, fuse3)"
    for program in ("unshare", "nsenter", "losetup", "mkfs.ext4"):
        if not shutil.which(program):
            return f"needs {program}"
    return None


def run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


class Storage(Place):
    """The place: one node ``node-1``, one replica on it that is a sleeping process."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.name = "lab:storagetest"
        self.folder = folder
        self.backing = folder / "backing"
        self.paths = {name: folder / name for name in ("shared", "local", "disk")}
        for path in (*self.paths.values(), self.backing):
            path.mkdir(parents=True)
        # As a lab's folder: mounts made here reach the node, those of the node stay in it.
        run("mount", "--bind", str(folder), str(folder))
        run("mount", "--make-private", str(folder))
        run("mount", "--make-shared", str(folder))
        self._fill(self.backing)
        self.daemon = self.start_daemon()
        run("mount", "-t", "tmpfs", "-o", "size=8m,nosuid,nodev", "tmpfs", str(self.paths["local"]))
        self._fill(self.paths["local"])
        image = folder / "disk.img"
        with image.open("wb") as f:
            f.truncate(32 * MIB)
        run("mkfs.ext4", "-q", str(image))
        self.loop = run("losetup", "--find", "--show", str(image))
        run("mount", self.loop, str(self.paths["disk"]))
        self._fill(self.paths["disk"])
        run("sync", "--file-system", str(self.paths["disk"]))  # or the first direct read would write first
        self.start_node()

    def start_node(self) -> None:
        """Also after ``kill_node``: its mounts are then those of the machine."""
        self.holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "slave", "sh", "-c", "echo up; exec sleep 3600"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == "up\n"
        self.init = identity.of(self.holder.pid)

    def kill_node(self) -> None:
        """As ``node_killed`` does: with its first process its view of the mounts goes, the machine's stay."""
        self.holder.kill()
        self.holder.communicate()

    @staticmethod
    def _fill(folder: Path) -> None:
        (folder / "models").mkdir()
        (folder / "models" / "w.safetensors").write_bytes(
            b"".join(i.to_bytes(4, "big") for i in range(SIZE // 4))
        )
        (folder / "models" / "config.json").write_text("{}")

    def start_daemon(self) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "chaos.lab.faultfs", str(self.backing), str(self.paths["shared"])]
        argv += ["--control", f"{self.paths['shared']}.control", "--name", "exal-storagetest"]
        daemon = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert daemon.stdout is not None
        if daemon.stdout.readline() != "ready\n":
            raise RuntimeError(daemon.communicate()[1])
        return daemon

    def nodes(self) -> list[Node]:
        prefix = ["nsenter", "-t", str(self.holder.pid), "-m", "--"]
        mounts = {name: str(path) for name, path in self.paths.items()}
        return [
            Node("node-1", prefix=prefix, init=self.init, mounts=mounts, replicas=["replica-0"]),
            Node("control", control=True),
        ]

    def replicas(self) -> list[Replica]:
        return [Replica("replica-0", "http://127.0.0.1:1", "node-1", self.holder.pid, 1)]

    def processes(self, replica: Replica) -> list[Identity]:
        who = identity.of(self.holder.pid)
        if who is None:
            raise Refused("it is gone")
        return [who]

    def node(self) -> Node:
        return self.nodes()[0]

    def seen(self) -> dict[str, Any]:
        """Everything a fault could leave behind: mounts here and in the node, files, loops, groups, processes."""
        mounts = {}
        for node in (Node("here"), self.node()):
            found = [
                m
                for m in storage_reader.mounts(node)
                # Of the others, those of tests beside this one come and go, in the node too.
                if str(self.folder) in m.point or (node.name != "here" and m.point.startswith(HOLD))
            ]
            mounts[node.name] = sorted(
                (m.point, m.root, m.fs_type, m.source, m.options, m.super_options) for m in found
            )
        return {
            "mounts": mounts,
            "files": {
                str(p.relative_to(self.folder)): hashlib.sha256(p.read_bytes()).hexdigest()
                if p.is_file()
                else "/"
                for name in ("backing", "local", "disk", "shared", "shared.control")
                for p in sorted((self.folder / name).rglob("*"))
                if p.name not in (STATE, f"{STATE}.new", "lost+found")
            },
            # Of tests beside this one too: only alone is it known whose they are.
            "held": sorted(os.listdir(HOLD))
            if "PYTEST_XDIST_WORKER" not in os.environ and os.path.isdir(HOLD)
            else [],
            "space": [os.statvfs(p).f_blocks for p in self.paths.values()],
            "loops": run("losetup", "--associated", str(self.folder / "disk.img")),
            "group": Path(f"/proc/{self.holder.pid}/cgroup").read_text(),
            "groups": sorted(str(p) for p in Path("/sys/fs/cgroup").glob("*/exal-storagetest*")),
            "helpers": identity.helpers(folder=str(recover.folder())),
        }

    def end(self) -> None:
        self.kill_node()
        self.daemon.kill()
        self.daemon.communicate()
        # One that a failed test left frozen would keep its loop device for good.
        disk = str(self.paths["disk"])
        subprocess.run(["fsfreeze", "--unfreeze", disk], capture_output=True, check=False)
        for path in (*self.paths.values(), self.folder):
            subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)
        subprocess.run(["losetup", "--detach", self.loop], capture_output=True, check=False)

    def attachment(self) -> dict[str, Any]:
        """What another process needs to see the same place."""
        return {"folder": str(self.folder), "pid": self.holder.pid, "init": self.init}


class Attached(Storage):
    """The place as another process sees it, which makes and ends nothing."""

    def __init__(self, attachment: dict[str, Any]) -> None:
        Place.__init__(self)
        self.name = "lab:storagetest"
        self.folder = Path(attachment["folder"])
        self.paths = {name: self.folder / name for name in ("shared", "local", "disk")}
        self.init = attachment["init"]
        self.holder = SimpleNamespace(pid=attachment["pid"])  # type: ignore[assignment]


class Remote(Place):
    """The same storage, as if on a machine that is entered over ssh: without a namespace in between."""

    def __init__(self, storage: Storage, state_folder: str) -> None:
        super().__init__()
        self.name = "cluster"
        mounts = {name: str(path) for name, path in storage.paths.items()}
        node = {"prefix": ["sh", "-c"], "remote": True, "state_folder": state_folder}
        self._nodes = [Node("node-1", mounts=mounts, **node), Node("control", control=True)]

    def nodes(self) -> list[Node]:
        return self._nodes

    def replicas(self) -> list[Replica]:
        return []
