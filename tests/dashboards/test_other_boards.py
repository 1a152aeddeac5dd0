"""Boards slo, tenants, intent, fabric, loadtest, chaos: what their panels compute, and that they stay readable.

Their queries are evaluated by promtool over made-up series, so that each number here is one that a person can check.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards import build
from dashboards.boards import chaos, fabric, intent, loadtest, slo, tenants
from dashboards.normalise import to_json
from dashboards.rulefile import Links
from dashboards.sources import SOURCES
from exporters.catalog import CATALOG
from exporters.catalog import chaos as chaos_metrics
from exporters.catalog import loadtest as loadtest_metrics

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)"
)

EVERYWHERE = {"slo": slo, "fabric": fabric, "loadtest": loadtest, "chaos": chaos}
WITH_ROUTER = {"tenants": tenants, "intent": intent}
OURS = {**EVERYWHERE, **WITH_ROUTER}
ROUTER = SOURCES["exaserve"]


def board(name: str, source: str = "exaserve") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(to_json(OURS[name].board(Links(), SOURCES[source])))
    return found


def panels(name: str, source: str = "exaserve") -> Iterator[dict[str, Any]]:
    yield from (p for p in board(name, source)["panels"] if p["type"] not in ("row", "text"))


def query(name: str, title: str, ref: str = "A", **variables: str) -> str:
    """A panel's query with values for the variables; those that are not given match everything."""
    panel = next(p for p in panels(name) if p["title"] == title)
    expr: str = next(t["expr"] for t in panel["targets"] if t["refId"] == ref)
    return filled(expr, variables)


def filled(expr: str, variables: Mapping[str, str]) -> str:
    for variable, value in {"__rate_interval": "1m", "__range": "30m", **variables}.items():
        expr = re.sub(rf"\${variable}\b", value, expr)
    return re.sub(r"\$[a-z]+", ".*", expr)


def evaluate(
    tmp_path: Path, series: Mapping[str, str], expected: Mapping[str, Mapping[str, float]], at: str = "20m"
) -> None:
    """promtool finds, for each query at ``at``, exactly those series. Values of ``series`` are 15 s apart."""
    checks = [
        {"expr": expr, "eval_time": at, "exp_samples": [{"labels": k, "value": v} for k, v in found.items()]}
        for expr, found in expected.items()
    ]
    case = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": checks,
    }
    path = tmp_path / "case.yaml"
    path.write_text(yaml.dump({"evaluation_interval": "15s", "tests": [case]}))
    run = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr


def test_boards_of_the_router_are_built_only_where_there_is_one() -> None:
    assert OURS.keys() <= (build.BOARDS | build.ROUTER_BOARDS).keys()
    assert WITH_ROUTER.keys() <= build.ROUTER_BOARDS.keys()
    assert EVERYWHERE.keys() <= build.BOARDS.keys()


@pytest.mark.parametrize("source", ["vllm", "ray"])
@pytest.mark.parametrize("name", EVERYWHERE)
def test_without_a_router_nothing_is_asked_of_it(name: str, source: str) -> None:
    text = json.dumps(board(name, source))
    assert "exaserve_router_" not in text
    assert "tenant:" not in text
    assert "$pool" not in text


# Runs ------------------------------------------------------------------------------------------------------------

OF_A_RUN = {m.name for m in (*chaos_metrics.METRICS, *loadtest_metrics.METRICS)}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("loadtest", ("no load test has run", "no baseline")),
        ("chaos", ("no experiment",)),
    ],
)
def test_without_a_run_each_panel_says_that_there_was_none(name: str, said: tuple[str, ...]) -> None:
    for panel in panels(name):
        if any(re.search(rf"\b{m}(_bucket)?\b", t["expr"]) for t in panel["targets"] for m in OF_A_RUN):
            empty = panel["fieldConfig"]["defaults"]["noValue"]
            assert any(word in empty for word in said), (panel["title"], empty)


# Variables -------------------------------------------------------------------------------------------------------

#: Labels of the targets, and those that recording rules keep.
RECORDED = {
    "slo:exaserve_objective:ratio": {"slo"},
    "pool:exaserve_requests:rate5m": {"model", "pool"},
    "tenant:exaserve_requests:rate5m": {"model", "tenant"},
    "intent:exaserve_classifications:rate5m": {"intent", "stage"},
}


