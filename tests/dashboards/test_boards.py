"""Generated boards and rules of every source: whole for Grafana's own types, asking only for what exists."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import build
from dashboards.rulefile import Links
from dashboards.rules import slo
from exporters.catalog import CATALOG

sys.path.insert(0, str(Path(__file__).parent))

from queries import FOLDERS, boards, metrics_of, panels, queries, rules, selectors_of

ROOT = Path(__file__).parents[2]
BOARDS = {source: boards(folder) for source, folder in FOLDERS.items()}
ALL = [(source, name) for source, found in BOARDS.items() for name in found]
each_board = pytest.mark.parametrize(("source", "name"), ALL, ids=[f"{s}-{n}" for s, n in ALL])
each_source = pytest.mark.parametrize("source", FOLDERS)

#: What Prometheus and Alertmanager say of themselves.
OWN = re.compile(r"up|ALERTS|ALERTS_FOR_STATE|scrape_\w+|prometheus_\w+|alertmanager_\w+")
#: Recorded from the configuration, so without a cluster.
CONFIGURED = {slo.OBJECTIVE, slo.LIMIT, slo.THRESHOLD}
#: Panels that show no query's answer.
NO_DATA = {"row", "text", "dashlist", "alertlist"}


def known_metrics(source: str) -> set[str]:
    """Our catalogue with the suffixes of histograms, the captured engine's, and what the source's rules record."""
    families = [(m.name, m.kind) for m in CATALOG.values()]
    for path in (ROOT / "exporters" / "engine_catalog").glob("*.txt"):
        for line in path.read_text().splitlines():
            if line[:1] in ("", "#"):
                continue
            name, kind, *_ = line.split()
            if source == "ray":  # it puts its own prefix before them; some versions leave out _total
                name = name.replace("vllm:", "ray_vllm_")
                families.append((name.removesuffix("_total"), kind))
            families.append((name, kind))
    known = set()
    for name, kind in families:
        known |= {f"{name}{s}" for s in ("_bucket", "_count", "_sum")} if kind == "histogram" else {name}
    return known | {rule["record"] for rule in rules(FOLDERS[source]) if "record" in rule}


def unknown(source: str, promql: str) -> set[str]:
    return {m for m in metrics_of(promql) if not OWN.fullmatch(m)} - known_metrics(source)


def expressions(source: str) -> Iterator[tuple[str, str]]:
    """(name, PromQL) of every query and rule of a source."""
    for name, board in BOARDS[source].items():
        for query, promql in queries(board):
            yield f"{name}: {query}", promql
    for rule in rules(FOLDERS[source]):
        yield rule.get("record") or rule["alert"], rule["expr"]


def with_data(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in panels(board) if panel["type"] not in NO_DATA]


def targets(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(panel's title, PromQL as it is written)."""
    for panel in panels(board):
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def differences(ours: Any, theirs: Any, at: str = "") -> Iterator[str]:
    """Keys of ours that theirs lost or changed."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours:
            if key in theirs:
                yield from differences(ours[key], theirs[key], f"{at}.{key}")
            else:
                yield f"{at}.{key} is lost"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(a, b, f"{at}[{i}]")
    elif ours != theirs:
        yield f"{at}: {ours!r} became {theirs!r}"


def round_trip(board: dict[str, Any]) -> Any:
    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(copy.deepcopy(board))))


@each_board
def test_grafanas_own_types_take_the_whole_board(source: str, name: str) -> None:
    board = BOARDS[source][name]
    assert list(differences(board, round_trip(board))) == []


def test_the_round_trip_would_show_an_unknown_key() -> None:
    """The check itself: a retired key in board, options and query is seen."""
    board = copy.deepcopy(BOARDS["exaserve"]["fleet"])
    at, panel = next((i, p) for i, p in enumerate(board["panels"]) if p["type"] == "stat")
    board["hideControls"] = False
    panel["options"]["sparkline"] = True
    panel["targets"][0]["step"] = 10
    assert list(differences(board, round_trip(board))) == [
        f".panels[{at}].options.sparkline is lost",
        f".panels[{at}].targets[0].step is lost",
        ".hideControls is lost",
    ]


@each_source
def test_every_query_parses_and_asks_only_for_what_exists(source: str) -> None:
    known = known_metrics(source)
    wrong = {
        name: missing
        for name, promql in expressions(source)
        if (missing := {m for m in metrics_of(promql) if not OWN.fullmatch(m)} - known)
    }
    assert wrong == {}


def test_a_source_asks_for_nothing_that_only_another_has() -> None:
    """The check itself: plain names are unknown under Ray, recorded series of the router where there is none."""
    assert unknown("vllm", "vllm:num_requests_running") == set()
    assert unknown("ray", "vllm:num_requests_running") == {"vllm:num_requests_running"}
    assert unknown("ray", "ray_vllm_num_requests_running or rate(ray_vllm_num_preemptions[1m])") == set()
    assert unknown("exaserve", "fleet:nobody_records_this:rate5m") == {"fleet:nobody_records_this:rate5m"}


@each_source
def test_no_query_divides_or_takes_a_quantile_that_is_nan_without_traffic(source: str) -> None:
    for name, promql in expressions(source):
        if "histogram_quantile" in promql:
            assert re.search(r'(le="\+Inf"|_count\[).*(> 0(?!\.)|>= [1-9])', promql, re.S), name
        for divisor in re.split(r"[)}\w] / ", promql)[1:]:
            assert re.match(r"[\d.]+\b", divisor) or re.search(r"> [\d.]+\)", divisor), name
        assert not re.search(r"\bavg\b.*histogram_quantile|avg_over_time\(\S*:p\d\d", promql), (
            f"{name}: a mean of quantiles"
        )


@each_board
def test_every_panel_has_title_description_unit_and_the_datasource_variable(source: str, name: str) -> None:
    board = BOARDS[source][name]
    for panel in with_data(board):
        assert panel["title"]
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        for place in (panel, *panel["targets"]):
            assert place["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    titles = [panel["title"] for panel in panels(board)]
    assert sorted(set(titles)) == sorted(titles)


@each_board
def test_rates_over_raw_counters_follow_the_zoom(source: str, name: str) -> None:
    for title, expr in targets(BOARDS[source][name]):
        # A count over a fixed hour is a quantity of its own; a rate drawn over time is not.
        windows = re.findall(r"\b(?:i?rate|i?delta|deriv)\([^()]*?(?<=[}\w])\[([^\]]+)\]", expr)
        assert set(windows) <= {"$__rate_interval", "$__range"}, title


@each_board
def test_panels_have_their_own_ids_and_places(source: str, name: str) -> None:
    board = BOARDS[source][name]
    ids = [panel["id"] for panel in panels(board)]
    assert len(set(ids)) == len(ids)
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for cell in (
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        ):
            assert cell not in taken, f"{panel['title']} lies on {taken.get(cell)}"
            taken[cell] = panel["title"]


@each_source
def test_boards_have_their_own_uid_made_of_their_files_name(source: str) -> None:
    found = BOARDS[source]
    assert {name: board["uid"] for name, board in found.items()} == {
        name: f"exaserve-{name}" for name in found
    }
    assert len({board["title"] for board in found.values()}) == len(found)
    for board in found.values():
        assert board["title"].startswith("ExaServe / ")
        assert board["tags"] == ["exaserve"]
        assert "__inputs" not in board
        assert board.get("id") is None


@each_board
def test_variables_stand_in_order_and_are_those_that_queries_use(source: str, name: str) -> None:
    board = BOARDS[source][name]
    variables = {v["name"]: v for v in board["templating"]["list"]}
    usual = ["datasource", "cluster", "model", "pool", "replica"]
    assert [v for v in variables if v in usual] == [v for v in usual if v in variables]
    assert list(variables)[:2] == ["datasource", "cluster"]
    text = " ".join([expr for _, expr in targets(board)])
    used = {v for v in re.findall(r"\$\{?(\w+)", text) if not v.startswith("__")}
    assert used == set(variables) - {"datasource"}
    for variable in list(variables.values())[1:]:
        if variable["type"] == "query":
            assert metrics_of_variable(variable["definition"]) <= known_metrics(source), variable["name"]


def metrics_of_variable(definition: str) -> set[str]:
    """Of ``label_values(SELECTOR, label)``."""
    selector = re.fullmatch(r"label_values\((.+), *\w+\)", definition)
    assert selector, definition
    named = re.search(r'__name__=~"([^"]+)"', selector[1])
    return set(named[1].split("|")) if named else {selector[1].partition("{")[0]}


@each_board
def test_every_selector_carries_the_cluster(source: str, name: str) -> None:
    """So that two clusters in one Prometheus are never mixed up by choosing one."""
    without = {
        (query, metric)
        for query, promql in queries(BOARDS[source][name])
        for metric, labels in selectors_of(promql)
        if metric not in CONFIGURED and "cluster" not in labels
    }
    assert without == set()


@each_board
def test_links_lead_to_runbooks_and_boards_that_exist(source: str, name: str) -> None:
    board = BOARDS[source][name]
    links = [link["url"] for panel in panels(board) for link in panel.get("links", ())]
    links += [link["url"] for link in board.get("links", ()) if link.get("url")]
    for link in links:
        path = link.partition("?")[0]
        if path.startswith("/d/exaserve-"):
            assert path.removeprefix("/d/exaserve-") in BOARDS[source], link
        else:
            assert (ROOT / path).is_file(), link


def test_bases_given_at_build_time_are_in_every_link() -> None:
    links = Links("https://wiki.example/r", "https://grafana.example")
    files = build.files(links)
    assert '"url": "https://wiki.example/r/ExaServeReplicaDown.md"' in files["fleet.json"]
    assert "runbook_url: https://wiki.example/r/ExaServeReplicaDown.md" in files["rules/replica.yaml"]
    assert "dashboard_url: https://grafana.example/d/exaserve-" in files["rules/replica.yaml"]
