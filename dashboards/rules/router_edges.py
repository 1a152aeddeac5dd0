"""The router's edges: client connections, its certificate, and what it writes elsewhere (audit lines, spans)."""

from __future__ import annotations

from dashboards.rulefile import Alert, Group, Record

CONNECTIONS = "router:exaserve_client_connections:ratio"
EXPIRES = "router:exaserve_tls_certificate:seconds_left"
AUDIT_LOST = "router:exaserve_audit_dropped:increase10m"
SPANS_RATIO = "router:exaserve_spans_dropped:ratio_rate10m"

FULL = "ExaServeClientConnectionsFull"
EXPIRING = "ExaServeCertificateExpiring"
AUDIT = "ExaServeAuditLost"
SPANS = "ExaServeSpansLost"

_DAY = 86_400
_REFUSED = 'exaserve_router_rejected_requests_total{reason="too_many_connections"}'


def group() -> Group:
    return Group(
        "router_edges",
        (
            Record(
                CONNECTIONS,
                "exaserve_router_client_connections / (exaserve_router_max_client_connections > 0)",
            ),
            Record(EXPIRES, "exaserve_router_tls_certificate_expiry_timestamp_seconds - time()"),
            Record(
                AUDIT_LOST, "sum by (cluster, instance) (increase(exaserve_router_audit_dropped_total[10m]))"
            ),
            Record(
                SPANS_RATIO,
                """
                rate(exaserve_router_spans_dropped_total[10m])
                / (rate(exaserve_router_spans_dropped_total[10m]) + rate(exaserve_router_spans_exported_total[10m]) > 0)
                """,
            ),
            *_connections(),
            *_certificate(),
            *_audit(),
            Alert(
                SPANS,
                f"{SPANS_RATIO} > 0.1",
                "info",
                summary="The router on {{ $labels.instance }} loses {{ $value | humanizePercentage }} of its spans",
                description="""
                    Traces have gaps; requests are not touched. See whether the endpoint of `router.tracing` answers, and
                    whether it keeps up; lower `sample` if it can't.
                    """,
                wait="10m",
                keep_firing="5m",
                board="router",
            ),
        ),
    )


def _connections() -> tuple[Alert, ...]:
    return (
        Alert(
            FULL,
            f"{CONNECTIONS} > 0.8",
            "warning",
            summary="The router on {{ $labels.instance }} has {{ $value | humanizePercentage }} of the client connections"
            " that it takes",
            description="""
                Above the limit clients get 503. See whether they are busy or idle, and from whom; then raise
                `router.max_connections` (and the limit of open files) or add routers.
                """,
            wait="1m",
            keep_firing="1m",
            board="router",
            labels={"condition": "near"},
        ),
        Alert(
            FULL,
            f"sum by (cluster, instance) (increase({_REFUSED}[5m])) >= 10",
            "warning",
            summary='The router on {{ $labels.instance }} refused {{ printf "%.0f" $value }} connections in 5 minutes:'
            " it has as many as it takes",
            description="""
                Users get 503 at once. Raise `router.max_connections` (and the limit of open files), add routers, or cut
                off the client that holds most.
                """,
            wait="30s",
            keep_firing="2m",
            board="router",
            labels={"condition": "refused"},
        ),
    )


def _certificate() -> tuple[Alert, ...]:
    summary = (
        "The certificate of the router on {{ $labels.instance }} expires in {{ $value | humanizeDuration }}"
    )
    description = """
        After that no client connects. Put the renewed files where `router.tls` says; they are read again when they
        change, without a restart.
        """
    return (
        Alert(EXPIRING, f"{EXPIRES} < {2 * _DAY}", "critical", summary, description, "5m", board="router"),
        Alert(
            EXPIRING,
            f"{EXPIRES} < {14 * _DAY} and {EXPIRES} >= {2 * _DAY}",
            "warning",
            summary,
            description,
            "5m",
            board="router",
        ),
    )


def _audit() -> tuple[Alert, ...]:
    return (
        Alert(
            AUDIT,
            f"{AUDIT_LOST} > 0",
            "warning",
            summary='The router on {{ $labels.instance }} lost {{ printf "%.0f" $value }} audit lines in 10 minutes',
            description="""
                The disk took none and the queue was full; usage and cost of these requests are lost. Make room in the
                audit folder now, or move it.
                """,
            keep_firing="10m",
            board="router",
            labels={"condition": "lost"},
        ),
        Alert(
            AUDIT,
            "exaserve_router_audit_queue > 1000",
            "warning",
            summary="{{ $value }} audit lines wait in the router on {{ $labels.instance }}: the disk doesn't take them",
            description="""
                Nothing is lost until the queue is full. Look for a full, read-only or stuck disk under the audit folder.
                """,
            wait="1m",
            keep_firing="1m",
            board="router",
            labels={"condition": "waiting"},
        ),
    )