@pytest.mark.parametrize("name", OURS)
def test_variables_take_their_values_from_labels_that_exist(name: str) -> None:
    for variable in board(name)["templating"]["list"]:
        if variable["type"] == "datasource":
            continue
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
        assert found, variable["definition"]
        selector, label = found.groups()
        several = re.search(r'__name__=~"([^"]+)"', selector)
        for metric in several[1].split("|") if several else [selector.split("{")[0]]:
            labels = RECORDED[metric] if ":" in metric else set(CATALOG[metric].labels)
            assert label in labels | {"cluster", "instance"}, (variable["name"], metric)


# Size ------------------------------------------------------------------------------------------------------------

#: How many of each there are in ``test_no_query_answers_with_more_lines_than_people_can_read``; the rest has one or a few values.
MANY = 45
PLENTY = ("instance", "tenant", "pool", "replica", "intent")
#: Labels of recorded series by their level; those of the exporter have its address.
LEVELS = {
    "port": ("instance", "device", "port"),
    "mount": ("instance", "mount"),
    "replica": ("instance", "replica"),
    "tenant": ("model", "tenant", "kind", "slo", "limit", "reason"),
    "intent": ("model", "pool", "intent", "stage"),
    "slo": ("slo", "model", "pool"),
    "pool": ("model", "pool"),
    "model": ("model", "state"),
    "cluster": ("state",),
    "fleet": (),
    # What an objective says, whoever is judged by it.
    "slo:exaserve_objective:ratio": ("slo",),
    "slo:exaserve_latency_threshold:seconds": ("slo", "kind"),
    "slo:exaserve_error:threshold": ("slo", "long_window"),
}
VALUES = {"kind": "input output ttft inter_token e2e uncorrected", "stage": "first second timeout"}
FEW = {
    "slo": "availability",
    "long_window": "1h",
    "run": "B",
    "baseline": "A",
    "profile": "all",
    "phase": "measured",
    "q": "0.99",
    "event": "other",
    "reason": "hw_slowdown",
    "sensor": "gpu",
    "limit": "slowdown",
    "counter": "volatile",
    "version": "1",
    "le": "1",
    "alertname": "ExaServeErrorBudgetBurn",
    "alertstate": "firing",
    "latency": "ttft",
}


def fleet_of(metrics: set[str]) -> dict[str, str]:
    """MANY series of each metric: one for each node, tenant, pool, replica; all rise."""
    series = {}
    for metric in metrics:
        base = re.sub(r"_bucket$", "", metric)
        if metric == "ALERTS":
            labels: tuple[str, ...] = ("alertname", "alertstate", "slo", "model", "pool")
        elif ":" in metric:
            labels = LEVELS.get(metric) or LEVELS[metric.split(":")[0]]
        else:
            own = CATALOG[base].labels + (("le",) if base != metric else ())
            labels = (*own, *(() if base.startswith("exaserve_router") else ("instance",)))
        plenty = [label for label in labels if label in PLENTY]
        for n in range(MANY if plenty else 1):
            pairs = {label: FEW.get(label, "x") for label in labels}
            pairs |= {label: f"{label}-{n}" for label in plenty}
            for kind in VALUES["kind"].split() if "kind" in pairs else [""]:
                text = ", ".join(f'{k}="{kind if k == "kind" else v}"' for k, v in pairs.items())
                series[f"{metric}{{{text}}}"] = f"{n}+15x12" if base in COUNTED else f"{n % 7 + 1}x12"
    return series


COUNTED = {m.name for m in CATALOG.values() if m.kind != "gauge"}


def metrics_of(promql: str) -> set[str]:
    without = re.sub(r'"[^"]*"|\b(?:by|on|group_left|group_right) ?\([^)]*\)', "", promql)
    return set(re.findall(r"\b(?:[a-z]+:)?exaserve_\w+(?::\w+)?|\bALERTS\b", without))


