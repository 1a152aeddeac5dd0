"""What a load test sees from its clients' side; declared here, exported by ``loadtest/`` while a run lasts.

``run`` names one run and nothing else ever again; its series begin at 0 with it. So the last value of a counter or a
bucket is that of the whole run, also long after it has ended, and a run is compared with an earlier one like this::

    last_over_time(exaserve_loadtest_latency_quantile_seconds{run="B", q="0.99"}[30d])

``profile`` is what was played (chat, code, …); ``all``, where it is a value, stands for all of them together.
``phase`` is ``warmup`` or ``measured``; compare ``measured`` only. Several processes of one run tell themselves apart
by the target's label ``instance``: add counters and buckets up, take the worst of gauges. Requests add up::

    offered = started + not started yet or never; started = completed + failed + in flight

Measured from when a request was due, not from when it was sent, unless the arrivals are a closed loop. Latencies are
of completed requests; a failed one is none, but counts against the attainment.
"""

from __future__ import annotations

from exporters.catalog.metric import Kind, Metric
from exporters.catalog.router import GAP_BUCKETS, LATENCY_BUCKETS, OVERHEAD_BUCKETS

#: Values of ``latency``: first token of any kind; raw gaps between chunks; (last - first) / (tokens - 1); last token.
LATENCIES = ("ttft", "itl", "tpot", "e2e")
PHASES = ("warmup", "measured")
#: Of each request, how late its client was; above a few milliseconds the run is about the client.
LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_RUN = ("run",)
_PROFILE = ("run", "profile")
_PHASE = ("run", "profile", "phase")
_SOURCE = "load test (loadtest/)"


def _metric(
    kind: Kind,
    name: str,
    help: str,
    labels: tuple[str, ...],
    unit: str = "",
    source: str = _SOURCE,
    buckets: tuple[float, ...] = (),
) -> Metric:
    return Metric(f"exaserve_loadtest_{name}", kind, help, labels, unit, source, buckets)


METRICS = (
    _metric(
        "gauge",
        "run_info",
        "Constant 1 while the run lasts; baseline is the run that it is compared with, empty if with none.",
        ("run", "profile", "baseline"),
        source=f"{_SOURCE}: profile is that of the whole run: mixed for several",
    ),
    _metric("gauge", "run_start_timestamp_seconds", "Unix time at which the run began.", _RUN, "seconds"),
    _metric(
        "gauge",
        "run_void",
        "1 if the client itself was too slow (schedule lag, CPU, event loop) for the run to say anything, else 0.",
        _RUN,
        source=f"{_SOURCE}: limits are the run's own; by what is known so far, in the end the verdict",
    ),
    _metric(
        "counter",
        "offered_requests_total",
        "Requests that were due by the schedule; in a closed loop, those that a user came to.",
        _PHASE,
    ),
    _metric("counter", "started_requests_total", "Requests that were sent.", _PHASE),
    _metric(
        "counter",
        "completed_requests_total",
        "Requests answered whole and with content, inside the objectives or not.",
        _PHASE,
    ),
    _metric(
        "counter",
        "good_requests_total",
        "Of the completed requests, those that met every objective of the run. Their rate is the goodput.",
        _PHASE,
    ),
    _metric(
        "counter",
        "failed_requests_total",
        "Requests that were sent and did not complete, by reason.",
        (*_PHASE, "reason"),
        source=f"{_SOURCE}; reason: status_4xx, status_429, status_5xx, connect, reset, cut, timeout, empty, error, "
        "other (error: an error inside a stream that began with 200)",
    ),
    _metric("gauge", "in_flight_requests", "Requests sent whose answer has not ended.", _PROFILE),
    _metric(
        "gauge",
        "users",
        "Users of a closed loop that exist; 0 in an open loop, which has only requests.",
        _PROFILE,
    ),
    _metric(
        "gauge",
        "slo_attainment_ratio",
        "Good requests / offered ones whose fate is known (ended, or never sent); measured phase so far.",
        _PROFILE,
        "ratio",
        f"{_SOURCE}; profile: all too",
    ),
    _metric(
        "gauge",
        "slo_threshold_seconds",
        "What the run calls a good latency; absent for a latency that it does not judge.",
        (*_PROFILE, "latency"),
        "seconds",
        f"{_SOURCE}; latency: {', '.join(LATENCIES)}; profile: all, or one with objectives of its own",
    ),
    _metric(
        "gauge",
        "latency_quantile_seconds",
        "Exact quantile over every request (itl: every gap) of the measured phase so far; not from buckets.",
        (*_PROFILE, "latency", "q"),
        "seconds",
        f"{_SOURCE}; latency: {', '.join(LATENCIES)}; q (promtool keeps the name quantile for summaries): 0.5, 0.95, 0.99, 0.999; profile: all too",
    ),
    _metric(
        "histogram",
        "time_to_first_token_seconds",
        "From when the request was due to its first token of any kind, a role-only chunk not counted.",
        _PHASE,
        "seconds",
        buckets=LATENCY_BUCKETS,
    ),
    _metric(
        "histogram",
        "inter_token_seconds",
        "Each gap between two chunks with content of a stream, as it was.",
        _PHASE,
        "seconds",
        buckets=GAP_BUCKETS,
    ),
    _metric(
        "histogram",
        "time_per_output_token_seconds",
        "Of each stream: (last token - first token) / (tokens of its usage - 1).",
        _PHASE,
        "seconds",
        buckets=GAP_BUCKETS,
    ),
    _metric(
        "histogram",
        "request_duration_seconds",
        "From when the request was due to its last token.",
        _PHASE,
        "seconds",
        buckets=LATENCY_BUCKETS,
    ),
    _metric(
        "counter",
        "tokens_total",
        "Tokens of completed requests as the engine reported them; kind is input or output.",
        (*_PHASE, "kind"),
        source=f"{_SOURCE}: usage of the answer",
    ),
    _metric(
        "counter",
        "chunks_total",
        "Chunks with content received; output tokens / chunks is how many tokens came at once.",
        _PHASE,
    ),
    _metric(
        "histogram",
        "schedule_lag_seconds",
        "How much later than due a request was sent; no observation in a closed loop.",
        _PHASE,
        "seconds",
        buckets=LAG_BUCKETS,
    ),
    _metric(
        "gauge",
        "client_cpu_ratio",
        "Share of one core that a process of the load test used in its last second.",
        ("run", "worker"),
        "ratio",
        f"{_SOURCE}: /proc; worker is 0, 1, … or master",
    ),
    _metric(
        "histogram",
        "event_loop_delay_seconds",
        "How late a timer of a process of the load test was; what it timed may be wrong by as much.",
        ("run", "worker"),
        "seconds",
        f"{_SOURCE}: a timer each 100 ms",
        OVERHEAD_BUCKETS,
    ),
)
