"""One whole page of a made-up node with everything: equal to the one that is kept, and taken by Prometheus' own tools.

The node: a device of every InfiniBand driver, two NUMA nodes, two GPUs, a vLLM process, replicas of every engine. (Not
on the page: storage, peers and versions, which are this machine's own.)
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import infiniband_trees
import pytest
from fake_nvml import FakeNvml
from numa_trees import Machine, anonymous

from exporters import exposition, gpu_processes, registry
from exporters.catalog import CATALOG
from exporters.collectors._nvml import Driver
from exporters.http import ExporterServer
from exporters.registry import Registry
from tests.conftest import free_ports

KEPT = Path(__file__).parents[1] / "fixtures" / "exporter-page.txt"
COLLECTORS = ["engine", "gpu", "infiniband", "intent_drift", "leak", "numa"]
REPLICAS = {
    "replica-0": "vllm-0.32.0-metrics.txt",
    "replica-1": "vllm-v1-two-engines-metrics.txt",
    "replica-2": "vllm-0.6-metrics.txt",
    "replica-3": "sglang-0.5.23-two-ranks-metrics.txt",
    "replica-4": "tensorrt-llm-1.3-metrics.txt",
    "replica-5": "vllm-kv-transfers-metrics.txt",
}
INTENTS = b"""# TYPE exaserve_router_classifications_total counter
exaserve_router_classifications_total{intent="general",stage="first"} 400
exaserve_router_classifications_total{intent="legal",stage="second"} 100
"""
#: Values that differ from run to run.
VARYING = re.compile(
    r"(exaserve_exporter_\w*_seconds|exaserve_numa_replica_memory_(?:age|read)_seconds"
    r"|exaserve_engine_stalled_seconds|exaserve_gpu_xid_last_timestamp_seconds|exaserve_intent_drift_window_seconds)"
)

WATCHED = "exaserve_gpu_xid_watched"

Page = Callable[[str], bytes]


@pytest.fixture
def node(
    tmp_path: Path, serve: Callable[..., str], page: Page, closed: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Registry]:
    machine = Machine(tmp_path)
    machine.two_nodes()
    for i in range(2):
        machine.gpu(i, f"0000:{0x17 + i:02x}:00.0", i)
    machine.process(
        100, ["python3", "/usr/bin/vllm", "serve", "m", "--port", "8100"], numa_maps=anonymous(N0=1)
    )
    opened = ["/dev/nvidiactl", "/dev/nvidia0"]
    machine.process(101, ["VLLM::EngineCore"], 100, opened=opened, numa_maps=anonymous(N0=300, N1=100))
    monkeypatch.setattr(infiniband_trees, "_ids", itertools.count(0x3B))
    infiniband_trees.every_driver(machine.sysfs)
    reference = tmp_path / "intents.json"
    counts = {"general": 3000, "legal": 1000}
    reference.write_text(
        json.dumps({"format": "exaserve intent reference", "version": 1, "counts": counts, "to": 1.5e9})
    )
    # vLLM's answer to /version is not JSON here; its version is then unknown.
    urls = {name: f"{serve(page(file))}/metrics" for name, file in REPLICAS.items()}
    settings = machine.settings(
        urls | {"replica-6": closed},
        router=f"{serve(INTENTS)}/metrics",
        intent_reference=reference,
        timeout=60.0,  # none of them hangs; each has its time on a slow machine
    )
    monkeypatch.setattr(gpu_processes, "_told", {})
    nvml = FakeNvml()
    nvml.gpus[1].xids.append(79)
    registry.build(settings, COLLECTORS)
    from exporters.collectors.gpu import GpuCollector

    monkeypatch.setitem(registry.FACTORIES, "gpu", lambda s: GpuCollector(s, Driver(lambda: nvml)))
    built = registry.build(settings, COLLECTORS)
    whole = {
        "exaserve_numa_replica_remote_memory_ratio",
        "exaserve_gpu_xid_errors_total",
        "exaserve_gpu_info",
    }
    until = time.monotonic() + 60
    # The threads that wait for Xids begin with the first scrape, each in its own time.
    while not whole <= (found := built.scrape(60)).keys() or not all(found[WATCHED].values()):
        assert time.monotonic() < until, (sorted(whole - found.keys()), found.get(WATCHED))
        time.sleep(0.05)
    yield built
    built.close()
    nvml.end()


def steady(text: str) -> str:
    """The page with what differs from run to run replaced, and in the order of names and labels."""
    families = []
    for family in re.split(r"^(?=# HELP )", text, flags=re.MULTILINE)[1:]:
        about, kind, *samples = family.splitlines()
        said = [line.rpartition(" ")[0] + " T" if VARYING.match(line) else line for line in samples]
        families.append("\n".join([about, kind, *sorted(said)]) + "\n")
    return re.sub(r'(exporter_build_info{version=")[^"]*', r"\1V", "".join(sorted(families)))


def test_the_page_is_the_one_that_is_kept(node: Registry) -> None:
    text = steady(exposition.text(node.scrape(60)).decode())
    if os.environ.get("KEEP_PAGE"):
        KEPT.write_text(text)
    assert text == KEPT.read_text(), (
        "if the page is right as it is: KEEP_PAGE=1 python -m pytest, and this test"
    )


def test_every_collector_did_its_work_and_gives_metrics_of_its_own_file(node: Registry) -> None:
    found = node.scrape(60)
    success = {labels[0]: v for labels, v in found["exaserve_exporter_collector_success"].items()}
    assert success == dict.fromkeys(COLLECTORS, 1.0)
    assert found.keys() <= CATALOG.keys()


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)")
def test_promtool_finds_nothing_to_say(node: Registry) -> None:
    page = exposition.text(node.scrape(60))
    check = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True)
    assert (check.returncode, (check.stdout + check.stderr).decode()) == (0, "")


@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed (Debian: prometheus)")
def test_a_real_prometheus_takes_every_sample_without_a_word(node: Registry, tmp_path: Path) -> None:
    server = ExporterServer("127.0.0.1", 0, node)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 5s, scrape_timeout: 5s}\n"  # which collectors keep on a slow machine, too
        f"scrape_configs: [{{job_name: x, static_configs: [{{targets: ['127.0.0.1:{server.port}']}}]}}]\n"
    )
    port = free_ports()
    log = tmp_path / "prometheus.log"
    argv = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [*argv, f"--web.listen-address=127.0.0.1:{port}"], stderr=out, stdout=out
        ) as prometheus,
    ):
        try:
            samples = sum(len(values) for values in node.scrape(60).values())
            assert samples > 700

            def ask(query: str) -> list[float]:
                """Values; none while Prometheus still starts: first nobody listens, then it says 503."""
                url = f"http://127.0.0.1:{port}/api/v1/query"
                try:
                    answer = httpx.get(url, params={"query": query}, timeout=60)
                except httpx.HTTPError:
                    return []
                if answer.status_code == 503:
                    return []
                return [float(r["value"][1]) for r in answer.json()["data"]["result"]]

            names = ("scrape_samples_post_metric_relabeling", "scrape_samples_scraped", "up")
            until = time.monotonic() + 90
            while (said := [ask(name) for name in names]) != [[samples], [samples], [1]]:
                assert time.monotonic() < until, (said, samples)
                time.sleep(0.1)
            # Each metric as the catalogue has it.
            told = httpx.get(f"http://127.0.0.1:{port}/api/v1/metadata", timeout=60).json()["data"]
            for name in node.scrape(60):
                family = name.removesuffix("_total") if CATALOG[name].kind == "counter" else name
                about = told.get(family) or told[name]
                assert (about[0]["type"], about[0]["help"]) == (CATALOG[name].kind, CATALOG[name].help)
        finally:
            prometheus.kill()
            server.close()
    said = [line for line in log.read_text().splitlines() if re.search(r"level=(?!info|INFO)", line)]
    assert said == []
