"""Judges where a replica's workers are against their GPUs: right, wrong or unknown, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from exporters.collectors._numa_devices import Device
from exporters.collectors._numa_nodes import Machine

#: Share of own memory on other nodes from which on a replica is wrong. Unbound on two nodes it tends to a half;
#: bound after its start, a few allocations stay behind.
REMOTE_MEMORY = 0.25


@dataclass(frozen=True, slots=True)
class Worker:
    """One process that computes.

    homes: nodes of its GPU; without a GPU, of the CPUs that it may use; None: not known.
    cpus, memory: nodes whose CPUs it may use and whose memory it may get; None: not known.
    gpu: whether it has one. nics: the RDMA devices that it has open.
    """

    homes: frozenset[int] | None
    cpus: frozenset[int] | None
    memory: frozenset[int] | None
    gpu: bool
    nics: frozenset[Device] = field(default_factory=frozenset)


def judge(
    machine: Machine, workers: Sequence[Worker], remote: float | None, nics: Iterable[Device] = ()
) -> tuple[str, set[str]]:
    """Verdict and reasons, of those in ``exporters/catalog/numa.py``.

    remote: share of the replica's own memory that is remote, None if it is not known. nics: the machine's.
    """
    if machine.single:
        return "right", {"single_node"}
    reasons: set[str] = set()
    may_be_remote = not workers
    for worker in workers:
        if worker.homes is None or worker.cpus is None:
            reasons.add("node_unknown")
            continue
        near, local = machine.cpus_near(worker.homes), machine.memory_near(worker.homes)
        if not near or not local:
            reasons.add("node_unknown")
        elif not worker.cpus & near:
            reasons.add("cpus_remote")
        # Without a GPU a worker is nowhere else than where its CPUs are, so only several nodes are wrong.
        elif worker.cpus - near or (not worker.gpu and len(worker.cpus) > 1):
            reasons.add("not_bound")
        if local and worker.memory is not None and not worker.memory & local:
            reasons.add("memory_remote")
        # What a cpuset keeps on the right nodes needs no measuring.
        may_be_remote |= worker.memory is None or bool((worker.memory & machine.with_memory) - local)
    if not workers:
        reasons.add("node_unknown")
    if _nic_is_remote(workers, nics):
        reasons.add("nic_remote")
    if remote is not None and remote > REMOTE_MEMORY:
        reasons.add("memory_remote")
    if reasons - {"node_unknown"}:
        return "wrong", reasons
    if remote is None and may_be_remote:
        reasons.add("memory_not_measured")
    return ("unknown" if reasons else "right"), reasons


def _nic_is_remote(workers: Sequence[Worker], nics: Iterable[Device]) -> bool:
    """Whether a GPU's node has NICs and the replica uses others only. A node without any can't be helped."""
    used = {nic for worker in workers for nic in worker.nics}
    if not used or any(nic.node is None for nic in used):
        return False
    homes = {home for worker in workers if worker.gpu for home in worker.homes or ()}
    there = {nic.node for nic in nics} | {nic.node for nic in used}
    return bool((homes & there) - {nic.node for nic in used})
