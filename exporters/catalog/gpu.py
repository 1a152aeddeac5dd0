"""NVIDIA GPUs of a node as their driver (NVML) sees them, and what replicas take of them.

Everything that a GPU or its driver doesn't support is absent. ``gpu`` is the driver's index, which may change at a
reboot or when a GPU is lost; ``uuid`` stays. In PromQL:

    GPU memory of each replica:     sum by (replica) (exaserve_gpu_replica_memory_bytes)
    memory that is nobody's:        exaserve_gpu_other_memory_bytes > 0
    share of a GPU's memory used:   exaserve_gpu_memory_used_bytes / exaserve_gpu_memory_total_bytes
    Xids of the last hour:          increase(exaserve_gpu_xid_errors_total[1h]) > 0
    the last Xid of each GPU:       topk by (gpu, uuid) (1, exaserve_gpu_xid_last_timestamp_seconds)
    GPUs that can't be read:        exaserve_gpu_down_reason == 1
"""

from __future__ import annotations

from exporters.catalog.metric import Metric

#: Xids after which a GPU needs a reset, a repair or another place, whatever the program did: stopped (46), double
#: bit ECC (48), microcontroller halt (62), row remapping failed (64), NVLink (74), off the bus (79), uncontained
#: ECC (95), GSP (119, 120), unrecovered ECC (140). From NVIDIA's Xid catalogue. Left out on purpose: what
#: a program's own fault raises (13, 31, 43, 45, 69, 94) and what is only told (63, 92).
BROKEN_XIDS = (46, 48, 62, 64, 74, 79, 95, 119, 120, 140)

_GPU = ("gpu", "uuid")


def _gauge(name: str, text: str, source: str, labels: tuple[str, ...] = (), unit: str = "") -> Metric:
    return Metric(f"exaserve_gpu_{name}", "gauge", text, (*_GPU, *labels), unit, source)


def _counter(name: str, text: str, source: str, labels: tuple[str, ...] = (), unit: str = "") -> Metric:
    return Metric(f"exaserve_gpu_{name}", "counter", text, (*_GPU, *labels), unit, source)


_ABOUT = (
    _gauge(
        "up", "1 if the GPU answered at this scrape, 0 if not (see exaserve_gpu_down_reason).", "exporter"
    ),
    _gauge(
        "down_reason",
        "1 for why the GPU can't be read; no series while it can.",
        "exporter: lost, reset_required, hung, missing (was there in the last 24 hours), driver, error",
        ("reason",),
    ),
    _gauge(
        "failed_reads",
        "Readings of this scrape that failed for another reason than being unsupported.",
        "exporter",
    ),
    Metric(
        "exaserve_gpu_driver_info",
        "gauge",
        "Constant 1; the versions are labels.",
        ("driver_version", "cuda_version", "nvml_version"),
        source="nvmlSystemGetDriverVersion, nvmlSystemGetCudaDriverVersion (newest CUDA that the driver runs)",
    ),
    _gauge(
        "info",
        "Constant 1; name and PCI address (as in sysfs) are labels.",
        "nvmlDeviceGetName, nvmlDeviceGetPciInfo",
        ("name", "pci_bus_id"),
    ),
    _gauge("numa_node", "NUMA node that the GPU hangs on.", "sysfs: bus/pci/devices/<address>/numa_node"),
    _gauge("persistence_mode", "1 if the driver stays loaded without users, else 0.", "NVML"),
    _gauge(
        "compute_mode",
        "1 for the compute mode that is set, 0 for the others.",
        "nvmlDeviceGetComputeMode",
        ("mode",),
    ),
    _gauge("performance_state", "0 (fastest) to 15 (slowest).", "nvmlDeviceGetPerformanceState"),
    _gauge(
        "recovery_action",
        "1 for what the driver says must be done to the GPU, 0 for the others.",
        "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: none, gpu_reset, node_reboot, drain_p2p, drain_and_reset",
        ("action",),
    ),
)

