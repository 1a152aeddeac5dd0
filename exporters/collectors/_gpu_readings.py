"""What is read of one GPU: identity, memory, load, clocks, errors. Links and MIG have files of their own.

Each function gives the readings of one subject; those that the GPU lacks are not among them. Units are turned into
base units here: NVML has MHz, milliwatts, millijoules, percent, nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator

from exporters.collectors._nvml import Device, Reading
from exporters.proctable import read

_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
_RECOVERY = {0: "none", 1: "gpu_reset", 2: "node_reboot", 3: "drain_p2p", 4: "drain_and_reset"}
#: nvmlClocksEventReason* of nvml.h, by bit.
_REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
_REASON_TIMES = {
    "PERF_POLICY_POWER": "sw_power_cap",
    "PERF_POLICY_SYNC_BOOST": "sync_boost",
    "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": "sw_thermal_slowdown",
    "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": "hw_thermal_slowdown",
    "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": "hw_power_brake_slowdown",
}
_CLOCKS = {0: "graphics", 1: "sm", 2: "memory", 3: "video"}
_MEMORY_V2 = 0x0200_0028


def pci_address(domain: int, bus: int, device: int, bus_id: str) -> str:
    """The address as sysfs writes it (``0000:3b:00.0``). bus_id: NVML's own, for the function behind its dot."""
    function = bus_id.rpartition(".")[2]
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function if function in set('01234567') else '0'}"


def identity(d: Device) -> Iterator[Reading]:
    """Name, PCI address, NUMA node (absent where the firmware says none, -1), modes."""
    name, pci = d.ask("nvmlDeviceGetName"), d.ask("nvmlDeviceGetPciInfo")
    address = ""
    if pci is not None:
        bus_id = pci.busId.decode(errors="replace") if isinstance(pci.busId, bytes) else str(pci.busId)
        address = pci_address(pci.domain, pci.bus, pci.device, bus_id)
        node = (read(d.sysfs / "bus/pci/devices" / address / "numa_node", 64) or "").strip()
        if node.isascii() and node.isdigit():
            yield Reading("numa_node", int(node))
    if name or address:
        yield Reading("info", 1, (str(name or ""), address))
    yield from _one(d, "persistence_mode", "nvmlDeviceGetPersistenceMode")
    yield from _one(d, "performance_state", "nvmlDeviceGetPerformanceState")
    yield from _states("compute_mode", _COMPUTE_MODES, d.ask("nvmlDeviceGetComputeMode"))


def memory(d: Device) -> Iterator[Reading]:
    """Total, used, free; reserved where the driver tells it apart from used."""
    told = d.ask("nvmlDeviceGetMemoryInfo", _MEMORY_V2)
    if told is not None:
        yield Reading("memory_reserved_bytes", told.reserved)
    else:
        told = d.ask("nvmlDeviceGetMemoryInfo")
    if told is not None:
        yield Reading("memory_total_bytes", told.total)
        yield Reading("memory_used_bytes", told.used)
        yield Reading("memory_free_bytes", told.free)


def load(d: Device) -> Iterator[Reading]:
    """Utilisation, temperature, power, energy."""
    used = d.ask("nvmlDeviceGetUtilizationRates")
    if used is not None:
        yield Reading("utilisation_ratio", used.gpu / 100)
        yield Reading("memory_utilisation_ratio", used.memory / 100)
    yield from _one(d, "temperature_celsius", "nvmlDeviceGetTemperature", 0, labels=("gpu",))
    for threshold, limit in ((1, "slowdown"), (0, "shutdown")):
        yield from _one(
            d, "temperature_limit_celsius", "nvmlDeviceGetTemperatureThreshold", threshold, labels=(limit,)
        )
    yield from _one(d, "power_watts", "nvmlDeviceGetPowerUsage", scale=1e-3)
    yield from _one(d, "power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", scale=1e-3)
    yield from _one(d, "energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption", scale=1e-3)


def clocks(d: Device) -> Iterator[Reading]:
    """Clocks, their limits, and what keeps them down."""
    for number, clock in _CLOCKS.items():
        yield from _one(d, "clock_hertz", "nvmlDeviceGetClockInfo", number, scale=1e6, labels=(clock,))
        yield from _one(
            d, "clock_limit_hertz", "nvmlDeviceGetMaxClockInfo", number, scale=1e6, labels=(clock,)
        )
    bits = d.ask("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:  # the name before driver 535
        bits = d.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    if bits is not None:
        for bit, reason in _REASONS.items():
            yield Reading("clocks_event_active", float(bool(int(bits) & bit)), (reason,))


def errors(d: Device) -> Iterator[Reading]:
    """ECC errors and the rows that were replaced for them."""
    mode = d.ask("nvmlDeviceGetEccMode")
    if mode is not None:
        yield Reading("ecc_enabled", float(mode[0]))
    for severity, kind in ((0, "corrected"), (1, "uncorrected")):
        for number, counter in ((0, "volatile"), (1, "aggregate")):
            yield from _one(
                d, "ecc_errors_total", "nvmlDeviceGetTotalEccErrors", severity, number, labels=(kind, counter)
            )
    rows = d.ask("nvmlDeviceGetRemappedRows")
    if rows is not None:
        yield Reading("remapped_rows", rows[0], ("corrected",))
        yield Reading("remapped_rows", rows[1], ("uncorrected",))
        yield Reading("row_remap_pending", float(bool(rows[2])))
        yield Reading("row_remap_failed", float(bool(rows[3])))


def batch(d: Device) -> Iterator[Reading]:
    """What the driver gives as field values, all in one call."""
    got = d.fields(
        (
            *("MEMORY_TEMP", "RETIRED_SBE", "RETIRED_DBE", "RETIRED_PENDING", "GET_GPU_RECOVERY_ACTION"),
            *_REASON_TIMES,
        )
    )
    # Boards without such a sensor say 0; memory at work is never that cold.
    if got.get("MEMORY_TEMP"):
        yield Reading("temperature_celsius", got["MEMORY_TEMP"], ("memory",))
    for field, cause in (("RETIRED_SBE", "corrected"), ("RETIRED_DBE", "uncorrected")):
        if field in got:
            yield Reading("retired_pages", got[field], (cause,))
    if "RETIRED_PENDING" in got:
        yield Reading("page_retirement_pending", got["RETIRED_PENDING"])
    yield from _states("recovery_action", _RECOVERY, got.get("GET_GPU_RECOVERY_ACTION"))
    for field, reason in _REASON_TIMES.items():
        if field in got:
            yield Reading("clocks_event_seconds_total", got[field] * 1e-9, (reason,))


def _one(
    d: Device, name: str, function: str, *arguments: int, scale: float = 1, labels: tuple[str, ...] = ()
) -> Iterator[Reading]:
    value = d.ask(function, *arguments)
    if value is not None:
        # Divided where that is exact: 250 W are 250000 mW, not 250.00000000000003.
        yield Reading(name, value / round(1 / scale) if scale < 1 else value * scale, labels)


def _states(name: str, states: dict[int, str], now: float | None) -> Iterator[Reading]:
    """One series for each state; none for a state that isn't known."""
    if now is not None and int(now) in states:
        for number, state in states.items():
            yield Reading(name, float(number == int(now)), (state,))
