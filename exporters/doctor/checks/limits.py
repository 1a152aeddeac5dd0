"""Limits of file descriptors and of locked memory, as the processes started from here get them.

The router needs two descriptors for each client connection; RDMA pins what it registers, so NCCL fails with a small
limit of locked memory. A service has the limits of its unit: run the doctor there, or read the replicas' rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from exporters import processes
from exporters.doctor.check import Finding, Node, register
from exporters.doctor.files import names, size, text
from exporters.doctor.versions import limit

#: Descriptors beside the connections: libraries, logs, sockets of the engine.
SPARE = 512
#: Descriptors of one connection through the router: the client's and the replica's.
PER_CONNECTION = 2
#: Descriptors of one replica: its clients, the engine's sockets, files of weights.
REPLICA = 4096


def limits(node: Node) -> Iterator[Finding]:
    raw = text(node.procfs / "self/limits")
    if raw is None:
        yield Finding("open files", "can't be read", "unknown")
        return
    yield _files(raw, node)
    yield _locked(raw, bool(names(node.sysfs / "class/infiniband")))
    for replica in processes.find(node.settings):
        yield _of_replica(replica, node)
    yield _system(node)


def needed(node: Node) -> int:
    """File descriptors that one router worker may come to hold."""
    return int(node.key("router.max_connections", 10000)) * PER_CONNECTION + SPARE


def _files(raw: str, node: Node) -> Finding:
    found = limit(raw, "Max open files")
    need = needed(node)
    expected = f"at least {need} (2 × router.max_connections + {SPARE})"
    if found is None:
        return Finding("open files", "can't be read", "unknown", expected)
    soft, hard = found
    value = f"{_plain(soft)} (hard limit {_plain(hard)})"
    if soft >= need:
        return Finding("open files", value, "ok", expected, compare="warn")
    if hard >= need:
        # The router raises its own soft limit; what a shell starts by hand does not.
        cure = f"ulimit -n {need} (the router does this itself)"
        return Finding("open files", value, "ok", expected, cure, compare="warn")
    cure = (
        f"LimitNOFILE={need} in the unit, or `* - nofile {need}` in /etc/security/limits.conf; or a smaller "
        "router.max_connections"
    )
    return Finding("open files", value, "warn", expected, cure, compare="warn")


def _locked(raw: str, infiniband: bool) -> Finding:
    found = limit(raw, "Max locked memory")
    if found is None:
        return Finding("locked memory", "can't be read", "unknown", "unlimited")
    soft, _ = found
    value = _plain(soft) if soft == float("inf") else size(soft)
    if soft == float("inf"):
        return Finding("locked memory", value, "ok", "unlimited", compare="warn")
    if not infiniband:
        return Finding("locked memory", value, "ok", "any, without RDMA", compare="warn")
    cure = "LimitMEMLOCK=infinity in the unit, or `* - memlock unlimited` in /etc/security/limits.conf"
    return Finding("locked memory", value, "fail", "unlimited, for RDMA", cure, compare="warn")


def _of_replica(replica: processes.ReplicaProcesses, node: Node) -> Finding:
    raw = text(node.procfs / str(replica.pids[0]) / "limits") or ""
    found, expected = limit(raw, "Max open files"), f"at least {REPLICA}"
    what = "open files of a replica"
    if found is None:
        return Finding(what, "can't be read", "unknown", expected, "run as root", replica.name)
    if found[0] >= REPLICA:
        return Finding(what, _plain(found[0]), "ok", expected, item=replica.name)
    cure = f"LimitNOFILE={REPLICA} in the unit that starts it, or ulimit -n {REPLICA} before"
    return Finding(what, _plain(found[0]), "warn", expected, cure, replica.name)


def _system(node: Node) -> Finding:
    raw = (text(Path(node.procfs / "sys/fs/file-nr")) or "").split()
    try:
        used, most = int(raw[0]), int(raw[2])
    except (IndexError, ValueError):
        return Finding("open files of the system", "can't be read", "unknown")
    value, expected = f"{used} of {_plain(most)}", "below 80 %"
    if used < 0.8 * most:
        return Finding("open files of the system", value, "ok", expected)
    return Finding("open files of the system", value, "warn", expected, f"sysctl fs.file-max={2 * most}")


def _plain(count: float) -> str:
    return "unlimited" if count == float("inf") or count >= 2**62 else f"{count:.0f}"


register("limits", "limits of open files and of locked memory", limits)
