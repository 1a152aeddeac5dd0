"""Generated boards: whole for Grafana's own types, every query parses and asks only for what exists."""

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
from exporters.catalog import CATALOG

sys.path.insert(0, str(Path(__file__).parent))

from queries import metrics_of, rules, substituted

ROOT = Path(__file__).parents[2]
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(build.GENERATED.glob("*.json"))}
each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)

#: What Prometheus makes by itself.
OWN = {"up", "ALERTS"}


def known_metrics() -> set[str]:
    """Our catalogue with the suffixes of histograms, the captured engine catalogues, and recorded series."""
    families = [(m.name, m.kind) for m in CATALOG.values()]
    for path in (ROOT / "exporters" / "engine_catalog").glob("*.txt"):
        lines = [line.split() for line in path.read_text().splitlines() if line[:1] not in ("", "#")]
        families += [(name, kind) for name, kind, *_ in lines]
    known = set(OWN)
    for name, kind in families:
        known |= {f"{name}{s}" for s in ("_bucket", "_count", "_sum")} if kind == "histogram" else {name}
    return known | {rule["record"] for rule in rules(build.GENERATED) if "record" in rule}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from board["panels"]


def expressions() -> list[tuple[str, str]]:
    found = [
        (f"{name}: {panel['title']} {target['refId']}", substituted(target["expr"]))
        for name, board in BOARDS.items()
        for panel in panels(board)
        for target in panel["targets"]
    ]
    return found + [(rule.get("record") or rule["alert"], rule["expr"]) for rule in rules(build.GENERATED)]


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
def test_grafanas_own_types_take_the_whole_board(board: dict[str, Any]) -> None:
    assert list(differences(board, round_trip(board))) == []


def test_the_round_trip_would_show_an_unknown_key() -> None:
    """The check itself: a retired key in board, options and query is seen."""
    board = copy.deepcopy(BOARDS["fleet"])
    board["hideControls"] = False
    board["panels"][0]["options"]["sparkline"] = True
    board["panels"][0]["targets"][0]["step"] = 10
    assert list(differences(board, round_trip(board))) == [
        ".panels[0].options.sparkline is lost",
        ".panels[0].targets[0].step is lost",
        ".hideControls is lost",
    ]


@pytest.mark.parametrize(("name", "promql"), expressions(), ids=lambda v: v if len(v) < 60 else "")
def test_every_query_parses_and_asks_only_for_what_exists(name: str, promql: str) -> None:
    assert metrics_of(promql) - known_metrics() == set()


@pytest.mark.parametrize(("name", "promql"), expressions(), ids=lambda v: v if len(v) < 60 else "")
def test_no_query_divides_or_takes_a_quantile_that_is_nan_without_traffic(name: str, promql: str) -> None:
    for quantile in re.findall(r"histogram_quantile", promql):
        assert "_count[" in promql, quantile
    assert all("> 0)" in rest for rest in re.split(r"[)}\w] / ", promql)[1:])
    assert not re.search(r"\bavg\b.*histogram_quantile|avg_over_time", promql), "a mean of quantiles"


@each_board
def test_every_panel_has_title_description_unit_and_the_datasource_variable(board: dict[str, Any]) -> None:
    for panel in panels(board):
        assert panel["title"]
        assert len(panel["description"]) > 30, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        for place in (panel, *panel["targets"]):
            assert place["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert len({panel["title"] for panel in panels(board)}) == len(board["panels"])


@each_board
def test_rates_over_raw_counters_follow_the_zoom(board: dict[str, Any]) -> None:
    for panel in panels(board):
        for target in panel["targets"]:
            assert set(re.findall(r"\[([^\]]+)\]", target["expr"])) <= {"$__rate_interval"}


@each_board
def test_panels_have_their_own_ids_and_places(board: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in panels(board)]
    assert len(set(ids)) == len(ids)
    taken: dict[tuple[int, int], str] = {}
    for panel in panels(board):
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for cell in (
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        ):
            assert cell not in taken, f"{panel['title']} lies on {taken.get(cell)}"
            taken[cell] = panel["title"]


def test_boards_have_their_own_uid_made_of_their_files_name() -> None:
    assert {name: board["uid"] for name, board in BOARDS.items()} == {
        name: f"exaserve-{name}" for name in BOARDS
    }
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)
    assert all(
        board["title"].startswith("ExaServe / ") and board["tags"] == ["exaserve"]
        for board in BOARDS.values()
    )


@each_board
def test_variables_are_those_that_queries_use_and_no_uid_is_fixed(board: dict[str, Any]) -> None:
    names = [v["name"] for v in board["templating"]["list"]]
    assert names == ["datasource", "model", "replica"]
    used = set(re.findall(r"\$(\w+)", " ".join(t["expr"] for p in panels(board) for t in p["targets"])))
    assert used - {"__rate_interval"} == {"model", "replica"}
    for variable in board["templating"]["list"][1:]:
        assert metrics_of_selector(variable["definition"]) <= known_metrics()
    assert "__inputs" not in board
    assert board.get("id") is None


def metrics_of_selector(definition: str) -> set[str]:
    return set(re.search(r'__name__=~"([^"]+)"', definition)[1].split("|"))  # type: ignore[index]


@each_board
def test_links_lead_to_runbooks_that_exist(board: dict[str, Any]) -> None:
    links = [link["url"] for panel in panels(board) for link in panel.get("links", ())]
    assert links
    assert all((ROOT / link).is_file() for link in links), links


def test_bases_given_at_build_time_are_in_every_link() -> None:
    links = Links("https://wiki.example/r", "https://grafana.example")
    files = build.files(links)
    assert '"url": "https://wiki.example/r/ExaServeReplicaDown.md"' in files["fleet.json"]
    assert "runbook_url: https://wiki.example/r/ExaServeReplicaDown.md" in files["rules/replica.yaml"]
    assert "dashboard_url: https://grafana.example/d/exaserve-fleet?" in files["rules/replica.yaml"]
