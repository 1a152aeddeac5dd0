"""What else a node has: NUMA placement of its replicas, storage, network peers, versions, memory of processes."""

from __future__ import annotations

from dashboards import variables as of
from dashboards.board import REPLICA_OF_ROW, Row, runbook, to_replica
from dashboards.boards._fabric_ports import NODE
from dashboards.panels import table, timeseries
from dashboards.rulefile import Links
from dashboards.rules import engine_state, leak, network, nodes, numa, storage
from dashboards.rules import links as limits

_LINES, _ROWS = 8, 20
_NO_REPLICA = "no exporter watches a replica's placement in this time"
_NO_MOUNT = "no folder is watched in this time"
_NO_PEER = "no peers are listed (exporter.network)"
_WINDOW = "$__rate_interval"
_MOUNT, _PEER = ("cluster", "instance", "mount"), ("cluster", "instance", "peer")


def numa_rows(links: Links) -> list[Row]:
    book = [runbook(numa.ALERT, links)]

    def count(metric: str, label: str) -> str:
        one = f"max by (cluster, replica, {label}) ({metric}{{{NODE}}})"
        return f"sum by ({label}) ({one})"

    remote = f"exaserve_numa_replica_remote_memory_ratio{{{NODE}}}"
    replica = "cluster, instance, replica"
    other = f'exaserve_numa_node_allocations_total{{{NODE}, event="other"}}'
    placement = [
        timeseries(
            "Placement of replicas",
            "How many replicas are placed right, wrong (not bound at all included), or unknown: the machine does not "
            "tell.",
            "none",
            [(count("exaserve_numa_replica_binding", "verdict"), "{{verdict}}")],
            empty=_NO_REPLICA,
            links=book,
        ),
        timeseries(
            "Why",
            "How many replicas each reason holds for; a replica may have several. The alert is about cpus_remote, "
            "memory_remote and nic_remote.",
            "none",
            [(count("exaserve_numa_replica_binding_reason", "reason"), "{{reason}}")],
            empty=_NO_REPLICA,
            links=book,
        ),
        timeseries(
            "Remote memory",
            f"Share of a replica's memory on other nodes than its GPU's, the {_LINES} with most. Above a quarter it "
            "counts as wrong. Read every 5 minutes.",
            "percentunit",
            [
                (
                    f"max by ({replica}) ({remote}) and on ({replica}) topk({_LINES}, {remote} @ end())",
                    "{{replica}} {{instance}}",
                )
            ],
            top=1,
            empty=_NO_REPLICA,
            links=book,
        ),
        timeseries(
            "Pages taken by another node's CPUs",
            f"Pages per second that CPUs of another NUMA node asked for, the {_LINES} nodes of machines with most: "
            "traffic between the sockets to come.",
            "none",
            [
                (
                    f"topk({_LINES}, sum by (cluster, instance, node) (rate({other}[{_WINDOW}])))",
                    "{{instance}} node {{node}}",
                )
            ],
            empty="no NUMA nodes are read in this time",
        ),
    ]
    wrong = f"topk({_ROWS}, {numa.REMOTE}{{{of.CLUSTER}}})"
    reasons = table(
        "Which replicas are on a wrong node",
        f"Up to {_ROWS} replicas with something on the wrong node: how many of CPUs, memory and NIC, and how much of "
        "their memory is remote. Which of the three: the runbook's first query.",
        [
            (wrong, "things", "none"),
            (
                f"max by (cluster, replica) ({remote}) and on (cluster, replica) {wrong}",
                "remote memory",
                "percentunit",
            ),
        ],
        ["cluster", "replica"],
        empty="no replica is on a wrong node, or none is watched",
        sort="things",
        data_links={"replica": to_replica(links, REPLICA_OF_ROW)},
        links=book,
    )
    return [(8, placement), (7, [reasons])]


