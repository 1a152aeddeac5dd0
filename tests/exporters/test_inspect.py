"""``exaserve inspect`` on real processes that the test starts, and its rules on made-up ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from exporters import proctable
from exporters.inspect_cli import app
from exporters.inspection import gather
from exporters.inspection.advice import advice
from exporters.inspection.gather import Process
from exporters.inspection.threads import Frame, Thread, what
from exporters.settings import Settings

PROGRAM = """
import socket, sys, threading
lock = threading.Lock()
lock.acquire()
def blocked():
    with lock:
        pass
for i in range(4):
    threading.Thread(target=blocked, name=f"blocked-{i}", daemon=True).start()
listener = socket.create_server(("127.0.0.1", 0))
def accepting():
    listener.accept()
threading.Thread(target=accepting, name="accepting", daemon=True).start()
def computing():
    while True:
        sum(range(1000))
if sys.argv[1] == "busy":
    threading.Thread(target=computing, name="computing", daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


def can_trace() -> bool:
    """Whether this user may read the stacks of its own children."""
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        scope = "0"
    return scope == "0" or os.geteuid() == 0


#: Stacks come in milliseconds, but on a machine that stands still meanwhile.
PATIENT = ("--timeout", "60")

needs_trace = pytest.mark.skipif(not can_trace(), reason="kernel.yama.ptrace_scope forbids reading stacks")


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """program("busy" or "still"): a process with four threads that wait for one lock, ready."""
    (tmp_path / "program.py").write_text(PROGRAM)
    started: list[subprocess.Popen[bytes]] = []

    def start(mode: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, tmp_path / "program.py", mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def inspect(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def told(*arguments: str) -> dict[str, Any]:
    result = inspect(*arguments, "--json", *PATIENT)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


# Real processes


@needs_trace
def test_threads_that_wait_for_one_lock_are_found(program: Callable[[str], subprocess.Popen[bytes]]) -> None:
    pid = program("still").pid
    expected = {f"blocked-{i}": "lock" for i in range(4)} | {"accepting": "socket"}
    end = time.monotonic() + 60  # they may not have come there yet
    while True:
        found = told(str(pid))
        process = found["processes"][0]
        threads = {t["name"]: t for t in process["threads"]}
        if {name: threads[name]["what"] for name in expected if name in threads} == expected:
            break
        assert time.monotonic() < end, threads
    assert threads["blocked-0"]["frames"][0]["function"] == "blocked"
    assert process["threads_total"] == 6
    assert process["fds"] >= 4
    assert process["resident"] >= process["private"] > 2**20
    assert process["problem"] is None
    (finding,) = found["findings"]
    assert finding["seen"].startswith("4 threads wait for a lock at blocked (")
    assert finding["seen"].endswith("program.py:6); nothing runs meanwhile")
    assert "deadlock" in finding["look"]


@needs_trace
def test_a_busy_loop_is_found_and_the_text_names_it(
    program: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    pid = program("busy").pid
    end = time.monotonic() + 60  # a busy machine may give it no time in one half second
    while True:
        result = inspect(str(pid), *PATIENT)
        assert result.exit_code == 0
        lines = (
            f"{pid}: thread computing uses",
            "4 threads wait for a lock at blocked (",
            " and 3 more",
            "waits: lock",
            "program.py:",
        )
        if all(line in result.stdout for line in lines):
            break
        assert time.monotonic() < end, result.stdout


@needs_trace
def test_a_stopped_process_is_told(program: Callable[[str], subprocess.Popen[bytes]]) -> None:
    process = program("still")
    os.kill(process.pid, signal.SIGSTOP)
    # Its main thread may be in a system call that it has to leave first.
    end = time.monotonic() + 60
    while f"{process.pid}: it is stopped by a signal" not in (result := inspect(str(process.pid))).stdout:
        assert time.monotonic() < end, result.stdout
    assert f"kill -CONT {process.pid}" in result.stdout


def test_children_come_with_their_parent(program: Callable[[str], subprocess.Popen[bytes]]) -> None:
    pid = program("still").pid

    assert pid in gather.pids_of(Settings(), str(os.getpid()))
    assert gather.pids_of(Settings(), str(pid)) == [pid]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("4194999", "no process 4194999 (or it is a zombie, or one of the kernel)"),
        ("99999999999999999999", "no process 99999999999999999999"),
        ("no-such-replica", "no replica no-such-replica on this node; there are: "),
        ("-1", ""),
        ("٣", "no replica ٣ on this node"),
    ],
)
def test_a_target_that_is_not_there_is_told_without_a_traceback(target: str, message: str) -> None:
    result = inspect(target)
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_py_spy_that_cannot_be_started_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "py-spy").write_text("")
    monkeypatch.setattr(gather, "_program", lambda: str(tmp_path / "py-spy"))
    result = inspect(str(os.getpid()), "--timeout", "5")
    assert "  py-spy can't be started: Permission denied" in result.stdout.splitlines()


def test_names_of_processes_and_threads_move_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Process(
        7, "a\x1b[2Jb\nc", "S", "", 1, 1, 1, 1, 1, None,
        (Thread(7, "t\x1b]0;x\x07", "lock", False, 0.0, "futex", "S", (Frame("f", "/x.py", 1),)),), None,
    )  # fmt: skip
    monkeypatch.setattr(gather, "pids_of", lambda *_: [7])
    monkeypatch.setattr(gather, "gather", lambda *_: [odd])
    lines = inspect("7").stdout.splitlines()
    assert lines[0].startswith("7 a [2Jb c: 0 MiB resident")
    assert lines[1].split() == ["t", "]0;x", "waits:", "lock", "f", "(/x.py:1)"]


def test_it_does_not_look_at_itself_and_stops_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()
    parents = (
        {1: 0, own: 1, 20: own} | {100 + i: 1 for i in range(200)} | {1000 + i: 100 + i for i in range(200)}
    )
    rows = {pid: proctable.Row(pid, parent, 1, 0, "x") for pid, parent in parents.items()}
    monkeypatch.setattr(proctable, "rows", lambda _: rows)
    found = gather.pids_of(Settings(), "1")
    assert len(found) == gather.MAX_PROCESSES
    assert own not in found
    assert gather.pids_of(Settings(), str(own)) == [own, 20]


def test_a_process_that_ends_meanwhile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "pids_of", lambda settings, target: [2**22 + 5])
    result = inspect("1")
    assert (result.exit_code, result.output) == (1, "1 has ended\n")


