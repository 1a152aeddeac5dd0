"""Each folder that serving needs, and every mount that another machine answers for: does it answer, how fast, how full.

Each is asked by a process of its own (``probes/storage.py``): one that hangs is reported as stuck. What is watched
all the time is the storage collector's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from exporters.collectors import _mountinfo
from exporters.collectors._mountinfo import Mount
from exporters.doctor import apart, places
from exporters.doctor.check import Finding, Node, register
from exporters.doctor.files import seconds, size
from exporters.doctor.side_by_side import each

SECONDS = 12.0
#: Seconds without an answer after which a mount is called stuck.
STUCK = 6.0
#: Mounts of other machines that are asked, beside the folders that serving needs.
MAX_REMOTE = 16
_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")
#: File systems that another machine, or a user's process, answers for.
_REMOTE = re.compile(
    r"nfs4?|cifs|smb3|ceph|lustre|gpfs|beegfs|glusterfs|9p|virtiofs|wekafs|pvfs2|afs|fuse(\..+)?"
)


def storage(node: Node) -> Iterator[Finding]:
    try:
        every = _mountinfo.read(node.procfs)
    except (OSError, ValueError) as error:
        yield Finding("mounts", f"can't be read: {error}", "unknown")
        every = []
    folders = list(dict.fromkeys(places.folders(node).values()))
    under = {m.point for path in folders if (m := _mountinfo.of(path, every))}
    remote = [m.point for m in every if _REMOTE.fullmatch(m.fs_type) and m.point not in under]
    asked = list(dict.fromkeys([*folders, *remote[:MAX_REMOTE]]))
    answers = each(lambda path: _ask(path, node), asked, len(asked))
    for path, answer in zip(asked, answers, strict=True):
        yield from _of(path, answer, _mountinfo.of(path, every), node, path in folders)
    if len(remote) > MAX_REMOTE:
        yield Finding("mounts", f"{len(remote) - MAX_REMOTE} more of other machines are not asked", "unknown")


def _ask(path: str, node: Node) -> dict[str, Any] | apart.ProbeError:
    try:
        answer: dict[str, Any] = apart.probe("storage", [path], STUCK, node.environ)
        return answer
    except apart.ProbeError as error:
        return error


def _of(
    path: str, answer: dict[str, Any] | apart.ProbeError, mount: Mount | None, node: Node, needed: bool
) -> Iterator[Finding]:
    where = f"{mount.fs_type} of {mount.source} at {mount.point}" if mount else "no mount known"
    if isinstance(answer, apart.ProbeError):
        if not answer.hung:
            yield Finding("answers", f"can't be asked: {answer}", "unknown", "an answer", item=path)
            return
        unmount = f"; umount -f -l {mount.point}" if mount and mount.point != "/" else ""
        value = f"stuck: no answer within {STUCK:g} s ({where})"
        cure = f"is what serves it up? dmesg | tail{unmount}"
        yield Finding("answers", value, "fail", "an answer", cure, path)
        return
    if not answer["exists"]:
        said = "; ".join(answer["errors"])
        if needed:
            yield Finding("answers", said, "not here", "a folder", "", path)
        else:
            yield Finding("answers", said, "warn", "an answer", f"umount -f -l {path}", path)
        return
    if mount:
        yield _options(mount, path)
    yield _space(answer, path)
    yield from _latency(answer, mount, path, node)


def _options(mount: Mount, path: str) -> Finding:
    options = mount.options.split(",")
    shown = [o for o in options if o.partition("=")[0] in _TOLD]
    value = ", ".join([mount.fs_type, *shown])
    if "soft" in options and mount.fs_type.startswith("nfs"):
        cure = f"mount {mount.point} with hard: a soft mount gives errors and short files where its server is slow"
        return Finding("mount", value, "warn", "hard", cure, path)
    if "noac" in options or ("sync" in options and mount.fs_type not in _MEMORY):
        cure = f"mount {mount.point} without sync and noac: every access waits for its server"
        return Finding("mount", value, "warn", "neither sync nor noac", cure, path)
    return Finding("mount", value, "ok", item=path)


_TOLD = frozenset(
    [
        "ro",
        "rw",
        "sync",
        "noac",
        "soft",
        "hard",
        "noatime",
        "relatime",
        "nolock",
        "nconnect",
        "rsize",
        "wsize",
        "vers",
        "size",
        "dax",
    ]
)


def _space(answer: dict[str, Any], path: str) -> Finding:
    total, free = answer["total"], answer["free"]
    value = f"{size(free)} free of {size(total)}"
    if total == 0:
        return Finding("space", "not told by this file system", "not here", item=path)
    inodes = answer["inodes"]
    if inodes and answer["inodes_free"] < inodes * 0.02:
        value = f"{answer['inodes_free']} of {inodes} inodes free"
        return Finding(
            "space", value, "warn", "2 % of the inodes", f"du --inodes -x {path} | sort -n | tail", path
        )
    if free < total * 0.02 or free < 1 << 30:
        return Finding("space", value, "fail", "2 % and 1 GiB", f"du -xh -d2 {path} | sort -h | tail", path)
    if free < total * 0.1:
        return Finding("space", value, "warn", "10 %", f"du -xh -d2 {path} | sort -h | tail", path)
    return Finding("space", value, "ok", "10 %", item=path)


def _latency(answer: dict[str, Any], mount: Mount | None, path: str, node: Node) -> Iterator[Finding]:
    most = node.limits.storage_seconds
    expected = f"below {seconds(most)}"
    memory = mount is not None and mount.fs_type in _MEMORY
    if answer["read"] is None:
        why = "; ".join(answer["errors"]) or "no file to read"
        yield Finding("read", f"can't be measured: {why}", "unknown", expected, f"ls -l {path}", path)
    else:
        value = f"{seconds(answer['read'])} ({'memory' if memory else answer['read_of']})"
        cure = f"fio or iostat -x 1 while it is slow; nfsiostat for NFS ({mount.source if mount else path})"
        fine = answer["read"] < most
        yield Finding("read", value, "ok" if fine else "fail", expected, "" if fine else cure, path)
    if answer["write"] is not None:
        fine = answer["write"] < most * 10
        cure = "iostat -x 1: audit and logs wait for this" if not fine else ""
        value = f"{seconds(answer['write'])} with fsync"
        yield Finding("write", value, "ok" if fine else "warn", f"below {seconds(most * 10)}", cure, path)


register("storage", "folders and network mounts: options, space, latency, stuck or not", storage, SECONDS)
