"""node_exporter's names for what its infiniband collector and ours both read, so that panels made for it keep working.

Names, labels and values are node_exporter's (1.5 to 1.9; a test runs the real program beside ours). Ours has them for
more: node_exporter reads hw_counters only of devices called ``mlx5_…`` and, lately, ``irdma…``, and gives up on all
devices when one file of one of them can't be read. Two of its values are kept as they are although they are odd:
``lifespan_seconds`` is cut to whole seconds (0 for the usual 10 ms), and ``legacy_…`` stands for counters_ext.
Only exported with ``--node-exporter-names``; not beside a node_exporter that is scraped too, or sums count twice.
"""

from __future__ import annotations

from exporters.catalog.metric import Metric

_PORT = ("device", "port")
_SOURCE = "as node_exporter: /sys/class/infiniband/"

#: Name without node_infiniband_ and _total: the file, and what it counts.
_PORT_COUNTERS = {
    "port_data_transmitted_bytes": ("port_xmit_data", "Bytes sent."),
    "port_data_received_bytes": ("port_rcv_data", "Bytes received."),
    "port_packets_transmitted": ("port_xmit_packets", "Packets sent."),
    "port_packets_received": ("port_rcv_packets", "Packets received."),
    "unicast_packets_transmitted": ("unicast_xmit_packets", "Unicast packets sent."),
    "unicast_packets_received": ("unicast_rcv_packets", "Unicast packets received."),
    "multicast_packets_transmitted": ("multicast_xmit_packets", "Multicast packets sent."),
    "multicast_packets_received": ("multicast_rcv_packets", "Multicast packets received."),
    "port_transmit_wait": ("port_xmit_wait", "Ticks in which data waited and nothing was sent."),
    "port_discards_transmitted": ("port_xmit_discards", "Packets not sent."),
    "port_discards_received": ("port_rcv_discards", "Received packets dropped."),
    "port_errors_received": ("port_rcv_errors", "Packets received with an error."),
    "port_receive_remote_physical_errors": (
        "port_rcv_remote_physical_errors",
        "Packets received that were marked as bad before.",
    ),
    "port_receive_switch_relay_errors": (
        "port_rcv_switch_relay_errors",
        "Packets a switch could not forward.",
    ),
    "port_constraint_errors_transmitted": ("port_xmit_constraint_errors", "Packets not sent by rule."),
    "port_constraint_errors_received": ("port_rcv_constraint_errors", "Received packets dropped by rule."),
    "symbol_error": ("symbol_error", "Small errors on the lanes of the link."),
    "link_error_recovery": ("link_error_recovery", "Times the link came back after errors."),
    "link_downed": ("link_downed", "Times the link did not, and went down."),
    "local_link_integrity_errors": ("local_link_integrity_errors", "Times of too many errors on the link."),
    "excessive_buffer_overrun_errors": ("excessive_buffer_overrun_errors", "Overruns of the receive buffer."),
    "vl15_dropped": ("VL15_dropped", "Management packets dropped."),
}

_EXTENDED_COUNTERS = {
    "legacy_data_transmitted_bytes": ("port_xmit_data_64", "Bytes sent."),
    "legacy_data_received_bytes": ("port_rcv_data_64", "Bytes received."),
    "legacy_packets_transmitted": ("port_xmit_packets_64", "Packets sent."),
    "legacy_packets_received": ("port_rcv_packets_64", "Packets received."),
    "legacy_unicast_packets_transmitted": ("port_unicast_xmit_packets", "Unicast packets sent."),
    "legacy_unicast_packets_received": ("port_unicast_rcv_packets", "Unicast packets received."),
    "legacy_multicast_packets_transmitted": ("port_multicast_xmit_packets", "Multicast packets sent."),
    "legacy_multicast_packets_received": ("port_multicast_rcv_packets", "Multicast packets received."),
}

