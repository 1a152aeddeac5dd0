"""The GPU collector: values in base units, what is not supported absent, each GPU's trouble its own."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from fake_nvml import ANSWERS, DRIVER_CALLS, GIB, FakeMig, FakeNvml

from exporters import processes, registry
from exporters.catalog import metric
from exporters.collectors import _nvml, gpu
from exporters.collectors._nvml import Driver, NoDriver
from exporters.collectors._task import Hung, Task
from exporters.processes import Process, ReplicaProcesses
from exporters.registry import NoData, Registry, Sample
from exporters.settings import Settings

Found = dict[tuple[str, ...], float]


@pytest.fixture(autouse=True)
def replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pids 10 and 11 are replica r0's."""
    found = [ReplicaProcesses("r0", "cgroup", (Process(10, 1, "python"), Process(11, 2, "python")))]
    monkeypatch.setattr(processes, "find", lambda settings: found)
    # Threads end at once, but on a machine that stands still.
    monkeypatch.setattr(gpu, "_END_SECONDS", 60.0)


@pytest.fixture
def nvml() -> Iterator[FakeNvml]:
    fake = FakeNvml()
    yield fake
    fake.end()


@pytest.fixture
def collector(nvml: FakeNvml, tmp_path: Path) -> gpu.GpuCollector:
    return make(nvml, tmp_path)


def make(nvml: Any, root: Path) -> gpu.GpuCollector:
    return gpu.GpuCollector(Settings(sysfs=root / "sys", procfs=root / "proc"), Driver(lambda: nvml))


def scrape(collector: gpu.GpuCollector, seconds: float = 60) -> Found:
    """Values by metric (without its prefix) and labels; every sample is one that the catalogue has."""
    samples = collector.collect(time.monotonic() + seconds)
    for sample in samples:
        assert len(metric(sample.name).labels) == len(sample.labels), sample
    found = {(s.name.removeprefix("exaserve_gpu_"), *s.labels): s.value for s in samples}
    assert len(found) == len(samples)
    return found


def of(found: Found, index: int) -> Found:
    """The series of one GPU, without those of its Xids."""
    return {k: v for k, v in found.items() if k[1] == str(index) and not k[0].startswith("xid")}


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# What is read


def test_values_are_in_base_units(collector: gpu.GpuCollector, tmp_path: Path) -> None:
    node = tmp_path / "sys/bus/pci/devices/0000:3b:00.0/numa_node"
    node.parent.mkdir(parents=True)
    node.write_text("1\n")
    found = scrape(collector)
    assert found["driver_info", "580.95.05", "13.1", "13.580.95.05"] == 1
    at = ("0", "GPU-0")
    expected: Found = {
        ("up", *at): 1,
        ("failed_reads", *at): 0,
        ("info", *at, "NVIDIA H200", "0000:3b:00.0"): 1,
        ("numa_node", *at): 1,
        ("persistence_mode", *at): 1,
        ("performance_state", *at): 0,
        ("compute_mode", *at, "default"): 0,
        ("compute_mode", *at, "exclusive_process"): 1,
        ("recovery_action", *at, "none"): 1,
        ("recovery_action", *at, "gpu_reset"): 0,
        ("memory_total_bytes", *at): 140 * GIB,
        ("memory_used_bytes", *at): 100 * GIB,
        ("memory_free_bytes", *at): 39 * GIB,
        ("memory_reserved_bytes", *at): GIB,
        ("utilisation_ratio", *at): 0.87,
        ("memory_utilisation_ratio", *at): 0.3,
        ("temperature_celsius", *at, "gpu"): 61,
        ("temperature_celsius", *at, "memory"): 45,
        ("temperature_limit_celsius", *at, "slowdown"): 87,
        ("temperature_limit_celsius", *at, "shutdown"): 92,
        ("power_watts", *at): 412.345,
        ("power_limit_watts", *at): 700,
        ("energy_joules_total", *at): 1234.567,
        ("clock_hertz", *at, "sm"): 1.98e9,
        ("clock_limit_hertz", *at, "memory"): 1.98e9,
        ("clocks_event_active", *at, "sw_power_cap"): 1,
        ("clocks_event_active", *at, "hw_slowdown"): 0,
        ("clocks_event_seconds_total", *at, "sw_power_cap"): 2.5,
        ("ecc_enabled", *at): 1,
        ("ecc_errors_total", *at, "corrected", "volatile"): 0,
        ("ecc_errors_total", *at, "uncorrected", "aggregate"): 11,
        ("remapped_rows", *at, "corrected"): 2,
        ("remapped_rows", *at, "uncorrected"): 1,
        ("row_remap_pending", *at): 1,
        ("row_remap_failed", *at): 0,
        ("retired_pages", *at, "uncorrected"): 1,
        ("page_retirement_pending", *at): 0,
        ("pcie_link_generation", *at): 5,
        ("pcie_link_width_limit", *at): 16,
        ("pcie_replays_total", *at): 4,
        ("pcie_bytes_total", *at, "transmitted"): 1000,
        ("pcie_bytes_total", *at, "received"): 2000,
        ("nvlink_up", *at, "0"): 1,
        ("nvlink_up", *at, "1"): 0,
        ("nvlink_errors_total", *at, "0", "replay"): 7,
        ("nvlink_errors_total", *at, "0", "crc"): 3,
        ("nvlink_bytes_total", *at, "received"): 8192,
        ("mig_enabled", *at): 0,
        ("processes", *at): 2,
        ("replica_memory_bytes", *at, "r0"): 60 * GIB,
        ("other_memory_bytes", *at): GIB,
    }
    assert {k: found.get(k) for k in expected} == expected
    assert not any(k[0] in ("pcie_throughput_bytes_per_second", "down_reason", "mig_info") for k in found)
    assert ("numa_node", "1", "GPU-1") not in found  # its sysfs file is not there: not 0


