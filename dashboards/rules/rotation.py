"""Who is in rotation, beyond one replica that is down (``replica.py``): none at all, panic, ejections, frozen, drained.

States are the router's. Several routers may disagree about a replica: it counts as ejected, frozen or drained if any
of them says so, as in rotation only if all do.
"""

from __future__ import annotations

from dashboards.rulefile import Alert, Group, Record
from dashboards.rules.replica import GRACE
from dashboards.rules.totals import STATES
from dashboards.signals import UP

EJECTED_RATIO = "model:exaserve_replicas_ejected:ratio"
EJECTIONS = "replica:exaserve_replica_ejections:increase10m"

OUT = "ExaServePoolOut"
PANIC = "ExaServePanic"
EJECTED = "ExaServeReplicaEjected"
MANY = "ExaServeManyEjected"
FROZEN = "ExaServeReplicaFrozen"
DRAINED = "ExaServeReplicaDrainedLong"

_REPLICA = {"model": "{{ $labels.model }}", "replica": "{{ $labels.replica }}"}
_NONE_READY = 'exaserve_router_rejected_requests_total{reason="no_replica_ready", pool!=""}'


def _in(state: str) -> str:
    return f'max by (cluster, model, replica) (exaserve_replica_state{{state="{state}"}}) == 1'


def group() -> Group:
    return Group(
        "rotation",
        (
            Record(
                EJECTED_RATIO,
                f'sum by (cluster, model) ({STATES}{{state="ejected"}}) / (sum by (cluster, model) ({STATES}) > 0)',
            ),
            Record(
                EJECTIONS,
                "max by (cluster, model, replica) (increase(exaserve_replica_ejections_total[10m]))",
            ),
            *_nobody(),
            *_ejections(),
            Alert(
                FROZEN,
                _in("frozen"),
                "warning",
                summary="{{ $labels.replica }} ({{ $labels.model }}) is frozen (state is {{ $value }}): asked, it sends no byte",
                description="""
                    Its process is there and does nothing. Take a stack dump (`exaserve inspect`) before it is killed
                    and restarted after `fleet.restart_frozen_after`.
                    """,
                keep_firing="1m",
                board="replica",
                variables=_REPLICA,
            ),
            Alert(
                DRAINED,
                _in("draining"),
                "info",
                summary="{{ $labels.replica }} ({{ $labels.model }}) has been drained for an hour (state is {{ $value }})",
                description="""
                    Somebody took it out and did not take it back. Ask who works on it; `exaserve drain --undo` puts
                    it back into rotation.
                    """,
                wait="1h",
                board="replica",
                variables=_REPLICA,
            ),
        ),
    )


def _nobody() -> tuple[Alert, ...]:
    return (
        Alert(
            OUT,
            # Replicas that start for the first time have their grace, as in ExaServeReplicaDown.
            f"""
            max by (cluster, model) ({UP} unless on (cluster, model, replica) {GRACE}) == 0
            unless on (cluster, model)
            {UP} == 1
            """,
            "critical",
            summary="No replica of {{ $labels.model }} is in rotation: up is {{ $value }} for all of them",
            description="""
                Every request for it fails. Look at `exaserve status` and /fleet for the reason, which is mostly one for
                all: a node, the storage, the network, or what was changed last.
                """,
            wait="15s",
            keep_firing="1m",
            variables={"model": "{{ $labels.model }}"},
            labels={"condition": "model"},
        ),
        Alert(
            OUT,
            f"sum by (cluster, pool) (increase({_NONE_READY}[1m])) >= 5",
            "critical",
            summary='Pool {{ $labels.pool }} refused {{ printf "%.0f" $value }} requests in a minute: no replica of it'
            " is in rotation",
            description="""
                Its users get 503, whatever other pools do. See which replicas the pool has (`pools` in exaserve.yaml)
                and why they are out; a fallback pool would take its requests meanwhile.
                """,
            wait="1m",
            keep_firing="1m",
            board="router",
            variables={"pool": "{{ $labels.pool }}"},
            labels={"condition": "pool"},
        ),
        Alert(
            PANIC,
            "max by (cluster, pool) (exaserve_router_panic) == 1",
            "critical",
            summary="Pool {{ $labels.pool }} is in panic (panic is {{ $value }}): no healthy replica, requests go to any"
            " that listens",
            description="""
                Probes or ejections took out every replica, and the router sends requests to them all the same. Some
                users are served, slowly or with errors. Find what all replicas have in common.
                """,
            wait="15s",
            keep_firing="1m",
            board="router",
            variables={"pool": "{{ $labels.pool }}"},
        ),
    )


def _ejections() -> tuple[Alert, ...]:
    return (
        Alert(
            EJECTED,
            f"{EJECTIONS} > 2.5",
            "warning",
            summary='{{ $labels.replica }} ({{ $labels.model }}) was ejected {{ printf "%.0f" $value }} times in 10 minutes',
            description="""
                It comes back and fails again: its answers are errors, or far slower than the others'. /fleet says which;
                drain or restart it, and look at its GPU, its node and its log.
                """,
            keep_firing="5m",
            board="replica",
            variables=_REPLICA,
        ),
        Alert(
            MANY,
            f'{EJECTED_RATIO} >= 0.25 and on (cluster, model) sum by (cluster, model) ({STATES}{{state="ejected"}}) >= 2',
            "warning",
            summary="{{ $labels.model }}: {{ $value | humanizePercentage }} of its replicas are ejected at once",
            description="""
                That is no fault of single replicas. Look for what they share: a node, a switch, the storage, a version,
                or requests that make any replica fail. The others carry their load.
                """,
            wait="30s",
            keep_firing="2m",
            variables={"model": "{{ $labels.model }}"},
        ),
    )
