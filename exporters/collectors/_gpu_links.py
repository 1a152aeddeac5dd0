"""What is read of one GPU's links: PCIe and NVLink."""

from __future__ import annotations

from collections.abc import Iterator

from exporters.collectors._nvml import Device, Reading

#: NVML_NVLINK_MAX_LINKS of nvml.h.
_MAX_LINKS = 36
#: scopeId that means all links together (nvml.h: UINT_MAX).
_ALL_LINKS = 0xFFFF_FFFF
_DIRECTIONS = ("transmitted", "received")

#: Field values by link. The first three from Hopper on, the others with NVLink 5.
_LINK_ERRORS = {
    "NVLINK_ERROR_DL_REPLAY": "replay",
    "NVLINK_ERROR_DL_RECOVERY": "recovery",
    "NVLINK_ERROR_DL_CRC": "crc",
    "NVLINK_COUNT_MALFORMED_PACKET_ERRORS": "malformed_packet",
    "NVLINK_COUNT_BUFFER_OVERRUN_ERRORS": "buffer_overrun",
    "NVLINK_COUNT_RCV_ERRORS": "receive",
    "NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS": "link_integrity",
    "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS": "failed_recovery",
    "NVLINK_COUNT_EFFECTIVE_ERRORS": "effective",
    "NVLINK_COUNT_SYMBOL_ERRORS": "symbol",
}
#: nvmlNvLinkErrorCounter_t, for GPUs before Hopper.
_OLD_LINK_ERRORS = {0: "replay", 1: "recovery", 2: "crc_flit", 3: "crc_data"}


def pcie(d: Device) -> Iterator[Reading]:
    """Generation, width, bytes, packets sent again."""
    for name, function in (
        ("pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
        ("pcie_link_generation_limit", "nvmlDeviceGetMaxPcieLinkGeneration"),
        ("pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth"),
        ("pcie_link_width_limit", "nvmlDeviceGetMaxPcieLinkWidth"),
        ("pcie_replays_total", "nvmlDeviceGetPcieReplayCounter"),
    ):
        value = d.ask(function)
        if value is not None:
            yield Reading(name, value)
    counted = d.fields(("PCIE_COUNT_TX_BYTES", "PCIE_COUNT_RX_BYTES"))
    if counted:
        for field, direction in zip(("TX", "RX"), _DIRECTIONS, strict=True):
            if (value := counted.get(f"PCIE_COUNT_{field}_BYTES")) is not None:
                yield Reading("pcie_bytes_total", value, (direction,))
        return
    # Each takes the driver 20 ms, hence only where there is no counter.
    for number, direction in enumerate(_DIRECTIONS):
        kilobytes = d.ask("nvmlDeviceGetPcieThroughput", number)
        if kilobytes is not None:
            yield Reading("pcie_throughput_bytes_per_second", kilobytes * 1024, (direction,))


def nvlink(d: Device) -> Iterator[Reading]:
    """State and errors of each link, bytes of all. Nothing for a GPU without NVLink."""
    count = int(d.fields(("NVLINK_LINK_COUNT",)).get("NVLINK_LINK_COUNT", 0))
    states = {link: d.ask("nvmlDeviceGetNvLinkState", link) for link in range(min(count, _MAX_LINKS))}
    for link, state in states.items():
        if state is not None:
            yield Reading("nvlink_up", float(bool(state)), (str(link),))
        if state:
            for error, value in _link_errors(d, link).items():
                yield Reading("nvlink_errors_total", value, (str(link), error))
    if any(states.values()):
        fields = ("NVLINK_THROUGHPUT_DATA_TX", "NVLINK_THROUGHPUT_DATA_RX")
        kibibytes = d.fields(fields, _ALL_LINKS)
        for field, direction in zip(fields, _DIRECTIONS, strict=True):
            if field in kibibytes:
                yield Reading("nvlink_bytes_total", kibibytes[field] * 1024, (direction,))


def _link_errors(d: Device, link: int) -> dict[str, float]:
    found = {_LINK_ERRORS[field]: value for field, value in d.fields(_LINK_ERRORS, link).items()}
    if found:
        return found
    for number, error in _OLD_LINK_ERRORS.items():
        value = d.ask("nvmlDeviceGetNvLinkErrorCounter", link, number)
        if value is not None:
            found[error] = value
    return found
