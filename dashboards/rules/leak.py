"""Which replica's memory grows without end: the alert ExaServeReplicaMemoryGrows.

The slope is the least-squares slope of the last 30 minutes (PromQL's deriv), of each replica's own memory on the
node and of its memory on each GPU. It is computed here and not in the exporter: Prometheus has the samples of hours,
an exporter that restarts would begin anew. Four things keep a start, a load peak and noise quiet:

- fit: the share of the variance that a straight line explains (R²), from the slope and the variance of evenly
  spaced times, which is window² / 12 (3 % too much at a scrape every 30 s, less at shorter ones). A sawtooth has
  little.
- samples: 30 minutes have to be there (one at their beginning, 20 at least).
- age: the replica's server has run for 45 minutes, with as many processes all that time.
- it goes on: the last 10 minutes rise at least half as fast, which a start that levels off does not.

What grows by less than 64 MiB an hour, or could do so for more than a day, is not told.
"""

from __future__ import annotations

from dashboards.rulefile import Alert, Group, Record

SLOPE = "replica:exaserve_process_private_memory_bytes:deriv30m"
FIT = "replica:exaserve_process_private_memory_bytes:fit30m"
GPU_SLOPE = "replica:exaserve_gpu_replica_memory_bytes:deriv30m"
GPU_FIT = "replica:exaserve_gpu_replica_memory_bytes:fit30m"
ALERT = "ExaServeReplicaMemoryGrows"

#: Least R² of the line.
STRAIGHT = 0.8
#: Bytes a second that are worth a word: 64 MiB an hour.
LEAST = 64 * 2**20 / 3600
_DAY = 86_400

_HOST = "exaserve_process_private_memory_bytes"
_GPU = "exaserve_gpu_replica_memory_bytes"


def _fit(slope: str, metric: str) -> str:
    return f"{slope} ^ 2 * {1800**2 // 12} / (stdvar_over_time({metric}[30m]) > 0)"


def _grows(slope: str, fit: str, metric: str) -> str:
    """Series of ``slope`` that rise in earnest."""
    return f"""
                {slope} > {LEAST:.0f}
                and {fit} > {STRAIGHT}
                and deriv({metric}[10m]) > 0.5 * {slope}
                and count_over_time({metric}[30m]) >= 20
                and {metric} offset 29m
                and on (cluster, instance, replica)
                (
                  time() - exaserve_process_start_time_seconds > {45 * 60}
                  and changes(exaserve_process_group_size[45m]) == 0
                )"""


def group() -> Group:
    return Group(
        "leak",
        (
            Record(SLOPE, f"deriv({_HOST}[30m])"),
            Record(FIT, _fit(SLOPE, _HOST)),
            Record(GPU_SLOPE, f"deriv({_GPU}[30m])"),
            Record(GPU_FIT, _fit(GPU_SLOPE, _GPU)),
            Alert(
                ALERT,
                f"""
                (
                {_grows(SLOPE, FIT, _HOST).strip()}
                )
                and {_DAY} * {SLOPE} > 0.5 * {_HOST}
                """,
                "warning",
                board="replica",
                summary="{{ $labels.replica }} on {{ $labels.instance }}: its memory grows by"
                " {{ $value | humanize1024 }}B a second, steadily",
                description="""
                    In a day it would be half as big again. Ask what it does (`exaserve inspect`), note the numbers,
                    and restart it before the node runs out of memory.
                    """,
                wait="15m",
                keep_firing="15m",
                variables={"replica": "{{ $labels.replica }}"},
                labels={"memory": "node"},
            ),
            Alert(
                ALERT,
                f"""
                (
                {_grows(GPU_SLOPE, GPU_FIT, _GPU).strip()}
                )
                and on (cluster, instance, gpu, uuid)
                (
                  max by (cluster, instance, gpu, uuid) (exaserve_gpu_memory_free_bytes)
                  < {_DAY} * sum by (cluster, instance, gpu, uuid) ({GPU_SLOPE})
                )
                """,
                "warning",
                board="replica",
                summary="{{ $labels.replica }} on {{ $labels.instance }}: its memory on GPU {{ $labels.gpu }} grows"
                " by {{ $value | humanize1024 }}B a second, steadily",
                description="""
                    In a day the GPU would be full. An engine takes its GPU memory at its start, so that it should
                    not grow at all. Ask what it does (`exaserve inspect`) and restart it.
                    """,
                wait="15m",
                keep_firing="15m",
                variables={"replica": "{{ $labels.replica }}"},
                labels={"memory": "gpu"},
            ),
        ),
        # 30 minutes of samples of each replica: every 5 s would be most of what Prometheus does in a large fleet.
        interval="1m",
    )
