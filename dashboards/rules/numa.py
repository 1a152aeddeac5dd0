"""Which replica works on another NUMA node than its GPU: ``replica:exaserve_numa_remote:count`` and its alert.

What is remote is judged by the exporter (``exaserve_numa_replica_binding_reason``). Only what is on the wrong node
counts: a replica that is not bound at all has verdict ``wrong`` on its page, and no alert until its memory is
remote, since that is how most replicas run. Memory is read every 5 minutes, and an exporter that has just started
knows none of it; so the alert waits, and goes on, for 10.
"""

from __future__ import annotations

from dashboards.rulefile import Alert, Group, Record

REMOTE = "replica:exaserve_numa_remote:count"
ALERT = "ExaServeReplicaWrongNode"

#: What is on the wrong node; the other reasons of the catalogue say that it isn't bound, or not known.
_WRONG = 'exaserve_numa_replica_binding_reason{reason=~"cpus_remote|memory_remote|nic_remote"}'


def group() -> Group:
    return Group(
        "numa",
        (
            # None for a replica whose placement isn't known or is right.
            Record(
                REMOTE, f"count by (cluster, replica) (max by (cluster, replica, reason) ({_WRONG} == 1))"
            ),
            Alert(
                ALERT,
                f"{REMOTE} > 0",
                "warning",
                board="replica",
                summary="{{ $labels.replica }}: {{ $value }} of its CPUs, memory and NIC on another NUMA node than"
                " its GPU",
                description="""
                    {{ range printf `exaserve_numa_replica_binding_reason{cluster=%q, replica=%q} == 1` $labels.cluster $labels.replica | query }}{{ .Labels.reason }}
                    {{ end }}Every copy to and from the GPU crosses the link between the sockets. Bind the replica to its GPU's
                    node (vLLM: --numa-bind) and start it again.
                    """,
                wait="10m",
                keep_firing="10m",
                variables={"replica": "{{ $labels.replica }}"},
            ),
        ),
        team="platform",
    )
