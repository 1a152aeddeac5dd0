"""What only the exporter sees of engines: asleep, mixed versions, failing KV copies, files near their limit.

Where no exporter reads the engines there are no such series and no alerts.
"""

from __future__ import annotations

from dashboards.rulefile import Alert, Group, Record

TRANSFER_FAILURES = "replica:exaserve_kv_transfer_failures:ratio_rate10m"
VERSIONS = "model:exaserve_engine_versions:count"

ASLEEP = "ExaServeEngineAsleep"
MIXED = "ExaServeEngineVersionsMixed"
TRANSFERS = "ExaServeKVTransferFailures"
FILES = "ExaServeReplicaFilesNearLimit"

_LINK = {"model": "{{ $labels.model }}", "replica": "{{ $labels.replica }}"}
_WHICH = "{{ $labels.replica }} ({{ $labels.model }})"
_BY = "by (cluster, model, replica, via, direction)"


def _each(counter: str, function: str) -> str:
    """Of a replica's ranks together, however many exporters read it."""
    one = f"max by (cluster, model, replica, rank, via, direction) ({function}({counter}[10m]))"
    return f"sum {_BY} ({one})"


def group() -> Group:
    failures = _each("exaserve_kv_transfer_failures_total", "rate")
    done = _each("exaserve_kv_transfers_total", "rate")
    return Group(
        "engine_state",
        (
            # A failed copy may or may not be counted among the copies; where all failed there may be none.
            Record(TRANSFER_FAILURES, f"{failures} / ({failures} + ({done} or {failures} * 0) > 0)"),
            # A replica may be there with two versions for a while, by two exporters; the model is one for each.
            Record(
                VERSIONS,
                """
                count by (cluster, model) (
                  group by (cluster, model, engine, version) (
                    group by (cluster, replica, engine, version) (exaserve_engine_info)
                    * on (cluster, replica) group_left (model)
                    topk by (cluster, replica) (1, max by (cluster, model, replica) (exaserve_engine_requests_running))
                  )
                )
                """,
            ),
            Alert(
                TRANSFERS,
                f"{TRANSFER_FAILURES} > 0.01\nand {_each('exaserve_kv_transfer_failures_total', 'increase')} >= 5",
                "warning",
                summary=f"{_WHICH}: {{{{ $value | humanizePercentage }}}} of its KV copies"
                " ({{ $labels.via }}, {{ $labels.direction }}) fail",
                description="""
                    What can't be loaded is computed again, what can't be stored is lost to others: time to first token
                    rises. A store fails for want of room, a transfer for the network.
                    """,
                wait="2m",
                keep_firing="5m",
                board="replica",
                variables=_LINK,
            ),
            Alert(
                ASLEEP,
                "max by (cluster, model, replica) (exaserve_engine_sleep_level) > 0",
                "warning",
                summary=f"{_WHICH} sleeps (level {{{{ $value }}}}): it takes no requests",
                description="""
                    Somebody put the engine to sleep (/sleep) and did not wake it. Requests that are sent there wait. Wake
                    it, or drain it if it is meant to sleep.
                    """,
                wait="5m",
                board="replica",
                variables=_LINK,
            ),
            Alert(
                MIXED,
                f"{VERSIONS} > 1",
                "info",
                summary="{{ $labels.model }} runs on {{ $value }} versions of the engine at once",
                description="""
                    An upgrade stopped halfway, or a node was left out. The same request may have different answers and
                    times; compare the versions' latencies before you go on or back.
                    """,
                wait="1h",
                variables={"model": "{{ $labels.model }}"},
            ),
            Alert(
                FILES,
                "max by (cluster, instance, replica) (exaserve_process_open_fds_ratio) > 0.8",
                "warning",
                summary="{{ $labels.replica }} on {{ $labels.instance }}: a process has {{ $value | humanizePercentage }}"
                " of the files open that it may open",
                description="""
                    At its limit it accepts no connection and answers nothing new. See whether it has many clients or
                    leaks files; raise the limit and restart it.
                    """,
                wait="5m",
                keep_firing="5m",
                board="replica",
                variables={"replica": "{{ $labels.replica }}"},
            ),
        ),
    )
