"""How full each link of the fabric is, by port, and the thresholds of the fabric's alerts as series to draw.

Both for boards: the alerts themselves are ``fabric.py``, ``storage.py`` and ``numa.py``.
"""

from __future__ import annotations

from dashboards.rulefile import Group, Record
from dashboards.rules import fabric, storage

#: By cluster, instance, device, port: bytes in one direction / what the link can carry in it.
SENT = "port:exaserve_infiniband_transmit:ratio"
RECEIVED = "port:exaserve_infiniband_receive:ratio"
#: By cluster and state (down, initialising, armed, active, deferred): ports in each; 0 beside a port that is there.
PORTS = "cluster:exaserve_infiniband_ports:count"
STATES = {1: "down", 2: "initialising", 3: "armed", 4: "active", 5: "deferred"}

#: By cluster, where there is something to compare with them.
STALL_LIMIT = "cluster:exaserve_infiniband_stall:threshold"
FREE_LIMIT = "cluster:exaserve_storage_available:threshold"

_BY = "cluster, instance, device, port"


def group() -> Group:
    rate = f"max by ({_BY}) (exaserve_infiniband_port_rate_bytes_per_second)"
    return Group(
        "links",
        (
            Record(SENT, f"{fabric.SENT_BYTES} / ({rate} > 0)"),
            Record(RECEIVED, f"{fabric.RECEIVED_BYTES} / ({rate} > 0)"),
            *(
                Record(
                    PORTS, f"count by (cluster) ({fabric.STATE} == {value}) or {_NO_PORT}", {"state": name}
                )
                for value, name in STATES.items()
            ),
            Record(STALL_LIMIT, f"{fabric.STALLED:g} + 0 * count by (cluster) ({fabric.STALL})"),
            Record(FREE_LIMIT, f"{storage.FULL:g} + 0 * count by (cluster) ({storage.AVAILABLE})"),
        ),
        # As the exporter's rates over two minutes, and thousands of ports.
        interval="15s",
    )


_NO_PORT = f"0 * count by (cluster) ({fabric.STATE})"
