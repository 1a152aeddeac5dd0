"""Gathers what can be known of a process from outside: proc(5), py-spy's stacks, NVML's memory.

Everything has a time limit, and what can't be had is None with the reason beside it. py-spy stops the process for a
few milliseconds to read its stacks; values of variables are never read. What the facts mean is ``advice.py``'s.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters import proctable
from exporters.collectors import _gpu_mig
from exporters.collectors._nvml import Device, Driver
from exporters.collectors._task import Task
from exporters.collectors.leak import use
from exporters.inspection.threads import Frame, Thread, what
from exporters.processes import find
from exporters.settings import Settings

#: Processes that are looked at, those nearest to the one asked for first.
MAX_PROCESSES = 64
#: Threads of one process whose stacks are kept, and frames of each.
MAX_THREADS, MAX_FRAMES = 1024, 60
#: Seconds over which CPU time is measured.
SAMPLE_SECONDS = 0.5
_MAX_DUMP = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Process:
    """One process. Memory in bytes. None: can't be read.

    state: proc(5)'s letter. wait: kernel function that its first thread sleeps in. problem: why there are no threads.
    """

    pid: int
    command: str
    state: str
    wait: str
    resident: int | None
    private: int | None
    fds: int | None
    fd_limit: int | None
    threads_total: int | None
    gpu_memory: int | None
    threads: tuple[Thread, ...]
    problem: str | None


def pids_of(settings: Settings, target: str) -> list[int]:
    """The process with that id and its descendants, or a replica's by name. Raises LookupError that says more."""
    rows, own = proctable.rows(settings.procfs), os.getpid()  # what looks is not what is looked at
    if target.isascii() and target.isdigit():
        first = int(target)
        if first not in rows:
            raise LookupError(f"no process {first} (or it is a zombie, or one of the kernel)")
        found = [first]
        for pid in found:
            if len(found) >= MAX_PROCESSES:
                break
            found += sorted(r.pid for r in rows.values() if r.parent == pid and r.pid not in {*found, own})
        return found[:MAX_PROCESSES]
    replicas = {r.name: r for r in find(settings)}
    if target not in replicas:
        known = ", ".join(sorted(replicas)) or "none was found"
        raise LookupError(f"no replica {target} on this node; there are: {known}")
    return list(replicas[target].pids)[:MAX_PROCESSES]


def gather(settings: Settings, pids: list[int], seconds: float, native: bool = False) -> list[Process]:
    """Each process that still is there, at most about ``seconds`` later.

    native: with the frames of C libraries, which tells more and takes longer.
    """
    gpu: Task[dict[int, int]] = Task("gpu-memory")
    gpu.start(lambda: _gpu_memory(settings))
    deadline = time.monotonic() + seconds
    with ThreadPoolExecutor(8) as pool:
        memory: dict[int, int] | None = None
        found = list(pool.map(lambda pid: _process(settings.procfs, pid, deadline, native), pids))
        with contextlib.suppress(Exception):
            memory = gpu.result(deadline)
    return [_with_gpu(p, memory) for p in found if p is not None]


def _with_gpu(process: Process, memory: dict[int, int] | None) -> Process:
    if memory is None:
        return process
    values = {f: getattr(process, f) for f in Process.__slots__}
    return Process(**{**values, "gpu_memory": memory.get(process.pid, 0)})


def _process(procfs: Path, pid: int, deadline: float, native: bool) -> Process | None:
    row, used = proctable.row(procfs, pid), use(procfs, pid)
    if row is None or used is None:
        return None
    before, since = _ticks(procfs, pid), time.monotonic()
    time.sleep(max(0.0, min(SAMPLE_SECONDS, (deadline - time.monotonic()) / 4)))
    after, seconds = _ticks(procfs, pid), time.monotonic() - since
    dump: list[dict[str, Any]] | str = _dump(pid, deadline, native)
    threads: tuple[Thread, ...] = ()
    if not isinstance(dump, str):
        hertz = os.sysconf("SC_CLK_TCK")
        cpu = {tid: (after[tid] - before.get(tid, 0)) / hertz / seconds for tid in after if tid in before}
        threads = tuple(_thread(procfs, pid, t, cpu) for t in dump[:MAX_THREADS])
    private = None if used.anonymous is None or used.swap is None else used.anonymous + used.swap
    return Process(
        pid,
        row.command,
        _state(procfs, pid, pid),
        _kernel(procfs, pid, pid),
        used.resident,
        private,
        used.fds,
        used.fd_limit,
        used.threads,
        None,
        threads,
        dump if isinstance(dump, str) else None,
    )


