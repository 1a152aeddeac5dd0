"""What a node runs (exporter, node collector). The doctor compares nodes by these (``exaserve doctor --from-exporters``).

Nodes that differ from most, in one query each::

    count by (component, version) (exaserve_node_software_info)
    count by (component) (count by (component, version) (exaserve_node_software_info)) > 1
    count by (mtu) (count_values by (instance) ("mtu", exaserve_node_interface_mtu_bytes{interface="ib0"}))
"""

from __future__ import annotations

from exporters.catalog.metric import Metric

METRICS = (
    Metric(
        "exaserve_node_software_info",
        "gauge",
        "Constant 1; component and version are labels. A component that is not there is absent; one that is there in"
        " several versions has several series.",
        ("component", "version"),
        source="exporter, node collector: /proc, installed metadata; component: kernel, python, exaserve, vllm, sglang,"
        " tensorrt_llm, ray, engine_python, torch, torch_cuda, nccl, nvidia_driver",
    ),
    Metric(
        "exaserve_node_open_files_limit",
        "gauge",
        "Soft limit of open files of the exporter itself; absent if there is none.",
        source="exporter, node collector: /proc/self/limits",
    ),
    Metric(
        "exaserve_node_locked_memory_limit_bytes",
        "gauge",
        "Soft limit of locked memory of the exporter itself; absent if there is none.",
        unit="bytes",
        source="exporter, node collector: /proc/self/limits",
    ),
    Metric(
        "exaserve_node_interface_mtu_bytes",
        "gauge",
        "MTU of a network interface that is up and has a device behind it.",
        ("interface",),
        "bytes",
        "exporter, node collector: /sys/class/net/*/mtu",
    ),
)
