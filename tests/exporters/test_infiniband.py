"""The infiniband collector on trees of every driver: which file becomes which series, with which value."""

from __future__ import annotations

from pathlib import Path

import infiniband_trees as trees
import pytest
from infiniband_reading import (
    HW,
    PORT,
    SATURATED,
    UNREADABLE,
    UP,
    collector,
    counters,
    read,
    scrape,
)

from exporters.registry import NoData


def test_without_rdma_there_is_no_data(tmp_path: Path) -> None:
    with pytest.raises(NoData):
        read(tmp_path)
    (tmp_path / "class" / "infiniband").mkdir(parents=True)
    with pytest.raises(NoData):
        read(tmp_path)


def test_a_port_of_mlx5_is_read_whole(tmp_path: Path) -> None:
    trees.mlx5(tmp_path, numa=1)
    found = read(tmp_path)
    at = ("mlx5_0", "1")
    # The values are those that the tree counts up from 2000, in the order of trees.PMA.
    assert found[PORT + "transmit_bytes_total", at] == 2000 * 4
    assert found[PORT + "receive_bytes_total", at] == 2001 * 4
    assert found[PORT + "transmit_packets_total", at] == 2002
    assert found[PORT + "multicast_receive_packets_total", at] == 2007
    assert found[PORT + "transmit_wait_ticks_total", at] == 2008
    assert found[PORT + "vl15_dropped_total", at] == 2020
    assert found[PORT + "state_id", at] == 4
    assert found[PORT + "physical_state_id", at] == 5
    assert found[PORT + "rate_bytes_per_second", at] == 12.5e9
    assert found[PORT + "info", (*at, "InfiniBand", "ib0")] == 1
    assert found["exaserve_infiniband_device_numa_node", ("mlx5_0",)] == 1
    assert counters(found, HW, *at) == {n: 2021 + i for i, n in enumerate(trees.MLX5)}
    device = counters(found, "exaserve_infiniband_device_hw_total", "mlx5_0")
    assert device == {n: 501_000 + i for i, n in enumerate(trees.MLX5)}
    assert found[UP, ("mlx5_0",)] == 1
    assert found[UNREADABLE, ("mlx5_0",)] == 0
    [info] = [labels for name, labels in found if name == "exaserve_infiniband_device_info"]
    assert info[:3] == ("mlx5_0", "mlx5_core", "CA")
    assert info[4:8] == ("28.39.1002", "MT_0000000223", "MT4129", "0")
    assert info[3].startswith("e8eb:d303")
    assert info[8].startswith("0000:")
    assert not any(name.startswith("node_") for name, _ in found)


def test_every_file_of_every_driver_is_exported_once_and_nothing_is_unreadable(tmp_path: Path) -> None:
    trees.every_driver(tmp_path)
    found = read(tmp_path)
    assert {v for (name, _), v in found.items() if name == UNREADABLE} == {0}
    for port in (tmp_path / "class" / "infiniband").glob("*/ports/1"):
        device = port.parents[1].name
        files = [
            *port.glob("counters/*"),
            *port.glob("hw_counters/*"),
            *port.parents[1].glob("hw_counters/*"),
        ]
        # mlx4's 32-bit data and packets give way to counters_ext.
        expected = len([f for f in files if f.name != "lifespan"]) + 4 * (device == "mlx4_0")
        got = [
            n
            for n, labels in found
            if labels[0] == device and (n.endswith("_total") or n.endswith("hw_objects"))
        ]
        assert len(got) == expected, device


