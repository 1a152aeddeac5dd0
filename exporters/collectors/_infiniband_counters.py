"""Which file of a port is which metric: plain data, no code. Reading the files is ``_infiniband_device.py``.

Names and widths of ``counters/`` are those of drivers/infiniband/core/sysfs.c (PortCounters and PortCountersExtended
of the InfiniBand specification, volume 1, 16.1.3). node_exporter's names are those of its infiniband collector
(1.5 to 1.9); a test holds the table to the real program.
"""

from __future__ import annotations

from typing import NamedTuple

_PORT = "exaserve_infiniband_port_"
_NODE = "node_infiniband_"


class PortCounter(NamedTuple):
    """One file of ``ports/N/counters``.

    name: our metric. node: node_exporter's. bits: width of a counter that stops at all ones until somebody clears
    it; 0 for 64 bits, which nobody fills. factor: multiplies what the file says (data is counted in words of 4 bytes).
    """

    name: str
    node: str
    bits: int = 0
    factor: int = 1


#: Files of ``ports/N/counters``.
PORT_COUNTERS = {
    "port_xmit_data": PortCounter(
        _PORT + "transmit_bytes_total", _NODE + "port_data_transmitted_bytes_total", factor=4
    ),
    "port_rcv_data": PortCounter(
        _PORT + "receive_bytes_total", _NODE + "port_data_received_bytes_total", factor=4
    ),
    "port_xmit_packets": PortCounter(
        _PORT + "transmit_packets_total", _NODE + "port_packets_transmitted_total"
    ),
    "port_rcv_packets": PortCounter(_PORT + "receive_packets_total", _NODE + "port_packets_received_total"),
    "unicast_xmit_packets": PortCounter(
        _PORT + "unicast_transmit_packets_total", _NODE + "unicast_packets_transmitted_total"
    ),
    "unicast_rcv_packets": PortCounter(
        _PORT + "unicast_receive_packets_total", _NODE + "unicast_packets_received_total"
    ),
    "multicast_xmit_packets": PortCounter(
        _PORT + "multicast_transmit_packets_total", _NODE + "multicast_packets_transmitted_total"
    ),
    "multicast_rcv_packets": PortCounter(
        _PORT + "multicast_receive_packets_total", _NODE + "multicast_packets_received_total"
    ),
    "port_xmit_wait": PortCounter(
        _PORT + "transmit_wait_ticks_total", _NODE + "port_transmit_wait_total", bits=32
    ),
    "port_xmit_discards": PortCounter(
        _PORT + "transmit_discards_total", _NODE + "port_discards_transmitted_total", bits=16
    ),
    "port_rcv_discards": PortCounter(
        # Of vendors' drivers only; their width is not documented.
        _PORT + "receive_discards_total",
        _NODE + "port_discards_received_total",
    ),
    "port_rcv_errors": PortCounter(
        _PORT + "receive_errors_total", _NODE + "port_errors_received_total", bits=16
    ),
    "port_rcv_remote_physical_errors": PortCounter(
        _PORT + "receive_remote_physical_errors_total",
        _NODE + "port_receive_remote_physical_errors_total",
        bits=16,
    ),
    "port_rcv_switch_relay_errors": PortCounter(
        _PORT + "receive_switch_relay_errors_total",
        _NODE + "port_receive_switch_relay_errors_total",
        bits=16,
    ),
    "port_xmit_constraint_errors": PortCounter(
        _PORT + "transmit_constraint_errors_total",
        _NODE + "port_constraint_errors_transmitted_total",
        bits=8,
    ),
    "port_rcv_constraint_errors": PortCounter(
        _PORT + "receive_constraint_errors_total", _NODE + "port_constraint_errors_received_total", bits=8
    ),
    "symbol_error": PortCounter(_PORT + "symbol_errors_total", _NODE + "symbol_error_total", bits=16),
    "link_error_recovery": PortCounter(
        _PORT + "link_error_recoveries_total", _NODE + "link_error_recovery_total", bits=8
    ),
    "link_downed": PortCounter(_PORT + "link_downed_total", _NODE + "link_downed_total", bits=8),
    "local_link_integrity_errors": PortCounter(
        _PORT + "local_link_integrity_errors_total", _NODE + "local_link_integrity_errors_total", bits=4
    ),
    "excessive_buffer_overrun_errors": PortCounter(
        _PORT + "buffer_overrun_errors_total", _NODE + "excessive_buffer_overrun_errors_total", bits=4
    ),
    "VL15_dropped": PortCounter(_PORT + "vl15_dropped_total", _NODE + "vl15_dropped_total", bits=16),
}

