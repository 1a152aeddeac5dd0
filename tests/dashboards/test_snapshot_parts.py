"""What a snapshot makes of times, variables, units, axes and field settings: exact values."""

from __future__ import annotations

import json
import math
from datetime import UTC
from typing import Any

import pytest

from dashboards import build
from dashboards.snapshot import colours, fields, heatmap, markup, span, table, take, units, variables
from dashboards.snapshot.data import Result, Series, legend
from dashboards.snapshot.prometheus import Prometheus
from dashboards.snapshot.variables import Value

HOUR = span.span(1_700_000_000, 1_700_003_600, 5, UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("now", 0),
        ("-1h", -3600),
        ("now-1h30m", -5400),
        ("-0.5d", -43_200),
        ("1700000000", None),
        ("2023-11-14T22:13:20", None),
        ("2023-11-14T23:13:20+01:00", None),
    ],
)
def test_a_time_is_relative_to_now_or_absolute(text: str, seconds: float | None) -> None:
    expected = 1_700_000_000 if seconds is None else 2_000_000_000 + seconds
    assert span.moment(text, 2_000_000_000, UTC) == expected


@pytest.mark.parametrize("text", ["", "1h", "-1x", "yesterday", "now+1h", "2023-13-01", "--1h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        span.moment(text, 0)


@pytest.mark.parametrize(
    ("seconds", "scrape", "step"),
    [(3600, 5, 15), (600, 5, 5), (600, 15, 15), (86_400, 5, 600), (30 * 86_400, 5, 10_800)],
)
def test_the_step_is_round_not_below_a_scrape_and_gives_at_most_241_points(
    seconds: float, scrape: float, step: int
) -> None:
    of = span.span(0, seconds, scrape)
    assert of.step == step
    assert of.count <= 241
    assert of.at(of.count - 1) == of.end


def test_grafanas_time_variables_follow_span_and_scrape() -> None:
    assert HOUR.grafana() == {
        "__interval": "15s",
        "__interval_ms": "15000",
        "__rate_interval": "20s",
        "__range": "3600s",
        "__range_s": "3600",
        "__range_ms": "3600000",
        "__from": "1700000000000",
        "__to": "1700003600000",
    }


def test_marks_of_the_time_axis_stand_at_round_times() -> None:
    assert [text for _, text in span.marks(HOUR, 5)] == ["22:15", "22:30", "22:45", "23:00"]
    assert span.marks(HOUR, 5)[0][0] == pytest.approx(100 / 3600)


def test_variables_become_regular_expressions_and_other_dollars_stay() -> None:
    values = {"model": Value(variables.regex(["a.b", 'c"d']), 'a.b + c"d'), "replica": Value(".*", "All")}
    expr = 'label_replace(x{model=~"$model", replica=~"${replica:regex}"}[$__rate_interval], "a", "$1", "b", "(.*)")'
    assert variables.in_query(expr, values, HOUR) == (
        'label_replace(x{model=~"(a\\\\.b|c\\"d)", replica=~".*"}[20s], "a", "$1", "b", "(.*)")'
    )
    assert variables.in_text("Replica $replica of [[model]]", values, HOUR) == 'Replica All of a.b + c"d'


def test_a_link_to_grafana_carries_the_time_and_the_variables() -> None:
    values = {"cluster": Value(".*", "All"), "model": Value("m", "a b + c", chosen=("a b", "c"))}
    url = "https://g/d/exaserve-slo?${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}&${model:queryparam}"
    assert variables.in_address(url, values, HOUR) == (
        "https://g/d/exaserve-slo?from=1700000000000&to=1700003600000&var-cluster=%24__all&var-model=a%20b&var-model=c"
    )


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0042, "s", "4.2 ms"),
        (0.9999, "s", "1 s"),
        (0, "s", "0 s"),
        (90, "s", "90 s"),
        (7200, "s", "2 h"),
        (2e-6, "s", "2 µs"),
        (1500, "ms", "1.5 s"),
        (0.1234, "percentunit", "12.3 %"),
        (3 * 2**30, "bytes", "3 GiB"),
        (512, "bytes", "512 B"),
        (1.5e6, "Bps", "1.5 MB/s"),
        (3.777, "reqps", "3.78 req/s"),
        (16_384, "none", "16,384"),
        (16_384, "short", "16.4 k"),
        (0.00001234, "none", "1.2e-5"),
        (-2.5, "celsius", "-2.5 °C"),
        (12, "suffix: tok/s", "12 tok/s"),
        (12, "currencyUSD", "$12"),
        (1_700_000_000_000, "dateTimeAsIso", "2023-11-14 22:13:20 UTC"),
        (12, "bananas", "12 bananas"),
        (math.inf, "s", "+Inf"),
        (math.nan, "s", "NaN"),
    ],
)
def test_numbers_are_written_with_three_digits_and_their_unit(value: float, unit: str, text: str) -> None:
    assert units.text(value, units.unit(unit)) == text


def test_every_unit_of_every_board_is_known() -> None:
    for path in build.GENERATED.rglob("*.json"):
        for panel in take.panels(json.loads(path.read_text())):
            config = panel.get("fieldConfig", {})
            named = [config.get("defaults", {}).get("unit", "none")]
            for override in config.get("overrides", ()):
                named += [p["value"] for p in override["properties"] if p["id"] == "unit"]
            for name in named:
                assert units.known(name), (path.name, panel["title"], name)


def test_every_kind_of_panel_of_every_board_is_drawn() -> None:
    kinds = {
        p["type"]
        for path in build.GENERATED.rglob("*.json")
        for p in take.panels(json.loads(path.read_text()))
    }
    assert kinds - {"row"} <= set(take._DRAW)


