"""CPU time, memory and open files of the router's processes, from /proc, when somebody asks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

import psutil

from serving.router.merge import Numbers


class Processes:
    """Keeps CPU time counting up over the processes that one worker's place has had. For one thread."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}  # worker -> (pid, CPU seconds of that process)
        self._past: dict[str, float] = {}

    def read(self, workers: Mapping[int, int | None], into: Numbers) -> None:
        """``workers``: pid by number, None where none runs. A process that is gone has no memory and no files."""
        pids: dict[str, int | None] = {str(number): pid for number, pid in workers.items()}
        pids["master"] = os.getpid()
        for worker, pid in pids.items():
            if pid is not None:
                with contextlib.suppress(psutil.Error, OSError):
                    self._one(worker, pid, into)
            cpu = self._past.get(worker, 0.0) + self._seen.get(worker, (0, 0.0))[1]
            into.counters["exaserve_router_worker_cpu_seconds_total", (worker,)] = cpu

    def _one(self, worker: str, pid: int, into: Numbers) -> None:
        process = psutil.Process(pid)
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_info()
        before, cpu = self._seen.get(worker, (pid, 0.0))
        if before != pid:
            self._past[worker] = self._past.get(worker, 0.0) + cpu
        self._seen[worker] = (pid, times.user + times.system)
        into.gauges["exaserve_router_worker_resident_bytes", (worker,)] = memory.rss
        into.gauges["exaserve_router_worker_open_files", (worker,)] = process.num_fds()
        into.gauges["exaserve_router_worker_max_open_files", (worker,)] = process.rlimit(
            psutil.RLIMIT_NOFILE
        )[0]