def _thread(procfs: Path, pid: int, told: dict[str, Any], cpu: dict[int, float]) -> Thread:
    frames = tuple(
        Frame(str(f.get("name")), str(f.get("filename")), int(f.get("line") or 0))
        for f in told.get("frames", [])[:MAX_FRAMES]
    )
    tid = int(told.get("os_thread_id") or 0)
    kernel, state, share = _kernel(procfs, pid, tid), _state(procfs, pid, tid), round(cpu.get(tid, 0.0), 2)
    return Thread(
        tid,
        str(told.get("thread_name") or ""),
        what(frames, kernel, state, share),
        bool(told.get("owns_gil")),
        share,
        kernel,
        state,
        frames,
    )


def _ticks(procfs: Path, pid: int) -> dict[int, int]:
    """CPU time of each thread in clock ticks."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(f"{procfs}/{pid}/task"))[: 4 * MAX_THREADS]:
            fields = _stat(procfs, pid, int(entry.name))
            if len(fields) > 12:
                found[int(entry.name)] = int(fields[11]) + int(fields[12])
    return found


def _stat(procfs: Path, pid: int, tid: int) -> list[str]:
    text = proctable.read(f"{procfs}/{pid}/task/{tid}/stat", 4096) or ""
    return text.rpartition(")")[2].split()


def _state(procfs: Path, pid: int, tid: int) -> str:
    return (_stat(procfs, pid, tid) or ["?"])[0]


def _kernel(procfs: Path, pid: int, tid: int) -> str:
    text = (proctable.read(f"{procfs}/{pid}/task/{tid}/wchan", 256) or "").strip()
    return "" if text == "0" else text


def _dump(pid: int, deadline: float, native: bool) -> list[dict[str, Any]] | str:
    """py-spy's threads, or why there are none (with what to do about it)."""
    path = _program()
    if path is None:
        return "py-spy is not installed; pip install py-spy"
    command = [path, "dump", "--json", "--pid", str(pid), *(["--native"] if native else [])]
    try:
        spy = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        return f"py-spy can't be started: {error.strerror}"
    try:
        out, said = spy.communicate(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        spy.kill()  # not waited for: it may hang in the kernel beside the process
        return "its stacks did not come in time: it is stuck in the kernel, or give it longer with --timeout"
    if spy.returncode != 0:
        return _why(said.decode(errors="replace"))
    try:
        told = json.loads(out[:_MAX_DUMP])
    except ValueError:
        return "py-spy's answer can't be understood"
    return [t for t in told if isinstance(t, dict)] if isinstance(told, list) else "py-spy told nothing"


def _program() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.path.isfile(beside) else shutil.which("py-spy")


def _why(error: str) -> str:
    if re.search(r"permission denied|not permitted", error, re.I):
        return (
            "its stacks need the right to trace it: run this as root (sudo), or as its user where "
            "kernel.yama.ptrace_scope is 0; in a container add the capability SYS_PTRACE"
        )
    if re.search(r"python version|not a python|find.*python|libpython", error, re.I):
        return "not a Python process, or a Python that py-spy doesn't know"
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return f"py-spy: {lines[0][:200] if lines else 'failed without a word'}"


def _gpu_memory(settings: Settings) -> dict[int, int]:
    """GPU memory by pid, over all GPUs. Raises NoDriver and the like."""
    driver = Driver()
    found: dict[int, int] = {}
    try:
        for index in range(driver.open()):
            handle = driver.nvml.nvmlDeviceGetHandleByIndex(index)
            device = Device(driver.nvml, handle, settings.sysfs, settings.procfs)
            for pid, size in (_gpu_mig.processes(device) or {}).items():
                found[pid] = found.get(pid, 0) + (size or 0)
    finally:
        driver.close()
    return found
