"""Connections to listed peers (exporter, network collector, off unless turned on).

``peer`` is host:port as it was configured. Example::

    exaserve_network_peer_up == 0
    exaserve_network_path_mtu_bytes < on (peer) exaserve_network_interface_mtu_bytes
"""

from __future__ import annotations

from exporters.catalog.metric import Metric

_SOURCE = "exporter, network collector"
_PEER = ("peer",)

METRICS = (
    Metric(
        "exaserve_network_peer_up",
        "gauge",
        "1 if the last TCP connection to the peer was made, else 0.",
        _PEER,
        source=_SOURCE,
    ),
    Metric(
        "exaserve_network_connect_duration_seconds",
        "gauge",
        "How long the last TCP connection took to be made, names not included; absent if it was not.",
        _PEER,
        "seconds",
        _SOURCE,
    ),
    Metric(
        "exaserve_network_connects_total",
        "counter",
        "Connections tried, by result.",
        ("peer", "result"),
        source=f"{_SOURCE}; result: ok, refused, timeout, no_route, name, other",
    ),
    Metric(
        "exaserve_network_path_mtu_bytes",
        "gauge",
        "Largest packet on the way to the peer as the kernel knows it, IP header included.",
        _PEER,
        "bytes",
        f"{_SOURCE}: IP_MTU, IPV6_MTU",
    ),
    Metric(
        "exaserve_network_interface_mtu_bytes",
        "gauge",
        "MTU of the interface that packets to the peer leave by.",
        ("peer", "interface"),
        "bytes",
        f"{_SOURCE}: SIOCGIFMTU",
    ),
    Metric(
        "exaserve_network_path_mtu_verified",
        "gauge",
        "1 if a packet of that size reached the peer, 0 if only small ones do (a black hole);"
        " absent if it answers to neither.",
        _PEER,
        source=f"{_SOURCE}: UDP to port 33434, answered by port unreachable",
    ),
)