def test_what_each_driver_has_of_its_own(tmp_path: Path) -> None:
    trees.every_driver(tmp_path)
    found = read(tmp_path)
    assert found[HW, ("mlx5_2", "1", "np_cnp_sent")] == 20_000 + len(trees.MLX5) + 3
    assert found[PORT + "info", ("mlx5_2", "1", "Ethernet", "ens1f0np0")] == 1
    assert found["exaserve_infiniband_port_hw_objects", ("bnxt_re0", "1", "active_qps")] == 302
    assert found["exaserve_infiniband_port_hw_objects", ("bnxt_re0", "1", "watermark_qps")] == 310
    assert (HW, ("bnxt_re0", "1", "active_qps")) not in found
    assert found[HW, ("irdma0", "1", "cnpHandled")] == 406
    assert found[HW, ("rdmap16s27", "1", "retrans_pkts")] == 518
    assert found["exaserve_infiniband_device_hw_total", ("rdmap16s27", "mmap_err")] == 611
    assert found[HW, ("hns_0", "1", "tx_cnp_pkt")] == 725
    assert found[PORT + "info", ("rxe0", "1", "Ethernet", "eth1")] == 1
    assert found[PORT + "rate_bytes_per_second", ("rxe0", "1")] == 2.5e9 / 8
    assert found["exaserve_infiniband_device_hw_total", ("hfi1_0", "TxSdmaErr")] == 903
    assert not counters(found, HW, "hfi1_0")
    assert not any("lifespan" in labels for _, labels in found)
    # -1 is the kernel's "not known", and software has no node.
    assert {labels[0] for name, labels in found if name.endswith("numa_node")}.isdisjoint({"mlx4_0", "rxe0"})


def test_counter_names_with_blanks_are_kept(tmp_path: Path) -> None:
    trees.irdma(tmp_path, names=trees.IRDMA_3)
    assert counters(read(tmp_path), HW, "irdma0", "1") == {n: 400 + i for i, n in enumerate(trees.IRDMA_3)}


def test_the_64_bit_counters_of_old_kernels_win_over_the_32_bit_ones(tmp_path: Path) -> None:
    trees.mlx4(tmp_path)
    found = read(tmp_path)
    assert found[PORT + "transmit_bytes_total", ("mlx4_0", "1")] == 2**33 * 4
    assert found[PORT + "multicast_receive_packets_total", ("mlx4_0", "1")] == 2**33 + 7
    # The 32-bit one is full, but nobody reads it.
    assert (SATURATED, ("mlx4_0", "1", "port_xmit_data")) not in found


def test_data_counters_of_32_bits_alone_are_watched_for_their_end(tmp_path: Path) -> None:
    at = trees.device(tmp_path, "mthca0")
    values = {n: 0 for n in trees.PMA_32_BIT} | {"port_xmit_data": 2**32 - 1, "port_rcv_data": 2**32 - 2}
    trees.port(at, counters=values)
    found = read(tmp_path)
    assert found[PORT + "transmit_bytes_total", ("mthca0", "1")] == (2**32 - 1) * 4
    assert found[SATURATED, ("mthca0", "1", "port_xmit_data")] == 1
    assert found[SATURATED, ("mthca0", "1", "port_rcv_data")] == 0


@pytest.mark.parametrize(
    ("counter", "bits"),
    [
        ("port_xmit_wait", 32),
        ("symbol_error", 16),
        ("port_rcv_errors", 16),
        ("port_xmit_discards", 16),
        ("VL15_dropped", 16),
        ("link_downed", 8),
        ("link_error_recovery", 8),
        ("port_rcv_constraint_errors", 8),
        ("local_link_integrity_errors", 4),
        ("excessive_buffer_overrun_errors", 4),
    ],
)
def test_a_counter_at_its_end_says_so(tmp_path: Path, counter: str, bits: int) -> None:
    folder = trees.mlx5(tmp_path) / "ports" / "1" / "counters"
    c = collector(tmp_path)
    end = 2**bits - 1
    for value in (0, end - 1, end):
        trees.write(folder / counter, str(value))
        assert scrape(c)[SATURATED, ("mlx5_0", "1", counter)] == (value == end)


def test_counters_of_64_bits_have_no_end(tmp_path: Path) -> None:
    folder = trees.mlx5(tmp_path) / "ports" / "1" / "counters"
    trees.write(folder / "port_xmit_packets", str(2**64 - 1))
    trees.write(folder / "port_xmit_data", str(2**32 - 1))
    found = read(tmp_path)
    assert found[PORT + "transmit_packets_total", ("mlx5_0", "1")] == float(2**64 - 1)
    assert not counters(found, SATURATED).keys() & {"port_xmit_packets", "port_xmit_data"}


