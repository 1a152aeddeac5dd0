"""The shared memory of /dev: workers of a replica hand tensors over in it; a container's 64 MiB end them (SIGBUS)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from exporters.doctor import places
from exporters.doctor.check import Finding, Node, register
from exporters.doctor.files import names, size

#: Bytes for each worker of the node (NCCL's buffers and vLLM's message queues), and at least.
PER_WORKER, LEAST = 256 << 20, 1 << 30


def shm(node: Node) -> Iterator[Finding]:
    folder = node.dev / "shm"
    try:
        space = os.statvfs(folder)
    except OSError as error:
        cure = "mount -t tmpfs tmpfs /dev/shm"
        yield Finding("space", f"can't be used: {error.strerror}", "fail", "a tmpfs", cure)
        return
    need = max(LEAST, places.workers(node) * PER_WORKER)
    total, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    value, expected = f"{size(free)} free of {size(total)}", f"at least {size(need)} free"
    if free < need:
        cure = f"--shm-size={need >> 30}g (docker), an emptyDir with medium Memory (Kubernetes), mount -o remount,size=…"
        if total >= need:
            cure = "ls -lS /dev/shm: what a replica that ended left behind can be removed"
        yield Finding("space", value, "fail", expected, cure)
    else:
        yield Finding("space", value, "ok", expected)
    left = [name for name in names(folder) if name.startswith("vllm_offload_")]
    if left:
        cure = f"ls -l {folder}/vllm_offload_*; rm those that no vLLM has open (fuser)"
        yield Finding("offload files", f"{len(left)}", "warn", "none that no replica uses", cure)


register("shm", "size of /dev/shm, files left in it", shm)