def storage_rows(links: Links) -> list[Row]:
    slow, unusable, filling = (
        [runbook(name, links)] for name in (storage.SLOW, storage.UNUSABLE, storage.FILLING)
    )
    name = "{{mount}} {{instance}}"
    write = "exaserve_storage_write_latency_seconds"
    latency = [
        timeseries(
            "Read latency",
            f"Median of reads of 4 KiB over 5 minutes, the {_LINES} slowest mounts. Dashed: from where the mount counts "
            "as slow, a setting of the exporter.",
            "s",
            [
                (of.top(_LINES, storage.LATENCY, NODE, on=_MOUNT), name),
                (f"max by (mount) (exaserve_storage_read_limit_seconds{{{NODE}}})", "{{mount}} threshold"),
            ],
            dashed=".* threshold",
            log=True,
            empty=_NO_MOUNT,
            links=slow,
        ),
        timeseries(
            "Write latency",
            f"Of the last write of 4 KiB with fsync, the {_LINES} slowest mounts. Read-only ones have none.",
            "s",
            [(of.top(_LINES, write, NODE, on=_MOUNT), name)],
            log=True,
            empty="no folder that can be written is watched",
            links=slow,
        ),
        timeseries(
            "Space left",
            f"Share of the file system that is free, the {_LINES} fullest. Dashed: from where the alert speaks. "
            "Read-only mounts are left out.",
            "percentunit",
            [
                (of.top(_LINES, storage.AVAILABLE, NODE, bottom=True, on=_MOUNT), name),
                (f"{limits.FREE_LIMIT}{{{of.CLUSTER}}}", "alert's threshold {{cluster}}"),
            ],
            dashed=".*threshold.*",
            top=1,
            empty=_NO_MOUNT,
            links=filling,
        ),
        timeseries(
            "Failed operations of probes",
            f"Per second, by operation and kind of error, the {_LINES} with most.",
            "none",
            [
                (
                    f"topk({_LINES}, sum by (cluster, instance, mount, operation, kind)"
                    f" (rate(exaserve_storage_probe_errors_total{{{NODE}}}[{_WINDOW}])) > 0)",
                    "{{mount}} {{instance}} {{operation}}: {{kind}}",
                )
            ],
            empty="no probe failed in this time",
            links=unusable,
        ),
    ]
    bad = (
        f"max by ({', '.join(_MOUNT)}) ((exaserve_storage_stuck{{{NODE}}} == 1) or (exaserve_storage_mounted{{{NODE}}}"
        f" == 0) or (exaserve_storage_probe_failed{{{NODE}}} == 1))"
    )
    which = f"on ({', '.join(_MOUNT)}) topk({_ROWS}, {bad})"

    def column(metric: str) -> str:
        return f"max by ({', '.join(_MOUNT)}) ({metric}) and {which}"

    stuck = f"time() - exaserve_storage_stuck_since_timestamp_seconds{{{NODE}}}"
    trouble = table(
        "Mounts in trouble",
        f"Up to {_ROWS} folders that hang, are not there, or whose probe fails. Hangs: for how long a read or write has "
        "not come back. Replicas that run have their weights in memory; the next one that starts fails.",
        [
            (column(f"exaserve_storage_mounted{{{NODE}}}"), "mounted", "none"),
            (column(stuck), "hangs", "s"),
            (column(f"exaserve_storage_probe_failed{{{NODE}}}"), "probe fails", "none"),
            (column(f"exaserve_storage_read_only{{{NODE}}}"), "read-only", "none"),
            (column(storage.INODES + f"{{{NODE}}}"), "files left", "percentunit"),
        ],
        _MOUNT,
        empty="every watched folder can be used, or none is watched",
        sort="hangs",
        links=unusable,
    )
    return [(8, latency), (7, [trouble])]


