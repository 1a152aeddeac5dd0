"""NUMA collector: where each replica's workers and memory are against its GPUs and NICs, and this machine's nodes.

Put together here from parts of its own: nodes (``_numa_nodes.py``), devices (``_numa_devices.py``), memory
(``_numa_maps.py``, ``_numa_memory.py``), verdict (``_numa_verdict.py``); the processes of a replica are found by
``exporters/processes.py``. Placement is read at every scrape (0.02 ms a process), open devices once a minute, memory
once in 5 minutes and in the background. A replica that has gone has no series.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence

from exporters import gpu_processes
from exporters.catalog.numa import REASONS, VERDICTS
from exporters.collectors import _numa_devices as devices
from exporters.collectors._numa_devices import Device, Opened
from exporters.collectors._numa_maps import MemoryReader, Reading
from exporters.collectors._numa_memory import add_up
from exporters.collectors._numa_nodes import Machine, nodes, parse_list
from exporters.collectors._numa_verdict import Worker, judge
from exporters.processes import Process, ReplicaProcesses, find
from exporters.proctable import read
from exporters.registry import NoData, Sample, register
from exporters.settings import Settings

#: Least seconds between two readings of a process's memory, whatever the settings say.
LEAST_INTERVAL = 300.0
#: Seconds for which what a process has open is remembered.
DEVICES_FOR = 60.0

#: Processes that compute, by the first letters of their names; the first line that is there counts.
_COMPUTING = (("VLLM::Worker", "sglang::schedul"), ("VLLM::EngineCor",))
_EVENTS = {
    "numa_hit": "hit",
    "numa_miss": "miss",
    "numa_foreign": "foreign",
    "interleave_hit": "interleave",
    "local_node": "local",
    "other_node": "other",
}
_ALLOWED = re.compile(r"^(Cpus|Mems)_allowed_list:[ \t]*(\S*)$", re.MULTILINE)


class NumaCollector:
    """Reads ``settings.sysfs`` and ``settings.procfs``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        interval = max(LEAST_INTERVAL, settings.numa_maps_interval)
        self._memory = MemoryReader(settings.procfs, settings.numa_maps_bytes, interval)
        self._opened: dict[Process, tuple[float, Opened | None]] = {}

    def collect(self, deadline: float) -> list[Sample]:
        machine = Machine(nodes(self._settings.sysfs))
        replicas = find(self._settings)
        if not machine.nodes and not replicas:
            raise NoData
        samples = _of_nodes(machine)
        processes = {p for replica in replicas for p in replica.processes}
        readings = self._memory.update(processes)
        self._opened = {p: seen for p, seen in self._opened.items() if p in processes}
        nics, by_nvml = devices.nics(self._settings.sysfs), gpu_processes.latest()
        for replica in replicas:
            if time.monotonic() > deadline:
                break
            samples += self._of_replica(machine, replica, readings, nics, by_nvml)
        return samples

    def _of_replica(
        self,
        machine: Machine,
        replica: ReplicaProcesses,
        readings: Mapping[Process, Reading],
        nics: frozenset[Device],
        by_nvml: Mapping[int, frozenset[str]] | None,
    ) -> list[Sample]:
        placed = {p: where for p in replica.processes if (where := self._placement(machine, p)) is not None}
        if not placed:
            return []  # it ended meanwhile
        gpus = self._gpus(placed, by_nvml)
        workers = {p: self._worker(machine, p, placed[p], gpus.get(p)) for p in gpus or _computing(placed)}
        remote, samples = self._of_memory(machine, replica.name, placed, workers, readings)
        verdict, reasons = judge(machine, list(workers.values()), remote, nics)
        name = replica.name
        samples.append(
            Sample("exaserve_numa_replica_processes", (name, replica.found_by), len(replica.processes))
        )
        samples += [Sample("exaserve_numa_replica_binding", (name, v), float(v == verdict)) for v in VERDICTS]
        samples += [
            Sample("exaserve_numa_replica_binding_reason", (name, r), float(r in reasons)) for r in REASONS
        ]
        used = {d for exact in gpus.values() for d in exact}
        if not gpus:
            # Open is used for sure only where there is no choice.
            seen = [self._open(p) for p in workers]
            used = {next(iter(o.gpus)) for o in seen if o is not None and len(o.gpus) == 1}
        rdma = {nic for worker in workers.values() for nic in worker.nics}
        samples += _attached("exaserve_numa_replica_gpu_node", name, used)
        samples += _attached("exaserve_numa_replica_nic_node", name, rdma)
        samples += _allowed("cpu", name, machine.with_cpus, [w.cpus for w in workers.values()])
        samples += _allowed("memory", name, machine.with_memory, [w.memory for w in workers.values()])
        return samples

    def _placement(
        self, machine: Machine, process: Process
    ) -> tuple[frozenset[int] | None, frozenset[int] | None] | None:
        """Nodes whose CPUs, and nodes whose memory, the process may use; None if it is gone."""
        status = read(f"{self._settings.procfs}/{process.pid}/status", 65_536)
        if not status:
            return None
        lists = dict(_ALLOWED.findall(status))
        memory = parse_list(lists["Mems"]) if "Mems" in lists else None
        cpus = machine.of_cpus(lists["Cpus"]) if lists.get("Cpus") else None
        # A process may always run somewhere: no node means that sysfs doesn't tell the CPUs of its nodes.
        return cpus or None, memory

    def _gpus(
        self, processes: Iterable[Process], by_nvml: Mapping[int, frozenset[str]] | None
    ) -> dict[Process, frozenset[Device]]:
        """The processes that NVML knows, with their GPUs; empty where it knows none of them."""
        sysfs = self._settings.sysfs
        return {
            p: frozenset(devices.gpu(sysfs, address) for address in by_nvml[p.pid])
            for p in processes
            if by_nvml and by_nvml.get(p.pid)
        }

    def _worker(
        self,
        machine: Machine,
        process: Process,
        placed: tuple[frozenset[int] | None, frozenset[int] | None],
        exact: frozenset[Device] | None,
    ) -> Worker:
        cpus, memory = placed
        seen = self._open(process)
        nics = seen.nics if seen is not None else frozenset()
        if exact is not None:
            return Worker(_known(machine, {d.node for d in exact}), cpus, memory, True, nics)
        if seen is None and devices.nvidia_gpus(self._settings.procfs):
            return Worker(None, cpus, memory, True)  # which of the machine's GPUs, if any, we may not see
        if seen is not None and (seen.gpus or seen.unnamed):
            homes = {d.node for d in seen.gpus}
            # CUDA opens every GPU that it may use: on several nodes, it isn't said which one is used.
            return Worker(_known(machine, homes) if len(homes) == 1 else None, cpus, memory, True, nics)
        return Worker(cpus, cpus, memory, False, nics)

    def _open(self, process: Process) -> Opened | None:
        now = time.monotonic()
        at, seen = self._opened.get(process, (now - DEVICES_FOR, None))
        if now - at >= DEVICES_FOR:
            seen = devices.opened(self._settings.procfs, self._settings.sysfs, process.pid)
            self._opened[process] = (now, seen)
        return seen

    def _of_memory(
        self,
        machine: Machine,
        name: str,
        placed: Mapping[Process, tuple[frozenset[int] | None, frozenset[int] | None]],
        workers: Mapping[Process, Worker],
        readings: Mapping[Process, Reading],
    ) -> tuple[float | None, list[Sample]]:
        """Remote share of the replica's own memory, and the series; None if a process isn't measured."""
        parts, unmeasured = [], 0
        with_gpu = [w.homes for w in workers.values() if w.gpu]
        of_gpus = None if None in with_gpu else frozenset(n for homes in with_gpu for n in homes or ())
        for process, (cpus, _) in placed.items():
            reading = readings.get(process)
            if reading is None or reading.why:
                unmeasured += 1
                continue
            homes = workers[process].homes if process in workers else of_gpus if with_gpu else cpus
            local = machine.memory_near(homes) if homes else None
            parts.append((reading, local or None))
        samples = [Sample("exaserve_numa_replica_unmeasured_processes", (name,), unmeasured)]
        if unmeasured or not parts:
            return None, samples  # without the largest process, say, the sum would be anything
        memory = add_up(parts)
        for (node, kind), size in memory.by_node.items():
            samples.append(Sample("exaserve_numa_replica_memory_bytes", (name, str(node), kind), size))
        ratio = memory.share("own", "file")
        if ratio is not None:
            samples.append(Sample("exaserve_numa_replica_remote_memory_ratio", (name,), ratio))
        age = max(0.0, time.monotonic() - memory.at)
        samples.append(Sample("exaserve_numa_replica_memory_age_seconds", (name,), age))
        samples.append(Sample("exaserve_numa_replica_memory_read_seconds", (name,), memory.seconds))
        return memory.share("own"), samples


