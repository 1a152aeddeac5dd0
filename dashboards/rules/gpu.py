"""GPUs in trouble: lost or hung, broken by an Xid or by memory errors, slowed down by heat or power.

Xids alert by the time of the last one, not by ``increase``: a counter that begins with its first error has no
zero before it. Only those that mean the GPU itself (``BROKEN_XIDS``); a program's own faults are its log's matter.
"""

from __future__ import annotations

from dashboards.rulefile import NODE, Alert, Group
from exporters.catalog.gpu import BROKEN_XIDS

LOST = "ExaServeGPULost"
XID = "ExaServeGPUXid"
MEMORY = "ExaServeGPUMemoryErrors"
THROTTLED = "ExaServeGPUThrottled"

#: Reasons that mean heat or a power supply; the power limit (sw_power_cap) is usual under full load.
TROUBLE = "hw_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown|sw_thermal_slowdown"
#: Once, however many jobs scrape the exporter.
_BY = "by (cluster, instance, gpu, uuid)"
_WHICH = "GPU {{ $labels.gpu }} on {{ $labels.instance }}"


def group() -> Group:
    return Group(
        "gpu",
        (
            Alert(
                LOST,
                f"max {_BY} (exaserve_gpu_up) == 0",
                "warning",
                board="fabric",
                variables=NODE,
                summary=f"{_WHICH} can't be read (up is {{{{ $value }}}})"
                "{{ with printf `exaserve_gpu_down_reason{cluster=%q, instance=%q, gpu=%q, uuid=%q} == 1`"
                " $labels.cluster $labels.instance $labels.gpu $labels.uuid | query }}"
                ": {{ . | first | label `reason` }}{{ end }}",
                description="""
                    What runs on it has most likely failed. Look whether replicas are down, then at the kernel log
                    of the node for the Xid that came before.
                    """,
                wait="1m",
                keep_firing="1m",
            ),
            Alert(
                XID,
                "time() - max by (cluster, instance, gpu, uuid, xid) (exaserve_gpu_xid_last_timestamp_seconds"
                f'{{xid=~"{"|".join(map(str, BROKEN_XIDS))}"}}) < 900',
                "warning",
                board="fabric",
                variables=NODE,
                summary=f"{_WHICH}: Xid {{{{ $labels.xid }}}} {{{{ $value | humanizeDuration }}}} ago",
                description="""
                    The driver says that the GPU itself is in trouble. Take its replica out, and reset or replace
                    the GPU by what the runbook says of this Xid.
                    """,
            ),
            Alert(
                MEMORY,
                f'max {_BY} (increase(exaserve_gpu_ecc_errors_total{{kind="uncorrected", counter="volatile"}}[15m])) > 0',
                "warning",
                board="fabric",
                variables=NODE,
                summary=f'{_WHICH}: {{{{ $value | printf "%.0f" }}}} uncorrected memory errors in 15 minutes',
                description="""
                    Some computation got wrong data, and its process was most likely ended. If it happens again,
                    the GPU has to be reset or replaced.
                    """,
                labels={"condition": "uncorrected"},
            ),
            Alert(
                MEMORY,
                f"max {_BY} (exaserve_gpu_row_remap_failed) == 1",
                "warning",
                board="fabric",
                variables=NODE,
                summary=f"{_WHICH} has no spare memory rows left (row_remap_failed is {{{{ $value }}}})",
                description="""
                    Broken rows of its memory can't be replaced any more. Take the GPU out of service and have it
                    replaced.
                    """,
                labels={"condition": "no_spare_rows"},
            ),
            Alert(
                THROTTLED,
                f"""
                max {_BY} (
                  avg_over_time(exaserve_gpu_clocks_event_active{{reason=~"{TROUBLE}"}}[5m])
                ) > 0.5
                """,
                "warning",
                board="fabric",
                variables=NODE,
                summary=f"{_WHICH} was slowed down by heat or its power supply in"
                " {{ $value | humanizePercentage }} of the last 5 minutes",
                description="""
                    Its replica answers slower than the others, and a group of GPUs is as slow as its slowest.
                    Look at temperature and power, and at the other GPUs of the node.
                    """,
                wait="5m",
                keep_firing="5m",
            ),
        ),
        team="platform",
    )
