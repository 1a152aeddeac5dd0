"""Router: does it let requests in, what does it do for them, and does it itself keep up.

From the outside in: what is refused or waits and why, what is tried again and who was taken out, then the router's own
share of the time and its processes, and last what it keeps beside the traffic (audit, spans, certificate,
configuration). Counts are summed over workers and routers. Only for sources that have ExaServe's router.
"""

from __future__ import annotations

from typing import Any

from grafanalib import core

from dashboards import variables as of
from dashboards.board import Row, annotation, dashboard, firing, runbook, to_board
from dashboards.boards import _router_self as itself
from dashboards.panels import NO_TRAFFIC, heat_map, stat, timeseries
from dashboards.rulefile import Links
from dashboards.rules import admission, replica, retries, rotation, router_edges, router_process, slo
from dashboards.signals import SHORT, Source, ratio, requests

_WINDOW = "$__rate_interval"
#: Matchers for what the router tells by model and pool, and by pool only.
_USERS = f'{of.MODEL}, pool=~"$pool"'
_POOL = f'{of.CLUSTER}, pool=~"$pool"'


def board(links: Links, source: Source) -> core.Dashboard:
    rows: list[Row] = [(4, _glance(links)), "Admission", (8, _admission(links))]
    rows += ["Retries, hedges, ejections", (8, _retries(links)), (8, _out(links))]
    rows += ["Its own share", (8, _overhead(links)), *itself.rows(links)]
    return dashboard(
        "router",
        "Router",
        "Does the router let requests in, what does it do for them, and does it itself keep up.",
        rows,
        of.variables(source, "cluster", "model", "pool"),
        annotations=[firing(), _reloads(), _restarts()],
    )


def _reloads() -> dict[str, Any]:
    taken = f"exaserve_router_config_last_reload_success_timestamp_seconds{{{of.CLUSTER}}}"
    return annotation(
        "Configuration taken", f"count(changes({taken}[1m]) > 0)", "blue", "configuration taken"
    )


def _restarts() -> dict[str, Any]:
    replaced = f"increase(exaserve_router_worker_restarts_total{{{of.CLUSTER}}}[1m])"
    return annotation(
        "Worker replaced", f"sum by (why) ({replaced}) > 0", "purple", "worker replaced: {{why}}"
    )


def _rate(counter: str, by: str, matchers: str = of.CLUSTER) -> str:
    return f"sum by ({by}) (rate({counter}{{{matchers}}}[{_WINDOW}]))"


def _glance(links: Links) -> list[Any]:
    refused = f"sum(rate(exaserve_router_rejected_requests_total{{{_POOL}}}[{_WINDOW}]))"
    return [
        stat(
            "Routers",
            "Routers that Prometheus reads, by their build_info.",
            "none",
            f"count(exaserve_router_build_info{{{of.CLUSTER}}})",
            [(None, "green")],
            empty="no router is read",
            links=[runbook(router_process.DOWN, links)],
        ),
        stat(
            "Requests",
            "Requests that ended per second over a minute, of the chosen pools.",
            "reqps",
            f"sum({requests(SHORT)}{{{_USERS}}})",
            [(None, "blue")],
            empty="no requests seen",
        ),
        stat(
            "Open",
            "Requests between their last byte and the last byte of their answer, waiting ones included.",
            "none",
            f"sum(exaserve_router_open_requests{{{_POOL}}})",
            [(None, "blue")],
            empty="no router is read",
        ),
        stat(
            "Waiting",
            "Requests that wait in the router for a replica that may take them.",
            "none",
            f"sum(exaserve_router_waiting_requests{{{_POOL}}})",
            [(None, "green"), (1, "orange")],
            empty="no router is read",
            links=[runbook(admission.QUEUE, links), to_board("capacity", "Capacity board", links)],
        ),
        stat(
            "Refused",
            "Requests per second that the router refused itself; limits of tenants count too.",
            "reqps",
            of.counted(refused),
            [(None, "green"), (0.01, "orange")],
            empty="no router is read",
            links=[runbook(admission.REFUSED, links)],
        ),
        stat(
            "Pools in panic",
            "Pools that have no healthy replica: their requests go to any replica that still listens.",
            "none",
            f"sum(max by (cluster, pool) (exaserve_router_panic{{{_POOL}}}))",
            [(None, "green"), (1, "red")],
            empty="no router is read",
            links=[runbook(rotation.PANIC, links), runbook(replica.ALERT, links)],
        ),
        stat(
            "Configuration",
            "Whether the configuration that was read last is the one that runs; if refused, the one before runs.",
            "none",
            f"min(exaserve_router_config_last_reload_successful{{{of.CLUSTER}}})",
            [(None, "text")],
            empty="no router is read",
            states=((1, "as in the file", "green"), (0, "refused", "red")),
            links=[runbook(router_process.REJECTED, links)],
        ),
        stat(
            "Certificate expires in",
            "Until the first certificate of the router's TLS port expires.",
            "s",
            f"min(exaserve_router_tls_certificate_expiry_timestamp_seconds{{{of.CLUSTER}}}) - time()",
            [(None, "red"), (259200, "orange"), (1209600, "green")],
            empty="no TLS",
            links=[runbook(router_edges.EXPIRING, links)],
        ),
    ]


