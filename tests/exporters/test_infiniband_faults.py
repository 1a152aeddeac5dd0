"""The infiniband collector where files can't be read, hang or vanish, and devices come, go and change."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import infiniband_trees as trees
import pytest
from infiniband_reading import (
    HW,
    PORT,
    SATURATED,
    UNREADABLE,
    UP,
    Faulty,
    collector,
    counters,
    open_files,
    read,
    scrape,
)

from exporters.collectors import _infiniband_device, infiniband
from exporters.collectors._infiniband_files import Files


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    "text", ["N/A (no PMA)", "", "-1", "1_000", "0x10", "1.5", "12 34", "9" * 21, "²", "\x00", "9" * 100_000]
)
def test_what_is_no_number_is_absent_and_counted(tmp_path: Path, text: str) -> None:
    at = trees.mlx5(tmp_path)
    trees.mlx5(tmp_path, "mlx5_1", first=9000)
    whole = read(tmp_path)
    trees.write(at / "ports" / "1" / "counters" / "port_xmit_wait", text)
    found = read(tmp_path)
    lost = {
        (PORT + "transmit_wait_ticks_total", ("mlx5_0", "1")),
        (SATURATED, ("mlx5_0", "1", "port_xmit_wait")),
    }
    assert whole.keys() - found.keys() == lost
    assert found[UNREADABLE, ("mlx5_0",)] == 1
    assert found[UNREADABLE, ("mlx5_1",)] == 0


@pytest.mark.parametrize(
    "error",
    [
        errno.EINVAL,
        errno.ENOSYS,
        errno.EACCES,
        errno.EOPNOTSUPP,
        errno.ENODEV,
        errno.ENOENT,
        errno.EIO,
        errno.ETIMEDOUT,
    ],
    ids=errno.errorcode.get,
)
def test_a_file_that_fails_costs_only_its_own_series(tmp_path: Path, error: int) -> None:
    trees.every_driver(tmp_path)
    files = Faulty()
    c = collector(tmp_path, files)
    whole = scrape(c)
    files.errors = {"mlx5_0/ports/1/counters/port_rcv_data": error, "bnxt_re0/ports/1/rate": error}
    found = scrape(c)
    assert whole.keys() - found.keys() == {
        (PORT + "receive_bytes_total", ("mlx5_0", "1")),
        (PORT + "rate_bytes_per_second", ("bnxt_re0", "1")),
    }
    changed = {key for key in found if found[key] != whole[key]}
    assert changed == {(UNREADABLE, ("mlx5_0",)), (UNREADABLE, ("bnxt_re0",))}
    files.errors = {}
    assert scrape(c) == whole


def test_files_that_the_kernel_itself_refuses(tmp_path: Path) -> None:
    """A folder gives EISDIR; a file without a read operation EINVAL (or EACCES to those who aren't root)."""
    at = trees.mlx5(tmp_path) / "ports" / "1" / "hw_counters"
    for name in ("out_of_buffer", "out_of_sequence"):
        (at / name).unlink()
    (at / "out_of_buffer").mkdir()
    (at / "out_of_sequence").symlink_to("/proc/self/clear_refs")
    (at / "dangling").symlink_to("nowhere")
    os.mkfifo(at / "pipe")
    c = collector(tmp_path)
    before = open_files(tmp_path)
    for _ in range(3):
        found = scrape(c)
        assert found[UNREADABLE, ("mlx5_0",)] == 4
        assert counters(found, HW, "mlx5_0", "1").keys() == set(trees.MLX5) - {
            "out_of_buffer",
            "out_of_sequence",
        }
    assert open_files(tmp_path) < before + 80


@pytest.mark.parametrize(
    ("file", "text", "metric"),
    [
        ("state", "ACTIVE", "state_id"),
        ("state", "", "state_id"),
        ("phys_state", "x: LinkUp", "physical_state_id"),
        ("rate", "fast", "rate_bytes_per_second"),
        ("rate", "nan Gb/sec (4X EDR)", "rate_bytes_per_second"),
        ("rate", "100 Mb/sec", "rate_bytes_per_second"),
    ],
)
def test_a_state_or_rate_that_is_none_is_absent(tmp_path: Path, file: str, text: str, metric: str) -> None:
    at = trees.mlx5(tmp_path)
    trees.write(at / "ports" / "1" / file, text)
    found = read(tmp_path)
    assert (PORT + metric, ("mlx5_0", "1")) not in found
    assert found[UNREADABLE, ("mlx5_0",)] == 1


def test_folders_that_are_far_too_long_are_cut_and_the_rest_is_counted(tmp_path: Path) -> None:
    names = {f"c{i:04}": i for i in range(600)} | {"x" * 65: 1, "tab\there": 1}
    trees.port(trees.device(tmp_path, "huge"), hw_counters=names)
    found = read(tmp_path)
    assert len(counters(found, HW, "huge", "1")) == 512
    assert found[UNREADABLE, ("huge",)] == 90


def test_no_more_files_are_kept_open_than_allowed(tmp_path: Path) -> None:
    trees.many_ports(tmp_path, devices=2, ports=2)
    whole = read(tmp_path)
    before = open_files(tmp_path)
    c = collector(tmp_path, Files(most=20))
    assert scrape(c) == scrape(c) == whole
    assert open_files(tmp_path) - before == 20
    del c
    assert open_files(tmp_path) == before


def test_a_device_that_is_removed_leaves_no_series_and_no_open_file(tmp_path: Path) -> None:
    trees.mlx5(tmp_path)
    trees.mlx5(tmp_path, "mlx5_1")
    c = collector(tmp_path)
    scrape(c)
    both = open_files(tmp_path)
    trees.remove(tmp_path, "mlx5_1")
    assert {labels[0] for _, labels in scrape(c)} == {"mlx5_0"}
    assert open_files(tmp_path) < both
    trees.mlx5(tmp_path, "mlx5_1", first=9000)
    assert scrape(c)[PORT + "transmit_packets_total", ("mlx5_1", "1")] == 10_002


def test_a_device_of_the_same_name_that_took_its_place_is_read_anew(tmp_path: Path) -> None:
    trees.mlx5(tmp_path)
    c = collector(tmp_path)
    scrape(c)
    trees.remove(tmp_path, "mlx5_0")
    trees.mlx5_roce(tmp_path, "mlx5_0")
    found = scrape(c)
    assert found[PORT + "transmit_bytes_total", ("mlx5_0", "1")] == 70_000 * 4
    assert found[PORT + "info", ("mlx5_0", "1", "Ethernet", "ens1f0np0")] == 1
    assert (PORT + "info", ("mlx5_0", "1", "InfiniBand", "ib0")) not in found


def test_two_devices_that_swap_names_keep_their_own_numbers(tmp_path: Path) -> None:
    trees.mlx5(tmp_path, "mlx5_0", first=0)
    trees.mlx5(tmp_path, "mlx5_1", first=50_000)
    c = collector(tmp_path)
    a, b = (scrape(c)[PORT + "transmit_packets_total", (name, "1")] for name in ("mlx5_0", "mlx5_1"))
    folder = tmp_path / "class" / "infiniband"
    (folder / "mlx5_0").rename(folder / "x")
    (folder / "mlx5_1").rename(folder / "mlx5_0")
    (folder / "x").rename(folder / "mlx5_1")
    found = scrape(c)
    assert (a, b) == (1002, 51_002)
    assert found[PORT + "transmit_packets_total", ("mlx5_0", "1")] == b
    assert found[PORT + "transmit_packets_total", ("mlx5_1", "1")] == a


def test_ports_and_counters_that_come_and_go_are_noticed(tmp_path: Path) -> None:
    at = trees.mlx5(tmp_path)
    c = collector(tmp_path)
    scrape(c)
    trees.write(at / "ports" / "1" / "hw_counters" / "brand_new", "5")
    (at / "ports" / "1" / "counters" / "symbol_error").unlink()
    trees.port(at, 2)
    found = scrape(c)
    assert found[HW, ("mlx5_0", "1", "brand_new")] == 5
    assert (PORT + "symbol_errors_total", ("mlx5_0", "1")) not in found
    assert found[PORT + "state_id", ("mlx5_0", "2")] == 4
    assert found[UNREADABLE, ("mlx5_0",)] == 0
    shutil.rmtree(at / "ports" / "2")
    assert (PORT + "state_id", ("mlx5_0", "2")) not in scrape(c)


def test_texts_are_read_anew_after_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = trees.mlx5(tmp_path)
    c = collector(tmp_path)
    scrape(c)
    trees.write(at / "ports" / "1" / "gid_attrs" / "ndevs" / "0", "renamed")
    before = time.monotonic()
    monkeypatch.setattr(_infiniband_device.time, "monotonic", lambda: before + 61)
    assert c._devices["mlx5_0"].read()[1:]  # by hand: the clock of the deadline stands still
    monkeypatch.undo()
    assert scrape(c)[PORT + "info", ("mlx5_0", "1", "InfiniBand", "renamed")] == 1


def test_a_device_that_hangs_costs_only_its_own_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infiniband, "PATIENCE", 0.02)
    for i in range(4):
        trees.mlx5(tmp_path, f"mlx5_{i}")
    files = Faulty()
    c = collector(tmp_path, files)
    whole = scrape(c)
    files.hanging = ("mlx5_1/ports/1/counters/link_downed", "mlx5_2/ports/1/state")
    for seconds in (4.0, 60.0, 60.0):  # those that hang take all of the first, and are not waited for again
        started = time.monotonic()
        found = scrape(c, seconds)
        assert time.monotonic() - started < 30
        assert found[UP, ("mlx5_1",)] == found[UP, ("mlx5_2",)] == 0
        others = {key: v for key, v in whole.items() if key[1][0] in ("mlx5_0", "mlx5_3")}
        assert {key: v for key, v in found.items() if key[1][0] in ("mlx5_0", "mlx5_3")} == others
        assert not {key for key in found if key[1][0] in ("mlx5_1", "mlx5_2")} - {
            (UP, ("mlx5_1",)),
            (UP, ("mlx5_2",)),
        }
    # Nobody tried it a second time while the first one hung.
    assert max(n for path, n in files.reads.items() if path.endswith(files.hanging)) == 2
    # Further threads, begun where the others were slow, end as soon as there is nothing left to read.
    until(lambda: len([t for t in threading.enumerate() if t.name == "infiniband-devices"]) == 2)
    files.go_on.set()
    until(lambda: scrape(c) == whole)


