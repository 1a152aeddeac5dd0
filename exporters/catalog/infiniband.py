"""InfiniBand, RoCE and EFA devices and ports.

The counters of ``counters/`` have metrics of their own: the InfiniBand specification defines them, every driver that
has them means the same, and they have different units. Those of ``hw_counters/`` share one metric with the kernel's
own name as the label ``counter``: there are hundreds of them in nine drivers, they change with the kernel, and that
is the name under which a vendor's documentation has them; one query then covers all vendors::

    rate(exaserve_infiniband_port_hw_total{counter=~"out_of_buffer|rx_out_of_buffer"}[5m])

The price: a sum over ``counter`` means nothing; select first. Those that mean the same under different names are
brought together by recording rules (``dashboards/rules/fabric.py``): transport retries, receiver starvation, CNPs,
exceeded retries, bytes.

Bytes per second that leave a port, as a share of what the link can do (one query for all drivers:
``port:exaserve_infiniband_transmit_bytes:rate2m``)::

    rate(exaserve_infiniband_port_transmit_bytes_total[1m]) / exaserve_infiniband_port_rate_bytes_per_second

Ports on the NUMA node of their device, and by interface::

    exaserve_infiniband_port_info * on (instance, device) group_left () exaserve_infiniband_device_numa_node

A counter of ``counters/`` with fewer than 64 bits stops at its end, and its rate is then 0 as if all were well:
``exaserve_infiniband_port_saturated``. Counters in ``hw_counters`` (32 bits on mlx5) wrap instead, which
``rate`` takes for a reset.

node_exporter's names (``node_infiniband_…``), for panels that ask for them, are in ``node_infiniband.py`` and
exported only where that is asked for.
"""

from __future__ import annotations

from exporters.catalog import node_infiniband
from exporters.catalog.metric import Kind, Metric

_DEVICE = ("device",)
_PORT = ("device", "port")
_SOURCE = "kernel: /sys/class/infiniband/"


def _device(name: str, help: str, *more: str, kind: Kind = "gauge", source: str) -> Metric:
    return Metric(
        f"exaserve_infiniband_device_{name}", kind, help, (*_DEVICE, *more), source=_SOURCE + source
    )


def _port(name: str, help: str, *more: str, unit: str = "", source: str) -> Metric:
    return Metric(
        f"exaserve_infiniband_port_{name}",
        "gauge",
        help,
        (*_PORT, *more),
        unit,
        _SOURCE + "*/ports/*/" + source,
    )


def _counter(name: str, help: str, source: str, unit: str = "") -> Metric:
    return Metric(
        f"exaserve_infiniband_port_{name}_total",
        "counter",
        help,
        _PORT,
        unit,
        f"{_SOURCE}*/ports/*/counters/{source}",
    )


