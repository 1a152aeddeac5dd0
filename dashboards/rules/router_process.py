"""The router as a program: its page, its workers, its event loops, its files, its configuration.

By cluster and instance (the address that is scraped), since several routers may stand side by side.
"""

from __future__ import annotations

from dashboards.rulefile import Alert, Group, Record

LAG = "router:exaserve_event_loop_lag_seconds:p99_5m"
OVERHEAD = "router:exaserve_overhead_seconds:p99_5m"
FILES = "router:exaserve_open_files:ratio"

DOWN = "ExaServeRouterDown"
RESTARTS = "ExaServeRouterWorkerRestarts"
LATE = "ExaServeRouterLate"
FILES_NEAR = "ExaServeRouterFilesNearLimit"
REJECTED = "ExaServeRouterConfigRejected"

_PAGE = "exaserve_router_build_info"


def group() -> Group:
    return Group(
        "router_process",
        (
            Record(
                LAG,
                """
                histogram_quantile(
                  0.99,
                  sum by (cluster, instance, worker, le) (rate(exaserve_router_event_loop_lag_seconds_bucket[5m]))
                )
                and on (cluster, instance, worker)
                (sum by (cluster, instance, worker) (rate(exaserve_router_event_loop_lag_seconds_count[5m])) > 0)
                """,
            ),
            Record(
                OVERHEAD,
                """
                histogram_quantile(
                  0.99, sum by (cluster, instance, le) (rate(exaserve_router_overhead_seconds_bucket[5m]))
                )
                and on (cluster, instance)
                (sum by (cluster, instance) (increase(exaserve_router_overhead_seconds_count[5m])) >= 100)
                """,
            ),
            Record(FILES, "exaserve_router_worker_open_files / (exaserve_router_worker_max_open_files > 0)"),
            *_down(),
            Alert(
                RESTARTS,
                "sum by (cluster, instance, why) (increase(exaserve_router_worker_restarts_total[10m])) > 0.5",
                "warning",
                summary='The router on {{ $labels.instance }} replaced {{ printf "%.0f" $value }} of its workers in'
                " 10 minutes ({{ $labels.why }})",
                description="""
                    Streams of such a worker broke off. The router's log says how it ended: killed for memory, crashed,
                    or without a sign of life.
                    """,
                keep_firing="5m",
                board="router",
            ),
            *_late(),
            Alert(
                FILES_NEAR,
                f"{FILES} > 0.8",
                "warning",
                summary="Router {{ $labels.instance }}, worker {{ $labels.worker }}: {{ $value | humanizePercentage }} of"
                " the files that it may open",
                description="""
                    At the limit it takes no further connection. Raise it (LimitNOFILE= of the unit, ulimit -n), add
                    workers or routers, or find the client that leaves connections open.
                    """,
                wait="2m",
                keep_firing="2m",
                board="router",
            ),
            Alert(
                REJECTED,
                "exaserve_router_config_last_reload_successful == 0",
                "warning",
                summary="The router on {{ $labels.instance }} refused its new configuration (successful is {{ $value }})",
                description="""
                    What ran before goes on, so nothing is broken now; but changes don't take effect, and the next
                    restart fails. `exaserve config check` names the key.
                    """,
                wait="1m",
                board="router",
            ),
        ),
    )


def _down() -> tuple[Alert, ...]:
    """Nobody's page can be read; one of several's can't.

    A page counts as missed for as long as Prometheus has its target, and without one for an hour.
    """
    return (
        Alert(
            DOWN,
            f"""
            (
              count by (cluster) (last_over_time({_PAGE}[1h]))
              or
              count by (cluster) (up{{job="exaserve-router"}} == 0)
            )
            unless on (cluster) {_PAGE}
            """,
            "critical",
            summary="No router answers, of {{ $value }} that did or should",
            description="""
                Either users are cut off, or only Prometheus is. Ask the router itself first (/readyz of its admin
                port); if it is gone, `exaserve status` and its log say why.
                """,
            wait="30s",
            keep_firing="1m",
            board="router",
            labels={"condition": "all"},
        ),
        Alert(
            DOWN,
            f'max by (cluster, instance) (up{{job="exaserve-router"}}) == 0 and on (cluster) {_PAGE}',
            "warning",
            summary="The router on {{ $labels.instance }} can't be scraped (up is {{ $value }}); others can",
            description="""
                The balancer in front should have taken it out. See whether its process is there, and whether clients
                still reach it.
                """,
            wait="1m",
            keep_firing="1m",
            board="router",
            labels={"condition": "one"},
        ),
    )


def _late() -> tuple[Alert, ...]:
    return (
        Alert(
            LATE,
            f"{LAG} > 0.1",
            "warning",
            summary="Router {{ $labels.instance }}, worker {{ $labels.worker }}: its event loop is late by"
            " {{ $value | humanizeDuration }} (p99)",
            description="""
                Every stream of that worker is late by as much. Its CPU is full, or the machine's is; see CPU by worker
                and add workers.
                """,
            wait="5m",
            keep_firing="5m",
            board="router",
            labels={"signal": "event_loop"},
        ),
        Alert(
            LATE,
            f"{OVERHEAD} > 0.05",
            "warning",
            summary="The router on {{ $labels.instance }} adds {{ $value | humanizeDuration }} (p99) to its requests",
            description="""
                Usually it is below a millisecond. Very large bodies, the intent classifier's second stage or a full CPU
                do it; compare routes, and the event loop's lag.
                """,
            wait="5m",
            keep_firing="5m",
            board="router",
            labels={"signal": "overhead"},
        ),
    )
