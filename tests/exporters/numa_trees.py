"""Makes the /proc and /sys of machines with several NUMA nodes, as files in a folder of the test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from exporters.settings import Replica, Settings

#: A process's usual reply to "how large are you", far below the limit.
_SMALL = 2 * 2**20


class Machine:
    """``Machine(tmp_path)``, then what it has. ``settings(...)`` is what a collector is given."""

    def __init__(self, folder: Path) -> None:
        self.sysfs, self.procfs, self.run = folder / "sys", folder / "proc", folder / "run"
        for path in (self.sysfs, self.procfs, self.run):
            path.mkdir(parents=True)

    def settings(self, replicas: Mapping[str, str] | None = None, **more: object) -> Settings:
        named = tuple(Replica(name, url) for name, url in (replicas or {}).items())
        return Settings(named, sysfs=self.sysfs, procfs=self.procfs, run_folder=self.run, **more)  # type: ignore[arg-type]

    def node(self, number: int, cpus: str, megabytes: int, distances: str) -> None:
        folder = self.sysfs / f"devices/system/node/node{number}"
        write(folder / "cpulist", f"{cpus}\n")
        write(
            folder / "meminfo",
            f"Node {number} MemTotal:       {megabytes * 1024} kB\nNode {number} MemFree:        "
            f"{megabytes * 512} kB\nNode {number} MemUsed:        {megabytes * 512} kB\n",
        )
        write(
            folder / "numastat",
            f"numa_hit {1000 + number}\nnuma_miss 20\nnuma_foreign 30\ninterleave_hit 4\nlocal_node 900\nother_node 120\n",
        )
        write(folder / "distance", f"{distances}\n")

    def two_nodes(self) -> None:
        self.node(0, "0-3", 64_000, "10 21")
        self.node(1, "4-7", 64_000, "21 10")

    def gpu(self, minor: int, address: str, node: int) -> None:
        """An NVIDIA GPU at the address as sysfs spells it."""
        write(
            self.procfs / f"driver/nvidia/gpus/{address}/information",
            f"Model: \t\t NVIDIA H100\nBus Location: \t {address}\nDevice Minor: \t {minor}\n",
        )
        write(self.sysfs / f"bus/pci/devices/{address}/numa_node", f"{node}\n")

    def nic(self, number: int, name: str, node: int) -> None:
        write(self.sysfs / f"class/infiniband/{name}/device/numa_node", f"{node}\n")
        write(self.sysfs / f"class/infiniband_verbs/uverbs{number}/ibdev", f"{name}\n")
        write(self.sysfs / f"class/infiniband_verbs/uverbs{number}/device/numa_node", f"{node}\n")

    def process(
        self,
        pid: int,
        argv: Sequence[str],
        parent: int = 1,
        *,
        session: int | None = None,
        name: str = "python3",
        ticks: int | None = None,
        state: str = "S",
        flags: int = 4194304,
        cpus: str = "0-7",
        memory: str = "0-1",
        resident: int = _SMALL,
        opened: Sequence[str] = (),
        numa_maps: str | None = "7f0000000000 default anon=256 dirty=256 N0=256 kernelpagesize_kB=4\n",
        maps: str = "",
        cgroup: str = "0::/\n",
    ) -> None:
        """A process. ``ticks`` is its start, 100 × pid unless given; ``opened``: device files."""
        folder = self.procfs / str(pid)
        shutil.rmtree(folder, ignore_errors=True)
        ticks = 100 * pid if ticks is None else ticks
        head = f"{pid} ({name}) {state} {parent} {pid} {pid if session is None else session} 0 -1 {flags}"
        write(folder / "stat", f"{head} {' 0' * 12} {ticks} 1000 200\n".replace("  ", " "))
        write(folder / "cmdline", "\0".join(argv) + "\0" if argv else "")
        write(
            folder / "status",
            f"Name:\t{name}\nPid:\t{pid}\nVmRSS:\t{resident // 1024:8} kB\nCpus_allowed:\tff\n"
            f"Cpus_allowed_list:\t{cpus}\nMems_allowed:\t3\nMems_allowed_list:\t{memory}\n",
        )
        write(folder / "cgroup", cgroup)
        if numa_maps is not None:
            write(folder / "numa_maps", numa_maps)
        write(folder / "maps", maps)
        (folder / "fd").mkdir()
        for number, target in enumerate(("/dev/null", "socket:[4711]", *opened)):
            os.symlink(target, folder / "fd" / str(number))

    def gone(self, pid: int) -> None:
        shutil.rmtree(self.procfs / str(pid))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def anonymous(**pages: int) -> str:
    """A line of numa_maps: private memory in 4 KiB pages, ``N0=10``."""
    counts = " ".join(f"{node}={count}" for node, count in pages.items())
    total = sum(pages.values())
    return f"55d000000000 default heap anon={total} dirty={total} {counts} kernelpagesize_kB=4\n"


def pool(start: str, path: str, kilobytes: int = 4, **pages: int) -> str:
    """A line of numa_maps: a file that is mapped, in pages of ``kilobytes``."""
    counts = " ".join(f"{node}={count}" for node, count in pages.items())
    total = sum(pages.values())
    return f"{start} default file={path} mapped={total} mapmax=2 {counts} kernelpagesize_kB={kilobytes}\n"
