"""The storage that replicas load from and write to (exporter, storage collector).

``mount`` is the folder as it was configured. One that hangs, is missing or can't be measured keeps only what
is still known of it: whether it is mounted, whether it is stuck, the counters. Example::

    quantile_over_time(0.5, exaserve_storage_read_latency_seconds[5m])     typical read
    exaserve_storage_available_bytes / exaserve_storage_size_bytes         share that is free
    exaserve_storage_stuck == 1                                            a probe has not come back
"""

from __future__ import annotations

from exporters.catalog.metric import Metric

_MOUNT = ("mount",)
_KERNEL = "exporter, storage collector: /proc/self/mountinfo"
_STATVFS = "exporter, storage collector: statvfs"
_PROBE = "exporter, storage collector: its probe"

METRICS = (
    Metric(
        "exaserve_storage_mount_info",
        "gauge",
        "Constant 1; what the folder lies on: mount point, file system, source, mount options (no secrets).",
        ("mount", "mount_point", "fs_type", "source", "options"),
        source=_KERNEL,
    ),
    Metric(
        "exaserve_storage_mounted",
        "gauge",
        "1 if the folder is there, on the mount where it was first seen; 0 if it is missing or unmounted.",
        _MOUNT,
        source=_KERNEL,
    ),
    Metric(
        "exaserve_storage_read_only", "gauge", "1 if it is mounted read-only, else 0.", _MOUNT, source=_KERNEL
    ),
    Metric("exaserve_storage_size_bytes", "gauge", "Size of the file system.", _MOUNT, "bytes", _STATVFS),
    Metric(
        "exaserve_storage_free_bytes",
        "gauge",
        "Free bytes, those kept for root included.",
        _MOUNT,
        "bytes",
        _STATVFS,
    ),
    Metric(
        "exaserve_storage_available_bytes",
        "gauge",
        "Free bytes that users other than root may fill.",
        _MOUNT,
        "bytes",
        _STATVFS,
    ),
    Metric(
        "exaserve_storage_inodes",
        "gauge",
        "Files that the file system can hold; absent where it has no such limit.",
        _MOUNT,
        source=_STATVFS,
    ),
    Metric(
        "exaserve_storage_inodes_free",
        "gauge",
        "Files that it can still take; absent where it has no such limit.",
        _MOUNT,
        source=_STATVFS,
    ),
    Metric(
        "exaserve_storage_read_latency_seconds",
        "gauge",
        "How long the last read of 4 KiB took (past the page cache, if read_direct is 1).",
        _MOUNT,
        "seconds",
        _PROBE,
    ),
    Metric(
        "exaserve_storage_read_direct",
        "gauge",
        "1 if that read went past the page cache (O_DIRECT), 0 if the cache may have answered it.",
        _MOUNT,
        source=_PROBE,
    ),
    Metric(
        "exaserve_storage_read_limit_seconds",
        "gauge",
        "Read latency above which the mount counts as slow, from the exporter's settings.",
        _MOUNT,
        "seconds",
        "exporter, its settings",
    ),
    Metric(
        "exaserve_storage_write_latency_seconds",
        "gauge",
        "How long the last write of 4 KiB with fsync took; absent on a mount that is read-only.",
        _MOUNT,
        "seconds",
        _PROBE,
    ),
    Metric(
        "exaserve_storage_probes_total",
        "counter",
        "Probes that came back, well or not.",
        _MOUNT,
        source=_PROBE,
    ),
    Metric(
        "exaserve_storage_probe_failed",
        "gauge",
        "1 if the operation failed in the last probe, else 0; absent if it was not tried or is not allowed.",
        ("mount", "operation"),
        source="exporter, storage collector; operation: stat, read, write",
    ),
    Metric(
        "exaserve_storage_probe_errors_total",
        "counter",
        "Operations of probes that failed, by operation and kind of error.",
        ("mount", "operation", "kind"),
        source="exporter, storage collector; operation: stat, read, write; kind: full, read_only, denied,"
        " missing, io, stale, unreachable, other",
    ),
    Metric(
        "exaserve_storage_stuck",
        "gauge",
        "1 while a probe has not come back within the limit, else 0.",
        _MOUNT,
        source=_PROBE,
    ),
    Metric(
        "exaserve_storage_stuck_since_timestamp_seconds",
        "gauge",
        "Unix time at which the probe began that has not come back; absent unless stuck.",
        _MOUNT,
        "seconds",
        _PROBE,
    ),
)