#: Files of ``ports/N/counters_ext`` (kernels before 4.5): the 64-bit ones, under our names for them.
EXTENDED_COUNTERS = {
    "port_xmit_data_64": PortCounter(
        _PORT + "transmit_bytes_total", _NODE + "legacy_data_transmitted_bytes_total", factor=4
    ),
    "port_rcv_data_64": PortCounter(
        _PORT + "receive_bytes_total", _NODE + "legacy_data_received_bytes_total", factor=4
    ),
    "port_xmit_packets_64": PortCounter(
        _PORT + "transmit_packets_total", _NODE + "legacy_packets_transmitted_total"
    ),
    "port_rcv_packets_64": PortCounter(
        _PORT + "receive_packets_total", _NODE + "legacy_packets_received_total"
    ),
    "port_unicast_xmit_packets": PortCounter(
        _PORT + "unicast_transmit_packets_total", _NODE + "legacy_unicast_packets_transmitted_total"
    ),
    "port_unicast_rcv_packets": PortCounter(
        _PORT + "unicast_receive_packets_total", _NODE + "legacy_unicast_packets_received_total"
    ),
    "port_multicast_xmit_packets": PortCounter(
        _PORT + "multicast_transmit_packets_total", _NODE + "legacy_multicast_packets_transmitted_total"
    ),
    "port_multicast_rcv_packets": PortCounter(
        _PORT + "multicast_receive_packets_total", _NODE + "legacy_multicast_packets_received_total"
    ),
}

#: Of 32 bits where the device has no PortCountersExtended; a port has that if it counts unicast packets.
EXTENDED_ONLY_64_BIT = {"port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets"}
EXTENDED_SIGN = "unicast_xmit_packets"

#: Beginnings of names in ``hw_counters`` that count what there is now, or was at most (bnxt_re); not counters.
GAUGES = ("active_", "watermark_")
#: How long the kernel keeps what it has read, in ms: a setting, no measurement.
LIFESPAN = "lifespan"

#: Names of node_exporter for files of ``ports/N/hw_counters``.
NODE_HW_COUNTERS = {
    "duplicate_request": _NODE + "duplicate_requests_packets_total",
    "implied_nak_seq_err": _NODE + "implied_nak_seq_errors_total",
    "local_ack_timeout_err": _NODE + "local_ack_timeout_errors_total",
    "np_cnp_sent": _NODE + "np_cnp_packets_sent_total",
    "np_ecn_marked_roce_packets": _NODE + "np_ecn_marked_roce_packets_received_total",
    "out_of_buffer": _NODE + "out_of_buffer_drops_total",
    "out_of_sequence": _NODE + "out_of_sequence_packets_received_total",
    "packet_seq_err": _NODE + "packet_sequence_errors_total",
    "req_cqe_error": _NODE + "req_cqes_errors_total",
    "req_cqe_flush_error": _NODE + "req_cqes_flush_errors_total",
    "req_remote_access_errors": _NODE + "req_remote_access_errors_total",
    "req_remote_invalid_request": _NODE + "req_remote_invalid_request_errors_total",
    "resp_cqe_error": _NODE + "resp_cqes_errors_total",
    "resp_cqe_flush_error": _NODE + "resp_cqes_flush_errors_total",
    "resp_local_length_error": _NODE + "resp_local_length_errors_total",
    "resp_remote_access_errors": _NODE + "resp_remote_access_errors_total",
    "rnr_nak_retry_err": _NODE + "rnr_nak_retry_packets_received_total",
    "roce_adp_retrans": _NODE + "roce_adp_retransmits_total",
    "roce_adp_retrans_to": _NODE + "roce_adp_retransmits_timeout_total",
    "roce_slow_restart": _NODE + "roce_slow_restart_used_total",
    "roce_slow_restart_cnps": _NODE + "roce_slow_restart_cnps_total",
    "roce_slow_restart_trans": _NODE + "roce_slow_restart_total",
    "rp_cnp_handled": _NODE + "rp_cnp_packets_handled_total",
    "rp_cnp_ignored": _NODE + "rp_cnp_ignored_packets_received_total",
    "rx_atomic_requests": _NODE + "rx_atomic_requests_total",
    "rx_dct_connect": _NODE + "rx_dct_connect_requests_total",
    "rx_icrc_encapsulated": _NODE + "rx_icrc_encapsulated_errors_total",
    "rx_read_requests": _NODE + "rx_read_requests_total",
    "rx_write_requests": _NODE + "rx_write_requests_total",
}
