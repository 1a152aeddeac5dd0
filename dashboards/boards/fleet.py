"""Fleet: are users fine, and which replica is not; from top to bottom in the order in which on-call asks.

The first row answers at a glance, the second shows what users feel, then the replicas side by side. Panels about
users are the whole fleet's, since the router counts by route, not by model; the others follow the variables.
"""

from __future__ import annotations

from grafanalib import core

from dashboards.panels import dashboard, label_variable, runbook, stat, state_timeline, timeseries
from dashboards.rulefile import Links
from dashboards.rules import kv, users
from dashboards.rules.kv import BUR, THRESHOLD, TOTAL, USED
from dashboards.rules.users import quantile

#: Selector of the chosen replicas.
_CHOSEN = '{model=~"$model", replica=~"$replica"}'
_WINDOW = "$__rate_interval"

#: (value, state, colour); the value is only for drawing.
_STATES = (
    (1, "down", "red"), (2, "frozen", "purple"), (3, "ejected", "semi-dark-red"), (4, "draining", "yellow"),
    (5, "starting", "blue"), (6, "degraded", "orange"), (7, "ready", "green"),
)  # fmt: skip

_QUANTILES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


def board(links: Links) -> core.Dashboard:
    down, pressure = [runbook("ExaServeReplicaDown", links)], [runbook("ExaServeKVPressure", links)]
    ttft, whole = "exaserve_router_time_to_first_token_seconds", "exaserve_router_request_duration_seconds"
    glance = [
        stat(
            "Replicas in rotation",
            "Replicas that may get new requests (ready or degraded), by the router's own inference probes.",
            "none",
            f"sum(exaserve_replica_up{_CHOSEN})",
            [(None, "red"), (1, "green")],
            links=down,
        ),
        stat(
            "Replicas out",
            "Replicas that get no requests: down, frozen or starting. Which and since when: the timeline below.",
            "none",
            f"count(exaserve_replica_up{_CHOSEN} == 0) or 0 * count(exaserve_replica_up{_CHOSEN})",
            [(None, "green"), (1, "red")],
            links=down,
        ),
        stat(
            "Requests",
            "Requests answered per second over 5 minutes, all routes and codes, whole fleet.",
            "reqps",
            users.REQUESTS,
            [(None, "blue")],
        ),
        stat(
            "Errors",
            "Share of requests over 5 minutes that ended with 5xx or broke off after they had begun. Bad requests "
            "(4xx) and clients that went away don't count. Whole fleet.",
            "percentunit",
            users.ERRORS,
            [(None, "green"), (0.001, "orange"), (0.01, "red")],
            empty="no traffic",
            decimals=2,
        ),
        stat(
            "TTFT p99",
            "99 % of streams over 5 minutes had their first token within this time after the whole request had "
            "come in. Whole fleet.",
            "s",
            users.TTFT_P99,
            [(None, "green"), (2, "orange"), (10, "red")],
            empty="no streams",
        ),
        stat(
            "KV cache used",
            "Share of all KV blocks in use (BUR), the fullest model's.",
            "percentunit",
            f'max({kv.MODEL_BUR}{{model=~"$model"}})',
            [(None, "green"), (0.7, "orange"), (0.95, "red")],
            links=pressure,
        ),
    ]
    return dashboard(
        "fleet",
        "Fleet",
        "Are users fine, and which replica is not.",
        [
            (4, glance),
            (
                8,
                [
                    timeseries(
                        "Time to first token",
                        "From the whole request to the first byte of a stream's answer, over all replicas' summed "
                        "buckets. Rises first when prompts queue. Nothing is drawn without streams.",
                        "s",
                        [(quantile(q, ttft, _WINDOW), name) for q, name in _QUANTILES],
                    ),
                    timeseries(
                        "Request duration",
                        "From the whole request to the end of its answer. It follows the length of answers; judge "
                        "slowness by the time to first token. Nothing is drawn without traffic.",
                        "s",
                        [(quantile(q, whole, _WINDOW), name) for q, name in _QUANTILES],
                    ),
                ],
            ),
            (
                8,
                [
                    timeseries(
                        "Requests by code",
                        "Answers per second by HTTP status. 5xx are the service's failures, 4xx its clients' "
                        "mistakes. A stream that broke off after its first byte still counts as 200 here.",
                        "reqps",
                        [(f"sum by (code) (rate(exaserve_router_requests_total[{_WINDOW}]))", "{{code}}")],
                    ),
                    timeseries(
                        "In flight by replica",
                        "Requests that the router has open on each replica. One line far above the others is a "
                        "replica that has become slow; one at 0 gets nothing.",
                        "none",
                        [(f"exaserve_replica_in_flight_requests{_CHOSEN}", "{{replica}}")],
                        links=down,
                    ),
                    timeseries(
                        "Running and waiting in the engine",
                        "Requests in each engine's batch, and those that wait for a place in it. Waiting above 0 "
                        "for long means that the replica is full.",
                        "none",
                        [
                            (f"exaserve_engine_requests_running{_CHOSEN}", "{{replica}} running"),
                            (f"exaserve_engine_requests_waiting{_CHOSEN}", "{{replica}} waiting"),
                        ],
                        links=pressure,
                    ),
                ],
            ),
            (
                8,
                [
                    timeseries(
                        "KV blocks used",
                        "Blocks in use by model, all that there are, and the threshold of ExaServeKVPressure: 95 % "
                        "of what is left without the largest replica (of all blocks where there is one replica).",
                        "none",
                        [
                            (f'{USED}{{model=~"$model"}}', "{{model}} used"),
                            (f'{THRESHOLD}{{model=~"$model"}}', "{{model}} threshold"),
                            (f'{TOTAL}{{model=~"$model"}}', "{{model}} total"),
                        ],
                        dashed=".* threshold",
                        links=pressure,
                    ),
                    timeseries(
                        "KV block utilisation by replica",
                        "Used / all KV blocks of each replica (BUR). The router gives nothing new to a replica "
                        "above kv_cache_watermark.",
                        "percentunit",
                        [(f"{BUR}{_CHOSEN}", "{{replica}}")],
                        top=1,
                        links=pressure,
                    ),
                    timeseries(
                        "Preemptions",
                        "Requests per second that an engine put back because its KV cache ran out; their work is "
                        "done twice. Anything above 0 slows users.",
                        "reqps",
                        [(f"rate(exaserve_engine_preemptions_total{_CHOSEN}[{_WINDOW}])", "{{replica}}")],
                        links=pressure,
                    ),
                ],
            ),
            (
                8,
                [
                    state_timeline(
                        "State of each replica",
                        "As the router sees it. Ready and degraded (slow probe) replicas get requests; down, "
                        "frozen and starting ones don't.",
                        _state_query(),
                        "{{replica}}",
                        _STATES,
                        links=down,
                    ),
                ],
            ),
            (
                8,
                [
                    timeseries(
                        "Retries and refusals",
                        "Per second: requests sent to a second replica because the first failed before anything "
                        "was sent, and requests that the router refused itself, by reason.",
                        "reqps",
                        [
                            (_by_reason("exaserve_router_retries_total"), "retried: {{reason}}"),
                            (_by_reason("exaserve_router_rejected_requests_total"), "refused: {{reason}}"),
                        ],
                    ),
                    timeseries(
                        "Attempts that did not end well, by replica",
                        "Attempts per second by replica and how they ended: error (5xx), failed (nothing was sent "
                        "yet), cut (in the middle of an answer).",
                        "reqps",
                        [(_bad_attempts(), "{{replica}} {{outcome}}")],
                        links=down,
                    ),
                    timeseries(
                        "Probe duration",
                        "The last one-token inference probe of each replica. Above degraded_after the replica "
                        "counts as degraded.",
                        "s",
                        [(f"exaserve_replica_probe_duration_seconds{_CHOSEN}", "{{replica}}")],
                        links=down,
                    ),
                ],
            ),
        ],
        [
            # Both sources, so that the board also works where there is only the exporter, or only the router.
            label_variable("model", "model", '{__name__=~"exaserve_replica_up|exaserve_kv_blocks"}'),
            label_variable(
                "replica", "replica", '{__name__=~"exaserve_replica_up|exaserve_kv_blocks", model=~"$model"}'
            ),
        ],
    )


def _state_query() -> str:
    chosen = 'model=~"$model", replica=~"$replica"'
    values = " or ".join(
        f'{value} * exaserve_replica_state{{state="{state}", {chosen}}}' for value, state, _ in _STATES
    )
    return f"max by (replica) ({values})"


def _by_reason(counter: str) -> str:
    """Rate by reason; 0 without a reason where the router is there and has counted nothing yet."""
    return f"sum by (reason) (rate({counter}[{_WINDOW}])) or on () 0 * max(exaserve_router_build_info)"


def _bad_attempts() -> str:
    chosen = 'model=~"$model", replica=~"$replica"'
    bad = f'rate(exaserve_replica_requests_total{{outcome=~"error|failed|cut", {chosen}}}[{_WINDOW}])'
    return f"sum by (replica, outcome) ({bad}) or on (replica) 0 * max by (replica) (exaserve_replica_up{{{chosen}}})"
