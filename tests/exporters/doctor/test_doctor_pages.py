"""Nodes by the pages of their exporters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from exporters.doctor.check import Limits
from exporters.doctor.compare import compare
from exporters.doctor.pages import addresses, findings, read

PAGE = """# TYPE exaserve_node_software_info gauge
exaserve_node_software_info{{component="kernel",version="6.8.0"}} 1
exaserve_node_software_info{{component="vllm",version="{vllm}"}} 1
exaserve_node_software_info{{component="new",version="1"}} 1
exaserve_node_interface_mtu_bytes{{interface="ib0"}} {mtu}
exaserve_gpu_driver_info{{driver_version="570.86.15",cuda_version="12.8",nvml_version="12"}} 1
exaserve_gpu_info{{gpu="GPU-1",name="NVIDIA H200",pci_bus_id="0000:a0:00.0"}} 1
exaserve_gpu_info{{gpu="GPU-2",name="NVIDIA H200",pci_bus_id="0000:b0:00.0"}} 1
exaserve_gpu_up{{gpu="GPU-1"}} 1
exaserve_gpu_up{{gpu="GPU-2"}} 0
exaserve_infiniband_port_state_id{{device="mlx5_0",port="1"}} 4
exaserve_infiniband_port_rate_bytes_per_second{{device="mlx5_0",port="1"}} 3.125e+09
exaserve_infiniband_port_info{{device="mlx5_0",port="1",link_layer="InfiniBand",net_device="ib0"}} 1
exaserve_storage_stuck{{mount="/models"}} 1
exaserve_storage_read_latency_seconds{{mount="/scratch"}} 0.0005
exaserve_network_peer_up{{peer="gpu-2:22"}} 0
exaserve_engine_requests_waiting{{replica="r",model="m"}} 3
"""


def page(vllm: str = "0.32.0", mtu: int = 4092) -> bytes:
    return PAGE.format(vllm=vllm, mtu=mtu).encode()


def test_a_page_gives_rows_of_the_doctors_own_names() -> None:
    found = {(f.check, f.what, f.item): (f.verdict, f.value) for f in findings(page(), Limits())}

    assert found == {
        ("kernel", "release", ""): ("ok", "6.8.0"),
        ("engine", "vLLM", ""): ("ok", "0.32.0"),
        ("gpu", "driver by NVML", ""): ("ok", "570.86.15"),
        ("gpu", "CUDA of the driver", ""): ("ok", "12.8"),
        ("gpu", "GPUs", ""): ("ok", "2 × NVIDIA H200"),
        ("gpu", "GPU up", "GPU-2"): ("fail", "no"),
        ("infiniband", "state", "mlx5_0/1"): ("ok", "ACTIVE"),
        ("infiniband", "rate", "mlx5_0/1"): ("warn", "25 Gb/s"),
        ("infiniband", "link layer", "mlx5_0/1"): ("ok", "InfiniBand"),
        ("mtu", "interface", "ib0"): ("ok", "4092"),
        ("storage", "answers", "/models"): ("fail", "stuck"),
        ("storage", "read", "/scratch"): ("ok", "500 µs"),
        ("peers", "connect", "gpu-2:22"): ("fail", "no"),
    }


def test_nodes_are_compared_by_their_pages(serve: Callable[..., str], hung: str) -> None:
    urls = [serve(page()), serve(page()), serve(page(vllm="0.31.0", mtu=2044)), serve(b"nothing"), hung]
    urls.append(serve(b"", 500))

    results = read(addresses(",".join(urls)), 5.0, 4)

    names = [url.removeprefix("http://") for url in urls]
    assert [r.node for r in results] == names
    assert [r.problem for r in results] == [
        "",
        "",
        "",
        "its page has nothing of an ExaServe exporter",
        "exporter: no answer in time",
        "exporter: answered 500",
    ]
    different = {row.name: row.text for row in compare(results) if len(row.values) > 1}
    assert different == {
        "engine vLLM": f"2 nodes: 0.32.0; 1 node: 0.31.0 ({names[2]})",
        "mtu interface ib0": f"2 nodes: 4092; 1 node: 2044 ({names[2]})",
    }


def test_a_page_that_never_ends_is_cut(dripping: str) -> None:
    (result,) = read([dripping], 4.0, 1)  # its first bytes have to come before

    assert result.problem == "exporter: no whole page within 4 s"


def test_addresses_of_a_line_or_of_a_file(tmp_path: Path) -> None:
    assert addresses("gpu-1:9420, https://gpu-2/x/metrics") == [
        "http://gpu-1:9420/metrics",
        "https://gpu-2/x/metrics",
    ]
    file = tmp_path / "exporters"
    file.write_text("# all\ngpu-1:9420\n\ngpu-1:9420\nhttp://gpu-2:9420/metrics  # two\n")
    assert addresses(str(file)) == ["http://gpu-1:9420/metrics", "http://gpu-2:9420/metrics"]
    with pytest.raises(ValueError, match="is not the address of a server"):
        addresses("http://")
    with pytest.raises(ValueError, match="no address"):
        addresses(" , ")


def test_what_a_page_says_moves_no_cursor_and_has_an_end(serve: Callable[..., str]) -> None:
    odd = b'exaserve_node_software_info{component="kernel",version="6\x1b[2J"} 1\n'
    odd += b'exaserve_network_peer_up{peer="a\x1b]0;x"} 0\n'
    endless = b"".join(b'exaserve_storage_stuck{mount="%d"} 1\n' % i for i in range(20_000))

    first, second = read(addresses(f"{serve(odd)},{serve(endless)}"), 60.0, 2)

    assert [(f.value, f.item) for f in first.findings] == [("6 [2J", ""), ("no", "a ]0;x")]
    assert second.problem.startswith("exporter: more than 10000 samples")
