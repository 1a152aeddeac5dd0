"""GPUs of the nodes: lost ones, load, memory, heat, what keeps their clocks down, errors and Xids."""

from __future__ import annotations

from typing import Any

from dashboards import variables as of
from dashboards.board import Row, runbook
from dashboards.boards._fabric_ports import NODE
from dashboards.panels import Queries, table, timeseries
from dashboards.rulefile import Links
from dashboards.rules import gpu, leak
from dashboards.rules.totals import GPU_BUSY, GPU_POWER, GPUS

GPU = ("cluster", "instance", "gpu", "uuid")

_LINES, _ROWS = 8, 20
_NAME = "{{instance}} GPU {{gpu}}"
_NONE = "no GPU is read in this time"
_WINDOW = "$__rate_interval"
_BY = ", ".join(GPU)


def rows(links: Links) -> list[Row]:
    return [(8, _fleet(links)), (8, _heat(links)), (9, _errors(links))]


def _worst(
    title: str,
    description: str,
    unit: str,
    value: str,
    at_end: str,
    book: Any,
    more: Queries = (),
    **rest: Any,
) -> Any:
    """The GPUs with most of an expression. at_end: the same expression with ``@ end()`` at each selector."""
    lines = [(f"{value} and on ({_BY}) topk({_LINES}, {at_end})", _NAME), *more]
    said = f"{description} The {_LINES} GPUs with most."
    return timeseries(title, said, unit, lines, links=book, **({"empty": _NONE} | rest))


def _one(metric: str, matchers: str = NODE, at_end: bool = False) -> str:
    """A GPU that two jobs scrape counts once."""
    return f"max by ({_BY}) ({metric}{{{matchers}}}{' @ end()' if at_end else ''})"


def _fleet(links: Links) -> list[Any]:
    lost = [runbook(gpu.LOST, links)]

    def memory(at_end: bool) -> str:
        total = _one("exaserve_gpu_memory_total_bytes", at_end=at_end)
        return f"{_one('exaserve_gpu_memory_used_bytes', at_end=at_end)} / ({total} > 0)"

    return [
        timeseries(
            "GPUs that answer, and lost ones",
            "GPUs that could be read at the last scrape by cluster, and those that could not by why: lost (off the "
            "bus), reset_required, hung, missing, driver, error.",
            "none",
            [
                (f"{GPUS}{{{of.CLUSTER}}}", "answer {{cluster}}"),
                (f"sum by (reason) (exaserve_gpu_down_reason{{{NODE}}})", "lost: {{reason}}"),
            ],
            empty=_NONE,
            links=lost,
        ),
        timeseries(
            "Busy and power",
            "Mean share of time in which a kernel ran, and watts of all GPUs, by cluster. Busy says nothing of how "
            "much of the GPU a kernel used; power does, a little.",
            "percentunit",
            [(f"{GPU_BUSY}{{{of.CLUSTER}}}", "busy {{cluster}}")],
            top=1,
            empty=_NONE,
        ),
        timeseries(
            "Power of all GPUs",
            "Watts drawn by cluster. It falls when GPUs idle, are lost, or are slowed down.",
            "watt",
            [(f"{GPU_POWER}{{{of.CLUSTER}}}", "{{cluster}} all GPUs")],
            empty=_NONE,
        ),
        _worst(
            "GPU memory used",
            "Share of the GPU's memory in use. An engine takes its part at its start and should not grow.",
            "percentunit",
            memory(False),
            memory(True),
            [runbook(leak.ALERT, links)],
            top=1,
        ),
    ]


def _heat(links: Links) -> list[Any]:
    slow = [runbook(gpu.THROTTLED, links)]
    sensor = f'{NODE}, sensor="gpu"'
    limits = f'min by (limit) (exaserve_gpu_temperature_limit_celsius{{{NODE}, limit="slowdown"}})'
    trouble = f'{NODE}, reason=~"{gpu.TROUBLE}"'
    return [
        _worst(
            "Temperature",
            "Of the GPU itself. Dashed: the lowest temperature at which one of the chosen GPUs slows itself down.",
            "celsius",
            _one("exaserve_gpu_temperature_celsius", sensor),
            _one("exaserve_gpu_temperature_celsius", sensor, at_end=True),
            slow,
            [(limits, "slowdown threshold")],
            dashed=".*threshold",
        ),
        timeseries(
            "Clocks kept down, by reason",
            "How many GPUs are kept below their highest clock now, by reason. sw_power_cap (the power limit) and "
            "gpu_idle are usual; thermal and hw reasons are trouble.",
            "none",
            [
                (
                    f"sum by (reason) (max by ({_BY}, reason) (exaserve_gpu_clocks_event_active{{{NODE}}}))",
                    "{{reason}}",
                )
            ],
            empty="no GPU tells why its clocks are down",
            links=slow,
        ),
        _worst(
            "Slowed down by heat or power supply",
            "Reasons of trouble that hold now, a number above 0 for long: this GPU answers slower than its like, and a "
            "group of GPUs is as slow as its slowest.",
            "none",
            f"sum by ({_BY}) (exaserve_gpu_clocks_event_active{{{trouble}}})",
            f"sum by ({_BY}) (exaserve_gpu_clocks_event_active{{{trouble}}} @ end())",
            slow,
            empty="no GPU tells why its clocks are down",
        ),
    ]


def _errors(links: Links) -> list[Any]:
    memory, xid = [runbook(gpu.MEMORY, links)], [runbook(gpu.XID, links)]
    uncorrected = f'{NODE}, kind="uncorrected", counter="volatile"'
    ecc = f"sum by ({_BY}) (rate(exaserve_gpu_ecc_errors_total{{{uncorrected}}}[{_WINDOW}]))"
    last = f"max by (xid, {_BY}) (exaserve_gpu_xid_last_timestamp_seconds{{{NODE}}})"
    latest = f"on (xid, {_BY}) topk({_ROWS}, {last})"
    return [
        (
            9,
            table(
                "Xids, the latest",
                f"The {_ROWS} that the exporters heard last, by GPU and code, and how often since they started. Which "
                "codes mean the GPU itself is in the runbook; 13, 31, 43 and 45 are mostly a program's own fault.",
                [
                    (f"time() - {last} and {latest}", "ago", "s"),
                    (f"{_count(_BY)} and {latest}", "times", "none"),
                ],
                ["instance", "gpu", "xid"],
                empty="no Xid was heard of",
                sort="ago",
                ascending=True,
                links=xid,
            ),
        ),
        (
            8,
            timeseries(
                "Uncorrected memory errors",
                f"ECC errors per second that could not be corrected, the {_LINES} GPUs with most: some computation got "
                "wrong data.",
                "none",
                [(f"topk({_LINES}, {ecc} > 0)", _NAME)],
                empty="no uncorrected memory error in this time",
                links=memory,
            ),
        ),
        (
            7,
            timeseries(
                "Memory rows",
                "GPUs with a row that waits for a reset to be replaced, and those that have no spare rows left.",
                "none",
                [
                    (f"sum({_one('exaserve_gpu_row_remap_pending')})", "wait for a reset"),
                    (f"sum({_one('exaserve_gpu_row_remap_failed')})", "no spare rows"),
                ],
                empty="no GPU tells (before Ampere, or none is read)",
                links=memory,
            ),
        ),
    ]


def _count(by: str) -> str:
    return f"max by (xid, {by}) (exaserve_gpu_xid_errors_total{{{NODE}}})"
