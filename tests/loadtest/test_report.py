"""Reports of fabricated runs: numbers, words and what happens where something is missing, damaged or hostile."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects
import pytest
from typer.testing import CliRunner, Result

from loadtest._lib import _fleet
from loadtest._lib._exact import Exact
from loadtest._report import _compare, _figures, _lines, _times
from loadtest._report import _words as words
from loadtest._report._cli import app
from tests.loadtest.fabricate import START, failed, folder, lively, record
from tests.loadtest.fake_prometheus import serving

HOSTILE = """</script><script>alert(1)</script><img src="http://127.0.0.1:1/x" onerror="alert(2)">"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path))
    return tmp_path / "loadtest"


def report(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def as_json(home: Path, *arguments: str) -> dict[str, Any]:
    file = home / "told.json"
    result = report(*arguments, "--json", str(file))
    assert result.exit_code == 0, result.output
    return dict(json.loads(file.read_text()))


def page(home: Path, *arguments: str) -> str:
    file = home / "page.html"
    result = report(*arguments, "--utc", "-o", str(file))
    assert result.exit_code == 0, result.output
    return file.read_text()


def rewrite(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def text_of(html: str) -> str:
    """Words of the page, plotly's script left out."""
    body = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def figures(html: str) -> list[dict[str, Any]]:
    found = re.search(r'id="figures">(.*?)</script>', html, re.DOTALL)
    assert found
    return list(json.loads(found[1]))


# Verdict ---------------------------------------------------------------------------------------------------------


def test_the_verdict_is_on_top_and_says_why(home: Path) -> None:
    records = [record(n, ttft=0.2 if n < 90 else 1.2) for n in range(95)]
    records += [failed(n, "timeout", "no token for 120 s") for n in range(95, 100)]
    folder(home / "run", records)
    told = as_json(home, "run")
    assert told["verdict"] == "missed"
    assert told["why"] == [
        "90 of 100 offered requests (90 %) completed and met every objective; 99 % were asked for.",
        "Of the others, 5 failed, 5 completed too slowly.",
    ]
    text = text_of(page(home, "run"))
    assert text.index("Objectives missed") < text.index("90 of 100") < text.index("How long it took")


def test_a_void_run_says_first_that_it_says_nothing_about_the_service(home: Path) -> None:
    folder(
        home / "run", (record(n) for n in range(100)), samples=lambda s: {"cpu": 0.99, "delays": [1.0] * 10}
    )
    told = as_json(home, "run")
    assert told["verdict"] == "void"
    assert told["why"][0].startswith("The client itself was the bottleneck")
    assert "CPU of worker 0" in told["why"][0]
    assert "Void: says nothing about the service" in text_of(page(home, "run"))


@pytest.mark.parametrize(
    ("records", "verdict"),
    [
        ([record(n) for n in range(10)], "passed"),
        ([], "no_requests"),
        ([failed(n, "connect", "connection refused") for n in range(10)], "all_failed"),
    ],
)
def test_the_verdict_is_that_of_the_run(home: Path, records: list[Any], verdict: str) -> None:
    folder(home / "run", records)
    assert as_json(home, "run")["verdict"] == verdict
    page(home, "run")


# Numbers ---------------------------------------------------------------------------------------------------------


def test_quantiles_of_the_tables_are_exact(home: Path) -> None:
    folder(home / "run", (record(n, ttft=(n + 1) / 1000) for n in range(1000)))
    result = report("run", "--markdown", "-")
    row = next(line for line in result.stdout.splitlines() if line.startswith("| TTFT"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["TTFT", "1,000", "500.5 ms", "500 ms", "900 ms", "950 ms", "990 ms", "999 ms", "1 s"]


def test_columns_are_those_of_the_lines_and_windows_hold_what_was_known_in_them(home: Path) -> None:
    path = folder(home / "run", [record(0), record(1, ttft=0.5), failed(2, "cut", "cut stream")])
    requests = _lines.read(path / "requests.jsonl", START, 1.0)
    assert requests.ok("ttft").tolist() == [0.2, 0.5]
    assert requests.gaps.count == 18
    assert requests.reasons == {"cut": 1}
    times = _times.windows(requests, path / "client.jsonl")
    assert times.lines["offered"][10] == 3
    assert times.lines["ttft_p50"][10] == 0.2
    assert times.lines["ttft_p99"][10] == 0.5
    assert times.lines["itl_p99"][10] == 0.02
    assert times.lines["failed"][10] == 1
    assert times.lines["in_flight"][10] == 0
    assert times.lines["cpu_max"][10] == 0.2
    assert times.lines["ttft_p50"][9] is None


def test_gaps_lie_in_the_window_in_which_they_ended(home: Path) -> None:
    """First token at 10.5 s, then gaps of 1 s: windows 11 and 12, each from its own request's first token on."""
    records = [record(0, ttft=0.5, gaps=[1000.0, 1000.0]), record(5, ttft=0.5, gaps=[100.0])]
    path = folder(home / "run", records)
    windows = _lines.read(path / "requests.jsonl", START, 1.0).gap_windows
    assert {at: exact.quantiles((0, 1)) for at, exact in windows.items()} == {
        11: [0.1, 1.0],
        12: [1.0, 1.0],
    }


@pytest.mark.parametrize(("seconds", "expected"), [(1, 1), (180, 1), (181, 2), (3600, 30), (86_400, 600)])
def test_a_run_has_no_more_windows_than_can_be_drawn(seconds: float, expected: float) -> None:
    assert _times.length(seconds) == expected


def test_only_plots_are_thinned_out_and_their_points_are_exact_quantiles() -> None:
    exact = Exact()
    exact.add_array(np.arange(1, 1_000_001) / 1e5)
    figure = _figures.distribution("ttft", exact, None, 2.0)
    assert figure is not None
    tail = figure["data"][1]
    assert len(tail["x"]) < 500
    assert tail["x"][-1] == 10.0
    for at, slower in list(zip(tail["x"], tail["y"], strict=True))[:-1]:
        assert slower == pytest.approx(1 - at / 10, abs=1e-9)
    assert sum(figure["data"][0]["y"][::2]) == pytest.approx(1)


# Comparison ------------------------------------------------------------------------------------------------------


def test_ratios_are_run_over_baseline_and_marked_where_worse(home: Path) -> None:
    folder(home / "base", (record(n) for n in range(100)))
    folder(home / "run", (record(n, ttft=0.22, gaps=[20.0] * 9) for n in range(90)))
    rows = {
        (r["name"], r["quantile"]): r
        for r in as_json(home, "run", "--baseline", "base")["rows"]
        if r["group"] == "all"
    }
    assert rows["ttft", "p99"]["ratio"] == pytest.approx(1.1)
    assert rows["ttft", "p99"]["mark"] == "worse"
    assert rows["itl", "p50"]["ratio"] == 1
    assert rows["itl", "p50"]["mark"] is None
    assert rows["goodput", None]["ratio"] == pytest.approx(0.9)
    assert rows["goodput", None]["mark"] == "worse"
    assert rows["offered", None]["mark"] is None


@pytest.mark.parametrize(
    ("better", "run", "baseline", "mark"),
    [
        ("low", 1.2, 1.0, "bad"),
        ("low", 1.05, 1.0, "worse"),
        ("low", 1.04, 1.0, ""),
        ("low", 0.9, 1.0, "better"),
        ("high", 0.8, 1.0, "bad"),
        ("high", 1.1, 1.0, "better"),
        ("low", 1.0, 0.0, ""),
        ("low", None, 1.0, ""),
        ("", 9.0, 1.0, ""),
    ],
)
def test_marks(better: str, run: float | None, baseline: float, mark: str) -> None:
    assert _compare.Row("all", "x", "", "s", better, run, baseline).mark == mark


def test_runs_of_different_settings_are_said_to_be(home: Path) -> None:
    folder(home / "base", [record(0)])
    folder(
        home / "run",
        [record(0)],
        arrivals={"kind": "poisson", "rate": 20.0},
        model="large",
        settings={"max_tokens": "64"},
    )
    told = as_json(home, "run", "--baseline", "base")
    assert {(d["setting"], d["run"], d["baseline"]) for d in told["differences"]} == {
        ("model", "large", "tiny"),
        ("arrivals: kind", "poisson", "constant"),
        ("arrivals: rate", "20", "10"),
        ("--max-tokens", "64", "10"),
    }
    assert "differ in more than what is compared" in text_of(page(home, "run", "--baseline", "base"))


def test_the_baseline_that_a_run_was_started_with_is_taken_and_a_lost_one_is_a_note(home: Path) -> None:
    folder(home / "base", [record(0)])
    folder(home / "run", [record(0)], baseline="base")
    folder(home / "other", [record(0)], baseline="gone")
    assert as_json(home, "run")["baseline"]["run"] == "base"
    told = as_json(home, "other")
    assert told["baseline"] is None
    assert any("gone" in note for note in told["notes"])


# Parts -----------------------------------------------------------------------------------------------------------


def test_profiles_intents_and_replicas_have_their_rows(home: Path) -> None:
    folder(home / "run", lively(600, 1), profile="mixed")
    text = text_of(page(home, "run"))
    for name in ("chat", "code", "long_document", "billing", "技术支持", "replica-0", "replica-3"):
        assert f" {name} " in text
    assert re.search(r"Requests: \d+ to \d+ a replica, the busiest \d\.\d\d × the mean", text)


def test_failures_have_their_reason_its_meaning_and_examples(home: Path) -> None:
    records = [record(n) for n in range(10)]
    records += [failed(n, "cut", "ended without [DONE]", request_id=f"id-{n}") for n in range(10, 16)]
    folder(home / "run", records)
    told = as_json(home, "run")["failures"]["cut"]
    assert told["requests"] == 6
    assert [e["request_id"] for e in told["examples"]] == ["id-10"]
    assert "ended without [DONE]" in text_of(page(home, "run"))


def test_every_figure_is_one_that_plotly_takes(home: Path) -> None:
    folder(home / "base", lively(300, 2), profile="mixed")
    folder(home / "run", lively(300, 1), profile="mixed", baseline="base")
    found = figures(page(home, "run"))
    assert len(found) > 15
    for figure in found:
        plotly.graph_objects.Figure(figure)


def test_the_fleets_signals_stand_beside_the_runs_on_one_time_axis(home: Path) -> None:
    folder(home / "run", (record(n) for n in range(900)))
    assert "--prometheus" in text_of(page(home, "run"))
    with serving(lambda query, form: [({"pool": "default", "model": "tiny"}, 0.5)]) as fake:
        html = page(home, "run", "--prometheus", fake.url)
    assert "Fleet: TTFT" in text_of(html)
    ranges = {
        tuple(f["layout"]["xaxis"]["range"])
        for f in figures(html)
        if f["layout"]["xaxis"].get("type") == "date"
    }
    assert len(ranges) == 1
    forms = {(form["start"], form["step"]) for form in fake.asked if "start" in form}
    assert forms == {(str(START), "5")}


def test_a_prometheus_that_is_away_is_a_note(home: Path) -> None:
    folder(home / "run", [record(0)])
    notes = as_json(home, "run", "--prometheus", "http://127.0.0.1:1")["notes"]
    assert any("127.0.0.1:1" in note for note in notes)


# Missing, damaged, hostile ---------------------------------------------------------------------------------------


def test_a_killed_run_is_told_of_as_far_as_it_got(home: Path) -> None:
    path = folder(home / "run", (record(n) for n in range(100)), ended=None, stopping=None, summary=False)
    with (path / "requests.jsonl").open("a") as lines:
        lines.write('{"worker": 0, "numb')
    told = as_json(home, "run")
    assert told["verdict"] == "unfinished"
    assert told["run"]["all"]["completed"] == 100
    assert told["run"]["measured_seconds"] == pytest.approx(10.28)
    assert "did not end by itself" in told["notes"][0]
    assert "1 of 101 lines" in told["notes"][1]
    assert "Unfinished" in text_of(page(home, "run"))


def test_a_lost_or_damaged_summary_is_made_anew(home: Path) -> None:
    path = folder(home / "run", (record(n) for n in range(10)))
    (path / "summary.json").write_text('{"version": 1, "all"')
    told = as_json(home, "run")
    assert told["verdict"] == "passed"
    assert any("made anew" in note for note in told["notes"])


def test_lines_changed_after_the_run_are_noticed(home: Path) -> None:
    path = folder(home / "run", (record(n) for n in range(10)))
    lines = (path / "requests.jsonl").read_text().splitlines()
    (path / "requests.jsonl").write_text("\n".join(["oops", *lines[2:]]) + "\n")
    notes = as_json(home, "run")["notes"]
    assert any("1 of 9 lines" in note and "line 1" in note for note in notes)
    assert any("counts 10 completed" in note and "has 8" in note for note in notes)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: (path / "run.json").write_text("{"), "run.json is missing or damaged"),
        (lambda path: (path / "run.json").unlink(), "run.json is missing or damaged"),
        (
            lambda path: rewrite(path / "run.json", started="x"),
            "Expected `float | null`, got `str` - at `$.started`",
        ),
        (lambda path: rewrite(path / "run.json", ended=1e300), "at `$.ended`"),
        (lambda path: rewrite(path / "run.json", settings=[1]), "at `$.settings`"),
        (lambda path: rewrite(path / "summary.json", replicas="x"), "at `$.replicas`"),
        (lambda path: rewrite(path / "summary.json", measured_seconds={}), "at `$.measured_seconds`"),
        (lambda path: (path / "run.json").write_text('{"version": 2}'), "of version 2"),
        (
            lambda path: [(path / name).unlink() for name in ("requests.jsonl", "run.json")],
            "neither run.json nor requests.jsonl",
        ),
        (
            lambda path: [(path / name).unlink() for name in ("requests.jsonl", "summary.json")],
            "requests.jsonl: No such file",
        ),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(home: Path, spoil: Any, said: str) -> None:
    path = folder(home / "run", [record(0)])
    spoil(path)
    result = report("run", "-o", str(home / "x.html"))
    assert result.exit_code == 2
    assert said in result.output
    assert "see `exaserve report --help`" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nope", "-o", "x.html"), "neither a folder nor a run"),
        (("last", "-o", "x.html"), "there is no run"),
        ((__file__, "-o", "x.html"), "is a file"),
        (("run",), "nothing to write"),
        (("run", "-o", "-", "--json", "-"), "only one"),
    ],
)
def test_wrong_usage_names_the_cure_and_ends_with_2(arguments: tuple[str, ...], said: str) -> None:
    result = report(*arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_a_baseline_that_is_not_there_is_named_by_its_option(home: Path) -> None:
    folder(home / "run", [record(0)])
    result = report("run", "--baseline", "nope", "--json", "-")
    assert result.exit_code == 2
    assert result.output.startswith("--baseline: nope")


def test_what_cannot_be_written_ends_with_1(home: Path) -> None:
    folder(home / "run", [record(0)])
    result = report("run", "-o", "/proc/nope/x.html")
    assert result.exit_code == 1
    assert "can't write /proc/nope/x.html" in result.output


def test_last_is_the_newest_run(home: Path) -> None:
    import os

    for name, at in (("new", 2_000), ("old", 1_000)):
        path = folder(home / name, [record(0)])
        os.utime(path / "run.json", (at, at))
    assert as_json(home, "last")["run"]["run"] == "new"


def test_hostile_names_stay_text_in_page_and_markdown(home: Path) -> None:
    records = [record(n, replica=HOSTILE, profile=HOSTILE, intent=HOSTILE) for n in range(5)]
    records.append(failed(6, "error", HOSTILE))
    folder(home / "run", records, model=HOSTILE, host=HOSTILE)
    html = page(home, "run")
    assert "<script>alert" not in html
    assert "<img" not in re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    markdown = report("run", "--markdown", "-").stdout
    assert "<script>" not in markdown.replace("\\<", "")


def test_the_page_lets_nothing_out_and_holds_its_library(home: Path) -> None:
    folder(home / "run", [record(0)])
    html = page(home, "run")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", html)
    assert "Plotly" in html


def test_every_signal_of_the_fleet_that_is_drawn_is_asked_for() -> None:
    source = (Path(_figures.__file__).parent / "_plots.py").read_text()
    drawn = set(re.findall(r'\{"(\w+)": ""', source)) | {"running", "waiting", "failed"}
    assert drawn <= {signal.key for signal in _fleet.SIGNALS}


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.0123, "s", "12.3 ms"),
        (1.5, "s", "1.5 s"),
        (0.00002, "s", "20 µs"),
        (0.0, "s", "0 µs"),
        (0.99999, "ratio", "99.99 %"),
        (1.0, "ratio", "100 %"),
        (12345.0, "tok", "12,345"),
        (3.14159, "/s", "3.14/s"),
        (None, "s", "–"),
    ],
)
def test_numbers_read_well_and_never_better_than_they_are(
    value: float | None, unit: str, expected: str
) -> None:
    assert words.number(value, unit) == expected
