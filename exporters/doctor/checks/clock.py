"""Clock synchronisation, asked of the kernel (adjtimex(2)): traces and logs of many nodes are laid side by side."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from exporters.doctor.check import Finding, Node, register
from exporters.doctor.files import seconds, text

_STA_UNSYNC, _TIME_ERROR, _EPERM = 0x0040, 5, 1
#: Seconds. The kernel adds 500 ppm to its bound between two updates, half an hour apart where timesyncd does them.
MAX_ERROR = 2.0


class _Timex(ctypes.Structure):
    """struct timex of linux/timex.h as far as it is read; the rest is room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def clock(node: Node) -> Iterator[Finding]:
    yield synchronised(*_adjtimex())
    source = text(node.sysfs / "devices/system/clocksource/clocksource0/current_clocksource")
    if source is None:
        yield Finding("source", "can't be read", "unknown", "tsc, kvm-clock or arch_sys_counter")
    elif source in ("hpet", "acpi_pm", "jiffies", "refined-jiffies"):
        cure = "dmesg | grep -i tsc says why; each time stamp costs a microsecond instead of 20 ns"
        yield Finding("source", source, "warn", "tsc, kvm-clock or arch_sys_counter", cure, compare="warn")
    else:
        yield Finding("source", source, "ok", "not hpet or acpi_pm", compare="warn")


def synchronised(state: int, status: int, max_error: float) -> Finding:
    """state: what adjtimex returned, -1 if it failed. max_error: seconds that the clock may be off."""
    expected = f"by NTP or PTP, within {seconds(MAX_ERROR)}"
    cure = "systemctl enable --now chronyd (or systemd-timesyncd); then chronyc tracking"
    if state < 0:
        return Finding("synchronised", "adjtimex is not allowed here", "unknown", expected, "timedatectl")
    if state == _TIME_ERROR or status & _STA_UNSYNC:
        return Finding("synchronised", "no", "warn", expected, cure)
    if max_error > MAX_ERROR:
        value = f"yes, but may be off by {seconds(max_error)}"
        return Finding("synchronised", value, "warn", expected, "chronyc tracking; chronyc sources -v")
    return Finding("synchronised", f"yes, within {seconds(max_error)}", "ok", expected)


def _adjtimex() -> tuple[int, int, float]:
    try:
        timex = _Timex()
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return -1, 0, 0.0
    return state, timex.status, timex.maxerror / 1e6


register("clock", "clock synchronisation and clock source", clock)
