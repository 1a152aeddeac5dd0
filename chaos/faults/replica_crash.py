"""Kill a replica's process with SIGKILL: no drain, no goodbye, sockets closed by the kernel.

Undo: none is needed; whoever supervises the replica starts it again. The fault never does.
"""

from __future__ import annotations

from typing import Any

import psutil
from chaoslib.exceptions import ActivityFailed

from chaos import processes
from chaos.fleet import Replica

#: Seconds within which a killed process has to be gone; one that hangs in the kernel is reported.
GONE_WITHIN = 10.0


def inject(replica: Replica) -> dict[str, Any]:
    """Kill the process that listens on the replica's port, and wait until it is gone.

    Returns ``{"replica", "pid", "children_left"}``; children_left: pids that its end did not end (vLLM's
    engine core leaves by itself, its supervisor has to clear away the others). Raises ActivityFailed if the
    process is not the replica's (see ``processes.of_replica``), can't be signalled, or does not go.
    """
    process = processes.of_replica(replica)
    children = processes.with_children(process)[1:]
    try:
        process.kill()  # psutil compares the start time first: a recycled pid is not hit
    except psutil.NoSuchProcess:
        raise ActivityFailed(f"{replica.name}: process {process.pid} had already ended") from None
    except psutil.AccessDenied:
        raise ActivityFailed(f"{replica.name}: process {process.pid} may not be signalled") from None
    if not processes.wait_gone(process, GONE_WITHIN):
        raise ActivityFailed(
            f"{replica.name}: process {process.pid} is still there {GONE_WITHIN:g} s after SIGKILL"
        )
    _, left = psutil.wait_procs(children, timeout=2)
    return {"replica": replica.name, "pid": process.pid, "children_left": [p.pid for p in left]}