def test_a_counter_that_wraps_is_given_as_it_is(tmp_path: Path) -> None:
    folder = trees.mlx5(tmp_path) / "ports" / "1" / "hw_counters"
    c = collector(tmp_path)
    trees.write(folder / "out_of_buffer", str(2**32 - 1))
    assert scrape(c)[HW, ("mlx5_0", "1", "out_of_buffer")] == 2**32 - 1
    trees.write(folder / "out_of_buffer", "3")
    assert scrape(c)[HW, ("mlx5_0", "1", "out_of_buffer")] == 3


@pytest.mark.parametrize(
    ("text", "rate"),
    [("2.5 Gb/sec (1X SDR)", 312.5e6), ("56 Gb/sec (4X FDR)", 7e9), ("800 Gb/sec (8X NDR)", 100e9)],
)
def test_rates_become_bytes_per_second(tmp_path: Path, text: str, rate: float) -> None:
    trees.port(trees.device(tmp_path, "a"), rate=text)
    assert read(tmp_path)[PORT + "rate_bytes_per_second", ("a", "1")] == rate


def test_ports_that_are_down_and_ports_without_counters(tmp_path: Path) -> None:
    at = trees.device(tmp_path, "mlx5_0")
    trees.port(at, 1, state="1: DOWN", physical="2: Polling", rate="10 Gb/sec (4X SDR)")
    trees.port(at, 2)
    trees.device(tmp_path, "bare")
    found = read(tmp_path)
    assert found[PORT + "state_id", ("mlx5_0", "1")] == 1
    assert found[PORT + "physical_state_id", ("mlx5_0", "1")] == 2
    assert found[PORT + "state_id", ("mlx5_0", "2")] == 4
    assert found[UP, ("bare",)] == 1
    assert not any(name.endswith("_total") for name, _ in found)


def test_unknown_counters_of_the_port_are_exported_under_their_own_names(tmp_path: Path) -> None:
    trees.port(trees.device(tmp_path, "new_0"), counters={"shiny": 7}, counters_ext={"shiny": 8, "old": 9})
    found = counters(read(tmp_path), PORT + "other_total", "new_0", "1")
    assert found.keys() == {"shiny", "old"}
    assert found["old"] == 9


def test_a_hundred_ports_are_read(tmp_path: Path) -> None:
    trees.many_ports(tmp_path, devices=1, ports=100)
    found = read(tmp_path)
    assert len([1 for name, _ in found if name == PORT + "state_id"]) == 100
    assert found[PORT + "transmit_bytes_total", ("mlx5_0", "100")] == (10**12 + 100_000) * 4


def test_an_irdma_function_has_the_node_of_its_pci_device(tmp_path: Path) -> None:
    at = trees.irdma(tmp_path)
    pci = at.parents[1]
    auxiliary = pci / "ice.roce.0"
    auxiliary.mkdir()
    (at / "device").unlink()
    (at / "device").symlink_to(auxiliary)
    trees.write(pci / "numa_node", "3")
    found = read(tmp_path)
    assert found["exaserve_infiniband_device_numa_node", ("irdma0",)] == 3
    [info] = [labels for name, labels in found if name == "exaserve_infiniband_device_info"]
    assert info[-1] == pci.name


def test_the_interface_of_a_port_is_found_by_its_number_on_the_pci_device(tmp_path: Path) -> None:
    at = trees.device(tmp_path, "mlx4_0")
    trees.port(at, 1)
    trees.port(at, 2)
    for name, number in (("ib0", 0), ("ib1", 1)):
        trees.write(at.parents[1] / "net" / name / "dev_port", str(number))
    found = read(tmp_path)
    assert found[PORT + "info", ("mlx4_0", "1", "InfiniBand", "ib0")] == 1
    assert found[PORT + "info", ("mlx4_0", "2", "InfiniBand", "ib1")] == 1