def test_an_old_driver_is_asked_by_the_old_names(nvml: FakeNvml, collector: gpu.GpuCollector) -> None:
    one = nvml.gpus[0]
    one.old, one.fields = True, {91: 1}
    found = of(scrape(collector), 0)
    at = ("0", "GPU-0")
    assert found["memory_used_bytes", *at] == 100 * GIB
    assert ("memory_reserved_bytes", *at) not in found
    assert found["clocks_event_active", *at, "sw_power_cap"] == 1
    assert found["pcie_throughput_bytes_per_second", *at, "received"] == 4096
    assert found["nvlink_errors_total", *at, "0", "crc_data"] == 23
    assert not {"retired_pages", "recovery_action", "pcie_bytes_total"} & {k[0] for k in found}
    assert found["failed_reads", *at] == 0


@pytest.mark.parametrize(
    ("parts", "address"),
    [
        ((0, 0x3B, 0, "00000000:3B:00.0"), "0000:3b:00.0"),
        ((0x10000, 1, 0x1F, "00010000:01:1F.7"), "10000:01:1f.7"),
        ((0, 1, 2, ""), "0000:01:02.0"),
    ],
)
def test_the_pci_address_is_as_in_sysfs(parts: tuple[int, int, int, str], address: str) -> None:
    assert gpu._gpu_readings.pci_address(*parts) == address


def test_mig_devices_have_series_of_their_own_and_memory_once_an_instance(
    nvml: FakeNvml, collector: gpu.GpuCollector, tmp_path: Path
) -> None:
    nvml.gpus[0].migs = [FakeMig(1, 0), FakeMig(1, 1), FakeMig(2, 0)]
    nvml.gpus[0].processes = []
    found = scrape(collector)
    at = ("0", "GPU-0")
    assert found["mig_enabled", *at] == 1
    name = "NVIDIA H200 MIG 1g.18gb"
    assert {k[3:] for k in found if k[0] == "mig_info"} == {
        ("1", "0", "MIG-1-0", name),
        ("1", "1", "MIG-1-1", name),
        ("2", "0", "MIG-2-0", name),
    }
    assert {k: v for k, v in found.items() if k[0] == "mig_memory_used_bytes"} == {
        ("mig_memory_used_bytes", *at, "1"): 15 * GIB,
        ("mig_memory_used_bytes", *at, "2"): 15 * GIB,
    }
    assert ("utilisation_ratio", *at) not in found
    assert found["replica_memory_bytes", *at, "r0"] == 6 * GIB
    assert found["utilisation_ratio", "1", "GPU-1"] == 0.87
    # One is deleted; NVML keeps giving it, the driver's folder doesn't.
    for part in ("gi1/ci0", "gi1/ci1"):
        (tmp_path / "proc/driver/nvidia/capabilities/gpu0/mig" / part).mkdir(parents=True)
    assert {k[3] for k in scrape(collector) if k[0].startswith("mig_") and len(k) > 3} == {"1"}


def test_memory_of_unknown_size_is_not_summed(nvml: FakeNvml, collector: gpu.GpuCollector) -> None:
    nvml.gpus[0].processes.append(SimpleNamespace(pid=11, usedGpuMemory=None))
    found = of(scrape(collector), 0)
    assert found["processes", "0", "GPU-0"] == 3
    assert ("replica_memory_bytes", "0", "GPU-0", "r0") not in found
    assert found["other_memory_bytes", "0", "GPU-0"] == GIB


