"""The NUMA collector on machines of two nodes and more: nodes, placement, remote memory, verdict, and what is not known."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from numa_trees import Machine, anonymous, pool, write

from exporters import gpu_processes
from exporters.catalog import metric
from exporters.collectors import _numa_devices, _numa_maps, numa
from exporters.collectors._numa_maps import MemoryReader, parse
from exporters.collectors._numa_nodes import Machine as Nodes
from exporters.collectors._numa_nodes import nodes, parse_list
from exporters.collectors.numa import NumaCollector
from exporters.processes import Process, find
from exporters.registry import NoData
from exporters.settings import Settings

SERVE = ["python3", "/usr/bin/vllm", "serve", "m", "--port", "8100"]
R = "127.0.0.1:8100"
PAGE = 4096
Page = dict[tuple[str, ...], float]


@pytest.fixture(autouse=True)
def _no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_processes, "_told", {})


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.two_nodes()
    return machine


def collect(collector: NumaCollector) -> Page:
    """One scrape. Every sample is in the catalogue, with its labels."""
    samples = collector.collect(time.monotonic() + 60)
    assert all(len(metric(s.name).labels) == len(s.labels) for s in samples)
    page = {(s.name.removeprefix("exaserve_numa_"), *s.labels): s.value for s in samples}
    assert len(page) == len(samples)
    return page


def settled(machine: Machine, **more: object) -> Page:
    """The page once memory has been read."""
    collector = NumaCollector(machine.settings(**more))  # type: ignore[arg-type]
    collect(collector)
    finish(collector)
    return collect(collector)


def finish(collector: NumaCollector) -> None:
    if collector._memory._job is not None:
        collector._memory._job.thread.join(60)


def verdict(page: Page, replica: str = R) -> tuple[str, set[str]]:
    states = {k[2]: v for k, v in page.items() if k[:2] == ("replica_binding", replica)}
    reasons = {k[2]: v for k, v in page.items() if k[:2] == ("replica_binding_reason", replica)}
    assert set(states) == set(numa.VERDICTS)
    assert sum(states.values()) == 1
    assert set(reasons) == set(numa.REASONS)
    return next(s for s, v in states.items() if v), {r for r, v in reasons.items() if v}


def one_gpu_replica(machine: Machine, cpus: str, memory: str, mems: str = "0-1", gpu_node: int = 1) -> None:
    """An unbound API server, and a worker with one GPU."""
    machine.gpu(0, "0000:17:00.0", gpu_node)
    machine.process(100, SERVE, numa_maps="")
    machine.process(
        101,
        ["VLLM::EngineCore"],
        100,
        name="VLLM::EngineCor",
        cpus=cpus,
        memory=mems,
        opened=["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"],
        numa_maps=memory,
    )
    write(machine.procfs / "100/numa_maps", anonymous(N0=1))


# --- nodes ------------------------------------------------------------------------------------------------


def test_nodes_have_their_numbers(machine: Machine) -> None:
    page = collect(NumaCollector(machine.settings()))
    assert page[("node_cpus", "1")] == 4
    assert page[("node_memory_bytes", "0")] == 64_000 * 2**20
    assert page[("node_memory_free_bytes", "0")] == 32_000 * 2**20
    assert page[("node_distance", "0", "1")] == 21
    assert page[("node_distance", "1", "1")] == 10
    events = {k[2]: v for k, v in page.items() if k[:2] == ("node_allocations_total", "1")}
    assert events == {"hit": 1001, "miss": 20, "foreign": 30, "interleave": 4, "local": 900, "other": 120}
    assert not any(k[0].startswith("replica") for k in page)


def test_gaps_and_nodes_without_memory_or_cpus_keep_their_numbers(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.node(0, "0-1", 1000, "10 20 30")
    machine.node(4, "2-3", 0, "20 10 15")
    machine.node(9, "", 500, "30 15 10")
    page = collect(NumaCollector(machine.settings()))
    assert page[("node_memory_bytes", "4")] == 0
    assert page[("node_cpus", "9")] == 0
    distances = {k[1:]: v for k, v in page.items() if k[0] == "node_distance"}
    assert distances == {("0", "0"): 10, ("0", "9"): 30, ("4", "0"): 20, ("4", "9"): 15}


def test_what_a_node_does_not_tell_is_absent(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.node(0, "0-1", 1000, "10 x")
    folder = machine.sysfs / "devices/system/node"
    (folder / "node0/cpulist").unlink()
    write(folder / "node0/numastat", "numa_hit\nnuma_miss many\nnuma_foreign 3\n")
    write(folder / "node1/meminfo", "nonsense\n")
    write(folder / "online", "0-1\n")
    page = collect(NumaCollector(machine.settings()))
    assert page == {
        ("node_memory_bytes", "0"): 1000 * 2**20,
        ("node_memory_free_bytes", "0"): 500 * 2**20,
        ("node_allocations_total", "0", "foreign"): 3,
    }


def test_a_machine_without_nodes_and_replicas_has_no_data(tmp_path: Path) -> None:
    with pytest.raises(NoData):
        NumaCollector(Machine(tmp_path).settings()).collect(time.monotonic() + 5)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0-3,8\n", {0, 1, 2, 3, 8}),
        ("", set()),
        ("5", {5}),
        ("1-", None),
        ("a", None),
        ("3-1", set()),
        ("0-99999999999", None),
        ("²", None),
    ],
)
def test_a_kernel_list_is_read(text: str, numbers: set[int] | None) -> None:
    assert parse_list(text) == (None if numbers is None else frozenset(numbers))


def test_memory_without_cpus_is_local_to_the_nearest_cpus(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.node(0, "0-1", 1000, "10 20 13 23")
    machine.node(1, "2-3", 1000, "20 10 23 13")
    machine.node(2, "", 500, "13 23 10 30")
    machine.node(3, "", 500, "23 13 30 10")
    near = Nodes(nodes(machine.sysfs))
    assert near.memory_near({1}) == {1, 3}
    assert near.cpus_near({3}) == {1}
    assert not near.single


def test_a_node_without_memory_gets_it_from_the_nearest(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.node(0, "0-1", 1000, "10 40 20")
    machine.node(1, "2-3", 1000, "40 10 15")
    machine.node(2, "4-5", 0, "20 15 10")
    assert Nodes(nodes(machine.sysfs)).memory_near({2}) == {1}


# --- verdicts ---------------------------------------------------------------------------------------------


def test_everything_on_the_gpus_node_is_right(machine: Machine) -> None:
    one_gpu_replica(machine, "4-7", anonymous(N1=1000))
    page = settled(machine)
    assert verdict(page) == ("right", set())
    assert page[("replica_gpu_node", R, "0000:17:00.0")] == 1
    assert {k[2]: v for k, v in page.items() if k[0] == "replica_cpu_node"} == {"0": 0, "1": 1}
    assert {k[2]: v for k, v in page.items() if k[0] == "replica_memory_node"} == {"0": 1, "1": 1}
    # The API server's one page lies on node 0: remote, but nothing against a thousand.
    assert page[("replica_remote_memory_ratio", R)] == pytest.approx(1 / 1001)
    assert page[("replica_processes", R, "command_line")] == 2
    assert page[("replica_unmeasured_processes", R)] == 0
    assert 0 <= page[("replica_memory_age_seconds", R)] < 60


def test_memory_on_the_other_node_is_wrong(machine: Machine) -> None:
    one_gpu_replica(machine, "4-7", anonymous(N0=749, N1=250))
    page = settled(machine)
    assert verdict(page) == ("wrong", {"memory_remote"})
    assert page[("replica_remote_memory_ratio", R)] == 0.75
    assert page[("replica_memory_bytes", R, "0", "own")] == 750 * PAGE
    assert page[("replica_memory_bytes", R, "1", "own")] == 250 * PAGE


def test_a_quarter_of_remote_memory_is_still_right(machine: Machine) -> None:
    one_gpu_replica(machine, "4-7", anonymous(N0=249, N1=750))
    assert verdict(settled(machine)) == ("right", set())


def test_pages_of_libraries_on_the_other_node_do_not_make_it_wrong(machine: Machine) -> None:
    library = pool("7f0000000000", "/usr/lib/libtorch.so", N0=3000)
    one_gpu_replica(machine, "4-7", library + anonymous(N1=1000))
    page = settled(machine)
    assert verdict(page) == ("right", set())
    assert page[("replica_memory_bytes", R, "0", "file")] == 3000 * PAGE
    assert page[("replica_remote_memory_ratio", R)] == pytest.approx(3001 / 4001)


@pytest.mark.parametrize(
    ("cpus", "reasons"), [("0-3", {"cpus_remote"}), ("0-7", {"not_bound"}), ("3,4", {"not_bound"})]
)
def test_cpus_on_other_nodes_are_wrong(machine: Machine, cpus: str, reasons: set[str]) -> None:
    one_gpu_replica(machine, cpus, anonymous(N1=1000))
    assert verdict(settled(machine)) == ("wrong", reasons)


def test_a_cpuset_that_keeps_memory_off_the_gpus_node_is_wrong_before_anything_is_measured(
    machine: Machine,
) -> None:
    one_gpu_replica(machine, "4-7", "", mems="0")
    assert verdict(collect(NumaCollector(machine.settings()))) == ("wrong", {"memory_remote"})


def test_a_cpuset_on_the_gpus_node_is_right_before_anything_is_measured(machine: Machine) -> None:
    one_gpu_replica(machine, "4-7", "", mems="1")
    assert verdict(collect(NumaCollector(machine.settings()))) == ("right", set())


def test_a_gpu_whose_node_is_not_told_is_unknown_and_has_no_share(machine: Machine) -> None:
    one_gpu_replica(machine, "4-7", anonymous(N1=1000), gpu_node=-1)
    page = settled(machine)
    assert verdict(page) == ("unknown", {"node_unknown"})
    assert not any(k[0] in ("replica_gpu_node", "replica_remote_memory_ratio") for k in page)
    assert page[("replica_memory_bytes", R, "1", "own")] == 1000 * PAGE


def test_a_gpu_on_a_node_that_is_not_online_is_unknown(machine: Machine) -> None:
    one_gpu_replica(machine, "4-7", anonymous(N1=1000), gpu_node=5)
    assert verdict(settled(machine))[0] == "unknown"


def test_a_gpu_that_the_driver_does_not_list_is_unknown(machine: Machine) -> None:
    one_gpu_replica(machine, "4-7", anonymous(N1=1000))
    os.symlink("/dev/nvidia7", machine.procfs / "101/fd/9")
    (machine.procfs / "101/fd/3").unlink()
    assert verdict(settled(machine))[0] == "unknown"


def test_open_files_that_may_not_be_seen_leave_the_gpu_unknown(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_gpu_replica(machine, "4-7", anonymous(N1=1000))
    monkeypatch.setattr(_numa_devices, "opened", lambda *_: None)
    assert verdict(settled(machine))[0] == "unknown"


def test_one_node_can_only_be_right(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.node(0, "0-7", 64_000, "10")
    one_gpu_replica(machine, "0-7", anonymous(N0=1000), gpu_node=-1)
    page = settled(machine)
    assert verdict(page) == ("right", {"single_node"})


def tensor_parallel(machine: Machine, cpus: tuple[str, str], opened: tuple[list[str], list[str]]) -> None:
    """An engine core on both nodes, and two workers with a GPU each, one on each node."""
    machine.gpu(0, "0000:17:00.0", 0)
    machine.gpu(1, "0000:97:00.0", 1)
    machine.process(100, SERVE, numa_maps=anonymous(N0=50, N1=50))
    machine.process(101, ["VLLM::EngineCore"], 100, name="VLLM::EngineCor", numa_maps=anonymous(N0=50, N1=50))
    for i in (0, 1):
        machine.process(
            102 + i,
            [f"VLLM::Worker_TP{i}"],
            101,
            name=f"VLLM::Worker_TP{i}"[:15],
            cpus=cpus[i],
            opened=opened[i],
            numa_maps=anonymous(**{f"N{i}": 1000}),
        )


def test_each_worker_is_held_to_its_own_gpu(machine: Machine) -> None:
    tensor_parallel(machine, ("0-3", "4-7"), (["/dev/nvidia0"], ["/dev/nvidia1"]))
    page = settled(machine)
    assert verdict(page) == ("right", set())
    assert page[("replica_remote_memory_ratio", R)] == 0
    assert {k[2]: v for k, v in page.items() if k[0] == "replica_gpu_node"} == {
        "0000:17:00.0": 0,
        "0000:97:00.0": 1,
    }


def test_two_workers_on_each_others_nodes_are_wrong(machine: Machine) -> None:
    tensor_parallel(machine, ("0-3", "4-7"), (["/dev/nvidia1"], ["/dev/nvidia0"]))
    page = settled(machine)
    assert verdict(page) == ("wrong", {"cpus_remote", "memory_remote"})
    assert page[("replica_remote_memory_ratio", R)] == pytest.approx(2000 / 2200)


def test_workers_that_open_gpus_of_both_nodes_are_unknown_without_nvml(machine: Machine) -> None:
    both = ["/dev/nvidia0", "/dev/nvidia1"]
    tensor_parallel(machine, ("0-3", "4-7"), (both, both))
    assert verdict(settled(machine)) == ("unknown", {"node_unknown"})


def test_nvml_says_which_gpu_a_worker_uses(machine: Machine) -> None:
    both = ["/dev/nvidia0", "/dev/nvidia1"]
    tensor_parallel(machine, ("0-3", "4-7"), (both, both))
    # NVML's spelling: eight digits, upper case.
    gpu_processes.tell("00000000:17:00.0", [102])
    gpu_processes.tell("00000000:97:00.0", [103, 999])
    page = settled(machine)
    assert verdict(page) == ("right", set())
    assert page[("replica_gpu_node", R, "0000:97:00.0")] == 1


def test_what_nvml_said_of_a_gpu_is_forgotten_once_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_processes.latest() is None
    gpu_processes.tell("a", [1, 2])
    gpu_processes.tell("b", [2])
    gpu_processes.tell("c", [])
    assert gpu_processes.latest() == {1: {"a"}, 2: {"a", "b"}}
    gpu_processes.tell("a", [3])
    assert gpu_processes.latest() == {3: {"a"}, 2: {"b"}}
    later = time.monotonic() + gpu_processes.KEPT + 1
    monkeypatch.setattr(gpu_processes.time, "monotonic", lambda: later)
    assert gpu_processes.latest() is None


@pytest.mark.parametrize(
    ("nvml", "sysfs"),
    [
        ("00000000:17:00.0", "0000:17:00.0"),
        ("0009:01:00.0", "0009:01:00.0"),
        ("00010000:AF:00.0", "10000:af:00.0"),
    ],
)
def test_a_pci_address_of_nvml_is_spelled_as_in_sysfs(nvml: str, sysfs: str) -> None:
    assert _numa_devices.pci_address(nvml) == sysfs


def test_without_a_gpu_memory_belongs_where_the_cpus_are(machine: Machine) -> None:
    machine.process(100, SERVE, cpus="4-7", numa_maps=anonymous(N0=600, N1=400))
    page = settled(machine)
    assert verdict(page) == ("wrong", {"memory_remote"})
    assert page[("replica_remote_memory_ratio", R)] == 0.6
    machine.process(100, SERVE, cpus="0-7", numa_maps=anonymous(N0=600, N1=400), ticks=1)
    page = settled(machine)
    assert verdict(page) == ("wrong", {"not_bound"})
    assert page[("replica_remote_memory_ratio", R)] == 0


@pytest.mark.parametrize(
    ("open_nic", "others", "reasons"),
    [
        ("uverbs1", [0], set()),
        ("uverbs0", [0, 1], {"nic_remote"}),  # there is one on the GPU's node
        ("uverbs0", [0], set()),  # there is none
        ("uverbs0", [-1], set()),  # its node is not told
    ],
)
def test_a_nic_on_the_other_node_is_wrong_only_where_there_is_a_nearer_one(
    machine: Machine, open_nic: str, others: list[int], reasons: set[str]
) -> None:
    one_gpu_replica(machine, "4-7", anonymous(N1=1000))
    for number, node in enumerate(others if open_nic == "uverbs0" else [0, 1]):
        machine.nic(number, f"mlx5_{number}", node)
    os.symlink(f"/dev/infiniband/{open_nic}", machine.procfs / "101/fd/9")
    page = settled(machine)
    assert verdict(page) == ("wrong" if reasons else "right", reasons)
    number = int(open_nic[-1])
    node = 1 if open_nic == "uverbs1" else others[0]
    nics = {k[1:]: v for k, v in page.items() if k[0] == "replica_nic_node"}
    assert nics == ({(R, f"mlx5_{number}"): node} if node >= 0 else {})


# --- memory -----------------------------------------------------------------------------------------------


def test_an_offload_pool_that_two_workers_map_counts_once(machine: Machine) -> None:
    tensor_parallel(machine, ("0-3", "4-7"), (["/dev/nvidia0"], ["/dev/nvidia1"]))
    line = pool("7f2200000000", "/dev/shm/vllm_offload_x", N0=6000, N1=2000)
    mapped = "7f2200000000-7f2202000000 rw-s 00000000 00:1a 77   /dev/shm/vllm_offload_x\n"
    for i in (0, 1):
        write(machine.procfs / f"{102 + i}/numa_maps", anonymous(**{f"N{i}": 1000}) + line)
        write(machine.procfs / f"{102 + i}/maps", mapped)
    page = settled(machine)
    own = {k[2]: v for k, v in page.items() if k[0] == "replica_memory_bytes" and k[3] == "own"}
    assert own == {"0": (6000 + 1000 + 100) * PAGE, "1": (2000 + 1000 + 100) * PAGE}
    assert page[("replica_remote_memory_ratio", R)] == 0  # local to the GPU of one of the two


def test_files_of_one_name_are_told_apart_by_their_inodes(machine: Machine) -> None:
    one_gpu_replica(machine, "4-7", "")
    for pid, inode in ((100, 5), (101, 6)):
        write(machine.procfs / f"{pid}/numa_maps", pool("7f00", "/memfd:x\\040(deleted)", N1=10))
        write(machine.procfs / f"{pid}/maps", f"7f00-8f00 rw-s 00000000 00:01 {inode}  /memfd:x (deleted)\n")
    page = settled(machine)
    assert page[("replica_memory_bytes", R, "1", "own")] == 20 * PAGE


def test_numa_maps_is_read_in_the_units_of_each_line() -> None:
    private, shared = parse(
        "00400000 default file=/usr/bin/x mapped=3 N0=3 kernelpagesize_kB=4\n"
        "00600000 bind:0 file=/usr/bin/x anon=2 dirty=2 N1=2 kernelpagesize_kB=4\n"
        "7f000000 default anon=5 dirty=5 swapcache=1 N0=3 N12=2 kernelpagesize_kB=64\n"
        "7f100000 default file=/dev/hugepages/p\\040q huge dirty=2 N1=2 kernelpagesize_kB=2048\n"
        "7f200000 default\n"
        "7f300000 default stack:12 anon=1 N0=1\n"
        "nonsense N0=x N1= =3\n\n"
    )
    assert private == {(1, "own"): 2 * 4096, (0, "own"): 3 * 65536 + 4096, (12, "own"): 2 * 65536}
    assert shared == {
        ("/usr/bin/x",): {(0, "file"): 3 * 4096},
        ("/dev/hugepages/p\\040q",): {(1, "own"): 2 * 2**21},
    }


def test_a_process_above_the_cap_is_not_read_and_leaves_the_share_absent(machine: Machine) -> None:
    one_gpu_replica(machine, "4-7", anonymous(N1=1000))
    page = settled(machine, numa_maps_bytes=2**20)
    assert page[("replica_unmeasured_processes", R)] == 2
    assert verdict(page) == ("unknown", {"memory_not_measured"})
    assert not any("ratio" in k[0] or "replica_memory_bytes" in k[0] for k in page)


def test_a_kernel_without_numa_maps_leaves_the_share_absent(machine: Machine) -> None:
    one_gpu_replica(machine, "4-7", anonymous(N1=1000))
    (machine.procfs / "101/numa_maps").unlink()
    page = settled(machine)
    assert page[("replica_unmeasured_processes", R)] == 1
    assert not any("ratio" in k[0] for k in page)


def reader_of(machine: Machine, interval: float = 300.0) -> tuple[MemoryReader, set[Process]]:
    processes = {p for r in find(machine.settings()) for p in r.processes}
    return MemoryReader(machine.procfs, 2**40, interval), processes


def until_done(reader: MemoryReader) -> None:
    if reader._job is not None:
        reader._job.thread.join(60)


def test_memory_is_read_once_in_an_interval_and_forgotten_with_its_process(machine: Machine) -> None:
    machine.process(100, SERVE, numa_maps=anonymous(N0=1))
    reader, processes = reader_of(machine)
    assert reader.update(processes) == {}
    until_done(reader)
    (first,) = reader.update(processes).values()
    assert first.private == {(0, "own"): PAGE}
    write(machine.procfs / "100/numa_maps", anonymous(N0=2))
    until_done(reader)
    assert list(reader.update(processes).values()) == [first]
    assert reader.update(set()) == {}
    hurried, _ = reader_of(machine, interval=0.0)
    for expected in (2, 3):
        write(machine.procfs / "100/numa_maps", anonymous(N0=expected))
        hurried.update(processes)
        until_done(hurried)
        (reading,) = hurried.update(processes).values()
        until_done(hurried)
        assert reading.private == {(0, "own"): expected * PAGE}


def test_a_process_in_its_first_seconds_is_not_read(machine: Machine) -> None:
    machine.process(100, SERVE, ticks=100 * os.sysconf("SC_CLK_TCK"))
    write(machine.procfs / "uptime", "110.5 7.0\n")
    reader, processes = reader_of(machine)
    reader.update(processes)
    assert reader._job is None
    write(machine.procfs / "uptime", "131.5 7.0\n")
    reader.update(processes)
    assert reader._job is not None
    until_done(reader)


def test_a_reading_that_hangs_costs_only_its_process(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO that nobody writes to hangs at its opening, as the kernel does with a stuck process."""
    monkeypatch.setattr(_numa_maps, "PATIENCE", 0.05)
    machine.process(100, SERVE)
    machine.process(101, ["VLLM::EngineCore"], 100, numa_maps=anonymous(N0=7))
    stuck = machine.procfs / "100/numa_maps"
    stuck.unlink()
    os.mkfifo(stuck)
    reader, processes = reader_of(machine)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            began = time.monotonic()
            found = reader.update(processes)
            assert time.monotonic() - began < 15  # the FIFO would be waited for without end
            if found:
                break
            time.sleep(0.02)
        assert [(p.pid, r.private) for p, r in found.items()] == [(101, {(0, "own"): 7 * PAGE})]
        assert [p.pid for p in reader._stuck] == [100]
    finally:
        with stuck.open("w"):
            pass


