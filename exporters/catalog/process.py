"""What each replica's processes take from the node, to see a leak (exporter, leak collector).

All are sums over the replica's processes. Growth is computed by rules (dashboards/rules/leak.py), not here, so that
it survives a restart of the exporter and can be asked for over any window. In PromQL:

    bytes a second, last 30 minutes:   replica:exaserve_process_private_memory_bytes:deriv30m
    file descriptors, nearest limit:   exaserve_process_open_fds_ratio > 0.8
    uptime:                            time() - exaserve_process_start_time_seconds
"""

from __future__ import annotations

from exporters.catalog.metric import Metric


def _gauge(name: str, text: str, source: str, unit: str = "") -> Metric:
    return Metric(f"exaserve_process_{name}", "gauge", text, ("replica",), unit, source)


METRICS = (
    _gauge("group_size", "Processes of the replica on this node.", "exporters/processes.py"),
    _gauge(
        "resident_memory_bytes",
        "Resident memory; pages that its processes share count once for each of them.",
        "proc(5): status, VmRSS",
        "bytes",
    ),
    _gauge(
        "private_memory_bytes",
        "Memory of its own, resident or swapped out: heaps and stacks, no files and no shared memory.",
        "proc(5): status, RssAnon + VmSwap",
        "bytes",
    ),
    _gauge("swap_bytes", "Memory that is swapped out.", "proc(5): status, VmSwap", "bytes"),
    _gauge("threads", "Threads.", "proc(5): status, Threads"),
    _gauge("open_fds", "Open file descriptors.", "proc(5): fd"),
    _gauge(
        "open_fds_ratio",
        "Open file descriptors of the process that is nearest to its limit, as a share of it.",
        "proc(5): fd, limits",
        "ratio",
    ),
    _gauge(
        "start_time_seconds",
        "Unix time at which the replica's server started.",
        "proc(5): stat, starttime, and btime",
        "seconds",
    ),
)