# One GPU in trouble


@pytest.mark.parametrize("function", [f for f in ANSWERS if f != "nvmlDeviceGetUUID"])
@pytest.mark.parametrize("error", [3, 4, 999])
def test_a_call_that_fails_takes_only_its_own_series(
    nvml: FakeNvml, collector: gpu.GpuCollector, function: str, error: int
) -> None:
    whole = scrape(collector)
    nvml.gpus[0].fails[function] = error
    found = scrape(collector)
    assert of(found, 1) == of(whole, 1)
    assert found["up", "0", "GPU-0"] == 1
    names = {k[0] for k in of(found, 0)}
    assert names <= {k[0] for k in of(whole, 0)} | {"pcie_throughput_bytes_per_second"}
    assert len(names) >= 25
    assert (found["failed_reads", "0", "GPU-0"] > 0) == (error == 999 and function not in UNASKED)


#: Asked only where another answer calls for it.
UNASKED = {
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetPcieThroughput",
    "nvmlDeviceGetNvLinkErrorCounter",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
}


def test_a_uuid_that_fails_is_remembered(nvml: FakeNvml, collector: gpu.GpuCollector) -> None:
    scrape(collector)
    nvml.gpus[0].fails["nvmlDeviceGetUUID"] = 999
    assert scrape(collector)["up", "0", "GPU-0"] == 1


@pytest.mark.parametrize(
    ("error", "reason"), [(15, "lost"), (16, "reset_required"), (999, "error"), (3, "error"), (1, "driver")]
)
def test_a_gpu_whose_every_call_fails_is_down_and_says_why(
    nvml: FakeNvml, collector: gpu.GpuCollector, error: int, reason: str
) -> None:
    whole = scrape(collector)
    nvml.gpus[0].fails_all = error
    found = scrape(collector)
    assert of(found, 0) == {("up", "0", "GPU-0"): 0, ("down_reason", "0", "GPU-0", reason): 1}
    assert of(found, 1) == of(whole, 1)


@pytest.mark.parametrize("value", [object(), None, "x", SimpleNamespace(), float("nan")])
def test_an_answer_that_makes_no_sense_takes_only_its_own_series(
    nvml: FakeNvml, collector: gpu.GpuCollector, value: object
) -> None:
    nvml.gpus[0].memory = value  # type: ignore[assignment]
    found = scrape(collector)
    assert ("memory_used_bytes", "0", "GPU-0") not in found
    assert found["power_watts", "0", "GPU-0"] == 412.345
    assert found["memory_used_bytes", "1", "GPU-1"] == 100 * GIB


def test_a_gpu_that_hangs_costs_the_others_nothing_and_is_not_asked_again(
    nvml: FakeNvml, collector: gpu.GpuCollector
) -> None:
    whole = scrape(collector)
    nvml.gpus[0].hangs.add("nvmlDeviceGetPowerUsage")  # for two minutes
    began = time.monotonic()
    first = scrape(collector, 4.0)  # all of which it takes; the other GPU has as much
    assert time.monotonic() - began < 30
    second = scrape(collector)  # does not wait for it again
    thread = collector._tasks[0]._hung
    third = scrape(collector)
    assert time.monotonic() - began < 45
    for found in (first, second, third):
        assert of(found, 0) == {("up", "0", "GPU-0"): 0, ("down_reason", "0", "GPU-0", "hung"): 1}
        assert of(found, 1) == of(whole, 1)
    assert collector._tasks[0]._hung is thread
    nvml.gpus[0].gate.set()
    until(lambda: not collector._tasks[0].at_work)
    assert of(scrape(collector), 0) == of(whole, 0)


