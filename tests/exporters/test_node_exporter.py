"""The real node_exporter (Debian's package) and ours on the same trees: the same series with the same values."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import infiniband_trees as trees
import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporters.catalog import CATALOG, node_infiniband
from exporters.collectors.infiniband import InfinibandCollector
from exporters.settings import Settings
from tests.conftest import free_ports

PROGRAM = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")

pytestmark = pytest.mark.skipif(
    not PROGRAM and not os.environ.get("CI"),
    reason="node_exporter is not installed (Debian: prometheus-node-exporter)",
)

#: (name, labels) -> value
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def theirs() -> Iterator[Callable[[Path], Series]]:
    """theirs(sysfs): what node_exporter's infiniband collector gives for that tree."""
    running: list[subprocess.Popen[bytes]] = []

    def start(sysfs: Path) -> Series:
        assert PROGRAM, "node_exporter is missing: serving/tools.sh tests"
        port = free_ports()
        command = [PROGRAM, "--collector.disable-defaults", "--collector.infiniband", f"--path.sysfs={sysfs}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        page = _page(f"http://127.0.0.1:{port}/metrics")
        found = {
            (s.name, tuple(sorted(s.labels.items()))): s.value
            for family in text_string_to_metric_families(page)
            for s in family.samples
        }
        assert found["node_scrape_collector_success", (("collector", "infiniband"),)] == 1
        return {key: value for key, value in found.items() if key[0].startswith("node_infiniband_")}

    yield start
    for process in running:
        process.kill()
        process.wait()


def _page(url: str) -> str:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def ours(sysfs: Path) -> Series:
    c = InfinibandCollector(Settings(sysfs=sysfs, node_exporter_names=True))
    return {
        (s.name, tuple(sorted(zip(CATALOG[s.name].labels, s.labels, strict=True)))): s.value
        for s in c.collect(time.monotonic() + 60)
    }


def common_drivers(sysfs: Path) -> None:
    """Those that node_exporter 1.5 reads; it gives up on all of them if one port has no counters/."""
    for build in (trees.mlx5, trees.mlx5_roce, trees.mlx4, trees.hfi1):
        build(sysfs)


def eight_ports(sysfs: Path) -> None:
    trees.many_ports(sysfs, devices=4, ports=2)


def odd_values(sysfs: Path) -> None:
    """Ends of every width, and numbers that a double can't hold."""
    at = trees.device(sysfs, "mlx5_0", fw_ver="1.2", board_id='a "b" \\c')
    values = dict.fromkeys(trees.PMA, 0)
    for number, value in enumerate((2**64 - 1, 2**63 + 1, 2**53 + 1, 2**32 - 1, 255, 15), 1):
        low = {n: value for n in trees.PMA if not n.endswith("_data")}
        low |= {"port_xmit_data": min(value, 2**62 - 1), "port_rcv_data": 2**32 + number}
        trees.port(at, number, counters=values | low, hw_counters={"out_of_buffer": 2**32 - 1})
    trees.port(at, 7, state="1: DOWN", physical="3: Disabled", rate="2.5 Gb/sec (1X SDR)", counters=values)
    trees.port(at, 8, state="2: INIT", physical="7: Phy Test", rate="56 Gb/sec (4X FDR)", counters=values)


def unreadable(sysfs: Path) -> None:
    """What node_exporter forgives: the text of old kernels, and (as a link, which it passes over) EINVAL."""
    at = trees.mlx5(sysfs) / "ports" / "1" / "counters"
    for name in ("port_xmit_wait", "port_rcv_data"):
        trees.write(at / name, "N/A (no PMA)")
    (at / "symbol_error").unlink()
    (at / "symbol_error").symlink_to("/proc/self/clear_refs")


@pytest.mark.parametrize("build", [common_drivers, eight_ports, odd_values, unreadable])
def test_both_give_the_same_numbers_and_ours_lacks_none(
    tmp_path: Path, theirs: Callable[[Path], Series], build: Callable[[Path], None]
) -> None:
    build(tmp_path)
    a, b = theirs(tmp_path), ours(tmp_path)
    assert len(a) > 20
    assert {key: b.get(key) for key in a} == a


def test_names_that_node_exporter_has_are_all_in_the_catalogue(
    tmp_path: Path, theirs: Callable[[Path], Series]
) -> None:
    common_drivers(tmp_path)
    names = {name for name, _ in theirs(tmp_path)}
    assert names <= {m.name for m in node_infiniband.METRICS}
    # What the two give besides is hw_counters (node_exporter since 1.6) and what no kernel of the trees has.
    known = {m.name for m in node_infiniband.METRICS if "hw_counters" not in m.source}
    assert known - names <= {"node_infiniband_port_discards_received_total"}


def test_our_own_name_for_a_counter_has_the_value_of_theirs(
    tmp_path: Path, theirs: Callable[[Path], Series]
) -> None:
    common_drivers(tmp_path)
    a, b = theirs(tmp_path), ours(tmp_path)
    pairs = {
        "port_data_transmitted_bytes_total": "port_transmit_bytes_total",
        "port_data_received_bytes_total": "port_receive_bytes_total",
        "port_packets_received_total": "port_receive_packets_total",
        "port_transmit_wait_total": "port_transmit_wait_ticks_total",
        "symbol_error_total": "port_symbol_errors_total",
        "link_downed_total": "port_link_downed_total",
        "excessive_buffer_overrun_errors_total": "port_buffer_overrun_errors_total",
        "rate_bytes_per_second": "port_rate_bytes_per_second",
        "state_id": "port_state_id",
        "physical_state_id": "port_physical_state_id",
    }
    for node, name in pairs.items():
        at = (("device", "mlx5_0"), ("port", "1"))
        assert a[f"node_infiniband_{node}", at] == b[f"exaserve_infiniband_{name}", at], name


def test_every_counter_has_a_name_of_node_exporters_and_both_are_declared() -> None:
    from exporters.collectors import _infiniband_counters as tables

    theirs_in_tables = {c.node for t in (tables.PORT_COUNTERS, tables.EXTENDED_COUNTERS) for c in t.values()}
    theirs_in_tables |= set(tables.NODE_HW_COUNTERS.values())
    assert theirs_in_tables == {m.name for m in node_infiniband.METRICS if m.kind == "counter"}
    assert {c.name for c in tables.PORT_COUNTERS.values()} <= set(CATALOG)