@needs_promtool
@pytest.mark.parametrize("name", OURS)
def test_no_query_answers_with_more_lines_than_people_can_read(name: str, tmp_path: Path) -> None:
    """At most 40 rows or lines of a query, however many nodes, ports, GPUs, tenants, pools and intents there are."""
    queries = {filled(t["expr"], {"run": "B", "baseline": "A"}) for p in panels(name) for t in p["targets"]}
    series = fleet_of({m for q in queries for m in metrics_of(q)})
    evaluate(tmp_path, series, {f"count({q}) > 40": {} for q in queries}, at="2m")


# Numbers ---------------------------------------------------------------------------------------------------------


@needs_promtool
def test_burn_rate_is_the_bad_share_over_what_the_objective_allows_and_the_limit_is_in_the_same_unit(
    tmp_path: Path,
) -> None:
    where = 'model="m", pool="p"'
    evaluate(
        tmp_path,
        {
            'slo:exaserve_objective:ratio{slo="availability"}': "0.75x90",
            'slo:exaserve_objective:ratio{slo="ttft"}': "0.5x90",
            f'slo:exaserve_error:ratio_rate1h{{slo="availability", {where}}}': "0.5x90",
            f'slo:exaserve_error:ratio_rate1h{{slo="ttft", {where}}}': "0.5x90",
            'slo:exaserve_error:threshold{slo="ttft", long_window="1h"}': "0.75x90",
            'slo:exaserve_error:threshold{slo="ttft", long_window="6h"}': "0.25x90",
        },
        {
            query("slo", "Burn over 1h and 5m"): {
                f'{{slo="availability", {where}}}': 2,
                f'{{slo="ttft", {where}}}': 1,
            },
            query("slo", "Burn over 1h and 5m", "C"): {'{slo="ttft", long_window="1h"}': 1.5},
            query("slo", "Fastest burn, 1 h"): {"{}": 2},
        },
    )


@needs_promtool
def test_objectives_of_the_table_stand_beside_the_pools_with_the_least_budget(tmp_path: Path) -> None:
    title = "Objectives, the 40 with the least budget left"
    pools = {f'slo="ttft", model="m", pool="p{n:03}"': n / 100 for n in range(50)}
    series = {f"slo:exaserve_error_budget_left:ratio{{{p}}}": f"{left}x90" for p, left in pools.items()}
    evaluate(
        tmp_path,
        {**series, 'slo:exaserve_objective:ratio{slo="ttft"}': "0.99x90"},
        {
            query("slo", title): {f"{{{p}}}": 0.99 for p in list(pools)[:40]},
            query("slo", "Budgets overspent"): {"{}": 1},
            query("slo", "Least budget left"): {"{}": 0},
        },
    )


@needs_promtool
def test_shares_of_tenants_are_of_all_requests_of_the_chosen_models(tmp_path: Path) -> None:
    evaluate(
        tmp_path,
        {
            'tenant:exaserve_requests:rate5m{tenant="a", model="m"}': "3x90",
            'tenant:exaserve_requests:rate5m{tenant="b", model="m"}': "1x90",
            'tenant:exaserve_requests:rate5m{tenant="b", model="n"}': "4x90",
            'tenant:exaserve_requests_failed:rate5m{tenant="a", model="m"}': "0x90",
            'tenant:exaserve_requests_failed:rate5m{tenant="b", model="m"}': "1x90",
            'tenant:exaserve_requests_failed:rate5m{tenant="b", model="n"}': "0x90",
            'exaserve_router_tokens_total{tenant="", model="m", kind="input"}': "0+15x90",
        },
        {
            query("tenants", "Share of the fleet's requests"): {'{tenant="a"}': 0.375, '{tenant="b"}': 0.625},
            query("tenants", "Share of the fleet's requests", model="m"): {
                '{tenant="a"}': 0.75,
                '{tenant="b"}': 0.25,
            },
            query("tenants", "Errors by tenant"): {'{tenant="a"}': 0, '{tenant="b"}': 0.2},
            query("tenants", "Worst error share", model="m"): {"{}": 1},
        },
    )


