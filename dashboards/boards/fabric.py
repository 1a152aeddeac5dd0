"""Fabric: is what replicas stand on sound: links, NUMA placement, storage, peers, GPUs; at which node it is not.

One row of numbers says where to look; below, a part for each. Everything comes from the exporter on the nodes, so
the board is the same for every source. With thousands of ports and GPUs, panels show counts and the worst few; the
variable ``node`` is the exporter's address. The parts are in ``_fabric_ports.py`` (InfiniBand, RoCE),
``_fabric_nodes.py`` (NUMA, storage, peers, versions) and ``_fabric_gpus.py``.
"""

from __future__ import annotations

from typing import Any

from grafanalib import core

from dashboards import variables as of
from dashboards.board import Row, dashboard, firing, runbook
from dashboards.boards import _fabric_gpus as gpus
from dashboards.boards import _fabric_nodes as nodes
from dashboards.boards import _fabric_ports as ports
from dashboards.panels import stat
from dashboards.rulefile import Links
from dashboards.rules import fabric, gpu, network, numa, storage
from dashboards.rules import links as full
from dashboards.signals import Source

_BAD = [(None, "green"), (1, "red")]


def board(links: Links, source: Source) -> core.Dashboard:
    rows: list[Row] = [(4, _glance(links))]
    rows += ["InfiniBand and RoCE ports", *ports.rows(links)]
    rows += ["GPUs", *gpus.rows(links)]
    rows += ["NUMA placement", *nodes.numa_rows(links)]
    rows += ["Storage", *nodes.storage_rows(links)]
    rows += ["Network peers, versions, memory of processes", *nodes.other_rows(links)]
    return dashboard(
        "fabric",
        "Fabric",
        "Is what replicas stand on sound: links, NUMA, storage, peers, GPUs; and at which node it is not.",
        rows,
        [
            of.label_variable("cluster", "cluster", "exaserve_exporter_build_info"),
            of.label_variable("node", "instance", f"exaserve_exporter_build_info{{{of.CLUSTER}}}"),
        ],
        annotations=[firing()],
        start="now-1h",
        refresh="30s",
    )


def _glance(links: Links) -> list[Any]:
    node = ports.NODE

    def count(bad: str, known: str) -> str:
        """How many are bad; 0 where some are known and none is, absent where none is known."""
        return f"count({bad}) or 0 * count({known})"

    state = f"{fabric.STATE}{{{node}}}"
    mounted, stuck = (f"exaserve_storage_{x}{{{node}}}" for x in ("mounted", "stuck"))
    peers, up = f"exaserve_network_peer_up{{{node}}}", f"exaserve_gpu_up{{{node}}}"
    return [
        stat(
            "Ports not active",
            "InfiniBand and RoCE ports that are not active now. A port that never was is counted too; the alert is "
            "only about those that were active within a day.",
            "none",
            count(f"{state} != 4", state),
            _BAD,
            empty="no InfiniBand or RoCE port",
            links=[runbook(fabric.PORT_DOWN, links)],
        ),
        stat(
            "Most stalled port",
            "Largest share of time in which a port had data and no credit to send it.",
            "percentunit",
            f"max({fabric.STALL}{{{node}}})",
            [(None, "green"), (fabric.STALLED / 2, "orange"), (fabric.STALLED, "red")],
            empty="no port that tells",
            decimals=1,
            links=[runbook(fabric.CONGESTED, links)],
        ),
        stat(
            "Fullest link",
            "Largest share of what a link can carry that is used, in the busier direction.",
            "percentunit",
            f"max({full.SENT}{{{node}}} or {full.RECEIVED}{{{node}}})",
            [(None, "green"), (0.8, "orange"), (0.95, "red")],
            empty="no port that tells",
            decimals=0,
        ),
        stat(
            "GPUs lost",
            "GPUs that can't be read: off the bus, hung, waiting for a reset, missing.",
            "none",
            count(f"{up} == 0", up),
            _BAD,
            empty="no GPU",
            links=[runbook(gpu.LOST, links)],
        ),
        stat(
            "Replicas on a wrong node",
            "Replicas that have CPUs, memory or their NIC on another NUMA node than their GPU.",
            "none",
            count(f"{numa.REMOTE}{{{of.CLUSTER}}} > 0", f"exaserve_numa_replica_binding{{{of.CLUSTER}}}"),
            [(None, "green"), (1, "orange")],
            empty="no replica is watched",
            links=[runbook(numa.ALERT, links)],
        ),
        stat(
            "Mounts unusable",
            "Folders that replicas load from and that hang or are not there.",
            "none",
            count(f"({mounted} == 0) or ({stuck} == 1)", mounted),
            _BAD,
            empty="no folder is watched",
            links=[runbook(storage.UNUSABLE, links)],
        ),
        stat(
            "Peers unreachable",
            "Listed peers to which the last TCP connection failed.",
            "none",
            count(f"{peers} == 0", peers),
            _BAD,
            empty="no peers are listed",
            links=[runbook(network.UNREACHABLE, links)],
        ),
    ]
