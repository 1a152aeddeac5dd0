"""Storage of the replicas: can it be used, is it fast enough, will it be full; three alerts, none of which
pages.

Replicas that run have their weights in memory, so what hangs here is felt by the next one that starts. Series
are those of the exporter's storage collector, by node (``instance``) and configured folder (``mount``). What
"slow" is comes with them (``exaserve_storage_read_limit_seconds``, a setting of the exporter)."""

from __future__ import annotations

from dashboards.rulefile import NODE, Alert, Group, Record

LATENCY = "mount:exaserve_storage_read_latency_seconds:median5m"
AVAILABLE = "mount:exaserve_storage_available:ratio"
INODES = "mount:exaserve_storage_inodes_free:ratio"
PREDICTED = "mount:exaserve_storage_available_bytes:predicted_1d"
UNUSABLE, SLOW, FILLING = "ExaServeStorageUnusable", "ExaServeStorageSlow", "ExaServeStorageFilling"

#: Share that is free below which a file system counts as nearly full.
FULL = 0.05
#: Share above which a forecast says nothing yet.
AMPLE = 0.25

_BY = "by (cluster, instance, mount)"
_ON = "on (cluster, instance, mount)"


def _ratio(part: str, whole: str) -> str:
    """Nothing for a mount that is read-only: it is as full as whoever made it left it."""
    return f"""
        max {_BY} ({part}) / (max {_BY} ({whole}) > 0)
        unless {_ON} (exaserve_storage_read_only == 1)
        """


def group() -> Group:
    return Group("storage", (*_records(), *_unusable(), _slow(), *_filling()), team="storage")


def _records() -> tuple[Record, ...]:
    return (
        Record(LATENCY, f"max {_BY} (quantile_over_time(0.5, exaserve_storage_read_latency_seconds[5m]))"),
        Record(AVAILABLE, _ratio("exaserve_storage_available_bytes", "exaserve_storage_size_bytes")),
        Record(INODES, _ratio("exaserve_storage_inodes_free", "exaserve_storage_inodes")),
        # Of less than two hours a line through the points says nothing.
        Record(
            PREDICTED,
            f"""
            min {_BY} (predict_linear(exaserve_storage_available_bytes[6h], 86400))
            and {_ON} (exaserve_storage_available_bytes offset 2h)
            """,
        ),
    )


def _unusable() -> tuple[Alert, ...]:
    first = (
        "Ask the kernel and the file server, not the mount: `ls` or `df` on it would hang or fail as well."
    )
    return (
        _alert(
            UNUSABLE,
            f"max {_BY} (time() - exaserve_storage_stuck_since_timestamp_seconds)",
            "stuck",
            "{{ $labels.mount }} on {{ $labels.instance }} has hung for {{ $value | humanizeDuration }}",
            f"A read or write has not come back. Replicas that run go on, new ones can't load. {first}",
            wait="30s",
        ),
        _alert(
            UNUSABLE,
            f"max {_BY} (exaserve_storage_mounted) == 0",
            "missing",
            "{{ $labels.mount }} on {{ $labels.instance }} is not there: mounted is {{ $value }}",
            "The folder is gone, or what was mounted on it is. Look at `findmnt` and the kernel's log.",
            wait="1m",
        ),
        _alert(
            UNUSABLE,
            "max by (cluster, instance, mount, operation) (exaserve_storage_probe_failed) == 1",
            "failing",
            "{{ $labels.operation }} fails on {{ $labels.mount }} ({{ $labels.instance }}):"
            " failed is {{ $value }}",
            f"Each probe of a minute failed; the kind of error is in the runbook's first queries. {first}",
            wait="1m",
        ),
        _alert(
            UNUSABLE,
            f"max {_BY} (exaserve_storage_read_only == 1"
            " and min_over_time(exaserve_storage_read_only[1d]) == 0)",
            "read_only",
            "{{ $labels.mount }} on {{ $labels.instance }} has become read-only: read_only is {{ $value }}",
            "It could be written within the last day. A kernel mounts so after errors; its log says which.",
            wait="1m",
        ),
    )


def _slow() -> Alert:
    return Alert(
        SLOW,
        f"{LATENCY} > {_ON} max {_BY} (exaserve_storage_read_limit_seconds)",
        "warning",
        board="fabric",
        variables=NODE,
        summary="Reads from {{ $labels.mount }} on {{ $labels.instance }} take"
        " {{ $value | humanizeDuration }}",
        description="""
            Half of the reads of 4 KiB in 5 minutes took longer than the limit. Replicas start more slowly.
            See whether all nodes have it (the server or the network) or this one alone.
            """,
        wait="5m",
        keep_firing="5m",
    )


def _filling() -> tuple[Alert, ...]:
    room = "{{ $labels.mount }} on {{ $labels.instance }} has {{ $value | humanizePercentage }}"
    find = "Look for what grew (`du -x --max-depth=1`): logs, caches of weights, core dumps."
    return (
        _alert(FILLING, f"{AVAILABLE} < {FULL}", "space", f"{room} of its space left", find, wait="5m"),
        _alert(
            FILLING,
            f"{INODES} < {FULL}",
            "inodes",
            f"{room} of its files left",
            "No more files can be made while there is space. Look for a folder with very many small files.",
            wait="5m",
        ),
        _alert(
            FILLING,
            f"{AVAILABLE} < {AMPLE} and {_ON} {PREDICTED} < 0",
            "forecast",
            f"{room} of its space left, and by the last 6 hours it will be full within a day",
            find,
            wait="30m",
        ),
    )


def _alert(name: str, expr: str, condition: str, summary: str, description: str, wait: str) -> Alert:
    return Alert(
        name,
        expr,
        "warning",
        board="fabric",
        variables=NODE,
        summary=summary,
        description=description,
        wait=wait,
        keep_firing="1m",
        labels={"condition": condition},
    )