@pytest.mark.parametrize(
    ("low", "high", "unit", "ends", "marks"),
    [
        (0, 3.8, "none", (0, 4), [0, 1, 2, 3, 4]),
        (0, 0, "none", (0, 1), [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (1, 1, "percentunit", (0, 1), [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 700, "s", (0, 900), [0, 300, 600, 900]),
        (0, 3 * 2**20, "bytes", (0, 3 * 2**20), [0, 2**20, 2 * 2**20, 3 * 2**20]),
        (-3, 3, "none", (-4, 4), [-4, -2, 0, 2, 4]),
    ],
)
def test_an_axis_ends_and_is_marked_at_round_values(
    low: float, high: float, unit: str, ends: tuple[float, float], marks: list[float]
) -> None:
    first, last, at = markup.axis(low, high, units.unit(unit))
    assert (first, last) == ends
    assert at == pytest.approx(marks)


def test_a_log_axis_has_whole_powers_of_ten() -> None:
    assert markup.log_axis(0.003, 40) == (-3, 2, [0.001, 0.01, 0.1, 1, 10, 100])


def test_overrides_match_by_name_by_regular_expression_and_by_query() -> None:
    panel = {
        "fieldConfig": {
            "defaults": {"unit": "s", "custom": {"fillOpacity": 8}, "noValue": "silence"},
            "overrides": [
                {"matcher": {"id": "byRegexp", "options": ".*threshold"}, "properties": [
                    {"id": "custom.lineStyle", "value": {"fill": "dash"}},
                    {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}},
                ]},
                {"matcher": {"id": "byName", "options": "a"}, "properties": [{"id": "unit", "value": "bytes"}]},
                {"matcher": {"id": "byFrameRefID", "options": "B"}, "properties": [{"id": "displayName", "value": "b"}]},
            ],
        }
    }  # fmt: skip
    dashed, plain = fields.of(panel, "x threshold"), fields.of(panel, "a", "B")
    assert (dashed.dashed, dashed.colour, dashed.fill, dashed.empty) == (True, "var(--red)", 0.08, "silence")
    assert (plain.dashed, plain.colour, plain.name, plain.text(2048)) == (False, None, "b", "2 KiB")
    assert not fields.of(panel, "threshold of x").dashed


def test_states_and_thresholds_give_words_and_colours() -> None:
    panel = {
        "fieldConfig": {
            "defaults": {
                "mappings": [{"type": "value", "options": {"2": {"text": "ready", "color": "green"}}}],
                "thresholds": {"steps": [{"color": "blue", "value": None}, {"color": "red", "value": 5}]},
            }
        }
    }
    look = fields.of(panel, "")
    assert [(look.text(v), look.threshold(v)) for v in (2, 4, 5)] == [
        ("ready", "green"),
        ("4", "blue"),
        ("5", "red"),
    ]


def test_only_names_and_hex_colours_get_into_styles() -> None:
    assert colours.css("semi-dark-red") == "color-mix(in srgb, var(--red), black 12%)"
    assert colours.css("#a1b2c3") == "#a1b2c3"
    assert colours.css('red;}</style><script>"') == "var(--l0)"
    assert colours.fill("url(http://x)") == "var(--gray-fill)"


def test_a_legend_fills_in_labels_and_leaves_none_of_its_own() -> None:
    assert legend("{{cluster}} {{ model }} p99", {"model": "m"}) == "m p99"
    assert legend("", {"__name__": "up", "job": "x"}) == 'up{job="x"}'


def test_cumulative_buckets_become_what_lies_between_and_empty_ends_are_cut() -> None:
    series = [
        Series("", {"le": le}, [v])
        for le, v in (("+Inf", 9.0), ("1", 2.0), ("2", 6.0), ("4", 9.0), ("0.5", 0.0))
    ]
    found = heatmap._filled(heatmap._buckets(series))
    assert [(low, high, v) for low, high, (v,) in found] == [
        (None, 0.5, 0.0),
        (0.5, 1.0, 2.0),
        (1.0, 2.0, 4.0),
        (2.0, 4.0, 3.0),
        (4.0, math.inf, 0.0),
    ]


def test_rows_of_a_table_join_where_their_labels_are_equal() -> None:
    def of(ref: str, *rows: tuple[dict[str, str], float]) -> Result:
        return Result(ref, "", [Series("", labels, [v]) for labels, v in rows])

    a = of("A", ({"pool": "x", "job": "j"}, 1.0), ({"pool": "y", "job": "j"}, 2.0))
    b = of("B", ({"pool": "y", "job": "k"}, 3.0), ({"pool": "z", "job": "k"}, 4.0))
    assert table._joined([a, b], {"pool", "Value #A", "Value #B"}) == [
        {"pool": "x", "Value #A": 1.0},
        {"pool": "y", "Value #A": 2.0, "Value #B": 3.0},
        {"pool": "z", "Value #B": 4.0},
    ]
    rows: list[dict[str, Any]] = [{"v": None}, {"v": 1.0}, {"v": 3.0}]
    assert table._sorted(rows, "v", True) == [{"v": 3.0}, {"v": 1.0}, {"v": None}]


def test_an_address_is_shown_without_user_and_password() -> None:
    assert Prometheus("https://u:p%40ss@prometheus.example/base/").shown == "https://prometheus.example/base"


@pytest.mark.parametrize(
    "url", ["prometheus:9090", "ftp://x", "http://", "http://x/?token=1", "http://x/#a", "http://x:y"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Prometheus(url)
