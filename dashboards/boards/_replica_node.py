"""The Replica board's lower end: the replica's processes, GPUs, placement and KV transfers, as the exporter reads them.

The exporter names replicas as ExaServe does, so these are only on ExaServe's own board.
"""

from __future__ import annotations

from typing import Any

from dashboards import variables as of
from dashboards.board import Row, runbook
from dashboards.panels import stat, table, timeseries
from dashboards.rulefile import Links
from dashboards.rules import engine_state, leak, numa

_WINDOW = "$__rate_interval"
_NO_EXPORTER = "no exporter reads this replica's processes"
_NO_GPU = "no exporter finds this replica on a GPU"
#: (value, verdict, colour); the value is only for drawing.
_VERDICTS = ((1, "right", "green"), (2, "unknown", "text"), (3, "wrong", "orange"))


def rows(links: Links) -> list[Row]:
    return [(8, _processes(links)), (8, _gpus(links)), (6, _placement(links))]


def _one(metric: str) -> str:
    """The exporter's value for the replica; two exporters that read one node count once."""
    return f"max by (replica) ({metric}{{{of.NODE_REPLICA}}})"


def _processes(links: Links) -> list[Any]:
    grows = [runbook(leak.ALERT, links)]
    return [
        timeseries(
            "Memory",
            "Of its processes: their own (heaps and stacks), what is resident, and what is swapped out. Pages that they "
            "share count in resident for each.",
            "bytes",
            [
                (_one("exaserve_process_private_memory_bytes"), "private"),
                (_one("exaserve_process_resident_memory_bytes"), "resident"),
                (_one("exaserve_process_swap_bytes"), "swapped out"),
            ],
            empty=_NO_EXPORTER,
            links=grows,
        ),
        timeseries(
            "Memory growth",
            "Slope of its own memory over 30 minutes. A leak is a straight line that does not end; a start or a load peak "
            "levels off.",
            "Bps",
            [(f"max by (replica) ({leak.SLOPE}{{{of.NODE_REPLICA}}})", "private")],
            empty="no exporter has read 30 minutes of it yet",
            links=grows,
        ),
        timeseries(
            "Open files",
            "Share of the limit that the process nearest to it has open. At 1, connections are refused.",
            "percentunit",
            [(_one("exaserve_process_open_fds_ratio"), "nearest to its limit")],
            top=1,
            empty=_NO_EXPORTER,
            links=[runbook(engine_state.FILES, links)],
        ),
        timeseries(
            "Processes and threads",
            "A process that is missing is a worker that died; threads that grow without end are a leak.",
            "none",
            [
                (_one("exaserve_process_group_size"), "processes"),
                (_one("exaserve_process_threads"), "threads"),
            ],
            log=True,
            empty=_NO_EXPORTER,
        ),
    ]


def _gpus(links: Links) -> list[Any]:
    mine = f"exaserve_gpu_replica_memory_bytes{{{of.NODE_REPLICA}}}"

    def on_mine(metric: str, more: str = "") -> str:
        return f"max by (gpu) ({metric}{{{of.CLUSTER}{more}}} and on (instance, uuid) {mine})"

    return [
        timeseries(
            "GPU memory",
            "What its processes take of each GPU. vLLM takes its share at the start; growth after that is a leak.",
            "bytes",
            [(f"max by (gpu) ({mine})", "GPU {{gpu}}")],
            empty=_NO_GPU,
            links=[runbook(leak.ALERT, links)],
        ),
        timeseries(
            "GPU busy",
            "Share of time in which a kernel ran on each of its GPUs. 1 with no tokens generated: it hangs in a kernel, often "
            "in a collective that waits for a peer.",
            "percentunit",
            [(on_mine("exaserve_gpu_utilisation_ratio"), "GPU {{gpu}}")],
            top=1,
            empty=_NO_GPU,
        ),
        timeseries(
            "GPU clocks held down",
            "1 for each reason that keeps the clocks of one of its GPUs down; sw_power_cap is usual under full load.",
            "none",
            [
                (
                    f"max by (gpu, reason) (exaserve_gpu_clocks_event_active{{{of.CLUSTER}}} > 0 "
                    f"and on (instance, uuid) {mine})",
                    "GPU {{gpu}} {{reason}}",
                )
            ],
            top=1,
            empty="nothing holds its GPUs' clocks down, or no exporter finds it on a GPU",
            links=[runbook("ExaServeGPUThrottled", links)],
        ),
        timeseries(
            "GPU temperature",
            "Of the chips of its GPUs and of their memory. At its limit the hardware slows down.",
            "celsius",
            [
                (
                    f"max by (gpu, sensor) (exaserve_gpu_temperature_celsius{{{of.CLUSTER}}} "
                    f"and on (instance, uuid) {mine})",
                    "GPU {{gpu}} {{sensor}}",
                )
            ],
            empty=_NO_GPU,
            links=[runbook("ExaServeGPUThrottled", links)],
        ),
    ]


def _placement(links: Links) -> list[Any]:
    wrong = [runbook(numa.ALERT, links)]
    values = " or ".join(
        f'{value} * exaserve_numa_replica_binding{{verdict="{verdict}", {of.NODE_REPLICA}}}'
        for value, verdict, _ in _VERDICTS
    )
    return [
        stat(
            "NUMA placement",
            "Whether its threads and memory are on the node of its GPUs and NICs. Wrong includes: not bound at all.",
            "none",
            f"max by (replica) ({values})",
            [(None, "text")],
            empty="no exporter reads its placement",
            states=_VERDICTS,
            links=wrong,
        ),
        timeseries(
            "Memory on other nodes",
            "Share of its memory on other NUMA nodes than its GPUs' (without a GPU: than its CPUs'). Read every 5 minutes.",
            "percentunit",
            [(_one("exaserve_numa_replica_remote_memory_ratio"), "remote")],
            top=1,
            empty="its memory by node is not known",
            links=wrong,
        ),
        table(
            "Why",
            "The reasons that hold for its placement; exporters/catalog/numa.py says what each means.",
            [
                (
                    f"max by (replica, reason) (exaserve_numa_replica_binding_reason{{{of.NODE_REPLICA}}} == 1)",
                    "holds",
                    "none",
                )
            ],
            ("replica", "reason"),
            empty="nothing is wrong with its placement, or no exporter reads it",
            data_links={"reason": wrong[0]},
        ),
    ]


def transfers(links: Links) -> Any:
    """KV copies; among the KV panels."""

    def rate(metric: str) -> str:
        summed = f"max by (replica, rank, via, direction) (rate({metric}{{{of.REPLICA}}}[{_WINDOW}]))"
        return f"sum by (via, direction) ({summed})"

    return timeseries(
        "KV transfers",
        "KV cache copied into the GPU (load) and out of it (store) per second, by what carries it (offload to host memory, "
        "NIXL to other engines).",
        "Bps",
        [(rate("exaserve_kv_transfer_bytes_total"), "{{direction}} by {{via}}")],
        empty="its engine copies no KV cache (no offloading, no disaggregation)",
        links=[runbook(engine_state.TRANSFERS, links)],
    )