_HW_COUNTERS = {
    "duplicate_requests_packets": ("duplicate_request", "Requests that had been executed before."),
    "implied_nak_seq_errors": ("implied_nak_seq_err", "Acknowledgements beyond what was expected."),
    "local_ack_timeout_errors": ("local_ack_timeout_err", "Times no acknowledgement came in time."),
    "np_cnp_packets_sent": ("np_cnp_sent", "Congestion notifications sent."),
    "np_ecn_marked_roce_packets_received": (
        "np_ecn_marked_roce_packets",
        "RoCE packets with a congestion mark.",
    ),
    "out_of_buffer_drops": ("out_of_buffer", "Packets dropped: no receive buffer was posted."),
    "out_of_sequence_packets_received": ("out_of_sequence", "Packets received out of order."),
    "packet_sequence_errors": ("packet_seq_err", "Sequence error NAKs received."),
    "req_cqes_errors": ("req_cqe_error", "Requester: completions with an error."),
    "req_cqes_flush_errors": ("req_cqe_flush_error", "Requester: completions flushed."),
    "req_remote_access_errors": ("req_remote_access_errors", "Requester: the other side refused access."),
    "req_remote_invalid_request_errors": ("req_remote_invalid_request", "Requester: invalid request."),
    "resp_cqes_errors": ("resp_cqe_error", "Responder: completions with an error."),
    "resp_cqes_flush_errors": ("resp_cqe_flush_error", "Responder: completions flushed."),
    "resp_local_length_errors": ("resp_local_length_error", "Responder: wrong length."),
    "resp_remote_access_errors": ("resp_remote_access_errors", "Responder: access refused."),
    "rnr_nak_retry_packets_received": ("rnr_nak_retry_err", "Receiver-not-ready NAKs received."),
    "roce_adp_retransmits": ("roce_adp_retrans", "Adaptive retransmissions."),
    "roce_adp_retransmits_timeout": ("roce_adp_retrans_to", "Time-outs of adaptive retransmission."),
    "roce_slow_restart_used": ("roce_slow_restart", "Times slow restart was used."),
    "roce_slow_restart_cnps": ("roce_slow_restart_cnps", "Congestion notifications by slow restart."),
    "roce_slow_restart": ("roce_slow_restart_trans", "Times the state changed to slow restart."),
    "rp_cnp_packets_handled": ("rp_cnp_handled", "Congestion notifications obeyed."),
    "rp_cnp_ignored_packets_received": ("rp_cnp_ignored", "Congestion notifications ignored."),
    "rx_atomic_requests": ("rx_atomic_requests", "Atomic requests received."),
    "rx_dct_connect_requests": ("rx_dct_connect", "Connection requests for dynamic transport received."),
    "rx_icrc_encapsulated_errors": ("rx_icrc_encapsulated", "RoCE packets with a wrong checksum."),
    "rx_read_requests": ("rx_read_requests", "Read requests received."),
    "rx_write_requests": ("rx_write_requests", "Write requests received."),
}


def _counters(folder: str, table: dict[str, tuple[str, str]]) -> tuple[Metric, ...]:
    return tuple(
        Metric(
            f"node_infiniband_{name}_total",
            "counter",
            help,
            _PORT,
            "bytes" if name.endswith("_bytes") else "",
            f"{_SOURCE}*/ports/*/{folder}/{file}",
        )
        for name, (file, help) in table.items()
    )


METRICS = (
    Metric(
        "node_infiniband_info",
        "gauge",
        "Constant 1; what the device is.",
        ("device", "board_id", "firmware_version", "hca_type"),
        source=_SOURCE + "*/{board_id,fw_ver,hca_type}",
    ),
    Metric(
        "node_infiniband_state_id",
        "gauge",
        "Logical state; 4: active.",
        _PORT,
        source=_SOURCE + "*/ports/*/state",
    ),
    Metric(
        "node_infiniband_physical_state_id",
        "gauge",
        "Physical state; 5: link up.",
        _PORT,
        source=_SOURCE + "*/ports/*/phys_state",
    ),
    Metric(
        "node_infiniband_rate_bytes_per_second",
        "gauge",
        "What the link can carry.",
        _PORT,
        "bytes_per_second",
        _SOURCE + "*/ports/*/rate",
    ),
    Metric(
        "node_infiniband_lifespan_seconds",
        "gauge",
        "How long the kernel keeps hw_counters before it reads them anew, in whole seconds.",
        _PORT,
        "seconds",
        _SOURCE + "*/ports/*/hw_counters/lifespan",
    ),
    *_counters("counters", _PORT_COUNTERS),
    *_counters("counters_ext", _EXTENDED_COUNTERS),
    *_counters("hw_counters", _HW_COUNTERS),
)