@needs_promtool
def test_tokens_without_a_tenant_stand_in_the_row_of_nobody(tmp_path: Path) -> None:
    title = "Tenants, the 30 with most requests"
    evaluate(
        tmp_path,
        {
            'tenant:exaserve_requests:rate5m{tenant="(none)", model="m"}': "3x130",
            'exaserve_router_tokens_total{model="m", kind="input"}': "0+15x130",
        },
        # A token a second over the 30 minutes shown.
        {query("tenants", title, "C"): {'{tenant="(none)"}': 1800}},
        at="31m",
    )


@needs_promtool
def test_intents_are_compared_with_the_reference_and_the_pools_with_their_intent(tmp_path: Path) -> None:
    evaluate(
        tmp_path,
        {
            'exaserve_intent_drift_share_ratio{intent="legal"}': "0.75x90",
            'exaserve_intent_drift_share_ratio{intent="new"}': "0.25x90",
            'exaserve_intent_drift_reference_share_ratio{intent="legal"}': "1x90",
            "exaserve_intent_drift_psi": "0.5x90",
            "exaserve_intent_drift_psi_threshold": "0.25x90",
            'intent:exaserve_requests:rate5m{intent="legal", pool="p"}': "3x90",
            'intent:exaserve_requests:rate5m{intent="legal", pool="q"}': "1x90",
            'intent:exaserve_classifications:rate5m{intent="legal", stage="first"}': "3x90",
            'intent:exaserve_classifications:rate5m{intent="legal", stage="second"}': "1x90",
        },
        {
            query("intent", "Against the reference", "C"): {'{intent="legal"}': -0.25},
            query("intent", "Grown and shrunk"): {'{intent="legal"}': 0.25},
            query("intent", "PSI against its threshold"): {"{}": 2},
            query("intent", "Routes", "B"): {
                '{intent="legal", pool="p"}': 0.75,
                '{intent="legal", pool="q"}': 0.25,
            },
            query("intent", "Second stage decides"): {"{}": 0.25},
            # A stage that never decided has no series: beside others that means none.
            query("intent", "Second stage too late"): {"{}": 0},
        },
    )


@needs_promtool
def test_what_is_sound_counts_0_and_what_is_not_there_is_unknown(tmp_path: Path) -> None:
    port = 'instance="n1", device="mlx5_0", port="1"'
    evaluate(
        tmp_path,
        {
            f"port:exaserve_infiniband_state:max{{{port}}}": "4x90",
            'exaserve_gpu_up{instance="n1", gpu="0", uuid="u"}': "0x90",
            'exaserve_gpu_up{instance="n1", gpu="1", uuid="v"}': "1x90",
            'exaserve_storage_mounted{instance="n1", mount="/models"}': "1x90",
            'exaserve_storage_stuck{instance="n1", mount="/models"}': "0x90",
        },
        {
            query("fabric", "Ports not active"): {"{}": 0},
            query("fabric", "GPUs lost"): {"{}": 1},
            query("fabric", "Mounts unusable"): {"{}": 0},
            query("fabric", "Peers unreachable"): {},
            query("fabric", "Replicas on a wrong node"): {},
            query("fabric", "Ports not active", node="n2"): {},
        },
    )


@needs_promtool
def test_worst_ports_are_those_of_the_end_and_ports_that_came_back_are_not_in_the_list_of_bad_ones(
    tmp_path: Path,
) -> None:
    at = 'instance="n{}", device="d", port="1"'
    ports = {n: at.format(n) for n in range(10)}
    stall = {
        f"port:exaserve_infiniband_stall:ratio{{{p}}}": f"{1 - n / 10:g}x40 {n / 10:g}x90"
        for n, p in ports.items()
    }
    state = {f"port:exaserve_infiniband_state:max{{{ports[0]}}}": "1x90"}
    state |= {f"port:exaserve_infiniband_state:max{{{ports[1]}}}": "1x40 4x90"}
    evaluate(
        tmp_path,
        {**stall, **state},
        {
            query("fabric", "Stalled"): {
                f"port:exaserve_infiniband_stall:ratio{{{p}}}": n / 10 for n, p in ports.items() if n >= 2
            },
            query("fabric", "Ports that are not active at the end"): {
                f"port:exaserve_infiniband_state:max{{{ports[0]}}}": 1
            },
        },
    )


