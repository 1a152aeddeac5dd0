"""The node collector: versions, MTU and limits; an engine on a file system that hangs costs only its own series."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from exporters.collectors.node import NodeCollector
from exporters.doctor import versions
from exporters.doctor.probes import engine
from exporters.settings import Settings


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    sysfs, procfs, home = tmp_path / "sys", tmp_path / "proc", tmp_path / "home"
    monkeypatch.setenv("EXASERVE_HOME", str(home))
    # A second is too short where this machine stands still meanwhile.
    monkeypatch.setattr("exporters.collectors.node.WAIT", 60.0)
    of = engine.site_packages
    monkeypatch.setattr(engine, "site_packages", lambda folder: [] if folder == "-" else of(folder))
    write(procfs / "sys/kernel/osrelease", "6.8.0-60-generic")
    write(
        procfs / "driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Rel",
    )
    write(procfs / "self/limits", "Max open files            1024                 4096                 files")
    for name, state, mtu in (("ib0", "up", "4092"), ("eth9", "down", "1500")):
        write(sysfs / f"class/net/{name}/mtu", mtu)
        write(sysfs / f"class/net/{name}/operstate", state)
        write(sysfs / f"class/net/{name}/device/vendor", "0x15b3")
    for package in ("vllm-0.32.0", "torch-2.8.0", "nvidia_nccl_cu12-2.27.3"):
        write(home / f"engines/v/lib/python3.12/site-packages/{package}.dist-info/METADATA", "")
    return Settings(sysfs=sysfs, procfs=procfs)


def collect(collector: NodeCollector) -> dict[tuple[str, ...], float]:
    return {
        (s.name.removeprefix("exaserve_node_"), *s.labels): s.value
        for s in collector.collect(time.monotonic() + 60)
    }


def test_what_a_node_runs(settings: Settings) -> None:
    found = collect(NodeCollector(settings))

    infos = {key[1]: key[2] for key in found if key[0] == "software_info"}
    assert infos == {
        "kernel": "6.8.0-60-generic",
        "python": versions.python(),
        "exaserve": versions.exaserve(),
        "nvidia_driver": "580.65.06",
        "vllm": "0.32.0",
        "torch": "2.8.0",
        "torch_cuda": "none (CPU)",
        "nccl": "2.27.3",
    }
    assert found["interface_mtu_bytes", "ib0"] == 4092
    assert ("interface_mtu_bytes", "eth9") not in found
    assert found["open_files_limit",] == 1024
    assert ("locked_memory_limit_bytes",) not in found


def test_an_engine_that_is_exchanged_shows_after_a_while_and_the_old_one_is_gone(
    settings: Settings, tmp_path: Path
) -> None:
    now = [0.0]
    collector = NodeCollector(settings, clock=lambda: now[0])
    assert ("software_info", "vllm", "0.32.0") in collect(collector)

    site = tmp_path / "home/engines/v/lib/python3.12/site-packages"
    (site / "vllm-0.32.0.dist-info").rename(site / "vllm-0.33.0.dist-info")
    now[0] = 299
    assert ("software_info", "vllm", "0.32.0") in collect(collector)
    now[0] = 300
    found = collect(collector)
    assert ("software_info", "vllm", "0.33.0") in found
    assert ("software_info", "vllm", "0.32.0") not in found


def test_an_engine_that_hangs_costs_only_its_own_series(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    collector = NodeCollector(settings)
    monkeypatch.setattr("exporters.collectors.node.WAIT", 0.1)
    monkeypatch.setattr(collector, "_look", lambda: over.wait(120) and {})

    for _ in range(2):
        found = collect(collector)
        assert found["interface_mtu_bytes", "ib0"] == 4092
        assert ("software_info", "kernel", "6.8.0-60-generic") in found
        assert not [key for key in found if key[1:2] == ("vllm",)]
    over.set()
