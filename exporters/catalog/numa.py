"""Where each replica's threads and memory are against its GPUs and NICs, and the NUMA nodes of this machine.

Node numbers are the kernel's, as text, with the gaps that it leaves; what is not known is absent, never 0.
Which memory is remote, for each replica, and why a replica is bound wrong:

    exaserve_numa_replica_remote_memory_ratio
    exaserve_numa_replica_binding_reason == 1 and on (replica) exaserve_numa_replica_binding{verdict="wrong"} == 1

The memory is read at most every 5 minutes; exaserve_numa_replica_memory_age_seconds says how old it is. vLLM binds
by ``--numa-bind`` (nodes by ``--numa-bind-nodes``, cores by ``--numa-bind-cpus``).
"""

from __future__ import annotations

from exporters.catalog.metric import Metric

#: What the binding of a replica can be.
VERDICTS = ("right", "wrong", "unknown")

#: Why; several can hold at once. The first five make it wrong or unknown, single_node right.
REASONS = (
    "cpus_remote",  # its threads may not run on its GPU's node at all
    "not_bound",  # they may run on its GPU's node, and on others
    "memory_remote",  # more than a quarter of its own memory is on other nodes, or it may not be on the right one
    "nic_remote",  # it opened no NIC on a GPU's node, though there is one
    "memory_not_measured",  # not yet, too large (numa_maps_bytes), or not allowed
    "node_unknown",  # the machine does not tell the node of its GPU, or which GPU it has
    "single_node",  # the machine has one node: nothing can be wrong
)

_REPLICA = ("replica",)
_SYSFS = "/sys/devices/system/node/node*/"

METRICS = (
    Metric(
        "exaserve_numa_node_cpus",
        "gauge",
        "CPUs of the node that are online; 0 for a node that has only memory.",
        ("node",),
        source=f"{_SYSFS}cpulist",
    ),
    Metric(
        "exaserve_numa_node_memory_bytes",
        "gauge",
        "Memory of the node; 0 for a node that has none.",
        ("node",),
        "bytes",
        f"{_SYSFS}meminfo",
    ),
    Metric(
        "exaserve_numa_node_memory_free_bytes",
        "gauge",
        "Memory of the node that nobody uses, not even as page cache.",
        ("node",),
        "bytes",
        f"{_SYSFS}meminfo",
    ),
    Metric(
        "exaserve_numa_node_distance",
        "gauge",
        "Relative cost for CPUs of a node to reach memory of another, as the firmware tells it; 10 is local.",
        ("node", "to"),
        source=f"{_SYSFS}distance; from nodes with CPUs to nodes with memory",
    ),
    Metric(
        "exaserve_numa_node_allocations_total",
        "counter",
        "Pages allocated on the node: hit (meant for it), miss (meant for another), foreign (meant for it, got "
        "elsewhere), interleave (by policy), local and other (asked for by a CPU of it, of another).",
        ("node", "event"),
        source=f"{_SYSFS}numastat",
    ),
    Metric(
        "exaserve_numa_replica_processes",
        "gauge",
        "Processes of the replica on this node of the cluster, and how they were found.",
        ("replica", "found_by"),
        source="run_folder, command_line or cgroup: exporters/processes.py",
    ),
    Metric(
        "exaserve_numa_replica_gpu_node",
        "gauge",
        "Node that a GPU of the replica is attached to; absent where the machine does not tell.",
        ("replica", "gpu"),
        source="NVML's processes, else open device files; PCI device's numa_node",
    ),
    Metric(
        "exaserve_numa_replica_nic_node",
        "gauge",
        "Node that an RDMA device opened by the replica is attached to; absent where the machine does not tell.",
        ("replica", "nic"),
        source="open /dev/infiniband/uverbs*; device/numa_node",
    ),
    Metric(
        "exaserve_numa_replica_cpu_node",
        "gauge",
        "1 for each node on which the replica's workers may run, 0 for the others.",
        ("replica", "node"),
        source="Cpus_allowed_list of each worker's main thread",
    ),
    Metric(
        "exaserve_numa_replica_memory_node",
        "gauge",
        "1 for each node from which the replica's workers may get memory, 0 for the others; by cpuset, without "
        "the policies that a process gives itself.",
        ("replica", "node"),
        source="Mems_allowed_list of each worker",
    ),
    Metric(
        "exaserve_numa_replica_memory_bytes",
        "gauge",
        "Resident memory of the replica's processes by node: own (anonymous and shared memory) or file (pages of "
        "files such as libraries). What several of them map is counted once.",
        ("replica", "node", "kind"),
        "bytes",
        "/proc/PID/numa_maps, maps",
    ),
    Metric(
        "exaserve_numa_replica_remote_memory_ratio",
        "gauge",
        "Share of that memory on nodes other than its GPU's (without a GPU: than those its CPUs are on).",
        _REPLICA,
        "ratio",
        "/proc/PID/numa_maps, maps",
    ),
    Metric(
        "exaserve_numa_replica_memory_age_seconds",
        "gauge",
        "Age of the oldest reading in it.",
        _REPLICA,
        "seconds",
        "exporter's own clock",
    ),
    Metric(
        "exaserve_numa_replica_memory_read_seconds",
        "gauge",
        "What the last readings took; the processes may have waited for their memory map that long in all.",
        _REPLICA,
        "seconds",
        "exporter's own clock",
    ),
    Metric(
        "exaserve_numa_replica_unmeasured_processes",
        "gauge",
        "Processes whose memory by node is not known: not read yet, above numa_maps_bytes, or not allowed.",
        _REPLICA,
        source="exporter's own count",
    ),
    Metric(
        "exaserve_numa_replica_binding",
        "gauge",
        "1 for what the placement of the replica is, 0 for the others: right, wrong (not bound included), unknown.",
        ("replica", "verdict"),
        source="all of the above",
    ),
    Metric(
        "exaserve_numa_replica_binding_reason",
        "gauge",
        "1 for each reason that holds: cpus_remote, not_bound, memory_remote, nic_remote, memory_not_measured, "
        "node_unknown, single_node.",
        ("replica", "reason"),
        source="all of the above",
    ),
)
