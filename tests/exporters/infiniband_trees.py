"""Builds what ``/sys/class/infiniband`` looks like, one function for each driver, below a folder of the test.

Layout: Documentation/ABI/stable/sysfs-class-infiniband and drivers/infiniband/core/sysfs.c; names of hw_counters:
the tables in the drivers (kernel 6.x unless a function says otherwise). Every counter has its own value, so that
two that are mixed up show.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path


def _words(text: str) -> list[str]:
    return text.split()


PMA = _words("""port_xmit_data port_rcv_data port_xmit_packets port_rcv_packets unicast_xmit_packets unicast_rcv_packets
multicast_xmit_packets multicast_rcv_packets port_xmit_wait port_xmit_discards port_rcv_errors
port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors
port_rcv_constraint_errors symbol_error link_error_recovery link_downed local_link_integrity_errors
excessive_buffer_overrun_errors VL15_dropped""")

PMA_32_BIT = [n for n in PMA if not n.startswith(("unicast", "multicast")) and n != "port_xmit_wait"]

EXTENDED = _words("""port_xmit_data_64 port_rcv_data_64 port_xmit_packets_64 port_rcv_packets_64 port_unicast_xmit_packets
port_unicast_rcv_packets port_multicast_xmit_packets port_multicast_rcv_packets""")

MLX5 = _words("""rx_write_requests rx_read_requests rx_atomic_requests rx_dct_connect out_of_buffer out_of_sequence
duplicate_request rnr_nak_retry_err packet_seq_err implied_nak_seq_err local_ack_timeout_err
resp_local_length_error resp_cqe_error req_cqe_error req_remote_invalid_request req_remote_access_errors
resp_remote_access_errors resp_cqe_flush_error req_cqe_flush_error req_transport_retries_exceeded
req_rnr_retries_exceeded""")

MLX5_ROCE = _words("""rp_cnp_ignored rp_cnp_handled np_ecn_marked_roce_packets np_cnp_sent roce_adp_retrans
roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps roce_slow_restart_trans
rx_icrc_encapsulated""")

BNXT_RE = _words("""active_pds active_ahs active_qps active_rc_qps active_ud_qps active_srqs active_cqs active_mrs active_mws
watermark_pds watermark_qps rx_pkts rx_bytes tx_pkts tx_bytes recoverable_errors rx_roce_errors rx_roce_discards
to_retransmits seq_err_naks_rcvd max_retry_exceeded rnr_naks_rcvd missing_resp unrecoverable_err dup_req
oos_drop_count rx_out_of_buffer tx_cnp_pkts rx_cnp_pkts rx_ecn_marked_pkts""")

IRDMA = _words("""rxVlanErrors ip4InDiscards ip4InTruncatedPkts ip4OutNoRoutes ip6InDiscards tcpRetransSegs cnpHandled
cnpIgnored cnpSent ip4InOctets ip4InPkts ip4OutOctets ip4OutPkts iwInRdmaReads iwInRdmaWrites RxUDP TxUDP
RxECNMrkd""")

#: Third generation: names with blanks.
IRDMA_3 = ["InRdmaReads", "RNR sent", "RNR received", "ird limit count", "Nak Sequence Error", "RTO"]

EFA_PORT = _words("""tx_bytes tx_pkts rx_bytes rx_pkts rx_drops send_bytes send_wrs recv_bytes recv_wrs rdma_read_wrs
rdma_read_bytes rdma_read_wr_err rdma_read_resp_bytes rdma_write_wrs rdma_write_bytes rdma_write_wr_err
rdma_write_recv_bytes retrans_bytes retrans_pkts retrans_timeout_events impaired_remote_conn_events
unresponsive_remote_events""")

EFA_DEVICE = _words("""submitted_cmds completed_cmds cmds_err no_completion_cmds keep_alive_rcvd alloc_pd_err create_qp_err
create_cq_err reg_mr_err alloc_ucontext_err create_ah_err mmap_err""")

HNS = _words("""aeqe ceqe cmds cmds_err posted_mbx polled_mbx mbx_event qp_create_err qp_modify_err cq_create_err
mr_reg_err ah_create_err mmap_err rx_rc_pkt rx_uc_pkt rx_ud_pkt rx_xrc_pkt rx_pkt rx_error_pkt rx_cnp_pkt
tx_rc_pkt tx_uc_pkt tx_ud_pkt tx_pkt tx_error_pkt tx_cnp_pkt""")

RXE = _words("""sent_pkts rcvd_pkts duplicate_request out_of_seq_request rcvd_rnr_err send_rnr_err rcvd_seq_err ack_deferred
retry_exceeded_err retry_rnr_exceeded_err completer_retry_err send_err link_downed rdma_sends rdma_recvs""")

HFI1_DEVICE = _words("DcRecvErr DcXmitFlits RxPioErr TxSdmaErr SdmaInt CceIntMapError LateWrites")

_ids = count(0x3B)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
    return path


def numbered(names: Iterable[str], first: int) -> dict[str, int]:
    return {name: first + i for i, name in enumerate(names)}


def device(sysfs: Path, name: str, *, numa: int | None = 0, driver: str = "mlx5_core", **texts: str) -> Path:
    """A device on a PCI function of its own. texts: files of the device (fw_ver is always there, as since 4.10)."""
    bdf = f"0000:{next(_ids):02x}:00.0"
    pci = sysfs / "devices" / bdf
    at = pci / "infiniband" / name
    for file, text in {"fw_ver": "28.39.1002", "node_type": "1: CA", **texts}.items():
        write(at / file, text)
    write(at / "node_guid", f"e8eb:d303:00a1:{int(bdf[5:7], 16):04x}")
    if numa is not None:
        write(pci / "numa_node", str(numa))
    (sysfs / "bus" / driver).mkdir(parents=True, exist_ok=True)
    (pci / "driver").symlink_to(sysfs / "bus" / driver)
    (at / "device").symlink_to("../..")
    link = sysfs / "class" / "infiniband" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(at)
    return at


def port(
    at: Path,
    number: int = 1,
    *,
    state: str = "4: ACTIVE",
    physical: str = "5: LinkUp",
    rate: str = "100 Gb/sec (4X EDR)",
    layer: str = "InfiniBand",
    net: str = "",
    **folders: Mapping[str, int | str],
) -> Path:
    """A port. folders: counters=, counters_ext=, hw_counters=, each file -> value."""
    folder = at / "ports" / str(number)
    for file, text in {"state": state, "phys_state": physical, "rate": rate, "link_layer": layer}.items():
        write(folder / file, text)
    if net:
        write(folder / "gid_attrs" / "ndevs" / "0", net)
    for name, files in folders.items():
        for file, value in files.items():
            write(folder / name / file, str(value))
    return folder


def remove(sysfs: Path, name: str) -> None:
    """The device is unplugged."""
    link = sysfs / "class" / "infiniband" / name
    shutil.rmtree(link.resolve().parents[1])
    link.unlink()


def mlx5(sysfs: Path, name: str = "mlx5_0", ports: int = 1, numa: int = 0, first: int = 1000) -> Path:
    """InfiniBand on ConnectX-5 and later: all 64-bit counters, hw_counters at the port and at the device."""
    at = device(sysfs, name, numa=numa, board_id="MT_0000000223", hca_type="MT4129", hw_rev="0")
    for number in range(1, ports + 1):
        values = numbered([*PMA, *MLX5], first + 1000 * number)
        low = {n: values[n] % 15 for n in ("local_link_integrity_errors", "excessive_buffer_overrun_errors")}
        bytes_ = ("link_downed", "link_error_recovery")
        low |= {n: values[n] % 255 for n in PMA if n in bytes_ or n.endswith("constraint_errors")}
        hw = {n: values[n] for n in MLX5} | {"lifespan": 10}
        port(at, number, counters={n: (values | low)[n] for n in PMA}, hw_counters=hw, net=f"ib{number - 1}")
    for file, value in numbered(MLX5, first + 500_000).items():
        write(at / "hw_counters" / file, str(value))
    return at


def mlx5_roce(sysfs: Path, name: str = "mlx5_2", numa: int = 1) -> Path:
    at = device(sysfs, name, numa=numa, board_id="MT_0000000834", hca_type="MT4125")
    hw = numbered([*MLX5, *MLX5_ROCE], 20_000) | {"lifespan": 10}
    low = dict.fromkeys(PMA, 0) | numbered(PMA[:8], 70_000)
    port(at, layer="Ethernet", net="ens1f0np0", rate="200 Gb/sec (4X HDR)", counters=low, hw_counters=hw)
    return at


def mlx4(sysfs: Path, name: str = "mlx4_0") -> Path:
    """A kernel before 4.5: 32-bit counters, the 64-bit ones beside them in counters_ext; no port_xmit_wait."""
    at = device(sysfs, name, numa=-1, driver="mlx4_core", board_id="MT_1060140023", hca_type="MT26428")
    small = numbered(PMA_32_BIT, 1)
    small["port_xmit_data"] = 2**32 - 1
    port(
        at,
        rate="40 Gb/sec (4X QDR)",
        counters=small,
        counters_ext=numbered(EXTENDED, 2**33),
    )
    return at


def bnxt_re(sysfs: Path, name: str = "bnxt_re0") -> Path:
    at = device(sysfs, name, driver="bnxt_en", fw_ver="227.0.131.0", hca_type="BCM57508")
    port(at, layer="Ethernet", net="ens2f0", hw_counters=numbered(BNXT_RE, 300) | {"lifespan": 10})
    return at


def irdma(sysfs: Path, name: str = "irdma0", names: Iterable[str] = IRDMA) -> Path:
    at = device(sysfs, name, driver="ice", fw_ver="1.69")
    port(at, layer="Ethernet", rate="100 Gb/sec (4X EDR)", hw_counters=numbered(names, 400))
    return at


def efa(sysfs: Path, name: str = "rdmap16s27") -> Path:
    """Commands are counted at the device, traffic at the port; no counters/, no net device."""
    at = device(sysfs, name, driver="efa", fw_ver="0.0.0.0", node_type="7: unspecified")
    port(at, layer="Unspecified", hw_counters=numbered(EFA_PORT, 500) | {"lifespan": 10})
    for file, value in (numbered(EFA_DEVICE, 600) | {"lifespan": 10}).items():
        write(at / "hw_counters" / file, str(value))
    return at


def hns(sysfs: Path, name: str = "hns_0") -> Path:
    at = device(sysfs, name, driver="hns3", fw_ver="1.9")
    port(at, layer="Ethernet", net="eth0", hw_counters=numbered(HNS, 700))
    return at


def rxe(sysfs: Path, name: str = "rxe0") -> Path:
    """Software: no PCI device, no counters/; the net device is in ``parent``."""
    at = sysfs / "devices" / "virtual" / "infiniband" / name
    for file, text in {"fw_ver": "", "node_type": "1: CA", "parent": "eth1"}.items():
        write(at / file, text)
    port(at, layer="Ethernet", rate="2.5 Gb/sec (1X SDR)", hw_counters=numbered(RXE, 800))
    link = sysfs / "class" / "infiniband" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(at)
    return at


def hfi1(sysfs: Path, name: str = "hfi1_0") -> Path:
    """OmniPath: hw_counters at the device only."""
    at = device(sysfs, name, driver="hfi1", fw_ver="1.27.0", board_id="Intel Omni-Path HFI 100", hw_rev="11")
    port(at, rate="100 Gb/sec (4X EDR)", counters=numbered([n for n in PMA if n != "port_xmit_wait"], 3))
    for file, value in numbered(HFI1_DEVICE, 900).items():
        write(at / "hw_counters" / file, str(value))
    return at


def every_driver(sysfs: Path) -> None:
    for build in (mlx5, mlx5_roce, mlx4, bnxt_re, irdma, efa, hns, rxe, hfi1):
        build(sysfs)


def many_ports(sysfs: Path, devices: int, ports: int) -> None:
    """What a benchmark reads: ``devices`` adapters with all counters of mlx5 and RoCE on each of their ports."""
    for d in range(devices):
        at = device(sysfs, f"mlx5_{d}", numa=d % 2, board_id="MT_0000000838", hca_type="MT4129")
        for number in range(1, ports + 1):
            values = numbered([*PMA[:9]], 10**12 + 1000 * number) | dict.fromkeys(PMA[9:], 0)
            hw = numbered([*MLX5, *MLX5_ROCE], 10**9) | {"lifespan": 10}
            port(at, number, rate="400 Gb/sec (4X NDR)", counters=values, hw_counters=hw)
