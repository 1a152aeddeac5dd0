"""Who asks for what: requests, failures, tokens and latencies by tenant and by intent, and objectives by tenant.

The router counts by route, model, pool, intent and tenant at once; boards and reports over days ask for one of these.
``tenant:`` is by cluster, model and tenant, ``intent:`` by cluster, model, pool and intent. A request without a tenant
or an intent has NONE there, which no configured name can be; ``other`` is what the router no longer tells apart. What
a request and a failure is, is as in ``dashboards/sources/exaserve.py``.

No alert is made of these: a tenant that is over its limits is told so by its own answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from dashboards.rulefile import Group, Record
from dashboards.rules import slo as objectives
from dashboards.signals import LONG, ratio
from dashboards.slo import Slo

NONE = "(none)"

#: By cluster, model, tenant; TENANT_TOKENS by kind (input, output) too.
TENANT_REQUESTS = f"tenant:exaserve_requests:rate{LONG}"
TENANT_FAILED = f"tenant:exaserve_requests_failed:rate{LONG}"
TENANT_TOKENS = f"tenant:exaserve_tokens:rate{LONG}"
TENANT_TTFT = f"tenant:exaserve_ttft_seconds:p95_{LONG}"
TENANT_E2E = f"tenant:exaserve_e2e_seconds:p95_{LONG}"
#: By cluster, tenant and limit, or reason: refused for a limit of the tenant's own; refused by the router at all.
TENANT_LIMITED = f"tenant:exaserve_rate_limited:rate{LONG}"
TENANT_REFUSED = f"tenant:exaserve_rejected_requests:rate{LONG}"
#: By slo as well: what an objective judges, the bad part of it, and the share of that over an hour.
TENANT_TOTAL = f"tenant:exaserve_slo_requests:rate{LONG}"
TENANT_BAD = f"tenant:exaserve_slo_bad_requests:rate{LONG}"
TENANT_ERROR = "tenant:exaserve_slo_error:ratio_rate1h"

#: By cluster, model, pool, intent; INTENT_TTFT without the pool.
INTENT_REQUESTS = f"intent:exaserve_requests:rate{LONG}"
INTENT_FAILED = f"intent:exaserve_requests_failed:rate{LONG}"
INTENT_TTFT = f"intent:exaserve_ttft_seconds:p95_{LONG}"
#: By cluster, intent, stage: what was classified, whether the request was then served or not.
CLASSIFIED = f"intent:exaserve_classifications:rate{LONG}"

_TENANT = ("cluster", "model", "tenant")
_INTENT = ("cluster", "model", "pool", "intent")
_HISTOGRAMS = {
    "ttft": "exaserve_router_time_to_first_token_seconds",
    "inter_token": "exaserve_router_time_per_output_chunk_seconds",
    "e2e": "exaserve_router_request_duration_seconds",
}


def group(slos: Mapping[str, Slo]) -> Group:
    records = [*_tenants(), *_intents()]
    for name, slo in slos.items():
        records += _judged(name, slo)
    bad, total = (f"sum_over_time({series}[1h])" for series in (TENANT_BAD, TENANT_TOTAL))
    records.append(Record(TENANT_ERROR, ratio(bad, total)))
    # Nothing here fires; an hour of samples is summed.
    return Group("usage", tuple(records), interval="30s")


def _tenants() -> tuple[Record, ...]:
    tokens = _rate("exaserve_router_tokens_total", (*_TENANT, "kind"))
    limited = _rate("exaserve_router_rate_limited_requests_total", ("cluster", "tenant", "limit"))
    refused = _rate("exaserve_router_rejected_requests_total", ("cluster", "tenant", "reason"))
    return (
        Record(TENANT_REQUESTS, _named(_requests(_TENANT), "tenant")),
        Record(TENANT_FAILED, _named(_failed(_TENANT), "tenant")),
        Record(TENANT_TOKENS, _named(tokens, "tenant")),
        Record(TENANT_LIMITED, _named(limited, "tenant")),
        Record(TENANT_REFUSED, _named(refused, "tenant")),
        Record(TENANT_TTFT, _named(_p95("ttft", _TENANT), "tenant")),
        Record(TENANT_E2E, _named(_p95("e2e", _TENANT), "tenant")),
    )


def _intents() -> tuple[Record, ...]:
    classified = _rate("exaserve_router_classifications_total", ("cluster", "intent", "stage"))
    return (
        Record(INTENT_REQUESTS, _named(_requests(_INTENT), "intent")),
        Record(INTENT_FAILED, _named(_failed(_INTENT), "intent")),
        Record(INTENT_TTFT, _named(_p95("ttft", ("cluster", "model", "intent")), "intent")),
        Record(CLASSIFIED, _named(classified, "intent")),
    )


def _judged(name: str, slo: Slo) -> list[Record]:
    """What one objective says of each tenant."""
    chosen = f'pool="{slo.pool}"' if slo.pool else ""
    if slo.kind == "availability":
        total, bad = _requests(_TENANT, chosen), _failed(_TENANT, chosen)
    else:
        buckets = f"{_HISTOGRAMS[slo.kind]}_bucket"
        edge = f'le=~"{objectives.edge(slo.threshold or 0)}"'
        total = _rate(buckets, _TENANT, _and(_INF, chosen))
        bad = f"clamp_min({total} - {_rate(buckets, _TENANT, _and(edge, chosen))}, 0)"
    return [
        Record(series, _named(expr, "tenant"), {"slo": name})
        for series, expr in ((TENANT_TOTAL, total), (TENANT_BAD, bad))
    ]


def _requests(by: tuple[str, ...], chosen: str = "") -> str:
    """Clients that went away are no requests of the service."""
    return _rate("exaserve_router_requests_total", by, _and('code!="499"', chosen))


def _failed(by: tuple[str, ...], chosen: str = "") -> str:
    total = _requests(by, chosen)
    errors = _rate("exaserve_router_requests_total", by, _and('code=~"5.."', chosen))
    cut = _rate("exaserve_router_cut_answers_total", by, chosen)
    # A counter that nothing has raised yet has no series; beside a total that is there it means 0.
    return f"({errors} or {total} * 0) + ({cut} or {total} * 0)"


def _rate(counter: str, by: tuple[str, ...], chosen: str = "") -> str:
    selector = f"{counter}{{{chosen}}}" if chosen else counter
    return f"sum by ({', '.join(by)}) (rate({selector}[{LONG}]))"


def _p95(latency: str, by: tuple[str, ...]) -> str:
    """Over summed buckets; absent without observations."""
    buckets = f"{_HISTOGRAMS[latency]}_bucket"
    return (
        f"histogram_quantile(0.95, {_rate(buckets, (*by, 'le'))})"
        f" and on ({', '.join(by)}) ({_rate(buckets, by, _INF)} > 0)"
    )


def _named(expr: str, label: str) -> str:
    return f'label_replace({expr}, "{label}", "{NONE}", "{label}", "")'


def _and(*matchers: str) -> str:
    return ", ".join(filter(None, matchers))


_INF = 'le="+Inf"'