# py-spy that can't


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (
            "Permission Denied: Try running again with elevated permissions by going 'sudo env'",
            "its stacks need the right to trace it: run this as root (sudo), or as its user where "
            "kernel.yama.ptrace_scope is 0; in a container add the capability SYS_PTRACE",
        ),
        (
            "Error: Failed to find python version from target process",
            "not a Python process, or a Python that py-spy doesn't know",
        ),
        ("Error: something else\n\nStack backtrace:\n 0: x", "py-spy: Error: something else"),
        ("", "py-spy: failed without a word"),
    ],
)
def test_what_py_spy_cannot_do_is_said_with_its_cure(error: str, problem: str) -> None:
    assert gather._why(error) == problem


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exec sleep 60", "its stacks did not come in time"),
        ("echo '{}'", "py-spy told nothing"),
        ("echo '[3, null, {\"frames\": []}]'", None),
        ("echo '['", "py-spy's answer can't be understood"),
        ("echo 'Permission denied' >&2; exit 1", "its stacks need the right to trace it"),
        (None, "py-spy is not installed"),
    ],
)
def test_everything_else_is_shown_when_stacks_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, problem: str | None
) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\n{script}\n")
    spy.chmod(0o755)
    monkeypatch.setattr(gather, "_program", lambda: str(spy) if script else None)
    monkeypatch.setattr(gather, "pids_of", lambda settings, target: [os.getpid()])
    limit = "1" if script == "exec sleep 60" else "60"
    result = inspect("1", "--timeout", limit, "--json")
    (process,) = json.loads(result.stdout)["processes"]
    assert process["pid"] == os.getpid()
    assert process["resident"] > 2**20
    if problem is None:
        assert (result.exit_code, process["problem"], len(process["threads"])) == (0, None, 1)
    else:
        assert (result.exit_code, process["threads"]) == (1, [])
        assert process["problem"].startswith(problem)


# Rules