METRICS = (
    _device(
        "up",
        "1 if the device's files were read at this scrape, 0 if they don't answer. Of a removed one: absent.",
        source="*",
    ),
    _device(
        "info",
        "Constant 1; what the device is. A label is empty where the driver doesn't say.",
        "driver",
        "node_type",
        "node_guid",
        "firmware_version",
        "board_id",
        "hca_type",
        "hardware_revision",
        "pci_address",
        source="*/{fw_ver,board_id,hca_type,hw_rev,node_type,node_guid,device}",
    ),
    _device(
        "numa_node",
        "NUMA node that the device is attached to; absent where the firmware doesn't say.",
        source="*/device/numa_node",
    ),
    _device(
        "unreadable_files",
        "Files of the device, ports included, that could not be read at this scrape or held no number.",
        source="* (EINVAL, ENOSYS, EOPNOTSUPP, EACCES, ENODEV, ENOENT, 'N/A (no PMA)')",
    ),
    _device(
        "hw_total",
        "Counters of the driver for the whole device, under the kernel's names. They include its ports'.",
        "counter",
        kind="counter",
        source="*/hw_counters/*",
    ),
    _device(
        "hw_objects",
        "Objects in use, or most that were, for the whole device, under the kernel's names.",
        "counter",
        source="*/hw_counters/{active_,watermark_}*",
    ),
    _port(
        "info",
        "Constant 1; link layer (InfiniBand, Ethernet) and network interface. Read anew every minute.",
        "link_layer",
        "net_device",
        source="{link_layer,gid_attrs/ndevs/0}, or net/ of the PCI device",
    ),
    _port(
        "state_id",
        "Logical state: 1 down, 2 initialising, 3 armed (waits for the subnet manager), 4 active, 5 deferred.",
        source="state",
    ),
    _port(
        "physical_state_id",
        "Physical state: 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 error recovery, 7 test.",
        source="phys_state",
    ),
    _port(
        "rate_bytes_per_second",
        "What the link can carry in each direction (width x speed). Also given while the link is down.",
        unit="bytes_per_second",
        source="rate",
    ),
    _port(
        "saturated",
        "1 if the counter has reached its end and counts no more until somebody clears it (perfquery -R).",
        "counter",
        source="counters/* of 4, 8, 16 and 32 bits",
    ),
    _counter("transmit_bytes", "Bytes sent, without link-level overhead.", "port_xmit_data x 4", "bytes"),
    _counter("receive_bytes", "Bytes received, without link-level overhead.", "port_rcv_data x 4", "bytes"),
    _counter("transmit_packets", "Packets sent.", "port_xmit_packets"),
    _counter("receive_packets", "Packets received, broken ones included.", "port_rcv_packets"),
    _counter("unicast_transmit_packets", "Unicast packets sent.", "unicast_xmit_packets"),
    _counter("unicast_receive_packets", "Unicast packets received.", "unicast_rcv_packets"),
    _counter("multicast_transmit_packets", "Multicast packets sent.", "multicast_xmit_packets"),
    _counter("multicast_receive_packets", "Multicast packets received.", "multicast_rcv_packets"),
    _counter(
        "transmit_wait_ticks",
        "Ticks in which there was data to send and nothing was sent: no credit, or another lane's turn."
        " How long a tick is depends on the device.",
        "port_xmit_wait",
    ),
    _counter("transmit_discards", "Packets not sent: the port is down or congested.", "port_xmit_discards"),
    _counter("receive_discards", "Received packets that were dropped.", "port_rcv_discards"),
    _counter("receive_errors", "Packets received with an error.", "port_rcv_errors"),
    _counter(
        "receive_remote_physical_errors",
        "Packets received that a switch before us had already marked as bad.",
        "port_rcv_remote_physical_errors",
    ),
    _counter(
        "receive_switch_relay_errors",
        "Packets that a switch could not forward.",
        "port_rcv_switch_relay_errors",
    ),
    _counter(
        "transmit_constraint_errors",
        "Packets not sent for partition or raw-packet rules.",
        "port_xmit_constraint_errors",
    ),
    _counter(
        "receive_constraint_errors",
        "Received packets dropped for partition or raw-packet rules.",
        "port_rcv_constraint_errors",
    ),
    _counter(
        "symbol_errors", "Small errors on the lanes of the link: cable, connector, heat.", "symbol_error"
    ),
    _counter(
        "link_error_recoveries",
        "Times the link trained itself anew after errors and came back.",
        "link_error_recovery",
    ),
    _counter("link_downed", "Times that failed, and the link went down.", "link_downed"),
    _counter(
        "local_link_integrity_errors",
        "Times there were more errors on the link than its threshold allows.",
        "local_link_integrity_errors",
    ),
    _counter(
        "buffer_overrun_errors",
        "Times the receive buffer was overrun for several flow control periods in a row.",
        "excessive_buffer_overrun_errors",
    ),
    _counter("vl15_dropped", "Management packets dropped for want of buffers.", "VL15_dropped"),
    Metric(
        "exaserve_infiniband_port_other_total",
        "counter",
        "Further counters of the port, under the kernel's names.",
        (*_PORT, "counter"),
        source=f"{_SOURCE}*/ports/*/counters/* that no other metric is for",
    ),
    Metric(
        "exaserve_infiniband_port_hw_total",
        "counter",
        "Counters of the driver for the port, under the kernel's names; which ones there are depends on the driver.",
        (*_PORT, "counter"),
        source=f"{_SOURCE}*/ports/*/hw_counters/*",
    ),
    Metric(
        "exaserve_infiniband_port_hw_objects",
        "gauge",
        "Objects in use (active_qps), or most that were (watermark_qps), under the kernel's names; bnxt_re only.",
        (*_PORT, "counter"),
        source=f"{_SOURCE}*/ports/*/hw_counters/{{active_,watermark_}}*",
    ),
    *node_infiniband.METRICS,
)
