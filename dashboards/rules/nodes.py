"""Whole nodes: which are down, which replicas are on them, and which run other software than the rest.

A node is down when its exporter can't be scraped and none of its replicas serves: one witness alone is an exporter
or a replica that failed. Which replicas are on a node is what its exporter said of their processes; that is kept for
as long as the exporter's target stays down, so that neither the alert nor what it silences ends with time.

Alertmanager silences what follows from it: alerts of that node by ``instance``, and those of its replicas by
``replica``. Replicas' alerts don't know their node, so ExaServeReplicaOnDownNode, which nobody is sent, names each.
"""

from __future__ import annotations

from dashboards.rulefile import NODE, Alert, Group, Record
from dashboards.signals import UP

#: 1 by cluster, instance (the node's exporter) and replica.
REPLICAS = "node:exaserve_replica_processes:info"
#: By cluster and instance: replicas of a node that is down.
LOST = "node:exaserve_node_down:replicas"
DIFFERING = "cluster:exaserve_node_software_partial:count"

DOWN = "ExaServeNodeDown"
ON_DOWN = "ExaServeReplicaOnDownNode"
DIFFER = "ExaServeNodesDiffer"

_EXPORTER_DOWN = 'max by (cluster, instance) (up{job="exaserve-exporter"}) == 0'
#: What must be the same on all nodes, or NCCL and answers differ.
_SAME = "exaserve_node_software_info{component=~'nvidia_driver|nccl|torch|torch_cuda|vllm|sglang|tensorrt_llm|ray'}"


def group() -> Group:
    return Group(
        "nodes",
        (
            Record(
                REPLICAS,
                f"""
                group by (cluster, instance, replica) (exaserve_process_group_size or exaserve_numa_replica_processes)
                or
                (
                  last_over_time({REPLICAS}[1m])
                  and on (cluster, instance)
                  {_EXPORTER_DOWN}
                )
                """,
            ),
            Record(
                LOST,
                f"""
                count by (cluster, instance) (
                  {REPLICAS}
                  and on (cluster, instance) {_EXPORTER_DOWN}
                  and on (cluster, replica) {UP} == 0
                )
                unless on (cluster, instance)
                ({REPLICAS} and on (cluster, replica) {UP} == 1)
                """,
            ),
            Record(
                DIFFERING,
                f"""
                count by (cluster, component) (
                  count by (cluster, component, version) (group by (cluster, instance, component, version) ({_SAME}))
                  < on (cluster, component) group_left ()
                  count by (cluster, component) (group by (cluster, instance, component) ({_SAME}))
                )
                """,
            ),
            Alert(
                DOWN,
                LOST,
                "warning",
                summary="Node {{ $labels.instance }} is down, with its {{ $value }} replicas",
                description="""
                    Neither its exporter nor any of its replicas answers. Others carry the load; see that they can (the
                    capacity board). Then power, network and console of the node.
                    """,
                wait="15s",
                keep_firing="1m",
                board="fabric",
                variables=NODE,
            ),
            Alert(
                ON_DOWN,
                f"{REPLICAS} and on (cluster, instance) {LOST} and on (cluster, replica) {UP} == 0",
                "info",
                summary="{{ $labels.replica }} is on {{ $labels.instance }}, which is down (on it: {{ $value }})",
                description="""
                    Nobody is sent this: it silences the replica's own alerts, since ExaServeNodeDown says it all.
                    """,
                keep_firing="1m",
                variables={"replica": "{{ $labels.replica }}"},
            ),
            Alert(
                DIFFER,
                f"{DIFFERING} > 0",
                "info",
                summary="{{ $value }} versions of {{ $labels.component }} are on some nodes only",
                description="""
                    Nodes of one fleet should run the same. A node was left out of an upgrade, or the upgrade stopped;
                    `exaserve doctor --from-exporters` names the nodes.
                    """,
                wait="1h",
            ),
        ),
        team="platform",
    )
