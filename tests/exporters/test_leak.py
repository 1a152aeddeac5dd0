"""The leak collector: sums over a replica's processes, from fixture files and from a real process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from exporters import processes
from exporters.collectors import leak
from exporters.processes import Process, ReplicaProcesses
from exporters.registry import NoData
from exporters.settings import Settings

KIB = 1024


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """found(r0=[(pid, ticks), …]): the replicas of the node."""

    def tell(**replicas: list[tuple[int, int]]) -> None:
        those = [
            ReplicaProcesses(name, "cgroup", tuple(Process(pid, ticks, "python") for pid, ticks in members))
            for name, members in replicas.items()
        ]
        monkeypatch.setattr(processes, "find", lambda settings: those)

    return tell


def process(procfs: Path, pid: int, status: str, fds: int | None = 3, limit: str = "1024") -> None:
    folder = procfs / str(pid)
    folder.mkdir(parents=True)
    (folder / "status").write_text(status)
    (folder / "limits").write_text(
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        f"Max open files            {limit:<21}1048576              files     \n"
    )
    if fds is not None:
        (folder / "fd").mkdir()
        for number in range(fds):
            (folder / "fd" / str(number)).touch()


def status(resident: int, anonymous: int, swap: int, threads: int) -> str:
    return (
        f"Name:\tVLLM::EngineCor\nState:\tS (sleeping)\nVmRSS:\t{resident:8d} kB\nRssAnon:\t{anonymous:8d} kB\n"
        f"RssFile:\t       7 kB\nVmSwap:\t{swap:8d} kB\nThreads:\t{threads}\n"
    )


def scrape(procfs: Path) -> dict[tuple[str, str], float]:
    collector = leak.LeakCollector(Settings(procfs=procfs))
    return {
        (s.name.removeprefix("exaserve_process_"), s.labels[0]): s.value
        for s in collector.collect(time.monotonic() + 5)
    }


def test_a_replica_is_the_sum_of_its_processes(tmp_path: Path, found: Callable[..., None]) -> None:
    (tmp_path / "stat").write_text("cpu  1 2 3\nbtime 1700000000\nprocesses 9\n")
    process(tmp_path, 10, status(1000, 600, 0, 5), fds=3)
    process(tmp_path, 11, status(4000, 3000, 50, 70), fds=7, limit="10")
    process(tmp_path, 20, status(10, 5, 0, 1), fds=0)
    hertz = os.sysconf("SC_CLK_TCK")
    found(r0=[(10, 100 * hertz), (11, 130 * hertz)], r1=[(20, 0)])
    assert scrape(tmp_path) == {
        ("group_size", "r0"): 2,
        ("resident_memory_bytes", "r0"): 5000 * KIB,
        ("private_memory_bytes", "r0"): 3650 * KIB,
        ("swap_bytes", "r0"): 50 * KIB,
        ("threads", "r0"): 75,
        ("start_time_seconds", "r0"): 1700000100,
        ("open_fds", "r0"): 10,
        ("open_fds_ratio", "r0"): 0.7,
        ("group_size", "r1"): 1,
        ("resident_memory_bytes", "r1"): 10 * KIB,
        ("private_memory_bytes", "r1"): 5 * KIB,
        ("swap_bytes", "r1"): 0,
        ("threads", "r1"): 1,
        ("start_time_seconds", "r1"): 1700000000,
        ("open_fds", "r1"): 0,
        ("open_fds_ratio", "r1"): 0,
    }


def test_what_cannot_be_read_is_absent(tmp_path: Path, found: Callable[..., None]) -> None:
    process(tmp_path, 10, status(1000, 600, 0, 5), fds=None, limit="unlimited")
    found(r0=[(10, 0), (11, 0)], gone=[(12, 0)])  # 11 has just ended
    assert {k: v for k, v in scrape(tmp_path).items() if k[0] != "threads"} == {
        ("group_size", "r0"): 1,
        ("resident_memory_bytes", "r0"): 1000 * KIB,
        ("private_memory_bytes", "r0"): 600 * KIB,
        ("swap_bytes", "r0"): 0,
    }


@pytest.mark.parametrize(
    "text", ["VmRSS:\n", "VmRSS: x kB\n", "no colon\n", "VmRSS:\t-5 kB\nThreads:\tmany\n"]
)
def test_a_status_that_makes_no_sense_breaks_nothing(tmp_path: Path, text: str) -> None:
    process(tmp_path, 10, text)
    use = leak.use(tmp_path, 10)
    assert use is not None
    assert (use.resident, use.threads) == (None, None)


def test_without_replicas_there_is_nothing(tmp_path: Path, found: Callable[..., None]) -> None:
    found()
    with pytest.raises(NoData):
        scrape(tmp_path)


OPENS_FILES = """
import os, sys
print("ready", flush=True)
sys.stdin.readline()
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
print("more", flush=True)
sys.stdin.read()
"""


def test_a_real_process_is_read() -> None:
    """One of the test's own: in this one threads of other tests may still open and close files."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", OPENS_FILES], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        use = leak.use(Path("/proc"), process.pid)
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == "more\n"
        more = leak.use(Path("/proc"), process.pid)
        process.stdin.close()
    assert use is not None
    assert use.resident is not None
    assert use.anonymous is not None
    assert use.resident >= use.anonymous > 2**20
    assert use.fds is not None
    assert use.fds >= 3
    assert more is not None
    assert more.fds == use.fds + 20
    assert leak.use(Path("/proc"), 2**22 + 1) is None
