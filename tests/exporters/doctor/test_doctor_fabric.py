"""InfiniBand ports, MTU, NCCL's choice, PCI and NUMA of fixture machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doctor_trees import Machine, rows, write

from exporters.doctor.checks import _nccl
from exporters.doctor.checks.infiniband import infiniband
from exporters.doctor.checks.mtu import mtu, parse_devinfo
from exporters.doctor.checks.nccl import nccl
from exporters.doctor.checks.numa import numa, numa_map
from exporters.doctor.checks.pci import acs_control, pci
from exporters.doctor.files import number


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_port_in_order(machine: Machine) -> None:
    machine.port("mlx5_0")

    assert rows(list(infiniband(machine.node()))) == {
        ("state", "mlx5_0/1"): ("ok", "ACTIVE (LinkUp)"),
        ("rate", "mlx5_0/1"): ("ok", "400 Gb/s (4X NDR)"),
        ("link layer", "mlx5_0/1"): ("ok", "InfiniBand"),
        ("subnet manager", "mlx5_0/1"): ("ok", "LID 1"),
    }


@pytest.mark.parametrize(
    ("files", "what", "verdict", "value", "cure"),
    [
        ({"rate": "25 Gb/sec (1X EDR)"}, "rate", "fail", "25 Gb/s (1X EDR)", "cable and switch port"),
        ({"rate": "34.9 Gb/sec"}, "rate", "fail", "34.9 Gb/s", "cable and switch port"),
        ({"rate": "35 Gb/sec"}, "rate", "ok", "35 Gb/s", ""),
        ({"rate": "N/A"}, "rate", "unknown", "can't be read", ""),
        ({"sm_lid": "0x0"}, "subnet manager", "fail", "none (LID 0)", "start opensm"),
        (
            {"state": "1: DOWN", "phys_state": "3: Disabled"},
            "state",
            "fail",
            "DOWN (Disabled)",
            "ibportstate",
        ),
        ({"state": "1: DOWN", "phys_state": "2: Polling"}, "state", "fail", "DOWN (Polling)", "cable"),
        ({"state": "2: INIT"}, "state", "fail", "INIT (LinkUp)", "no subnet manager"),
        ({"state": ""}, "state", "unknown", "can't be read", "dmesg"),
    ],
)
def test_a_port_out_of_order(
    machine: Machine, files: dict[str, str], what: str, verdict: str, value: str, cure: str
) -> None:
    machine.config = {"network": {"nccl_ib_hca": "mlx5"}}
    machine.port("mlx5_0", **files)

    found = next(f for f in infiniband(machine.node()) if f.what == what)

    assert (found.verdict, found.value) == (verdict, value)
    assert cure in found.cure
    assert bool(cure) == bool(found.cure)


def test_a_port_that_nobody_needs_may_be_down(machine: Machine) -> None:
    machine.port("mlx5_0")
    machine.port("mlx5_1", state="1: DOWN", phys_state="2: Polling", sm_lid="0x0")

    found = rows(list(infiniband(machine.node())))
    assert found["state", "mlx5_1/1"] == ("warn", "DOWN (Polling)")
    assert found["subnet manager", "mlx5_1/1"] == ("warn", "none (LID 0)")

    machine.environ["NCCL_IB_HCA"] = "mlx5_1"
    assert rows(list(infiniband(machine.node())))["state", "mlx5_1/1"] == ("fail", "DOWN (Polling)")


def test_a_port_slower_than_its_neighbours_warns_and_roce_needs_no_subnet_manager(machine: Machine) -> None:
    for name in ("mlx5_0", "mlx5_1"):
        machine.port(name, link="Ethernet", rate="100 Gb/sec (4X EDR)", sm_lid="0x0")
    machine.port("mlx5_2", link="Ethernet", rate="50 Gb/sec (2X EDR)")

    found = rows(list(infiniband(machine.node())))
    assert found["rate", "mlx5_2/1"] == ("warn", "50 Gb/s (2X EDR)")
    assert found["rate", "mlx5_0/1"] == ("ok", "100 Gb/s (4X EDR)")
    assert not any(what == "subnet manager" for what, _ in found)


def test_nothing_of_the_fabric_here(machine: Machine) -> None:
    found = [f for check in (infiniband, mtu, nccl, numa, pci) for f in check(machine.node())]

    assert {f.verdict for f in found} == {"not here", "ok"}
    assert [f.value for f in found if f.verdict == "ok"] == ["not set; a replica on one GPU needs none"]


def test_mtu_of_interfaces_that_are_up_and_have_a_device(machine: Machine) -> None:
    machine.interface("eth0", 9000)
    machine.interface("eth1", 1500, state="down")
    machine.interface("docker0", 1500, device=False)
    machine.interface("bond0", 9000, device=False)
    machine.config = {"network": {"nccl_socket_ifname": "bond"}}

    found = [f for f in mtu(machine.node()) if f.what == "interface"]

    assert [(f.item, f.value, f.verdict, f.compare) for f in found] == [
        ("bond0", "9000", "ok", "fail"),
        ("eth0", "9000", "ok", "fail"),
    ]


@pytest.mark.parametrize(
    ("interface", "verdict", "value"),
    [
        (1500, "warn", "1024"),
        (2144, "ok", "2048"),
        (4191, "ok", "2048"),
        (4192, "ok", "4096"),
        (9000, "ok", "4096"),
    ],
)
def test_active_mtu_of_roce_follows_from_the_interface(
    machine: Machine, interface: int, verdict: str, value: str
) -> None:
    machine.interface("eth0", interface)
    machine.port("mlx5_0", link="Ethernet", **{"gid_attrs/ndevs/0": "eth0"})

    assert rows(list(mtu(machine.node())))["InfiniBand", "mlx5_0/1"] == (verdict, value)


def test_active_mtu_of_infiniband_is_asked_of_ibv_devinfo(machine: Machine) -> None:
    machine.port("mlx5_0")
    found = next(f for f in mtu(machine.node()) if f.item == "mlx5_0/1")
    assert (found.verdict, found.value) == ("unknown", "can't be read")
    assert "ibverbs-utils" in found.cure

    printed = (
        "hca_id:\\tmlx5_0\\n\\t\\tport:\\t1\\n\\t\\t\\tmax_mtu:\\t4096 (5)\\n\\t\\t\\tactive_mtu:\\t2048 (4)"
    )
    program = write(machine.folder / "bin/ibv_devinfo", f"#!/bin/sh\nprintf '{printed}'")
    program.chmod(0o755)
    machine.environ["PATH"] = str(program.parent)
    assert rows(list(mtu(machine.node())))["InfiniBand", "mlx5_0/1"] == ("ok", "2048")


def test_ibv_devinfo_of_two_devices_is_read() -> None:
    raw = """hca_id: mlx5_0