def test_a_replica_that_goes_takes_its_series_along(machine: Machine) -> None:
    one_gpu_replica(machine, "4-7", anonymous(N1=1000))
    collector = NumaCollector(machine.settings())
    assert any(R in k for k in collect(collector))
    finish(collector)
    machine.gone(100)
    machine.gone(101)
    assert not any(R in k for k in collect(collector))
    assert collector._opened == {}


def test_two_replicas_are_two(machine: Machine) -> None:
    one_gpu_replica(machine, "4-7", anonymous(N1=1000))
    machine.process(200, [*SERVE[:-1], "8101"], cpus="0-3", memory="0", numa_maps=anonymous(N0=5))
    page = settled(machine)
    assert verdict(page) == ("right", set())
    assert verdict(page, "127.0.0.1:8101") == ("right", set())


def test_a_scrape_that_runs_late_hands_over_what_it_has(machine: Machine) -> None:
    one_gpu_replica(machine, "4-7", anonymous(N1=1000))
    samples = NumaCollector(machine.settings()).collect(time.monotonic() - 1)
    assert {s.name for s in samples} >= {"exaserve_numa_node_cpus"}
    assert not any(s.name.startswith("exaserve_numa_replica") for s in samples)


def test_this_machines_nodes_and_our_own_memory_are_read() -> None:
    """The real /proc and /sys: what numa_maps adds up to is what the kernel says is resident."""
    if not Path("/proc/self/numa_maps").exists() or not nodes(Path("/sys")):
        pytest.skip("a kernel without NUMA")
    page = collect(NumaCollector(Settings()))
    assert sum(v for k, v in page.items() if k[0] == "node_cpus") >= len(os.sched_getaffinity(0))
    text, maps = Path("/proc/self/numa_maps").read_text(), Path("/proc/self/maps").read_text()
    private, shared = parse(text, maps)
    counted = sum(private.values()) + sum(sum(pages.values()) for pages in shared.values())
    status = Path("/proc/self/status").read_text()
    resident = int(status.partition("VmRSS:")[2].split()[0]) * 1024
    assert counted == pytest.approx(resident, rel=0.15)
