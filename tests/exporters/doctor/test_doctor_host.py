"""Limits, memory, CPUs, clock, ptrace, /dev/shm, ports and versions of fixture machines."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from doctor_trees import Machine, rows, write

from exporters.doctor.checks import clock, cpu, limits, memory, ports, ptrace, python, shm
from exporters.doctor.checks.kernel import kernel
from tests.conftest import free_ports

MEMINFO = """MemTotal:       1048576 kB
MemAvailable:   {available} kB
SwapTotal:      {swap} kB
SwapFree:       {swap_free} kB
HugePages_Total:   {huge}
HugePages_Free:    {huge}
Hugepagesize:       2048 kB"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def meminfo(
    machine: Machine, available: int = 900000, swap: int = 0, swap_free: int = 0, huge: int = 0
) -> None:
    machine.proc("meminfo", MEMINFO.format(available=available, swap=swap, swap_free=swap_free, huge=huge))


@pytest.mark.parametrize(
    ("files", "verdict", "value"),
    [
        ("20511", "warn", "20511 (hard limit 20511)"),
        ("20512", "ok", "20512 (hard limit 20512)"),
        ("unlimited", "ok", "unlimited (hard limit unlimited)"),
        ("many", "unknown", "can't be read"),
    ],
)
def test_open_files_are_held_against_the_routers_connections(
    machine: Machine, files: str, verdict: str, value: str
) -> None:
    machine.limits(files=files)

    assert rows(list(limits.limits(machine.node())))["open files", ""] == (verdict, value)


def test_a_soft_limit_that_can_be_raised_is_enough(machine: Machine) -> None:
    machine.config = {"router": {"max_connections": 1000}}
    machine.proc("self/limits", "Max open files            1024                 4096                 files")

    found = next(f for f in limits.limits(machine.node()) if f.what == "open files")

    assert (found.verdict, found.value) == ("ok", "1024 (hard limit 4096)")
    assert found.cure == "ulimit -n 2512 (the router does this itself)"


def test_locked_memory_has_to_be_unlimited_only_where_there_is_rdma(machine: Machine) -> None:
    machine.limits(locked=8388608)
    assert rows(list(limits.limits(machine.node())))["locked memory", ""] == ("ok", "8 MiB")

    machine.port("mlx5_0")
    assert rows(list(limits.limits(machine.node())))["locked memory", ""] == ("fail", "8 MiB")

    machine.limits(locked="unlimited")
    assert rows(list(limits.limits(machine.node())))["locked memory", ""] == ("ok", "unlimited")


def test_files_of_the_whole_system(machine: Machine) -> None:
    machine.limits()
    machine.proc("sys/fs/file-nr", "900\t0\t1000")

    found = next(f for f in limits.limits(machine.node()) if f.what == "open files of the system")

    assert (found.verdict, found.value, found.cure) == ("warn", "900 of 1000", "sysctl fs.file-max=2000")


def test_a_replica_that_runs_has_its_own_limit(machine: Machine) -> None:
    machine.limits()
    stat = " ".join(["0"] * 17 + ["77"] + ["0"] * 20)
    machine.proc("4242/stat", f"4242 (vllm) S 1 4242 4242 {stat}")
    write(machine.procfs / "4242/cmdline", "python3\0-m\0vllm.entrypoints.openai.api_server\0--port\08100")
    machine.proc("4242/limits", "Max open files            1024                 1024                 files")

    found = [f for f in limits.limits(machine.node()) if f.what == "open files of a replica"]

    assert [(f.verdict, f.value, f.expected) for f in found] == [("warn", "1024", "at least 4096")]


