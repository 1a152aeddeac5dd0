"""Fabric: congestion of InfiniBand, RoCE and EFA ports, links that are down or flap, counters that are full.

There is no queue depth: no kernel interface says how many sends are outstanding. What shows a congested send side is

- on InfiniBand the stall ratio, the share of time in which there was data and no credit: ticks of port_xmit_wait
  times what a tick could have carried, over what the link could have carried;
- on RoCE the congestion notifications (CNPs) that the port had to obey, per million packets sent;
- on both the transport retries. Receivers without a buffer, the nearest thing to a full queue, are kept apart.

Every vendor has its own names for these; they come together here, under ``port:exaserve_infiniband_…``. The level
``port`` is instance (the exporter's address), device and port. A port that two jobs scrape counts once.

A window of 2 minutes holds two scrapes even where the exporter is scraped once a minute. Thresholds are starting
values, to be calibrated on the fabric.
"""

from __future__ import annotations

from dashboards.rulefile import NODE, Alert, Group, Record

#: Bytes that one tick of port_xmit_wait stands for. NVIDIA documents it for Quantum switches; for adapters it is
#: an estimate, and so is the stall ratio.
TICK_BYTES = 8
#: Share of time without credit above which somebody should look.
STALLED = 0.1
#: Seconds for which a port that was active is missed when it is not.
MISSED_SECONDS = 86_400

STALL = "port:exaserve_infiniband_stall:ratio"
CNP = "port:exaserve_infiniband_cnp_handled:per_million_packets"
RETRIES = "port:exaserve_infiniband_transport_retries:rate2m"
STARVED = "port:exaserve_infiniband_receiver_starvation:rate2m"
PEER_STARVED = "port:exaserve_infiniband_remote_receiver_starvation:rate2m"
EXCEEDED = "port:exaserve_infiniband_retries_exceeded:increase5m"
DOWNED = "port:exaserve_infiniband_link_downed:increase15m"
ERRORS = "port:exaserve_infiniband_link_errors:increase15m"
SENT_BYTES = "port:exaserve_infiniband_transmit_bytes:rate2m"
RECEIVED_BYTES = "port:exaserve_infiniband_receive_bytes:rate2m"
SENT_PACKETS = "port:exaserve_infiniband_transmit_packets:rate2m"
SATURATED = "port:exaserve_infiniband_counters_saturated:count"
STATE = "port:exaserve_infiniband_state:max"
LAST_ACTIVE = "port:exaserve_infiniband_active:last_timestamp"

_BY = "by (cluster, instance, device, port)"
_ON = "on (cluster, instance, device, port)"
_P = "exaserve_infiniband_port_"

#: Names of the drivers for the same thing: mlx5, bnxt_re, irdma, hns, rxe, EFA, in this order where they have it.
_CNPS = ("rp_cnp_handled", "rx_cnp_pkts", "cnpHandled", "rx_cnp_pkt")
_RETRY = (
    "local_ack_timeout_err",
    "packet_seq_err",
    "implied_nak_seq_err",
    "rnr_nak_retry_err",
    "to_retransmits",
    "seq_err_naks_rcvd",
    "rnr_naks_rcvd",
    "RTO",
    "Nak Sequence Error",
    "Nak Sequence Error Implied",
    "RNR received",
    "completer_retry_err",
    "rcvd_seq_err",
    "rcvd_rnr_err",
    "retrans_pkts",
)
_NO_BUFFER = ("out_of_buffer", "rx_out_of_buffer", "RNR sent", "send_rnr_err", "rx_drops")
_PEER_NO_BUFFER = ("rnr_nak_retry_err", "rnr_naks_rcvd", "RNR received", "rcvd_rnr_err")
_GAVE_UP = (
    "req_transport_retries_exceeded",
    "req_rnr_retries_exceeded",
    "max_retry_exceeded",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
)
#: Of drivers without counters/: bnxt_re and EFA; irdma, IPv4 and IPv6 apart.
_TX_BYTES = ("tx_bytes", "ip4OutOctets", "ip6OutOctets")
_RX_BYTES = ("rx_bytes", "ip4InOctets", "ip6InOctets")
_TX_PACKETS = ("tx_pkts", "ip4OutPkts", "ip6OutPkts", "tx_pkt", "sent_pkts")

CONGESTED = "ExaServeFabricCongested"
GAVE_UP = "ExaServeFabricRetriesExceeded"
PORT_DOWN = "ExaServeFabricPortDown"
UNSTABLE = "ExaServeFabricLinkUnstable"
FULL = "ExaServeFabricCounterSaturated"

_WHERE = "{{ $labels.instance }} {{ $labels.device }} port {{ $labels.port }}"


def group() -> Group:
    return Group("fabric", (*_traffic(), *_congestion(), *_links(), *_alerts()), team="network")


def _max(inner: str) -> str:
    return f"max {_BY} ({inner})"


def _hw(function: str, counters: tuple[str, ...], window: str) -> str:
    """Sum over some hw_counters of a port; each first once, in case two jobs scrape it."""
    names = "|".join(counters)
    series = f'exaserve_infiniband_port_hw_total{{counter=~"{names}"}}[{window}]'
    return f"sum {_BY} (max by (cluster, instance, device, port, counter) ({function}({series})))"


def _or_hw(counter: str, counters: tuple[str, ...]) -> str:
    return f"""
        {_max(f"rate({_P}{counter}_total[2m])")}
        or
        {_hw("rate", counters, "2m")}
        """