_LOAD = (
    _gauge("memory_total_bytes", "Memory of the GPU.", "nvmlDeviceGetMemoryInfo", unit="bytes"),
    _gauge("memory_used_bytes", "Memory in use.", "nvmlDeviceGetMemoryInfo", unit="bytes"),
    _gauge("memory_free_bytes", "Memory that is free.", "nvmlDeviceGetMemoryInfo", unit="bytes"),
    _gauge(
        "memory_reserved_bytes",
        "Memory that the driver keeps for itself (not in used).",
        "nvmlDeviceGetMemoryInfo_v2",
        unit="bytes",
    ),
    _gauge(
        "utilisation_ratio",
        "Share of the driver's last sample period in which a kernel ran; says nothing of how many units it used.",
        "nvmlDeviceGetUtilizationRates; absent with MIG",
        unit="ratio",
    ),
    _gauge(
        "memory_utilisation_ratio",
        "Share of the driver's last sample period in which memory was read or written.",
        "nvmlDeviceGetUtilizationRates; absent with MIG",
        unit="ratio",
    ),
    _gauge(
        "temperature_celsius",
        "Temperature of the GPU and of its memory.",
        "nvmlDeviceGetTemperature, NVML_FI_DEV_MEMORY_TEMP",
        ("sensor",),
        "celsius",
    ),
    _gauge(
        "temperature_limit_celsius",
        "Temperature at which the hardware slows down or shuts off.",
        "nvmlDeviceGetTemperatureThreshold",
        ("limit",),
        "celsius",
    ),
    _gauge("power_watts", "Power drawn.", "nvmlDeviceGetPowerUsage", unit="watts"),
    _gauge("power_limit_watts", "Power limit in force.", "nvmlDeviceGetEnforcedPowerLimit", unit="watts"),
    _counter(
        "energy_joules_total",
        "Energy used since the driver was loaded.",
        "nvmlDeviceGetTotalEnergyConsumption",
        unit="joules",
    ),
    _gauge("clock_hertz", "Clock now.", "nvmlDeviceGetClockInfo", ("clock",), "hertz"),
    _gauge("clock_limit_hertz", "Highest clock.", "nvmlDeviceGetMaxClockInfo", ("clock",), "hertz"),
    _gauge(
        "clocks_event_active",
        "1 for each reason that keeps the clocks down now, else 0.",
        "nvmlDeviceGetCurrentClocksEventReasons (throttle reasons, before driver 535)",
        ("reason",),
    ),
    _counter(
        "clocks_event_seconds_total",
        "Time in which the reason kept the clocks down.",
        "NVML_FI_DEV_PERF_POLICY_*, NVML_FI_DEV_CLOCKS_EVENT_REASON_*",
        ("reason",),
        "seconds",
    ),
)

_ERRORS = (
    _gauge("ecc_enabled", "1 if memory is protected by ECC, else 0.", "nvmlDeviceGetEccMode"),
    _counter(
        "ecc_errors_total",
        "ECC errors, corrected and uncorrected, since the driver was loaded (volatile) or ever (aggregate).",
        "nvmlDeviceGetTotalEccErrors",
        ("kind", "counter"),
    ),
    _gauge("remapped_rows", "Memory rows that were replaced.", "nvmlDeviceGetRemappedRows", ("cause",)),
    _gauge("row_remap_pending", "1 if a row waits for a reset to be replaced.", "nvmlDeviceGetRemappedRows"),
    _gauge(
        "row_remap_failed",
        "1 if a row could not be replaced: the GPU has no spare rows left there.",
        "nvmlDeviceGetRemappedRows",
    ),
    _gauge(
        "retired_pages",
        "Memory pages taken out of use (before Ampere).",
        "NVML_FI_DEV_RETIRED_SBE, NVML_FI_DEV_RETIRED_DBE",
        ("cause",),
    ),
    _gauge(
        "page_retirement_pending",
        "1 if a page waits for a reset to be retired.",
        "NVML_FI_DEV_RETIRED_PENDING",
    ),
    _gauge(
        "xid_watched",
        "1 if Xids of the GPU are counted since the last reset of the driver, else 0.",
        "exporter",
    ),
    _counter(
        "xid_errors_total",
        "Xid errors since the exporter started; the code `other` is all beyond 64 different ones.",
        "NVML event nvmlEventTypeXidCriticalError; errors before the exporter's start are not known",
        ("xid",),
    ),
    _gauge(
        "xid_last_timestamp_seconds",
        "Unix time at which the exporter last heard of this Xid.",
        "exporter (NVML's events carry no time)",
        ("xid",),
        "seconds",
    ),
)

