"""The kernel's release: drivers and RDMA counters depend on it, so it is compared across nodes."""

from __future__ import annotations

from collections.abc import Iterator

from exporters.doctor import versions
from exporters.doctor.check import Finding, Node, register


def kernel(node: Node) -> Iterator[Finding]:
    release = versions.kernel(node.procfs)
    if release:
        yield Finding("release", release, "ok", "the same on every node", compare="warn")
    else:
        yield Finding("release", "can't be read", "unknown", compare="warn")


register("kernel", "release of the kernel", kernel)
