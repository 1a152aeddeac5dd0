"""Requests that the router turns away or lets wait: for want of replicas' capacity, for a tenant's limit, for their shape.

By pool, tenant or route, over all routers and workers. Few refusals are no alert: a share needs a least number.
Refusals because no replica is in rotation at all are ``rotation.py``'s.
"""

from __future__ import annotations

from dashboards.rulefile import Alert, Group, Record

REFUSED_RATIO = "pool:exaserve_router_capacity_refused:ratio_rate5m"
WAITING_RATIO = "pool:exaserve_router_waiting:ratio"
LIMITED_RATIO = "tenant:exaserve_router_rate_limited:ratio_rate5m"
BAD_REQUEST_RATIO = "route:exaserve_router_bad_requests:ratio_rate5m"

REFUSED = "ExaServeCapacityRefused"
QUEUE = "ExaServeQueueNearLimit"
LIMITED = "ExaServeTenantLimited"
SCHEMA = "ExaServeSchemaErrors"

#: Reasons that more replicas would have spared.
_CAPACITY = (
    'exaserve_router_rejected_requests_total{reason=~"queue_full|queue_timeout|capacity|too_many_bytes"}'
)
_LIMITED = "exaserve_router_rate_limited_requests_total"
_BAD = 'exaserve_router_requests_total{code=~"400|422"}'
#: Refusals in 5 minutes below which a share says nothing.
_LEAST = 10


def _share(part: str, labels: str) -> str:
    of = f"sum by (cluster, {labels})"
    return f"{of} (rate({part}[5m])) / ({of} (rate(exaserve_router_requests_total[5m])) > 0)"


def _enough(part: str, labels: str, least: int = _LEAST) -> str:
    on = f"(cluster, {labels})"
    return f"and on {on} sum by {on} (increase({part}[5m])) >= {least}"


def group() -> Group:
    return Group(
        "admission",
        (
            Record(REFUSED_RATIO, _share(_CAPACITY, "pool")),
            Record(
                WAITING_RATIO,
                """
                sum by (cluster, pool) (exaserve_router_waiting_requests)
                / (sum by (cluster, pool) (exaserve_router_max_waiting_requests) > 0)
                """,
            ),
            Record(LIMITED_RATIO, _share(_LIMITED, "tenant")),
            Record(BAD_REQUEST_RATIO, _share(_BAD, "route")),
            *_refused(),
            Alert(
                QUEUE,
                f"{WAITING_RATIO} > 0.8",
                "warning",
                summary="Pool {{ $labels.pool }}: {{ $value | humanizePercentage }} of the requests that may wait do",
                description="""
                    The queue in front of the replicas is nearly full; after it, requests get 503. See whether replicas
                    are out or slow; if all are well and busy, add some or take load away.
                    """,
                wait="30s",
                keep_firing="1m",
                board="router",
                variables={"pool": "{{ $labels.pool }}"},
            ),
            Alert(
                LIMITED,
                f"{LIMITED_RATIO} > 0.5\n{_enough(_LIMITED, 'tenant', 30)}",
                "info",
                summary="Tenant {{ $labels.tenant }}: {{ $value | humanizePercentage }} of its requests are over a limit",
                description="""
                    Its quota does what it is for. Find out whether the tenant knows, and whether the quota still
                    fits what was agreed.
                    """,
                wait="10m",
                keep_firing="10m",
                board="tenants",
                variables={"tenant": "{{ $labels.tenant }}"},
            ),
            Alert(
                SCHEMA,
                f"{BAD_REQUEST_RATIO} > 0.2\n{_enough(_BAD, 'route', 20)}",
                "warning",
                summary="{{ $labels.route }}: {{ $value | humanizePercentage }} of the requests get 400",
                description="""
                    Requests are malformed: a client was changed, or an upgrade takes less than before. The error's
                    body names the field; find out which tenant sends them and what changed last.
                    """,
                wait="2m",
                keep_firing="5m",
                board="router",
            ),
        ),
    )


def _refused() -> tuple[Alert, ...]:
    def alert(limit: float, severity: str) -> Alert:
        return Alert(
            REFUSED,
            f"{REFUSED_RATIO} > {limit}\n{_enough(_CAPACITY, 'pool')}",
            "critical" if severity == "critical" else "warning",
            summary="Pool {{ $labels.pool }}: {{ $value | humanizePercentage }} of the requests are refused for want"
            " of capacity",
            description="""
                Users get 503: the queue is full, or they waited for too long. First see whether replicas are out of
                rotation; if none is, there is more load than capacity. Add replicas, or limit whoever sends most.
                """,
            wait="1m",
            keep_firing="2m",
            board="capacity",
            variables={"pool": "{{ $labels.pool }}"},
        )

    return alert(0.2, "critical"), alert(0.01, "warning")