def _admission(links: Links) -> list[Any]:
    queue = f"rate(exaserve_router_queue_duration_seconds_bucket{{{_USERS}}}[{_WINDOW}])"
    return [
        timeseries(
            "Open and waiting",
            "Requests by pool that are open, and of those the ones that wait for a replica that may take them.",
            "none",
            [
                (f"sum by (pool) (exaserve_router_open_requests{{{_POOL}}})", "{{pool}} open"),
                (f"sum by (pool) (exaserve_router_waiting_requests{{{_POOL}}})", "{{pool}} waiting"),
            ],
            empty="no router was read in this time",
            links=[runbook(admission.QUEUE, links)],
        ),
        heat_map(
            "Time in the router's queue",
            "How many requests per second waited how long for a replica; most don't wait at all and are in the lowest "
            "band. Long waits: too few replicas may take more (max_in_flight, kv_cache_watermark, states).",
            "s",
            f"sum by (le) ({queue})",
            counts="reqps",
            links=[runbook(admission.QUEUE, links), to_board("capacity", "Capacity board", links)],
        ),
        timeseries(
            "Refused by reason",
            "Requests per second that the router refused itself. queue_full, queue_timeout, no_replica_ready: too little "
            "capacity; schema, unknown_model, body_too_large: the clients' mistakes; tenant_…: their limits.",
            "reqps",
            [
                (
                    of.counted(_rate("exaserve_router_rejected_requests_total", "reason", _POOL), "reason"),
                    "{{reason}}",
                )
            ],
            stacked=True,
            empty="no router was read in this time",
            links=[runbook(admission.REFUSED, links), runbook(slo.ALERT, links)],
        ),
        timeseries(
            "Limits of tenants",
            "Requests per second refused by a limit of their tenant: requests, tokens, in_flight, max_tokens. The ten "
            "tenants with most at the end of the time shown.",
            "reqps",
            [
                (
                    f"{_rate('exaserve_router_rate_limited_requests_total', 'tenant, limit')} and on (tenant) "
                    f"topk(10, sum by (tenant) (rate(exaserve_router_rate_limited_requests_total"
                    f"{{{of.CLUSTER}}}[{_WINDOW}] @ end())))",
                    "{{tenant}}: {{limit}}",
                )
            ],
            stacked=True,
            empty="no limit of a tenant has refused anything yet",
            links=[runbook(admission.LIMITED, links), to_board("tenants", "Tenants board", links)],
        ),
    ]


def _retries(links: Links) -> list[Any]:
    return [
        timeseries(
            "Retries by reason",
            "Requests per second sent once more because the first attempt failed before the client had anything. stale is "
            "a kept connection that the replica had closed, and harmless.",
            "reqps",
            [(of.counted(_rate("exaserve_router_retries_total", "reason", _POOL), "reason"), "{{reason}}")],
            stacked=True,
            empty="no router was read in this time",
            links=[runbook(replica.ALERT, links)],
        ),
        timeseries(
            "Retries denied",
            "Failed attempts per second that were not tried again though they could have been: the budget, the deadline or "
            "the number of attempts was used up. Each is an error for a user.",
            "reqps",
            [(of.counted(_rate("exaserve_router_retries_denied_total", "why"), "why"), "{{why}}")],
            stacked=True,
            empty="no router was read in this time",
            links=[runbook(retries.BUDGET, links), runbook(slo.ALERT, links)],
        ),
        timeseries(
            "Hedges",
            "Second attempts per second beside a slow first one: sent, won (the second was first) and lost. Many lost: the "
            "delay is too short.",
            "reqps",
            [(of.counted(_rate("exaserve_router_hedges_total", "outcome"), "outcome"), "{{outcome}}")],
            empty="no router was read in this time",
        ),
        timeseries(
            "Fallbacks to other pools",
            "Requests per second that another pool took because their own could not (pools.NAME.fallback).",
            "reqps",
            [
                (
                    of.counted(_rate("exaserve_router_fallbacks_total", "pool, to", _POOL), "pool"),
                    "{{pool}} to {{to}}",
                )
            ],
            stacked=True,
            empty="no router was read in this time",
            links=[runbook(retries.FALLBACK, links)],
        ),
    ]