def other_rows(links: Links) -> list[Row]:
    unreachable, mtu, grows = (
        [runbook(name, links)] for name in (network.UNREACHABLE, network.MTU, leak.ALERT)
    )
    peer = ", ".join(_PEER)
    up, path = (
        f"exaserve_network_peer_up{{{NODE}}}",
        f"min by ({peer}) (exaserve_network_path_mtu_bytes{{{NODE}}})",
    )
    interface = f"min by ({peer}) (exaserve_network_interface_mtu_bytes{{{NODE}}})"
    verified = f"max by ({peer}) (exaserve_network_path_mtu_verified{{{NODE}}})"
    bad = f"(max by ({peer}) ({up}) == 0) or ({verified} == 0) or ({path} < clamp_max({interface}, 65535))"
    which = f"on ({peer}) topk({_ROWS}, {bad})"
    slope, files = (f"{x}{{{NODE}}}" for x in (leak.SLOPE, "exaserve_process_open_fds_ratio"))
    versions = f"count by (component, version) (exaserve_node_software_info{{{NODE}}})"
    first = [
        timeseries(
            "Connections to peers, by result",
            "TCP connections tried per second by result, all chosen nodes. A handshake has small packets only; what "
            "large ones do is the table's last columns.",
            "none",
            [
                (
                    f"sum by (result) (rate(exaserve_network_connects_total{{{NODE}}}[{_WINDOW}]))",
                    "{{result}}",
                )
            ],
            empty=_NO_PEER,
            links=unreachable,
        ),
        timeseries(
            "Time to connect",
            f"How long the last TCP connection took to be made, the {_LINES} slowest pairs of node and peer.",
            "s",
            [
                (
                    of.top(_LINES, "exaserve_network_connect_duration_seconds", NODE, on=_PEER),
                    "{{instance}} → {{peer}}",
                )
            ],
            log=True,
            empty=_NO_PEER,
            links=unreachable,
        ),
        timeseries(
            "Memory growth of replicas",
            f"Slope of each replica's own memory over 30 minutes, the {_LINES} steepest. A leak is a line that does "
            "not come down.",
            "Bps",
            [
                (
                    f"{slope} and on (cluster, instance, replica) topk({_LINES}, {slope} @ end())",
                    "{{replica}} {{instance}}",
                )
            ],
            signed=True,
            empty="no exporter has read a replica's processes for 30 minutes",
            links=grows,
        ),
        timeseries(
            "Open files of replicas",
            f"Share of its limit that the process nearest to it has open, the {_LINES} replicas with most. At 1, "
            "connections are refused.",
            "percentunit",
            [
                (
                    f"{files} and on (cluster, instance, replica) topk({_LINES}, {files} @ end())",
                    "{{replica}} {{instance}}",
                )
            ],
            top=1,
            empty="no exporter reads a replica's processes in this time",
            links=[runbook(engine_state.FILES, links)],
        ),
    ]
    peers = table(
        "Peers in trouble",
        f"Up to {_ROWS} pairs of node and peer that can't be reached, or between which large packets do not pass. "
        "Path below interface: something between has a smaller MTU. Verified 0: large packets vanish.",
        [
            (f"max by ({peer}) ({up}) and {which}", "up", "none"),
            (f"{path} and {which}", "path MTU", "bytes"),
            (f"{interface} and {which}", "interface MTU", "bytes"),
            (f"{verified} and {which}", "verified", "none"),
        ],
        _PEER,
        empty="every listed peer is reached by packets of every size, or none is listed",
        sort="up",
        ascending=True,
        links=[*unreachable, *mtu],
    )
    differing = table(
        "Versions that differ",
        "Components that the chosen nodes have in more than one version, and how many nodes have each. Ranks of one "
        "model on different versions fail in ways that are hard to read.",
        [
            (
                f"topk(40, {versions} and on (component) count by (component) ({versions}) > 1)",
                "nodes",
                "none",
            )
        ],
        ["component", "version"],
        links=[runbook(nodes.DIFFER, links)],
        empty="all chosen nodes have the same versions",
        sort="component",
        ascending=True,
    )
    return [(8, first), (8, [(14, peers), (10, differing)])]
