"""The Router board's lower half: its processes, connections, and what it keeps beside the traffic.

Workers of all chosen routers, each by its router's address; a machine has tens of them, so they are drawn one by one.
"""

from __future__ import annotations

from typing import Any

from dashboards import variables as of
from dashboards.board import Row, runbook
from dashboards.panels import timeseries
from dashboards.rulefile import Links
from dashboards.rules import router_edges, router_process

_WINDOW = "$__rate_interval"
_UNREAD = "no router was read in this time"
_WORKER = "{{instance}} {{worker}}"


def rows(links: Links) -> list[Row]:
    return [
        "Its processes",
        (8, _workers(links)),
        (8, _connections(links)),
        "Beside the traffic",
        (8, _beside(links)),
    ]


def _of(metric: str) -> str:
    return f"{metric}{{{of.CLUSTER}}}"


def _workers(links: Links) -> list[Any]:
    return [
        timeseries(
            "CPU by process",
            "CPUs that each process of the router uses. A worker at 1 is at its end: it is one thread.",
            "none",
            [
                (
                    f"sum by (instance, worker) (rate({_of('exaserve_router_worker_cpu_seconds_total')}[{_WINDOW}]))",
                    _WORKER,
                )
            ],
            empty=_UNREAD,
            links=[runbook(router_process.LATE, links)],
        ),
        timeseries(
            "Memory by process",
            "Resident memory; what processes share counts in each.",
            "bytes",
            [(f"sum by (instance, worker) ({_of('exaserve_router_worker_resident_bytes')})", _WORKER)],
            empty=_UNREAD,
        ),
        timeseries(
            "Open files by process",
            "File descriptors: two for each stream. At the limit of open files, connections are refused.",
            "none",
            [(f"sum by (instance, worker) ({_of('exaserve_router_worker_open_files')})", _WORKER)],
            empty=_UNREAD,
            links=[runbook(router_process.FILES_NEAR, links)],
        ),
        timeseries(
            "Workers",
            "Processes that serve requests, and those of them whose hot modules are compiled; the others run as plain "
            "Python and take several times the CPU.",
            "none",
            [
                (f"sum by (instance) ({_of('exaserve_router_workers')})", "{{instance}}"),
                (f"sum by (instance) ({_of('exaserve_router_compiled_workers')})", "{{instance}} compiled"),
            ],
            empty=_UNREAD,
            links=[runbook(router_process.DOWN, links)],
        ),
    ]


def _connections(links: Links) -> list[Any]:
    restarts = f"increase({_of('exaserve_router_worker_restarts_total')}[{_WINDOW}])"
    tunnels, handshakes = (
        f"rate({_of(counter)}[{_WINDOW}])"
        for counter in ("exaserve_router_tunnels_total", "exaserve_router_tls_handshake_failures_total")
    )
    return [
        timeseries(
            "Client connections",
            "Open connections of clients, streams and idle kept ones.",
            "none",
            [(f"sum by (instance) ({_of('exaserve_router_client_connections')})", "{{instance}}")],
            empty=_UNREAD,
            links=[runbook(router_edges.FULL, links)],
        ),
        timeseries(
            "Request bodies held",
            "Bytes of request bodies in memory: of requests that wait or may be tried again.",
            "bytes",
            [(f"sum by (instance) ({_of('exaserve_router_buffered_bytes')})", "{{instance}}")],
            empty=_UNREAD,
        ),
        timeseries(
            "Workers replaced",
            "Processes that the master replaced, by why: died, or frozen (no sign of life: killed). Each cut its streams.",
            "none",
            [(of.counted(f"sum by (why) ({restarts})", "why"), "{{why}}")],
            empty=_UNREAD,
            links=[runbook(router_process.RESTARTS, links)],
        ),
        timeseries(
            "Tunnels and TLS failures",
            "Per second: upgraded (WebSocket) connections that ended, by outcome, and connections to the TLS port that "
            "came to nothing, by reason.",
            "cps",
            [
                (of.counted(f"sum by (outcome) ({tunnels})", "outcome"), "tunnel: {{outcome}}"),
                (f"sum by (reason) ({handshakes})", "TLS: {{reason}}"),
            ],
            empty=_UNREAD,
        ),
    ]


def _beside(links: Links) -> list[Any]:
    def rate(counter: str) -> str:
        return f"sum(rate({_of(counter)}[{_WINDOW}]))"

    return [
        timeseries(
            "Audit records",
            "Written and dropped per second. Dropped ones are missing in the files: the disk took none and the queue was "
            "full.",
            "cps",
            [
                (rate("exaserve_router_audit_written_total"), "written"),
                (rate("exaserve_router_audit_dropped_total"), "dropped"),
            ],
            empty="no audit is written (router.audit.enabled)",
            links=[runbook(router_edges.AUDIT, links)],
        ),
        timeseries(
            "Audit queue",
            "Records that wait to be written; router.audit.queue is the most for each worker. It grows when the disk is "
            "slow or full.",
            "none",
            [(f"sum by (instance) ({_of('exaserve_router_audit_queue')})", "{{instance}}")],
            empty="no audit is written (router.audit.enabled)",
            links=[runbook(router_edges.AUDIT, links)],
        ),
        timeseries(
            "Spans",
            "Spans per second that the endpoint of router.tracing took, and those that were lost.",
            "cps",
            [
                (rate("exaserve_router_spans_exported_total"), "taken"),
                (rate("exaserve_router_spans_dropped_total"), "lost"),
            ],
            empty="no spans are sent (router.tracing)",
            links=[runbook(router_edges.SPANS, links)],
        ),
        timeseries(
            "Age of the configuration",
            "Since the running configuration was taken. It falls to 0 at each reload that was accepted.",
            "s",
            [
                (
                    f"time() - max by (instance) "
                    f"({_of('exaserve_router_config_last_reload_success_timestamp_seconds')})",
                    "{{instance}}",
                )
            ],
            empty=_UNREAD,
            links=[runbook(router_process.REJECTED, links)],
        ),
    ]
