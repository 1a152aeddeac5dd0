"""A GPU node's sysfs and procfs as files of a test, and fakes of what the doctor starts: NVML, ssh."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from exporters.doctor.check import Finding, Limits, Node
from exporters.settings import Settings

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max open files            {files}                {files}              files
Max locked memory         {locked}              {locked}            bytes
"""


def write(path: Path, text: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
    return path


class Machine:
    """Two NUMA nodes; on each a GPU and an InfiniBand port; an Ethernet interface. Settings can be broken one by one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sysfs, self.procfs, self.home = folder / "sys", folder / "proc", folder / "home"
        self.config: dict[str, object] = {}
        self.environ: dict[str, str] = {"PATH": "/nonexistent"}
        for path in (self.sysfs, self.procfs, self.home):
            path.mkdir(parents=True)

    def node(self, **settings: object) -> Node:
        given = Settings(sysfs=self.sysfs, procfs=self.procfs, **settings)  # type: ignore[arg-type]
        return Node(given, self.config, self.environ, self.home, Limits(), dev=self.folder / "dev")

    def sys(self, path: str, text: object) -> None:
        write(self.sysfs / path, text)

    def proc(self, path: str, text: object) -> None:
        write(self.procfs / path, text)

    def interface(self, name: str, mtu: int = 1500, state: str = "up", device: bool = True) -> None:
        folder = self.sysfs / "class/net" / name
        write(folder / "mtu", mtu)
        write(folder / "operstate", state)
        if device:
            write(folder / "device/vendor", "0x15b3")

    def port(self, device: str, numa: int = 0, link: str = "InfiniBand", **files: object) -> None:
        """Port 1 of a device at 0000:NN:00.0, NN being 0x10 + the device's last digit."""
        address = f"0000:1{device[-1]}:00.0"
        pci = self.sysfs / "bus/pci/devices" / address
        slot = {"numa_node": numa, "class": "0x020700", "vendor": "0x15b3", "current_link_width": 16,
                "max_link_width": 16, "current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}  # fmt: skip
        for name, text in slot.items():
            write(pci / name, text)
        folder = self.sysfs / "class/infiniband" / device
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "device").exists():
            (folder / "device").symlink_to(pci)
        usual = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": link,
                 "sm_lid": "0x1", "lid": "0x7"}  # fmt: skip
        for name, text in (usual | files).items():
            write(folder / "ports/1" / name, text)

    def gpu(self, address: str, numa: int, width: int = 16) -> None:
        pci = self.sysfs / "bus/pci/devices" / address
        slot = {"numa_node": numa, "class": "0x030200", "vendor": "0x10de", "current_link_width": width,
                "max_link_width": 16, "current_link_speed": "2.5 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}  # fmt: skip
        for name, text in slot.items():
            write(pci / name, text)

    def numa_nodes(self) -> None:
        for number, cpus, distances in ((0, "0-3", "10 21"), (1, "4-7", "21 10")):
            folder = self.sysfs / f"devices/system/node/node{number}"
            write(folder / "cpulist", cpus)
            write(
                folder / "meminfo", f"Node {number} MemTotal: 67108864 kB\nNode {number} MemFree: 33554432 kB"
            )
            write(folder / "distance", distances)

    def limits(self, files: object = 65536, locked: object = "unlimited") -> None:
        self.proc("self/limits", LIMITS.format(files=files, locked=locked))

    def gpu_node(self, driver: str = "570.86.15", mtu: int = 9000) -> Machine:
        """All of it, in order."""
        self.numa_nodes()
        self.interface("ib0", mtu)
        self.port("mlx5_0", 0, **{"gid_attrs/ndevs/0": "ib0"})
        self.port("mlx5_1", 1)
        self.gpu("0000:a0:00.0", 0)
        self.gpu("0000:b0:00.0", 1)
        self.proc(
            "driver/nvidia/version", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Thu Jan  1"
        )
        self.proc("sys/kernel/osrelease", "6.8.0-60-generic")
        self.limits()
        self.nvml(driver)
        return self

    def nvml(self, driver: str, body: str = "", count: int = 2) -> None:
        """A pynvml of our own comes first for the probe. ``body`` replaces nvmlInit's."""
        write(self.folder / "fake/pynvml.py", _PYNVML.format(driver=driver, body=body or "pass", count=count))
        self.environ["PYTHONPATH"] = str(self.folder / "fake")


_PYNVML = """
NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = 12, 9
class NVMLError(Exception):
    value = 0
class NotSupported(NVMLError):
    value = 3
class NoLibrary(NVMLError):
    value = 12
class Lost(NVMLError):
    value = 15
class Pci:
    busId = b"00000000:A0:00.0"
class Memory:
    total = 150754820096
def nvmlInit():
    {body}
nvmlSystemGetDriverVersion = lambda: "{driver}"
nvmlSystemGetCudaDriverVersion = lambda: 12080
nvmlDeviceGetCount = lambda: {count}
nvmlDeviceGetHandleByIndex = lambda i: i
nvmlDeviceGetPciInfo = lambda h: Pci
nvmlDeviceGetMemoryInfo = lambda h: Memory
nvmlDeviceGetName = lambda h: "NVIDIA H200"
nvmlDeviceGetUUID = lambda h: "GPU-%d" % h
nvmlDeviceGetPersistenceMode = lambda h: 1
def nvmlDeviceGetMigMode(h):
    raise NotSupported("Not Supported")
"""

#: ssh of the tests: its host decides what happens. Its arguments go to $SSH_LOG.
SSH = r"""#!/bin/sh
(IFS="	"; echo "$*") >> "$SSH_LOG"
while [ "$1" != "--" ]; do shift; done
host=$2
case "$host" in
hangs) exec sleep 60 ;;
refused) echo "ssh: connect to host refused port 22: Connection refused" >&2; exit 255 ;;
bare) echo "sh: 1: exaserve: not found" >&2; exit 127 ;;
wrong) echo "{]"; exit 3 ;;
chatty) echo "Welcome {to} chatty" ;;
esac
cat "$SSH_RESULTS/$host.json"
[ "$host" != lingers ] || exec sleep 60
exit 1
"""


def fake_ssh(folder: Path, results: Mapping[str, str]) -> dict[str, str]:
    """The environment in which ``ssh`` is the script above and hosts print ``results``."""
    program = folder / "bin/ssh"
    program.parent.mkdir(parents=True)
    program.write_text(SSH)
    program.chmod(0o755)
    for host, text in results.items():
        write(folder / "results" / f"{host}.json", text)
    return {
        "PATH": f"{program.parent}:/usr/bin:/bin",
        "SSH_LOG": str(folder / "ssh.log"),
        "SSH_RESULTS": str(folder / "results"),
    }


def rows(findings: list[Finding]) -> dict[tuple[str, str], tuple[str, str]]:
    """(what, item) -> (verdict, value)."""
    return {(f.what, f.item): (f.verdict, f.value) for f in findings}