def _out(links: Links) -> list[Any]:
    chosen = of.MODEL
    bad = f'{chosen}, outcome=~"error|failed|cut"'
    return [
        timeseries(
            "Ejections by model",
            "Times per minute that replicas were taken out for what their answers showed. Which: the Fleet board's table.",
            "cpm",
            [
                (
                    f"60 * sum by (model) (rate(exaserve_replica_ejections_total{{{chosen}}}[{_WINDOW}]))",
                    "{{model}}",
                )
            ],
            empty="no router was read in this time",
            links=[
                runbook(rotation.MANY, links),
                to_board("fleet", "Fleet board", links),
                runbook(replica.ALERT, links),
            ],
        ),
        timeseries(
            "Attempts that did not end well",
            "Attempts on all replicas per second: error (5xx), failed (nothing was sent yet), cut (in the middle of an "
            "answer).",
            "reqps",
            [
                (
                    of.counted(_rate("exaserve_replica_requests_total", "outcome", bad), "outcome"),
                    "{{outcome}}",
                )
            ],
            stacked=True,
            empty="no router was read in this time",
            links=[runbook(replica.ALERT, links)],
        ),
        timeseries(
            "Panic by pool",
            "1 while a pool has no healthy replica and its requests go to any that listens.",
            "none",
            [(f"max by (pool) (exaserve_router_panic{{{_POOL}}})", "{{pool}}")],
            top=1,
            empty="no router was read in this time",
            links=[runbook(rotation.PANIC, links), runbook(replica.ALERT, links)],
        ),
        timeseries(
            "Clients that went away",
            "Requests per second whose client left before the answer ended; the replica's work was aborted. It rises when "
            "answers are slower than clients wait.",
            "reqps",
            [(f"sum(rate(exaserve_router_client_disconnects_total{{{of.CLUSTER}}}[{_WINDOW}]))", "left")],
            empty="no router was read in this time",
            links=[runbook(slo.ALERT, links)],
        ),
    ]


def _overhead(links: Links) -> list[Any]:
    own = f"rate(exaserve_router_overhead_seconds_bucket{{{of.CLUSTER}}}[{_WINDOW}])"
    late = f"rate(exaserve_router_event_loop_lag_seconds_bucket{{{of.CLUSTER}}}[{_WINDOW}])"
    any_late = f'rate(exaserve_router_event_loop_lag_seconds_bucket{{{of.CLUSTER}, le="+Inf"}}[{_WINDOW}])'
    whole = f"sum by (route) (rate(exaserve_router_overhead_seconds_count{{{of.CLUSTER}}}[{_WINDOW}]))"
    spent = f"sum by (route) (rate(exaserve_router_overhead_seconds_sum{{{of.CLUSTER}}}[{_WINDOW}]))"
    return [
        heat_map(
            "Overhead",
            "How many requests per second took how long in the router itself: from their last byte to the first byte sent "
            "to a replica, less the time in its queue.",
            "s",
            f"sum by (le) ({own})",
            counts="reqps",
            links=[runbook(router_process.LATE, links)],
        ),
        timeseries(
            "Mean overhead by route",
            "The router's own share of a request. Tens of microseconds are usual; milliseconds mean that its processes "
            "lack CPU.",
            "s",
            [(ratio(spent, whole), "{{route}}")],
            empty=NO_TRAFFIC,
            links=[runbook(router_process.LATE, links)],
        ),
        heat_map(
            "Event loop lag",
            "How late timers of the workers' event loops were, per second; every stream of that worker was late by as "
            "much. Above 10 ms: too few workers, or something blocks one.",
            "s",
            f"sum by (le) ({late})",
            counts="cps",
            empty="no router was read in this time",
            links=[runbook(router_process.LATE, links)],
        ),
        timeseries(
            "Event loop lag, p99 by worker",
            "99 % of a worker's timers were at most this late. One worker far above the others is blocked or has most of "
            "the streams.",
            "s",
            [
                (
                    f"histogram_quantile(0.99, sum by (instance, worker, le) ({late})) "
                    f"and on (instance, worker) (sum by (instance, worker) ({any_late}) > 0)",
                    "{{instance}} {{worker}}",
                )
            ],
            empty="no router was read in this time",
            links=[runbook(router_process.LATE, links)],
        ),
    ]
