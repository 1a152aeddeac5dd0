"""Versions of the engine and of what it runs on: vLLM, torch, CUDA, NCCL. Read from metadata; nothing is imported.

Looks into ``$EXASERVE_HOME/engines``, into the environment that is active and into the one this runs in.
"""

from __future__ import annotations

from collections.abc import Iterator

from exporters.doctor import apart, places, versions
from exporters.doctor.check import Finding, Node, register

SECONDS = 6.0
_SAME = "the same on every node"


def engine(node: Node) -> Iterator[Finding]:
    try:
        found = apart.probe("engine", places.engines(node), SECONDS - 1, node.environ)
    except apart.ProbeError as error:
        cure = f"ls {node.home}: its file system hangs?" if error.hung else ""
        yield Finding("vLLM", f"can't be looked for: {error}", "unknown", _SAME, cure, compare="fail")
        return
    if not found:
        value = f"no engine below {node.home}/engines nor in this environment"
        cure = "exaserve up builds one; or run this with VIRTUAL_ENV set to the environment of yours"
        yield Finding("vLLM", value, "not here", _SAME, cure, compare="fail")
        return
    told = versions.of_engines(found)
    for component, releases in told.items():
        yield row(component, releases)
    if "torch" in told and "nccl" not in told:
        value = "not beside torch (a build for CPU has none)"
        yield Finding("NCCL", value, "not here", _SAME, compare="fail")


def row(component: str, releases: list[str]) -> Finding:
    """Several environments with different versions are told in one row."""
    what = versions.ROWS[component][1]
    if len(releases) == 1:
        compare = "fail" if component in versions.STRICT else "warn"
        return Finding(what, releases[0], "ok", _SAME, compare=compare)  # type: ignore[arg-type]
    cure = "remove the environments that no replica uses"
    return Finding(what, ", ".join(releases), "warn", "one version", cure, compare="fail")


register("engine", "versions of vLLM, torch, CUDA and NCCL", engine, SECONDS)
