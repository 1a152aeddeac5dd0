"""Listed peers of each node: can they be reached, and do packets as large as the interface sends get there.

Series are those of the exporter's network collector (off unless turned on), by node (``instance``) and
``peer``. A TCP handshake has small packets: connections are made over a path that swallows large ones, and
hang then."""

from __future__ import annotations

from dashboards.rulefile import NODE, Alert, Group

UNREACHABLE, MTU = "ExaServePeerUnreachable", "ExaServePathMTU"

_BY = "by (cluster, instance, peer)"


def group() -> Group:
    return Group(
        "network",
        (
            Alert(
                UNREACHABLE,
                f"max {_BY} (exaserve_network_peer_up) == 0",
                "warning",
                board="fabric",
                variables=NODE,
                summary="{{ $labels.instance }} can't reach {{ $labels.peer }}: up is {{ $value }}",
                description="""
                    No TCP connection for two minutes. Why (refused, timeout, no_route, name) is in the
                    runbook's first query; see whether other nodes reach the peer.
                    """,
                wait="2m",
                keep_firing="1m",
            ),
            Alert(
                MTU,
                # IP counts the length of a packet in 16 bits; the loopback interface says 65,536.
                f"""
                min {_BY} (exaserve_network_path_mtu_bytes)
                < on (cluster, instance, peer)
                clamp_max(min {_BY} (exaserve_network_interface_mtu_bytes), 65535)
                """,
                "warning",
                board="fabric",
                variables=NODE,
                summary="From {{ $labels.instance }} to {{ $labels.peer }} packets have at most"
                " {{ $value }} bytes, less than the interface sends",
                description="""
                    Something on the way has a smaller MTU and says so, so traffic goes on in smaller packets.
                    Compare the MTU of both nodes and of the switches between.
                    """,
                wait="10m",
                keep_firing="5m",
                labels={"condition": "smaller"},
            ),
            Alert(
                MTU,
                f"max {_BY} (exaserve_network_path_mtu_verified) == 0",
                "warning",
                board="fabric",
                variables=NODE,
                summary="Large packets from {{ $labels.instance }} to {{ $labels.peer }} vanish:"
                " verified is {{ $value }}",
                description="""
                    Small packets arrive, those of the interface's size do not, and nobody says so:
                    connections are made and then hang on the first large transfer. Compare the MTU of both nodes
                    and of the switches.
                    """,
                wait="5m",
                keep_firing="5m",
                labels={"condition": "black_hole"},
            ),
        ),
        team="network",
    )
