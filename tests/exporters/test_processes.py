"""Which processes are a replica's: by ExaServe's record, by command line, by the container they are in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numa_trees import Machine, write

from exporters import commandline, proctable
from exporters.commandline import Server
from exporters.processes import Process, find, is_same
from exporters.proctable import Row
from exporters.settings import Replica, Settings

VLLM = ["/opt/vllm/bin/python3", "/opt/vllm/bin/vllm", "serve", "some/model", "--port", "8100"]
CORE = ["VLLM::EngineCore"]
WORKER = ["VLLM::Worker_TP0"]
BOX = "0::/system.slice/docker-" + "ab" * 32 + ".scope\n"
OTHER_BOX = "0::/system.slice/docker-" + "cd" * 32 + ".scope\n"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def found(settings: Settings) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {r.name: (r.found_by, r.pids) for r in find(settings)}


def record(machine: Machine, *parts: dict[str, object]) -> None:
    write(machine.run / "stack.json", json.dumps({"phase": "ready", "parts": parts}))


def part(name: str, pid: int, ticks: int, boot: str = "", port: int = 8100) -> dict[str, object]:
    identity = {"pid": pid, "ticks": ticks, "boot": boot}
    return {"name": name, "address": f"http://127.0.0.1:{port}", "identity": identity}


# --- by ExaServe's record ---------------------------------------------------------------------------------


def test_a_recorded_replica_has_its_children_and_its_session(machine: Machine) -> None:
    machine.process(100, VLLM)
    machine.process(101, CORE, parent=100, session=100)
    machine.process(102, WORKER, parent=101, session=102)
    machine.process(103, ["python", "-c", "tracker"], parent=1, session=100)  # its parent died
    machine.process(104, ["bash"])
    record(machine, part("replica-0", 100, 10_000), part("router", 104, 10_400))
    assert found(machine.settings()) == {"replica-0": ("run_folder", (100, 101, 102, 103))}


def test_a_recorded_pid_that_is_anothers_by_now_is_not_the_replica(machine: Machine) -> None:
    machine.process(100, ["bash"])
    record(machine, part("replica-0", 100, 9_999))
    assert found(machine.settings()) == {}


def test_a_record_from_before_a_reboot_does_not_count(machine: Machine) -> None:
    machine.process(100, ["bash"])
    write(machine.procfs / "sys/kernel/random/boot_id", "now\n")
    record(machine, part("replica-0", 100, 10_000, boot="before"))
    assert found(machine.settings()) == {}
    record(machine, part("replica-0", 100, 10_000, boot="now"))
    assert found(machine.settings()) == {"replica-0": ("run_folder", (100,))}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"parts": 7}',
        '{"parts": [7, {"identity": 1}]}',
        '{"parts": [{"name": "replica-0", "identity": {"pid": "x"}}]}',
        "[" * 100_000,
    ],
)
def test_a_record_that_is_none_costs_nothing(machine: Machine, text: str) -> None:
    machine.process(100, VLLM)
    write(machine.run / "stack.json", text)
    assert found(machine.settings()) == {"127.0.0.1:8100": ("command_line", (100,))}


def test_the_settings_name_a_recorded_replica_by_its_address(machine: Machine) -> None:
    machine.process(100, VLLM)
    record(machine, part("replica-0", 100, 10_000))
    names = {"gpu-0": "http://localhost:8100/metrics", "gpu-1": "http://localhost:8101/metrics"}
    assert found(machine.settings(names)) == {"gpu-0": ("run_folder", (100,))}


# --- by command line --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "server"),
    [
        ("vllm serve m", Server("vllm", "", 8000)),
        ("/usr/bin/python3.12 -u /usr/local/bin/vllm serve m --port=9001", Server("vllm", "", 9001)),
        (
            "python -X dev -m vllm.entrypoints.openai.api_server --host 10.0.0.5 --port 1",
            Server("vllm", "10.0.0.5", 1),
        ),
        ("python3 /src/vllm/entrypoints/openai/api_server.py", Server("vllm", "", 8000)),
        ("python -m vllm.entrypoints.cli.main serve m", Server("vllm", "", 8000)),
        ("vllm serve m --headless --port 8000", Server("vllm", "", None)),
        ("vllm serve m --uds /run/vllm.sock", Server("vllm", "", None)),
        ("vllm serve m --port 99999999", Server("vllm", "", 8000)),
        ("python3 -m sglang.launch_server --model-path m", Server("sglang", "", 30000)),
        ("sglang serve --port 5000", Server("sglang", "", 5000)),
        ("/usr/bin/python3 /usr/local/bin/trtllm-serve m --port 8080", Server("tensorrt_llm", "", 8080)),
        ("python -m serving.engines.simulated --port 8100", Server("simulated", "", 8100)),
        ("vllm bench serve", None),
        ("bash -c vllm serve m", None),
        ("docker run image vllm serve m", None),
        ("python -c vllm serve", None),
        ("python -m pytest vllm serve", None),
        ("grep -r vllm serve", None),
        ("vim vllm/entrypoints/openai/api_server.py", None),
        ("python", None),
        ("python -m", None),
        ("", None),
    ],
)
def test_a_server_is_told_by_its_command_line(argv: str, server: Server | None) -> None:
    assert commandline.server_of(argv.split()) == server


def test_a_server_by_command_line_is_the_topmost_with_all_its_children(machine: Machine) -> None:
    machine.process(90, ["bash", "-c", "vllm serve some/model --port 8100"])
    machine.process(100, VLLM, parent=90, session=90)
    machine.process(101, VLLM, parent=100, session=90)  # forked, not yet renamed
    machine.process(102, CORE, parent=101, session=90)
    assert found(machine.settings()) == {"127.0.0.1:8100": ("command_line", (100, 101, 102))}


def test_kernel_threads_zombies_and_other_processes_are_nobodys(machine: Machine) -> None:
    machine.process(2, [], parent=0, name="kthreadd", flags=0x00200000)
    machine.process(100, VLLM, name="a ) R (b")
    machine.process(101, CORE, parent=100, state="Z")
    machine.process(102, ["bash"])
    assert found(machine.settings()) == {"127.0.0.1:8100": ("command_line", (100,))}


def test_two_servers_of_one_port_get_two_names(machine: Machine) -> None:
    machine.process(100, VLLM)
    machine.process(200, VLLM)
    assert found(machine.settings({"a": "http://127.0.0.1:8100"})) == {
        "127.0.0.1:8100@100": ("command_line", (100,)),
        "127.0.0.1:8100@200": ("command_line", (200,)),
    }


def test_a_replica_is_named_by_an_address_of_its_own_network_namespace(machine: Machine) -> None:
    for pid, address in ((100, "10.0.0.5"), (200, "10.0.0.6")):
        machine.process(pid, VLLM)
        trie = f"Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- {address}\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n"
        write(machine.procfs / f"{pid}/net/fib_trie", trie)
    names = {"x": "http://10.0.0.5:8100/metrics", "y": "http://10.0.0.6:8100/metrics"}
    assert found(machine.settings(names)) == {
        "x": ("command_line", (100,)),
        "y": ("command_line", (200,)),
    }


def test_a_replica_of_another_machine_does_not_give_its_name(machine: Machine) -> None:
    machine.process(100, VLLM)
    write(machine.procfs / "100/net/fib_trie", "     |-- 10.0.0.5\n        /32 host LOCAL\n")
    assert set(found(machine.settings({"far": "http://10.0.0.9:8100/metrics"}))) == {"127.0.0.1:8100"}


def test_a_name_of_this_machine_counts_and_an_unknown_one_where_nothing_else_can_be_meant(
    machine: Machine,
) -> None:
    machine.process(100, VLLM)
    write(machine.procfs / "sys/kernel/hostname", "gpu-1.cluster\n")
    both = {"a": "http://gpu-1:8100/metrics", "b": "http://gpu-2:8100/metrics"}
    assert set(found(machine.settings(both))) == {"a"}
    assert set(found(machine.settings({"c": "http://alias:8100/metrics"}))) == {"c"}
    two = {"c": "http://alias:8100/metrics", "d": "http://other:8100/metrics"}
    assert set(found(machine.settings(two))) == {"127.0.0.1:8100"}


# --- by container -----------------------------------------------------------------------------------------


def test_workers_outside_the_tree_join_the_one_server_of_their_container(machine: Machine) -> None:
    machine.process(100, VLLM, cgroup=BOX)
    machine.process(300, ["ray::RayWorkerWrapper.execute_method"], cgroup=BOX)
    machine.process(301, WORKER, cgroup=BOX)
    machine.process(302, ["ray::IDLE"], cgroup=BOX)
    machine.process(303, ["ray::RayWorkerWrapper"], cgroup=OTHER_BOX)
    assert found(machine.settings()) == {"127.0.0.1:8100": ("command_line", (100, 300, 301))}


def test_workers_without_a_server_are_a_replica_named_by_what_they_run_in(machine: Machine) -> None:
    machine.process(100, ["python", "my_server.py"], cgroup=BOX)
    machine.process(101, CORE, parent=100, cgroup=BOX)
    machine.process(102, WORKER, parent=101, cgroup=BOX)
    pod = "0::/kubepods.slice/kubepods-pod12345678_1234_1234_1234_123456789abc.slice/x\n"
    machine.process(201, ["sglang::scheduler_TP0"], cgroup=pod)
    machine.process(301, CORE, cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n")
    machine.process(400, ["python", "batch.py"])
    machine.process(401, CORE, parent=400)
    assert found(machine.settings()) == {
        "abababababab": ("cgroup", (101, 102)),
        "pod-12345678-1234-1234-1234-123456789abc": ("cgroup", (201,)),
        "slurm-7.0": ("cgroup", (301,)),
        "pid-400": ("cgroup", (401,)),
    }


# --- what goes wrong --------------------------------------------------------------------------------------


def test_a_folder_that_is_no_procfs_has_no_replica(tmp_path: Path) -> None:
    assert find(Settings(procfs=tmp_path / "nothing")) == []
    machine = Machine(tmp_path / "m")
    for number, text in enumerate(("", "100", "100 (x", "100 (x) S a b c", "\xff\0" * 9), start=100):
        write(machine.procfs / f"{number}/stat", text)
    (machine.procfs / "200").mkdir()
    assert find(machine.settings()) == []


def test_a_process_is_the_same_by_its_start(machine: Machine) -> None:
    machine.process(100, VLLM)
    (replica,) = find(machine.settings())
    assert replica.processes == (Process(100, 10_000, "python3"),)
    assert is_same(machine.procfs, replica.processes[0])
    machine.process(100, VLLM, ticks=10_001)
    assert not is_same(machine.procfs, replica.processes[0])
    machine.gone(100)
    assert not is_same(machine.procfs, replica.processes[0])


def test_a_command_line_that_hangs_costs_only_its_process_and_one_wait(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO that nobody writes to hangs at its opening, as the kernel does with a stuck process."""
    machine.process(90, VLLM)
    machine.process(100, [*VLLM[:-1], "8101"])
    command_line = machine.procfs / "90/cmdline"
    command_line.unlink()
    os.mkfifo(command_line)
    asked: list[list[int]] = []
    job = proctable.Job

    def noted(name: str, items: list[Row], work: Callable[[Row], list[str] | None]) -> Any:
        asked.append([row.pid for row in items])
        return job(name, items, work)

    monkeypatch.setattr(proctable, "Job", noted)
    try:
        assert found(machine.settings()) == {"127.0.0.1:8101": ("command_line", (100,))}
        assert asked == [[90, 100], [100]]
        assert found(machine.settings()) == {"127.0.0.1:8101": ("command_line", (100,))}
        assert asked[2:] == [[100]]
    finally:
        with command_line.open("wb", buffering=0) as f:
            f.write("\0".join(VLLM).encode())
    for thread in threading.enumerate():
        if thread.name == "command-lines":
            thread.join(60)
    command_line.unlink()
    command_line.write_text("\0".join(VLLM))
    assert set(found(machine.settings())) == {"127.0.0.1:8100", "127.0.0.1:8101"}


def test_this_machines_own_processes_are_read() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", "--port", "1"], stdin=subprocess.PIPE
    )
    try:
        rows = proctable.rows(Path("/proc"))
        row = rows[child.pid]
        assert (row.pid, row.parent) == (child.pid, os.getpid())
        assert row == Row(child.pid, os.getpid(), os.getsid(0), row.ticks, row.command)
        lines = proctable.command_lines(Path("/proc"), [row])
        assert lines == {child.pid: [sys.executable, "-c", "import sys; sys.stdin.read()", "--port", "1"]}
        found = find(Settings((Replica("x", "http://127.0.0.1:1"),)))
        assert not any(child.pid in r.pids for r in found)
    finally:
        child.communicate()
    assert proctable.row(Path("/proc"), child.pid) is None