def _computing(processes: Iterable[Process]) -> list[Process]:
    """Those that compute; all of them where no name tells."""
    everyone = list(processes)
    for names in _COMPUTING:
        found = [p for p in everyone if p.command.startswith(names)]
        if found:
            return found
    return everyone


def _known(machine: Machine, homes: set[int | None]) -> frozenset[int] | None:
    """The nodes; None if one is not told, or is none of this machine's."""
    found = frozenset(home for home in homes if home is not None and home in machine.nodes)
    return found if len(found) == len(homes) else None


def _of_nodes(machine: Machine) -> list[Sample]:
    samples: list[Sample] = []
    for number, node in machine.nodes.items():
        at = (str(number),)
        for name, value in (
            ("exaserve_numa_node_cpus", None if node.cpus is None else len(node.cpus)),
            ("exaserve_numa_node_memory_bytes", node.total),
            ("exaserve_numa_node_memory_free_bytes", node.free),
        ):
            if value is not None:
                samples.append(Sample(name, at, value))
        for key, event in _EVENTS.items():
            if key in node.allocations:
                samples.append(
                    Sample("exaserve_numa_node_allocations_total", (*at, event), node.allocations[key])
                )
        if number in machine.with_cpus:
            samples += [
                Sample("exaserve_numa_node_distance", (*at, str(to)), distance)
                for to, distance in node.distances.items()
                if to in machine.with_memory
            ]
    return samples


def _attached(metric: str, replica: str, found: Iterable[Device]) -> list[Sample]:
    return [Sample(metric, (replica, d.name), d.node) for d in found if d.node is not None]


def _allowed(
    what: str, replica: str, there: frozenset[int], workers: Sequence[frozenset[int] | None]
) -> list[Sample]:
    """For each node that has any, whether one of the workers may use it; nothing if one of them isn't known."""
    known = [allowed for allowed in workers if allowed is not None]
    if not workers or len(known) < len(workers):
        return []
    union = frozenset().union(*known)
    metric = f"exaserve_numa_replica_{what}_node"
    return [Sample(metric, (replica, str(node)), float(node in union)) for node in sorted(there)]


register("numa", NumaCollector)