_LINKS = (
    _gauge(
        "pcie_link_generation",
        "PCIe generation in use; lower while idle.",
        "nvmlDeviceGetCurrPcieLinkGeneration",
    ),
    _gauge(
        "pcie_link_generation_limit",
        "Highest PCIe generation of GPU and slot.",
        "nvmlDeviceGetMaxPcieLinkGeneration",
    ),
    _gauge("pcie_link_width", "PCIe lanes in use.", "nvmlDeviceGetCurrPcieLinkWidth"),
    _gauge("pcie_link_width_limit", "PCIe lanes of GPU and slot.", "nvmlDeviceGetMaxPcieLinkWidth"),
    _counter(
        "pcie_bytes_total",
        "Bytes that the GPU sent and received over PCIe.",
        "NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NVML_FI_DEV_PCIE_COUNT_RX_BYTES",
        ("direction",),
        "bytes",
    ),
    _gauge(
        "pcie_throughput_bytes_per_second",
        "PCIe traffic in 20 ms, where the driver has no counter of bytes.",
        "nvmlDeviceGetPcieThroughput",
        ("direction",),
        "bytes_per_second",
    ),
    _counter("pcie_replays_total", "PCIe packets sent again.", "nvmlDeviceGetPcieReplayCounter"),
    _gauge("nvlink_up", "1 if the link is active, else 0.", "nvmlDeviceGetNvLinkState", ("link",)),
    _counter(
        "nvlink_errors_total",
        "Errors of the link by kind.",
        "NVML_FI_DEV_NVLINK_ERROR_DL_*, NVML_FI_DEV_NVLINK_COUNT_*, else nvmlDeviceGetNvLinkErrorCounter",
        ("link", "error"),
    ),
    _counter(
        "nvlink_bytes_total",
        "Bytes sent and received over all links, without protocol overhead.",
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
        ("direction",),
        "bytes",
    ),
)

_SHARES = (
    _gauge("mig_enabled", "1 if the GPU is divided by MIG, else 0.", "nvmlDeviceGetMigMode"),
    _gauge(
        "mig_info",
        "Constant 1 for each MIG device.",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        ("gpu_instance", "compute_instance", "mig_uuid", "name"),
    ),
    # A GPU instance's memory is shared by its compute instances: one series each, so that a sum is right.
    _gauge(
        "mig_memory_total_bytes",
        "Memory of the GPU instance.",
        "nvmlDeviceGetMemoryInfo of the MIG device",
        ("gpu_instance",),
        "bytes",
    ),
    _gauge(
        "mig_memory_used_bytes",
        "Memory in use in the GPU instance.",
        "nvmlDeviceGetMemoryInfo of the MIG device",
        ("gpu_instance",),
        "bytes",
    ),
    _gauge(
        "mig_memory_free_bytes",
        "Memory that is free in the GPU instance.",
        "nvmlDeviceGetMemoryInfo of the MIG device",
        ("gpu_instance",),
        "bytes",
    ),
    _gauge("processes", "Processes that compute on the GPU.", "nvmlDeviceGetComputeRunningProcesses"),
    _gauge(
        "replica_memory_bytes",
        "GPU memory of the replica's processes.",
        "nvmlDeviceGetComputeRunningProcesses, exporters/processes.py",
        ("replica",),
        "bytes",
    ),
    _gauge(
        "other_memory_bytes",
        "GPU memory of processes that belong to no replica.",
        "nvmlDeviceGetComputeRunningProcesses",
        unit="bytes",
    ),
)

METRICS = (*_ABOUT, *_LOAD, *_ERRORS, *_LINKS, *_SHARES)