def test_memory_in_order(machine: Machine) -> None:
    meminfo(machine)
    machine.sys("kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    machine.sys("kernel/mm/transparent_hugepage/defrag", "always defer [defer+madvise] madvise never")
    machine.proc("sys/vm/zone_reclaim_mode", 0)

    assert rows(list(memory.memory(machine.node()))) == {
        ("available", ""): ("ok", "879 MiB of 1 GiB"),
        ("swap", ""): ("ok", "off"),
        ("transparent huge pages", ""): ("ok", "madvise, defrag defer+madvise"),
        ("zone_reclaim_mode", ""): ("ok", "0"),
        ("huge pages", ""): ("not here", "none reserved"),
    }


def test_memory_out_of_order(machine: Machine) -> None:
    meminfo(machine, available=90000, swap=1048576, swap_free=524288, huge=300)
    machine.proc("sys/vm/swappiness", 60)
    machine.sys("kernel/mm/transparent_hugepage/enabled", "[always] madvise never")
    machine.sys("kernel/mm/transparent_hugepage/defrag", "[always] defer madvise never")
    machine.proc("sys/vm/zone_reclaim_mode", 1)

    found = list(memory.memory(machine.node()))

    assert rows(found) == {
        ("available", ""): ("warn", "87.9 MiB of 1 GiB"),
        ("swap", ""): ("warn", "512 MiB of 1 GiB used, swappiness 60"),
        ("transparent huge pages", ""): ("warn", "always, defrag always"),
        ("zone_reclaim_mode", ""): ("warn", "1"),
        ("huge pages", ""): ("warn", "300 of 2 MiB, 300 free"),
    }
    assert all(f.cure for f in found)


def test_governors_are_counted(machine: Machine) -> None:
    machine.sys("devices/system/cpu/online", "0-2")
    for i, governor in enumerate(("performance", "powersave", "powersave")):
        machine.sys(f"devices/system/cpu/cpu{i}/cpufreq/scaling_governor", governor)
    machine.sys("devices/system/cpu/cpufreq/boost", 1)

    found = rows(list(cpu.cpu(machine.node())))

    assert found["governor", ""] == ("warn", "powersave (2 CPUs), performance (1 CPUs)")
    assert found["CPUs", ""] == ("ok", f"3 online, {len(os.sched_getaffinity(0))} allowed here")


@pytest.mark.parametrize(
    ("cpu_max", "verdict", "value"),
    [
        ("150000 100000", "warn", "1.5 CPUs"),
        ("max 100000", "ok", "none"),
        ("", "not here", "no limit set by a cgroup"),
    ],
)
def test_a_cpu_quota_of_the_cgroup(machine: Machine, cpu_max: str, verdict: str, value: str) -> None:
    machine.proc("self/cgroup", "0::/pod/x")
    machine.sys("fs/cgroup/pod/x/cpu.max", cpu_max)

    assert rows(list(cpu.cpu(machine.node())))["quota", ""] == (verdict, value)


@pytest.mark.parametrize(
    ("state", "status", "error", "verdict", "value"),
    [
        (0, 0x2001, 0.0123, "ok", "yes, within 12.3 ms"),
        (5, 0x0041, 16.0, "warn", "no"),
        (0, 0x0040, 16.0, "warn", "no"),
        (0, 0, 3.0, "warn", "yes, but may be off by 3 s"),
        (-1, 0, 0.0, "unknown", "adjtimex is not allowed here"),
    ],
)
def test_the_kernel_says_whether_its_clock_is_synchronised(
    state: int, status: int, error: float, verdict: str, value: str
) -> None:
    found = clock.synchronised(state, status, error)
    assert (found.verdict, found.value) == (verdict, value)


def test_a_slow_clock_source_warns(machine: Machine) -> None:
    machine.sys("devices/system/clocksource/clocksource0/current_clocksource", "hpet")

    assert rows(list(clock.clock(machine.node())))["source", ""] == ("warn", "hpet")


@pytest.mark.parametrize(
    ("scope", "capabilities", "verdict", "value"),
    [
        ("0", "0", "ok", "0"),
        ("1", "0000000000000000", "warn", "1"),
        ("1", "0000000000080000", "ok", "1, with CAP_SYS_PTRACE"),
        ("3", "0000000000080000", "warn", "3, with CAP_SYS_PTRACE"),
        (None, "0", "ok", "the kernel has no Yama"),
    ],
)
def test_ptrace_scope(
    machine: Machine, scope: str | None, capabilities: str, verdict: str, value: str
) -> None:
    machine.proc("self/status", f"CapEff:\t{capabilities}")
    if scope is not None:
        machine.proc("sys/kernel/yama/ptrace_scope", scope)

    assert rows(list(ptrace.ptrace(machine.node())))["scope", ""] == (verdict, value)


def test_shared_memory_that_is_too_small_or_missing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = next(iter(shm.shm(machine.node())))
    assert (found.verdict, found.value) == ("fail", "can't be used: No such file or directory")

    write(machine.folder / "dev/shm/vllm_offload_1", "left")
    monkeypatch.setattr(shm, "LEAST", 1 << 62)
    found, left = shm.shm(machine.node())
    assert (found.verdict, left.verdict, left.value) == ("fail", "warn", "1")

    monkeypatch.setattr(shm, "LEAST", 1)
    monkeypatch.setattr(shm, "PER_WORKER", 1)
    assert next(iter(shm.shm(machine.node()))).verdict == "ok"


def test_a_port_is_free_or_held_by_somebody_else(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        # Not one that was closed just now: the kernel gives that to somebody's client.
        held, free = other.getsockname()[1], free_ports()
        machine.config = {
            "router": {"port": held, "admin_port": free},
            "monitoring": {"enabled": False},
            "fleet": {"replicas_per_node": 1, "first_port": free},
            "exporter": {"port": free},
        }
        found = rows(list(ports.ports(machine.node())))

    assert set(found) == {
        ("port", f"{held} (router.port)"),
        ("port", f"{free} (router.admin_port)"),
        ("port", f"{free} (exporter.port)"),
        ("port", f"{free} (fleet.first_port)"),
    }
    verdict, value = found["port", f"{held} (router.port)"]
    assert verdict == "fail"
    assert value.startswith("held by ")
    assert value.endswith(f", pid {os.getpid()}")
    assert found["port", f"{free} (exporter.port)"] == ("ok", "free")


def test_a_port_that_exaserve_holds_is_in_order(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_ours", lambda argv: any("pytest" in word for word in argv))
    with socket.create_server(("127.0.0.1", 0)) as ours:
        machine.config = {"exporter": {"port": ours.getsockname()[1]}}
        found = next(f for f in ports.ports(machine.node()) if "exporter" in f.item)

    assert found.verdict == "ok"
    assert found.value.startswith("held by ExaServe (")


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        ("/opt/exaserve/bin/python /opt/exaserve/bin/exaserve router --port 8000", True),
        ("exaserve exporter", True),
        ("python3 -P -m serving.cli router", True),
        ("python3 -m http.server 8000", False),
        ("vim exporters/cli.py", False),
        ("", False),
    ],
)
def test_exaserve_is_told_by_its_command_line(command: str, ours: bool) -> None:
    assert ports.is_ours(command.split()) is ours


def test_an_address_that_is_not_of_this_machine(machine: Machine) -> None:
    machine.config = {
        "exporter": {"host": "192.0.2.1", "port": 70000},
        "router": {"host": "192.0.2.1", "port": 1},
    }

    found = {f.item: f for f in ports.ports(machine.node())}

    assert found["1 (router.port)"].verdict == "fail"
    assert found["1 (router.port)"].cure == "another router.port in exaserve.yaml"
    assert found["70000 (exporter.port)"].verdict == "fail"


def test_versions_that_are_compared(machine: Machine) -> None:
    machine.proc("sys/kernel/osrelease", "6.8.0-60-generic")
    assert [(f.value, f.compare) for f in kernel(machine.node())] == [("6.8.0-60-generic", "warn")]

    version = ".".join(map(str, sys.version_info[:3]))
    assert rows(list(python.python(machine.node())))["version", ""] == ("ok", version)
