"""Helpers of boards, and what the boards fleet, replica, router, capacity promise beyond what every board does."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dashboards import panels, signals
from dashboards import variables as of
from dashboards.board import REPLICA_OF_ROW, dashboard, to_board, to_replica
from dashboards.normalise import to_json
from dashboards.rulefile import Links
from dashboards.sources import SOURCES

sys.path.insert(0, str(Path(__file__).parent))

from queries import FOLDERS, boards, queries

EXASERVE, VLLM = SOURCES["exaserve"], SOURCES["vllm"]
MINE = ("fleet", "replica", "router", "capacity")
MADE = [(source, name) for source in FOLDERS for name in boards(FOLDERS[source]) if name in MINE]
each_of_mine = pytest.mark.parametrize(("source", "name"), MADE, ids=[f"{s}-{n}" for s, n in MADE])


def made(*rows: Any) -> list[dict[str, Any]]:
    """Panels of a board as Grafana reads them."""
    board = dashboard("x", "X", "For a test.", rows, of.variables(EXASERVE, "cluster"))
    found: list[dict[str, Any]] = json.loads(to_json(board))["panels"]
    return found


def line(title: str) -> Any:
    return panels.timeseries(title, "A panel of a test, with words enough.", "s", [("up", "")])


def test_rows_are_titles_of_height_1_and_panels_side_by_side_in_equal_or_given_widths() -> None:
    found = made("Users", (8, [line("a"), line("b")]), (5, [(17, line("c")), (7, line("d"))]))
    at = {p["title"]: tuple(p["gridPos"][k] for k in "xywh") for p in found}
    assert at == {
        "Users": (0, 0, 24, 1),
        "a": (0, 1, 12, 8),
        "b": (12, 1, 12, 8),
        "c": (0, 9, 17, 5),
        "d": (17, 9, 7, 5),
    }
    assert found[0]["type"] == "row"


def test_a_table_drops_names_of_metrics_before_rows_are_merged_and_names_its_columns() -> None:
    (panel,) = made(
        (
            4,
            [
                panels.table(
                    "t", "d", [("a", "TTFT", "s"), ("b", "BUR", "percentunit")], ["replica"], empty="none"
                )
            ],
        )
    )
    steps = {t["id"]: t["options"] for t in panel["transformations"]}
    assert list(steps) == ["filterFieldsByName", "merge", "organize"]
    assert steps["filterFieldsByName"]["include"]["names"] == ["replica", "Value #A", "Value #B"]
    assert steps["organize"]["renameByName"] == {"Value #A": "TTFT", "Value #B": "BUR"}
    assert [(t["format"], t["instant"], t["range"]) for t in panel["targets"]] == [("table", True, False)] * 2


def test_the_value_of_a_table_with_one_query_has_no_letter() -> None:
    (panel,) = made((4, [panels.table("t", "d", [("a", "series", "none")], ["alertname"], empty="none")]))
    assert panel["transformations"][-1]["options"]["renameByName"] == {"Value": "series"}


def test_a_heat_map_takes_cumulative_buckets_as_they_are() -> None:
    (panel,) = made((4, [panels.heat_map("h", "d", "s", "sum by (le) (x)")]))
    assert panel["targets"][0]["format"] == "heatmap"
    assert panel["options"]["calculate"] is False
    assert panel["options"]["yAxis"]["unit"] == "s"


def test_top_chooses_once_and_draws_the_chosen_all_through() -> None:
    assert of.top(3, "x", 'a="b"') == ('x{a="b"} and on (cluster, model, replica) topk(3, x{a="b"} @ end())')
    assert of.top(3, "x", "", bottom=True).endswith("bottomk(3, x{} @ end())")
    assert of.beside("y", 3, "x", "") == "y{} and on (cluster, model, replica) topk(3, x{} @ end())"


def test_later_variables_follow_the_earlier_ones_and_offer_only_our_fleets_values() -> None:
    found = {v.name: v.query for v in of.variables(EXASERVE, "cluster", "model", "pool", "replica")}
    ours = '__name__=~"exaserve_replica_up|exaserve_kv_blocks"'
    assert found == {
        "cluster": f"label_values({{{ours}}}, cluster)",
        "model": f'label_values({{{ours}, cluster=~"$cluster"}}, model)',
        "pool": f'label_values({signals.requests("5m")}{{cluster=~"$cluster", model=~"$model"}}, pool)',
        "replica": f'label_values({{{ours}, model=~"$model", cluster=~"$cluster"}}, replica)',
    }


def test_plain_engines_have_no_pool_and_a_wrong_name_is_refused() -> None:
    assert [v.name for v in of.variables(VLLM, "cluster", "model", "pool", "replica")] == [
        "cluster",
        "model",
        "replica",
    ]
    assert "pool" not in of.pool(VLLM)
    with pytest.raises(KeyError, match="node"):
        of.variables(VLLM, "cluster", "node")


def test_the_replica_board_shows_one_replica_and_the_others_all() -> None:
    for source, name in MADE:
        variables = {v["name"]: v for v in boards(FOLDERS[source])[name]["templating"]["list"]}
        if "replica" in variables:
            assert variables["replica"]["includeAll"] is (name != "replica")
            assert ("current" in variables["replica"]) is (name != "replica")


def test_links_between_boards_keep_time_and_variables() -> None:
    links = Links(grafana="https://g.example")
    keep = "${__url_time_range}&${__all_variables}"
    fleet = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"
    assert to_board("slo", "SLO", links)["url"] == f"https://g.example/d/exaserve-slo?{keep}"
    assert to_replica(links)["url"].endswith(f"?{fleet}&var-replica=${{__field.labels.replica}}")
    assert to_replica(links, REPLICA_OF_ROW)["url"].endswith("&var-replica=${__data.fields.replica}")
    for source, name in MADE:
        (menu,) = boards(FOLDERS[source])[name]["links"]
        assert (menu["tags"], menu["asDropdown"], menu["keepTime"], menu["includeVars"]) == (
            ["exaserve"],
            True,
            True,
            True,
        )


@each_of_mine
def test_every_panel_says_why_it_shows_nothing(source: str, name: str) -> None:
    for panel in boards(FOLDERS[source])[name]["panels"]:
        if panel["type"] not in ("row", "text"):
            said = panel["fieldConfig"]["defaults"]["noValue"]
            assert said, panel["title"]
            assert said.lower() not in ("no data", "n/a", "-"), panel["title"]


#: One series for each replica, or for each of its states.
_BY_REPLICA = re.compile(r"\breplica:\w+|(?<![:\w])exaserve_(?:replica|engine|kv|process)_\w+|\bvllm:\w+")
#: What leaves a few: a top N, or a sum, count, … that does not keep the replica.
_FEW = re.compile(r"\b(?:top|bottom)k\(|^\W*(?:sum|count|min|max|avg)\b(?! by \([^)]*replica)")


@pytest.mark.parametrize(("source", "name"), [m for m in MADE if m[1] != "replica"])
def test_no_panel_draws_a_line_for_every_replica(source: str, name: str) -> None:
    for query, promql in queries(boards(FOLDERS[source])[name]):
        for part in re.split(r"\bor on \(\) ", promql):
            if _BY_REPLICA.search(part):
                assert _FEW.search(part.removeprefix("60 * ")), f"{query}: {promql}"


def test_a_day_of_capacity_reads_no_series_by_replica() -> None:
    """At 3,072 replicas a day of one signal is tens of millions of samples."""
    for source in FOLDERS:
        for query, promql in queries(boards(FOLDERS[source])["capacity"]):
            assert "replica:" not in promql, query


def test_only_where_there_is_a_router_is_there_a_board_of_it() -> None:
    assert {source for source in FOLDERS if "router" in boards(FOLDERS[source])} == {"exaserve"}
    for source in ("vllm", "ray"):
        for name in ("fleet", "replica", "capacity"):
            asked = " ".join(promql for _, promql in queries(boards(FOLDERS[source])[name]))
            assert "exaserve_router_" not in asked
            assert "exaserve_replica_state" not in asked


def test_every_panel_of_users_latency_draws_its_objective() -> None:
    titles = {p["title"]: p for p in boards(FOLDERS["exaserve"])["fleet"]["panels"]}
    for title, kind in (
        ("Time to first token, p99", "ttft"),
        ("Between tokens, p99", "inter_token"),
        ("End to end, p95", "e2e"),
    ):
        drawn = titles[title]["targets"][1]
        assert drawn["expr"] == f'slo:exaserve_latency_threshold:seconds{{kind="{kind}"}}'
        (override,) = titles[title]["fieldConfig"]["overrides"]
        assert re.search(override["matcher"]["options"], "ttft objective")