def test_a_device_that_is_slow_but_in_time_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infiniband, "PATIENCE", 0.02)
    trees.mlx5(tmp_path)
    trees.mlx5(tmp_path, "mlx5_1")
    files = Faulty()
    files.hanging = ("mlx5_0/ports/1/state",)
    threading.Timer(0.2, files.go_on.set).start()
    found = scrape(collector(tmp_path, files), 60)
    assert found[UP, ("mlx5_0",)] == found[UP, ("mlx5_1",)] == 1


def test_a_device_that_goes_while_its_reader_hangs_leaves_no_open_file(tmp_path: Path) -> None:
    trees.mlx5(tmp_path)
    trees.mlx5(tmp_path, "mlx5_1")
    files = Faulty()
    c = collector(tmp_path, files)
    scrape(c)
    files.hanging = ("mlx5_1/ports/1/counters/link_downed",)
    scrape(c, 0.2)
    both = open_files(tmp_path)
    trees.remove(tmp_path, "mlx5_1")
    assert {labels[0] for _, labels in scrape(c)} == {"mlx5_0"}
    assert open_files(tmp_path) == both
    files.go_on.set()
    until(lambda: open_files(tmp_path) <= both - 40)


def test_a_file_of_the_real_sysfs_that_is_kept_open_says_what_holds_now() -> None:
    file = Files().file("/sys/class/net/lo/statistics/rx_packets")
    before = int(file.read())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(b"x", ("127.0.0.1", 9))
    assert int(file.read()) > before
    file.close()
