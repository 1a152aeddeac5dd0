"""Boards and rules about nodes, asked of a real Prometheus that scrapes the exporter on a made-up node with everything.

InfiniBand and RoCE ports of every driver, two NUMA nodes, two GPUs, mounts and peers; what real machines show is
tests/test_whole_stack.py's.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "exporters")]

import fake_nvml
import infiniband_trees
from fake_nvml import GIB, FakeNvml
from numa_trees import Machine, anonymous
from test_on_prometheus import Target, start, wait_until

from exporters import gpu_processes, registry
from exporters.collectors._nvml import Driver
from exporters.http import ExporterServer
from tests.conftest import free_ports
from tests.dashboards.live import Live, by_board, unexplained, until_answered
from tests.dashboards.queries import FOLDERS

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(360),
    pytest.mark.skipif(
        not shutil.which("prometheus"), reason="prometheus is not installed (Debian: prometheus)"
    ),
]

COLLECTORS = ["gpu", "infiniband", "leak", "network", "node", "numa", "storage"]
#: What even a node with everything does not show: the fleet's own series, and trouble that it does not have.
REASONS = (
    (r"exaserve_(router|replica|engine|kv|intent|loadtest|chaos)_.*|vllm:.*", "no fleet here"),
    (r"exaserve_storage_(stuck|probe_errors).*", "no mount fails"),
    (r"exaserve_infiniband_port_receive_discards_total", "no driver here counts them"),
    (r"exaserve_gpu_(mig|down_reason)_?.*", "no GPU is lost or divided"),
    (r"alertmanager_.*|prometheus_.*", "Prometheus does not scrape itself here"),
    (r"replica:up:min", "no fleet here"),
    (r"ALERTS", "no alert fires"),
)
#: Columns of tables about what is in trouble, which for that very reason says nothing of them.
QUERIES = (
    (r"^m\w+ by \(cluster, instance, peer\) \(exaserve_network_\w*mtu\w+", "a peer that is down has no MTU"),
    (r"^max by \(cluster, instance, mount\) \(mount:\w+:ratio.* and on", "a mount that fails has no sizes"),
)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("node")
    machine = Machine(folder)
    machine.two_nodes()
    for i in range(2):
        machine.gpu(i, f"0000:{0x17 + i:02x}:00.0", i)
    engine = ["python3", "/usr/bin/vllm", "serve", "m", "--port", "8100"]
    machine.process(100, engine, numa_maps=anonymous(N0=1))
    machine.process(101, ["VLLM::EngineCore"], 100, opened=["/dev/nvidiactl", "/dev/nvidia0"], numa_maps=anonymous(N0=300, N1=100))  # fmt: skip
    processes(machine.procfs)
    mounts(machine.procfs, folder / "archive")
    infiniband_trees.every_driver(machine.sysfs)
    traffic = threading.Event()
    threading.Thread(target=move, args=(machine.sysfs, traffic), daemon=True).start()
    nvml = FakeNvml()
    nvml.gpus[0].processes = [SimpleNamespace(pid=101, usedGpuMemory=60 * GIB)]
    nvml.gpus[1].xids.append(79)
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as peer:
        patch.setattr(gpu_processes, "_told", {})
        patch.setitem(fake_nvml.ANSWERS, "nvmlDeviceGetTotalEccErrors", lambda *_: int(time.time()))
        settings = machine.settings(
            {"replica-0": "http://127.0.0.1:8100/metrics"},
            mounts=(str(folder), *(str(folder / name) for name in ("not-there", "archive"))),
            peers=(f"127.0.0.1:{peer.getsockname()[1]}", "127.0.0.1:1"),
        )
        registry.build(settings, COLLECTORS)  # so that the collectors are there to be replaced
        from exporters.collectors.gpu import GpuCollector

        patch.setitem(registry.FACTORIES, "gpu", lambda s: GpuCollector(s, Driver(lambda: nvml)))
        node = registry.build(settings, COLLECTORS)
        server = ExporterServer("127.0.0.1", 0, node)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = free_ports()
        target = (Target("exaserve-exporter", lambda _: ""), f"127.0.0.1:{server.port}")
        process = start(folder / "prometheus", "exaserve", [target], port)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            traffic.set()
            process.terminate()
            process.wait(60)
            server.close()
            node.close()
            nvml.end()


def processes(procfs: Path) -> None:
    """What the leak collector reads of the replica's processes."""
    (procfs / "stat").write_text("btime 1700000000\n")
    for pid in (100, 101):
        status = procfs / str(pid) / "status"
        more = "VmSwap:\t       0 kB\nRssAnon:\t    2000 kB\nRssFile:\t       7 kB\nThreads:\t9\n"
        status.write_text(status.read_text() + more)
        limits = "Limit                     Soft Limit           Hard Limit           Units     \n"
        limits += "Max open files            1024                 1048576              files     \n"
        (procfs / str(pid) / "limits").write_text(limits)


def mounts(procfs: Path, archive: Path) -> None:
    """A file system at the root, and one that is read-only and broken."""
    archive.touch()  # no folder: it can be stat-ed, and every probe of it fails
    text = f"1 0 0:1 / / rw,relatime - ext4 /dev/vda rw\n2 1 0:2 / {archive} ro,relatime - ext4 /dev/vdb ro\n"
    (procfs / "self").mkdir()
    (procfs / "self" / "mountinfo").write_text(text)


def move(sysfs: Path, end: threading.Event) -> None:
    """Every counter of every port rises now and then; one port has lost its link, and one counter is at its end."""
    port = sysfs / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    (port / "state").write_text("1: DOWN\n")
    (port / "counters" / "link_downed").write_text("255\n")
    folders = ("counters", "counters_ext", "hw_counters")
    files = [f for f in sysfs.glob("devices/*/infiniband/*/ports/*/*/*") if f.parent.name in folders]
    while not end.wait(1):
        for file in files:
            text = file.read_text().strip()
            if text.isdecimal() and file.name not in ("lifespan", "link_downed"):
                file.write_text(f"{int(text) + 1}\n")


def test_every_query_of_the_fabric_board_answers_on_a_node_with_everything(prometheus: str) -> None:
    live = Live(prometheus, FOLDERS["exaserve"], REASONS, QUERIES)
    assert wait_until(lambda: ready(live))
    answers = [a for a in (*live.board_answers(), *live.variable_answers()) if a.where == "fabric"]
    answers = until_answered(live, answers, 90)
    print(by_board(answers))
    assert not unexplained(answers), "no series and no reason:\n" + "\n".join(unexplained(answers))


def test_every_rule_about_nodes_has_something_to_go_by(prometheus: str) -> None:
    live = Live(prometheus, FOLDERS["exaserve"], REASONS, QUERIES)
    assert wait_until(lambda: ready(live))
    answers = until_answered(live, live.rule_answers(), 90)
    print(by_board(answers))
    assert not unexplained(answers), "no series and no reason:\n" + "\n".join(unexplained(answers))


def ready(live: Live) -> bool:
    """Whether two scrapes have been recorded from.

    Not while Prometheus starts: first nobody listens, then it says 503 in plain text.
    """
    try:
        return live.ask('{__name__=~"port:.+"}') > 0
    except (httpx.HTTPError, json.JSONDecodeError):
        return False