def _traffic() -> tuple[Record, ...]:
    return (
        Record(SENT_BYTES, _or_hw("transmit_bytes", _TX_BYTES)),
        Record(RECEIVED_BYTES, _or_hw("receive_bytes", _RX_BYTES)),
        Record(SENT_PACKETS, _or_hw("transmit_packets", _TX_PACKETS)),
    )


def _congestion() -> tuple[Record, ...]:
    return (
        # None where the counter was full within the window: it then counts less than happened, or nothing.
        Record(
            STALL,
            f"""
            {TICK_BYTES} * {_max(f"rate({_P}transmit_wait_ticks_total[2m])")}
            / ({_max(f"{_P}rate_bytes_per_second")} > 0)
            unless {_ON}
            {_max(f'max_over_time({_P}saturated{{counter="port_xmit_wait"}}[2m])')} == 1
            """,
        ),
        Record(CNP, f"1e6 * {_hw('rate', _CNPS, '2m')} / ({SENT_PACKETS} > 0)"),
        Record(RETRIES, _hw("rate", _RETRY, "2m")),
        Record(STARVED, _hw("rate", _NO_BUFFER, "2m")),
        Record(PEER_STARVED, _hw("rate", _PEER_NO_BUFFER, "2m")),
        Record(EXCEEDED, _hw("increase", _GAVE_UP, "5m")),
    )


def _links() -> tuple[Record, ...]:
    return (
        Record(STATE, _max(f"{_P}state_id")),
        # Unix time at which the port was last seen active; goes on from the last word of an hour ago, so that a
        # node that comes back from a reboot without one of its links is noticed.
        Record(
            LAST_ACTIVE,
            f"""
            0 * ({STATE} == 4) + time()
            or
            {_max(f"last_over_time({LAST_ACTIVE}[1h])")} and {_ON} {STATE}
            """,
        ),
        Record(
            DOWNED,
            f"""
            {_max(f"increase({_P}link_downed_total[15m])")}
            or
            {_hw("increase", ("link_downed",), "15m")}
            """,
        ),
        Record(
            ERRORS,
            f"""
            {_max(f"increase({_P}link_error_recoveries_total[15m])")}
            + {_max(f"increase({_P}local_link_integrity_errors_total[15m])")}
            """,
        ),
        Record(
            SATURATED,
            f"count {_BY} (max by (cluster, instance, device, port, counter) ({_P}saturated) == 1)",
        ),
    )


def _alerts() -> tuple[Alert, ...]:
    return (
        Alert(
            CONGESTED,
            f"{STALL} > {STALLED}",
            "warning",
            board="fabric",
            variables=NODE,
            summary=f"{_WHERE}: {{{{ $value | humanizePercentage }}}} of the time it has data and may not send",
            description="""
                Somebody on the other side takes the data too slowly, or too many send to one port. Look for the
                receiver whose buffers are empty, and for a link that runs below its speed. An estimate: the length
                of a tick differs between devices.
                """,
            wait="10m",
            keep_firing="2m",
        ),
        Alert(
            GAVE_UP,
            f"{EXCEEDED} > 0",
            "warning",
            board="fabric",
            variables=NODE,
            summary=f'{_WHERE}: connections given up in 5 minutes: {{{{ $value | printf "%.0f" }}}}',
            description="""
                The adapter has sent again until its limit and closed the connection: whatever used it (NCCL,
                KV transfer) has failed. If a process on the other side was just stopped or killed, that is the
                reason and nothing more; otherwise look for a link that went down and for congestion.
                """,
            keep_firing="5m",
        ),
        Alert(
            PORT_DOWN,
            f"{STATE} != 4 and {_ON} time() - {LAST_ACTIVE} < {MISSED_SECONDS}",
            "warning",
            board="fabric",
            variables=NODE,
            summary=f"{_WHERE} is not active (state {{{{ $value }}}}) and was within the last day",
            description="""
                1 is down: cable, transceiver, the switch's port, or switched off. 2 and 3 are a link that is up and
                waits for the subnet manager. Replicas that span nodes over this port fail or hang.
                """,
            wait="1m",
            keep_firing="1m",
        ),
        Alert(
            UNSTABLE,
            f"{DOWNED} > 0",
            "warning",
            board="fabric",
            variables=NODE,
            summary=f'{_WHERE}: the link went down; times in 15 minutes: {{{{ $value | printf "%.0f" }}}}',
            description="""
                Each time, everything on it stands still for seconds, and connections may be given up. A cable or a
                transceiver, unless somebody restarted the other side.
                """,
            keep_firing="5m",
            labels={"condition": "down"},
        ),
        Alert(
            UNSTABLE,
            f"{ERRORS} > 0",
            "warning",
            board="fabric",
            variables=NODE,
            summary=f'{_WHERE}: too many errors on the link; times in 15 minutes: {{{{ $value | printf "%.0f" }}}}',
            description="""
                The link trained itself anew, or had more errors than its threshold allows. It will go down sooner
                or later: plan to clean or change the cable.
                """,
            keep_firing="5m",
            labels={"condition": "errors"},
        ),
        Alert(
            FULL,
            f"{SATURATED} > 0",
            "info",
            board="fabric",
            variables=NODE,
            summary=f"{_WHERE}: counters that have reached their end and count no more: {{{{ $value }}}}",
            description="""
                Their rates are 0 whatever happens, and the stall ratio is withheld if port_xmit_wait is among them.
                Clear them: perfquery -R.
                """,
            wait="5m",
        ),
    )