def test_the_whole_page_keeps_the_limit_while_a_gpu_hangs(
    nvml: FakeNvml, collector: gpu.GpuCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is a third of the limit then: this machine may stand still for a moment.
    monkeypatch.setattr(registry, "GRACE", 30.0)
    nvml.gpus[0].hangs.add("nvmlDeviceGetHandleByIndex")
    other = SimpleNamespace(collect=lambda deadline: [Sample("exaserve_engine_up", ("r0",), 1)])
    began = time.monotonic()
    page = Registry({"gpu": collector, "engine": other}).scrape(4.0)
    assert time.monotonic() - began < 30
    values = {(name, *labels): value for name, found in page.items() for labels, value in found.items()}
    assert values["exaserve_exporter_collector_success", "gpu"] == 1
    assert values["exaserve_engine_up", "r0"] == 1
    assert values["exaserve_gpu_up", "0", ""] == 0
    assert values["exaserve_gpu_up", "1", "GPU-1"] == 1


def test_a_gpu_that_vanishes_is_missing_for_a_day(
    nvml: FakeNvml, collector: gpu.GpuCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrape(collector)
    gone = nvml.gpus.pop(0)
    found = scrape(collector)
    # The other is index 0 now; its uuid says which it is.
    assert found["up", "0", "GPU-1"] == 1
    assert found["up", "0", "GPU-0"] == 0
    assert found["down_reason", "0", "GPU-0", "missing"] == 1
    assert {k[0] for k in found if "GPU-0" in k} == {"up", "down_reason", "xid_watched"}
    collector._known["GPU-0"].seen -= gpu.MISSING_SECONDS + 1
    assert not any("GPU-0" in k for k in scrape(collector))
    nvml.gpus.insert(0, gone)
    assert scrape(collector)["up", "0", "GPU-0"] == 1


def test_a_lost_gpu_that_was_reset_comes_back(
    nvml: FakeNvml, collector: gpu.GpuCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrape(collector)
    nvml.gpus[0].fails_all = 15
    assert scrape(collector)["down_reason", "0", "GPU-0", "lost"] == 1
    assert nvml.calls.count("nvmlInit") == 1
    monkeypatch.setattr(gpu, "RETRY_SECONDS", 0.0)
    assert (
        scrape(collector)["down_reason", "0", "GPU-0", "lost"] == 1
    )  # still lost after a new init, still named
    nvml.gpus[0].fails_all = None
    assert scrape(collector)["up", "0", "GPU-0"] == 1
    assert nvml.calls.count("nvmlInit") == 3


# The driver


def test_a_driver_that_comes_later_is_found(nvml: FakeNvml, tmp_path: Path) -> None:
    missing = [True]

    def loader() -> FakeNvml:
        if missing:
            raise NoDriver("libnvidia-ml.so.1: cannot open shared object file", installed=False)
        return nvml

    collector = gpu.GpuCollector(Settings(sysfs=tmp_path, procfs=tmp_path), Driver(loader))
    for _ in range(2):
        with pytest.raises(NoData):
            scrape(collector)
    missing.clear()
    assert scrape(collector)["up", "1", "GPU-1"] == 1


def test_a_gpu_on_the_bus_without_its_driver_is_broken_not_absent(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.fails["nvmlInit"] = 9
    collector = make(nvml, tmp_path)
    with pytest.raises(NoData):
        scrape(collector)
    device = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    with pytest.raises(RuntimeError, match="nvmlInit: Driver Not Loaded"):
        scrape(collector)


@pytest.mark.parametrize("error", [1, 9, 18])
def test_a_driver_that_is_reloaded_is_taken_up_again(
    nvml: FakeNvml, collector: gpu.GpuCollector, error: int
) -> None:
    whole = scrape(collector)
    nvml.up = False
    nvml.fails["nvmlInit"] = error
    for g in nvml.gpus:
        g.fails_all = error
    for _ in range(2):
        found = scrape(collector)
        assert {k: v for k, v in found.items() if k[0] == "up"} == {
            ("up", "0", "GPU-0"): 0,
            ("up", "1", "GPU-1"): 0,
        }
        assert found["down_reason", "1", "GPU-1", "driver"] == 1
        assert not any(k[0] == "memory_used_bytes" for k in found)
    del nvml.fails["nvmlInit"]
    for g in nvml.gpus:
        g.fails_all = None
    found = scrape(collector)
    assert of(found, 0) == of(whole, 0)
    assert of(found, 1) == of(whole, 1)


@pytest.mark.parametrize("function", DRIVER_CALLS)
@pytest.mark.parametrize("error", [1, 3, 999])
def test_no_call_of_the_driver_breaks_the_collector(
    nvml: FakeNvml, collector: gpu.GpuCollector, function: str, error: int
) -> None:
    nvml.fails[function] = error
    for g in nvml.gpus:
        g.fails[function] = error
    try:
        scrape(collector)
    except NoData:
        assert function in ("nvmlInit", "nvmlDeviceGetCount")
    nvml.fails.clear()
    for g in nvml.gpus:
        g.fails.clear()
    assert scrape(collector)["up", "0", "GPU-0"] == 1


def test_a_driver_that_hangs_takes_all_gpus_and_no_more_threads(
    nvml: FakeNvml, collector: gpu.GpuCollector
) -> None:
    nvml.hangs.add("nvmlInit")
    with pytest.raises(RuntimeError, match="does not answer"):
        scrape(collector, 0.1)
    with pytest.raises(RuntimeError, match="does not answer"):
        scrape(collector)
    assert nvml.calls == ["nvmlInit"]
    nvml.hangs.clear()
    nvml.gate.set()
    until(lambda: not collector._opener.at_work)
    assert scrape(collector)["up", "0", "GPU-0"] == 1
    nvml.gate.clear()
    nvml.hangs.add("nvmlDeviceGetCount")
    found = scrape(collector, 0.1)
    assert found["down_reason", "0", "GPU-0", "hung"] == 1
    assert ("memory_used_bytes", "0", "GPU-0") not in found


def test_nvml_is_not_given_back_while_a_gpu_hangs_in_it(nvml: FakeNvml, collector: gpu.GpuCollector) -> None:
    scrape(collector)
    nvml.gpus[0].hangs.add("nvmlDeviceGetName")
    nvml.gpus[1].fails_all = 1
    found = scrape(collector, 4.0)
    assert found["down_reason", "1", "GPU-1", "driver"] == 1  # for which NVML would be initialised again
    scrape(collector)
    assert "nvmlShutdown" not in nvml.calls


# Xids


def test_xids_are_counted_by_code_with_their_time(nvml: FakeNvml, collector: gpu.GpuCollector) -> None:
    assert scrape(collector)["xid_watched", "0", "GPU-0"] in (0, 1)  # its thread has just begun
    until(lambda: scrape(collector)["xid_watched", "0", "GPU-0"] == 1)
    before = time.time()
    nvml.gpus[0].xids += [48, 13, 48]
    until(lambda: scrape(collector).get(("xid_errors_total", "0", "GPU-0", "48")) == 2)
    found = scrape(collector)
    assert found["xid_errors_total", "0", "GPU-0", "13"] == 1
    assert before <= found["xid_last_timestamp_seconds", "0", "GPU-0", "48"] <= time.time()
    assert not any(k[0].startswith("xid_") and k[1] == "1" and len(k) > 3 for k in found)
    # They stay when the GPU is lost, which is when they are needed.
    nvml.gpus[0].fails_all = 15
    assert scrape(collector)["xid_errors_total", "0", "GPU-0", "48"] == 2


def test_xids_of_many_codes_are_bounded() -> None:
    xids = gpu.Xids()
    for code in range(100):
        xids.add(code)
    assert len(xids.seen()) == 65
    assert xids.seen()["other"][0] == 36


def test_xids_that_cannot_be_watched_are_not_zero(nvml: FakeNvml, collector: gpu.GpuCollector) -> None:
    nvml.gpus[0].fails["nvmlDeviceRegisterEvents"] = 3
    scrape(collector)
    until(lambda: not collector._known["GPU-0"].watch.alive)  # type: ignore[union-attr]
    found = scrape(collector)
    assert found["xid_watched", "0", "GPU-0"] == 0
    assert not any(k[0] == "xid_errors_total" for k in found)


# The fake and the seam


def test_the_fake_has_functions_of_pynvml_and_they_take_what_they_are_given() -> None:
    given = {"nvmlDeviceGetHandleByIndex": 1, "nvmlDeviceRegisterEvents": 3, "nvmlEventSetWait_v2": 2}
    for name in (*ANSWERS, *DRIVER_CALLS):
        parameters = inspect.signature(ANSWERS.get(name) or getattr(FakeNvml(), name)).parameters
        real = getattr(pynvml, name)
        inspect.signature(real).bind(*range(given.get(name, len(parameters))))


def test_without_the_drivers_library_pynvml_is_not_even_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(_nvml.ctypes, "CDLL", missing)
    monkeypatch.setattr(_nvml.importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    with pytest.raises(NoDriver, match=r"libnvidia-ml\.so\.1") as raised:
        _nvml.load()
    assert not raised.value.installed


def test_a_task_that_hangs_is_not_started_again(nvml: FakeNvml) -> None:
    task: Task[int] = Task("t")
    with pytest.raises(Hung, match="still hangs"):
        task.result(0)
    task.start(lambda: nvml.gate.wait(120) and 1)
    with pytest.raises(Hung, match="does not answer"):
        task.result(time.monotonic() + 0.05)
    task.start(lambda: 2)
    with pytest.raises(Hung, match="still hangs"):
        task.result(time.monotonic() + 5)
    nvml.gate.set()
    until(lambda: not task.at_work)
    task.start(lambda: 3)
    assert task.result(time.monotonic() + 20) == 3
