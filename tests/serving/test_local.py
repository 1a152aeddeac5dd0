"""Processes: they end with us, whole, and their logs stay within bounds."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from serving.launch.local import Identity, Process, boot_id, bound, identity, tail


def wait_for(what: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def shell(folder: Path, script: str) -> Process:
    return Process(["/bin/sh", "-c", script], {}, folder / "part.log", folder)


def test_output_is_appended_and_input_is_empty(tmp_path: Path) -> None:
    (tmp_path / "part.log").write_text("before\n")
    process = shell(tmp_path, 'read -r line || echo "no input, $ANSWER"; exit 3')
    wait_for(lambda: process.ended() is not None)
    assert process.ended() == 3
    assert (tmp_path / "part.log").read_text() == "before\nno input, \n"


def test_ending_takes_what_the_process_started_along(tmp_path: Path) -> None:
    process = shell(tmp_path, "sleep 1000 & echo $!; wait")
    wait_for(process.has_written)
    grandchild = int(tail(process.log, 1)[0])
    os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: process.ended() is not None)
    assert process.ended() == -signal.SIGKILL
    wait_for(lambda: gone(grandchild))


def test_a_killed_parent_takes_children_and_grandchildren_along(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from serving.launch.local import Process\n"
        "f = pathlib.Path(sys.argv[1])\n"
        "p = Process(['/bin/sh', '-c', 'sleep 1000 & echo $!; wait'], {}, f / 'part.log', f)\n"
        "print(p.pid, flush=True); time.sleep(1000)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    wait_for(lambda: tail(tmp_path / "part.log", 1))
    grandchild = int(tail(tmp_path / "part.log", 1)[0])
    assert not gone(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: gone(child) and gone(grandchild))


def test_terminate_reaches_a_stopped_process(tmp_path: Path) -> None:
    process = shell(tmp_path, "exec sleep 1000")
    process.signal(signal.SIGSTOP)
    process.terminate()
    wait_for(lambda: process.ended() is not None)
    assert process.ended() == -signal.SIGTERM


def test_a_recycled_pid_is_not_taken_for_the_recorded_process() -> None:
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        real = identity(child.pid)
        assert real is not None
        assert real.alive()
        for other in (
            Identity(child.pid, real.ticks - 1, boot_id()),
            Identity(child.pid, real.ticks, "other boot"),
        ):
            assert not other.alive()
            other.signal(signal.SIGKILL)
            other.signal(signal.SIGKILL, group=True)
        assert child.poll() is None
        real.signal(signal.SIGTERM)
        assert child.wait(60) == -signal.SIGTERM
        assert not real.alive()
    finally:
        child.kill()


def test_a_log_beyond_its_limit_is_moved_aside_while_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    with log.open("a") as writer:
        writer.write("x" * 100)
        writer.flush()
        bound(log, limit=100)
        assert log.stat().st_size == 100
        bound(log, limit=99)
        writer.write("after")
    assert log.read_text() == "after"
    assert (tmp_path / "part.log.1").read_text() == "x" * 100


def test_tail_reads_the_end_and_only_this_start(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    log.write_text("old\n" + "new 1\nnew 2\n")
    assert tail(log, 5, start=4) == ["new 1", "new 2"]
    assert tail(log, 1) == ["new 2"]
    assert tail(log, 5, start=1000) == ["old", "new 1", "new 2"]  # emptied meanwhile
    assert tail(tmp_path / "none.log", 5) == []


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_log_is_bounded_where_there_is_no_room_for_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("serving.launch.local.shutil.copyfile", full)
    log = tmp_path / "part.log"
    log.write_text("x" * 100)
    bound(log, limit=99)
    assert log.stat().st_size == 0


def test_a_process_without_a_guard_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(group: int) -> None:
        pids.append(group)
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    pids: list[int] = []
    monkeypatch.setattr("serving.launch.local._guard", fail)
    with pytest.raises(OSError, match="Resource"):
        shell(tmp_path, "sleep 1000")
    assert identity(pids[0]) is None