def thread(what: str, **given: Any) -> Thread:
    frames = (Frame("acquire", "/usr/lib/python3.11/threading.py", 9), Frame("step", "/app/core.py", 12))
    return replace(Thread(7, "MainThread", what, False, 0.0, "", "S", frames), **given)


def process(*threads: Thread, **given: Any) -> Process:
    whole = Process(5, "VLLM::EngineCor", "S", "", 2**30, 2**29, 10, 1000, 4, None, threads, None)
    return replace(whole, **given)


@pytest.mark.parametrize(
    ("frames", "kernel", "state", "expected"),
    [
        ([("all_reduce", "/x/torch/distributed/distributed_c10d.py")], "futex_do_wait", "S", "collective"),
        ([("all_reduce", "/x/torch/distributed/distributed_c10d.py")], "", "R", "collective"),
        ([("dequeue", "/x/vllm/distributed/device_communicators/shm_broadcast.py")], "", "S", "next step"),
        ([("dequeue", "/x/vllm/distributed/device_communicators/shm_broadcast.py")], "", "R", "running"),
        ([("synchronize", "/x/torch/cuda/streams.py")], "", "R", "GPU"),
        ([("cudaStreamSynchronize", "libcudart.so")], "", "R", "GPU"),
        ([("gc_collect_main", "gcmodule.c")], "", "R", "garbage collection"),
        ([("_encode", "/x/transformers/tokenization_utils_fast.py")], "", "R", "tokenizing"),
        ([("select", "/usr/lib/python3.11/selectors.py")], "do_epoll_wait", "S", "events"),
        ([("poll", "/x/zmq/sugar/poll.py")], "do_poll", "S", "next message"),
        (
            [("_worker", "/usr/lib/python3.11/concurrent/futures/thread.py")],
            "futex_do_wait",
            False,
            "next task",
        ),
        ([("Event.wait", "/usr/lib/python3.11/threading.py")], "futex_do_wait", "S", "signal"),
        ([("f", "/app/a.py")], "futex_wait_queue", "S", "lock"),
        ([("f", "/app/a.py")], "folio_wait_bit", "S", "storage"),
        ([("f", "/app/a.py")], "rpc_wait_bit_killable", "S", "storage"),
        ([("f", "/app/a.py")], "inet_csk_accept", "S", "socket"),
        ([("f", "/app/a.py")], "hrtimer_nanosleep", "S", "sleep"),
        ([("f", "/app/a.py")], "something_new", "S", "unknown"),
        ([("f", "/app/a.py")], "", "S", "unknown"),
        ([("f", "/app/a.py")], "", "R", "running"),
        ([], "", "S", "unknown"),
    ],
)
def test_what_a_thread_is_at(frames: list[tuple[str, str]], kernel: str, state: str, expected: str) -> None:
    assert (
        what(tuple(Frame(f, file, 1) for f, file in frames), kernel, state, float(state == "R")) == expected
    )


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (process(thread("events"), command="python"), []),
        (process(thread("next step")), ["the engine waits for work"]),
        (process(thread("lock"), thread("lock")), []),
        (
            process(*[thread("lock")] * 3, thread("running", name="w", holds_gil=True)),
            ["3 threads wait for a lock at step (/app/core.py:12); running meanwhile: w"],
        ),
        (process(thread("collective")), ["MainThread in a collective operation at step (/app/core.py:12)"]),
        (process(thread("GPU")), ["MainThread waits for the GPU at step (/app/core.py:12)"]),
        (process(thread("tokenizing", cpu=1)), ["MainThread: tokenizing at step (/app/core.py:12)"]),
        (
            process(thread("running", cpu=0.97, holds_gil=True)),
            ["thread MainThread uses 97% of a CPU and holds the GIL, at step (/app/core.py:12)"],
        ),
        (process(fds=800), ["800 of 1000 file descriptors are open"]),
        (process(fds=799), []),
        (process(fds=None), []),
        (process(state="t"), ["it is traced by a debugger"]),
        (
            process(thread("storage", state="D", kernel="nfs_wait")),
            ["1 thread(s) wait in the kernel and can't be interrupted (nfs_wait)"],
        ),
    ],
)
def test_the_rules_say_what_was_seen(given: Process, seen: list[str]) -> None:
    assert [f.seen for f in advice([given])] == seen