@needs_promtool
def test_a_run_is_compared_with_a_baseline_that_ended_hours_ago(tmp_path: Path) -> None:
    which = 'profile="all", latency="ttft", q="0.99"'
    chosen = {"run": "B", "baseline": "A"}
    measured = 'profile="chat", phase="measured"'
    compared = "The run and its baseline"
    evaluate(
        tmp_path,
        {
            f'exaserve_loadtest_latency_quantile_seconds{{run="A", {which}}}': "9x10 2x10 stale",
            f'exaserve_loadtest_latency_quantile_seconds{{run="B", {which}}}': "_x1400 9x10 3x90",
            f'exaserve_loadtest_offered_requests_total{{run="B", {measured}}}': "_x1400 0+4x40",
            f'exaserve_loadtest_good_requests_total{{run="B", {measured}}}': "_x1400 0+3x40",
            f'exaserve_loadtest_offered_requests_total{{run="A", {measured}}}': "0+4x20 stale",
            f'exaserve_loadtest_good_requests_total{{run="A", {measured}}}': "0+4x20 stale",
            'exaserve_loadtest_offered_requests_total{run="B", profile="chat", phase="warmup"}': "_x1400 50x40",
        },
        {
            query("loadtest", compared, "A", **chosen): {'{latency="ttft", q="0.99"}': 3},
            query("loadtest", compared, "B", **chosen): {'{latency="ttft", q="0.99"}': 2},
            query("loadtest", compared, "C", **chosen): {'{latency="ttft", q="0.99"}': 1.5},
            query("loadtest", "TTFT", "C", **chosen): {"{}": 2},
            query("loadtest", "By profile", "A", **chosen): {'{profile="chat"}': 160},
            query("loadtest", "By profile", "B", **chosen): {'{profile="chat"}': 0.75},
            query("loadtest", "By profile", "C", **chosen): {'{profile="chat"}': 1},
            query("loadtest", "By profile", "D", **chosen): {'{profile="chat"}': 0},
            query("loadtest", compared, "C", run="B", baseline=""): {},
        },
        at="6h",
    )


@needs_promtool
def test_figures_of_an_experiment_are_median_and_worst_of_its_runs_beside_the_goal(tmp_path: Path) -> None:
    series = {}
    for run, seconds in enumerate((1, 2, 9)):
        of = f'experiment="crash", run="{run}"'
        series[f'exaserve_chaos_reroute_seconds{{{of}, fault="kill", target="r-{run}"}}'] = (
            f"_x4 {seconds}x4 stale"
        )
        series[f'exaserve_chaos_run_state{{{of}, state="passed"}}'] = f"0x4 {int(seconds < 5)}x4 stale"
        series[f'exaserve_chaos_run_state{{{of}, state="failed"}}'] = f"0x4 {int(seconds > 5)}x4 stale"
        series[f'exaserve_chaos_goal_seconds{{{of}, figure="reroute"}}'] = "3x8 stale"
        series[f"exaserve_chaos_lost_requests_total{{{of}}}"] = f"0x4 {run}x4 stale"
    title = "Experiments against their goals"
    evaluate(
        tmp_path,
        series,
        {
            query("chaos", title): {'{experiment="crash"}': 3},
            query("chaos", title, "E"): {'{experiment="crash"}': 2},
            query("chaos", title, "F"): {'{experiment="crash"}': 9},
            query("chaos", title, "G"): {'{experiment="crash"}': 3},
            query("chaos", title, "H"): {},
            query("chaos", "Runs passed"): {"{}": 2},
            query("chaos", "Runs failed"): {"{}": 1},
            query("chaos", "Runs void"): {"{}": 0},
            query("chaos", "Requests lost"): {"{}": 3},
            query("chaos", "Faults in now"): {},
        },
    )


def test_faults_are_marks_on_every_panel_of_the_chaos_board() -> None:
    marks = board("chaos")["annotations"]["list"][0]
    assert marks["expr"].startswith("max by (experiment, fault, target) (exaserve_chaos_fault_active{")
    assert marks["expr"].endswith(" == 1")
    assert marks["titleFormat"] == "{{fault}} on {{target}}"