\ttransport:\t\t\tInfiniBand (0)
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t4096 (5)
\t\tport:\t2
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t256 (1)
hca_id: mlx5_1
\t\tport:\t1
\t\t\tmax_mtu:\t\t2048 (4)
\t\t\tactive_mtu:\t\t1024 (3)
"""
    assert parse_devinfo(raw) == {"mlx5_0/1": (4096, 4096), "mlx5_0/2": (256, 4096), "mlx5_1/1": (1024, 2048)}
    assert parse_devinfo("No IB devices found") == {}


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("mlx5", ["mlx5_0", "mlx5_1", "mlx5_10"]),
        ("mlx5_1", ["mlx5_1", "mlx5_10"]),
        ("=mlx5_1", ["mlx5_1"]),
        ("=mlx5_1:1,mlx5_0", ["mlx5_0", "mlx5_1"]),
        ("=mlx5_1:2", []),
        ("^mlx5_1", ["mlx5_0"]),
        ("^=mlx5_1", ["mlx5_0", "mlx5_10"]),
    ],
)
def test_names_are_chosen_as_nccl_does(value: str, taken: list[str]) -> None:
    takes = _nccl.matches(value)
    assert [name for name in ("mlx5_0", "mlx5_1", "mlx5_10") if takes(name, "1")] == taken


def test_nccl_is_told_what_is_there(machine: Machine) -> None:
    machine.gpu_node()
    machine.config = {
        "network": {"nccl_socket_ifname": "ib0", "nccl_ib_hca": "mlx5_0,mlx5_1"},
        "engine": {"tensor_parallel_size": 2},
    }

    assert rows(list(nccl(machine.node()))) == {
        ("interface named", ""): ("ok", "ib0 by network.nccl_socket_ifname in exaserve.yaml"),
        ("interface", ""): ("ok", "ib0"),
        ("HCA named", ""): ("ok", "mlx5_0,mlx5_1 by network.nccl_ib_hca in exaserve.yaml"),
        ("HCA", ""): ("ok", "mlx5_0:1, mlx5_1:1"),
    }


def test_nccl_is_told_what_is_missing_or_down(machine: Machine) -> None:
    machine.interface("eth0")
    machine.interface("ib0", state="down")
    machine.port("mlx5_0")
    machine.port("mlx5_1", state="1: DOWN")
    machine.environ |= {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_IB_HCA": "mlx5_0,mlx5_7"}

    found = {f.what: f for f in nccl(machine.node())}

    assert (found["interface"].verdict, found["interface"].value) == ("fail", "ib0 (down)")
    assert found["interface"].cure == "ip link set ib0 up; or network.nccl_socket_ifname: one of eth0"
    assert found["interface named"].verdict == "warn"
    assert found["interface named"].cure == "network.nccl_socket_ifname: ib0"
    assert (found["HCA"].verdict, found["HCA"].value) == ("fail", "no mlx5_7")
    assert found["HCA"].cure == "network.nccl_ib_hca: mlx5_0"

    machine.environ["NCCL_IB_HCA"] = "mlx5"
    found = {f.what: f for f in nccl(machine.node())}
    assert (found["HCA"].verdict, found["HCA"].value) == ("fail", "mlx5_1:1 not active")


def test_an_environment_that_says_something_else_than_the_file_warns(machine: Machine) -> None:
    machine.gpu_node()
    machine.config = {"network": {"nccl_socket_ifname": "ib0"}}
    machine.environ["NCCL_SOCKET_IFNAME"] = "eth0"

    found = next(f for f in nccl(machine.node()) if f.what == "interface named")

    assert found.verdict == "warn"
    assert found.value == "ib0 by network.nccl_socket_ifname in exaserve.yaml, eth0 in the environment"


def test_several_gpus_a_replica_want_an_interface_named(machine: Machine) -> None:
    machine.interface("eth0")
    machine.interface("eth1")
    machine.config = {"engine": {"tensor_parallel_size": 4}}

    found = next(f for f in nccl(machine.node()) if f.what == "interface named")

    assert (found.verdict, found.value) == ("warn", "not set; NCCL chooses among eth0, eth1")
    assert found.cure == "network.nccl_socket_ifname: eth0"


def test_numa_map_and_gpus_beside_their_nics(machine: Machine) -> None:
    machine.gpu_node()

    found = rows(list(numa(machine.node())))
    assert found["nodes", ""] == ("ok", "node 0: 4 CPUs, 64 GiB, node 1: 4 CPUs, 64 GiB")
    assert found["GPU and NIC", "GPU 0000:a0:00.0"] == ("ok", "both on node 0 (mlx5_0)")
    assert found["GPU and NIC", "GPU 0000:b0:00.0"] == ("ok", "both on node 1 (mlx5_1)")
    assert json.loads(json.dumps(numa_map(machine.node()))) == {
        "nodes": {
            "0": {"cpus": [0, 1, 2, 3], "memory_bytes": 64 << 30, "free_bytes": 32 << 30,
                  "distances": {"0": 10, "1": 21}},
            "1": {"cpus": [4, 5, 6, 7], "memory_bytes": 64 << 30, "free_bytes": 32 << 30,
                  "distances": {"0": 21, "1": 10}},
        },
        "gpus": {"0000:a0:00.0": 0, "0000:b0:00.0": 1},
        "nics": {"mlx5_0": 0, "mlx5_1": 1},
    }  # fmt: skip


def test_a_gpu_far_from_every_nic_and_one_whose_node_is_not_told(machine: Machine) -> None:
    machine.numa_nodes()
    machine.port("mlx5_0", 0)
    machine.gpu("0000:b0:00.0", 1)
    machine.gpu("0000:c0:00.0", -1)
    machine.proc("sys/kernel/numa_balancing", 1)

    found = rows(list(numa(machine.node())))

    assert found["GPU and NIC", "GPU 0000:b0:00.0"] == ("warn", "GPU on node 1, NICs on node 0")
    assert found["GPU and NIC", "GPU 0000:c0:00.0"] == ("unknown", "its node is not told")
    assert found["balancing", ""] == ("warn", "on (1)")
    assert numa_map(machine.node())["gpus"] == {"0000:b0:00.0": 1, "0000:c0:00.0": None}


def test_lanes_that_are_missing_warn_and_a_sleeping_gpus_speed_does_not(machine: Machine) -> None:
    machine.port("mlx5_0")
    machine.sys("bus/pci/devices/0000:10:00.0/current_link_speed", "16.0 GT/s PCIe")
    machine.gpu("0000:a0:00.0", 0)
    machine.gpu("0000:b0:00.0", 1, width=8)

    found = rows(list(pci(machine.node())))

    assert found["lanes", "GPU 0000:a0:00.0"] == ("ok", "x16")
    assert found["lanes", "GPU 0000:b0:00.0"] == ("warn", "x8")
    assert found["lanes", "mlx5_0"] == ("warn", "x16 at 16 GT/s")


@pytest.mark.parametrize(
    ("groups", "command_line", "verdict", "value"),
    [
        (0, "ro quiet", "ok", "off"),
        (2, "ro quiet", "warn", "translates"),
        (2, "ro iommu=pt intel_iommu=on", "ok", "passthrough"),
    ],
)
def test_iommu(machine: Machine, groups: int, command_line: str, verdict: str, value: str) -> None:
    machine.gpu("0000:a0:00.0", 0)
    machine.proc("cmdline", command_line)
    for i in range(groups):
        (machine.sysfs / f"kernel/iommu_groups/{i}").mkdir(parents=True)

    assert rows(list(pci(machine.node())))["IOMMU", ""] == (verdict, value)


def test_acs_that_redirects_is_found_in_the_configuration_space(machine: Machine) -> None:
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x150 << 20).to_bytes(4, "little")  # AER, then on to 0x150
    space[0x150:0x154] = (0x000D | 1 << 16).to_bytes(4, "little")
    space[0x156:0x158] = (0x001D).to_bytes(2, "little")
    assert acs_control(bytes(space)) == 0x1D
    assert acs_control(bytes(64)) is None
    assert acs_control(bytes(4096)) == 0

    machine.gpu_node()
    machine.sys("bus/pci/devices/0000:01:00.0/class", "0x060400")
    (machine.sysfs / "bus/pci/devices/0000:01:00.0/config").write_bytes(space)
    found = rows(list(pci(machine.node())))
    assert found["ACS", ""] == ("warn", "1 of 1 bridges redirect")
    assert found["GPUDirect RDMA", ""] == ("warn", "nvidia_peermem is not loaded")

    (machine.sysfs / "bus/pci/devices/0000:01:00.0/config").write_bytes(bytes(64))
    (machine.sysfs / "module/nvidia_peermem").mkdir(parents=True)
    found = rows(list(pci(machine.node())))
    assert found["ACS", ""] == ("unknown", "can't be read without root")
    assert found["GPUDirect RDMA", ""] == ("ok", "nvidia_peermem is loaded")


def test_a_number_longer_than_the_kernels_is_none(tmp_path: Path) -> None:
    for said, value in (
        ("9" * 4000, None),
        ("-9223372036854775808", -(2**63)),
        ("0xffffffffffffffff", 2**64 - 1),
    ):
        (tmp_path / "n").write_text(said)
        assert number(tmp_path / "n") == value
