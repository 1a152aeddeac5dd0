"""The snapshot command against a made-up Prometheus: what is on the page, what never is, and its exit statuses."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dashboards.snapshot import prometheus as prometheus_module
from dashboards.snapshot import take, timeseries
from tests.dashboards.snapshot_prometheus import FakePrometheus, Reply, serving

HOSTILE = """</script><script>alert(1)</script><img src="http://evil.example/x" onerror='alert(2)'>&amp;"""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePrometheus]:
    with serving() as server:
        monkeypatch.setenv("EXASERVE_PROMETHEUS", server.url)
        yield server


def snapshot(out: Path, *options: str) -> Result:
    from dashboards.cli import app

    return CliRunner().invoke(app, ["snapshot", "-o", str(out), "--utc", *options])


class Page(HTMLParser):
    """Elements and their attributes, texts, and what a browser would run or load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.scripts: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag == "script":
            self.scripts.append(dict(attrs))


def test_a_board_becomes_one_page_that_loads_nothing(fake: FakePrometheus, tmp_path: Path) -> None:
    fake.reply = lambda expr: [({"pool": "p", "model": "m", "replica": "r", "le": "1"}, 0.25)]
    result = snapshot(tmp_path / "fleet.html", "--board", "fleet", "--from", "-10m")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "fleet.html").read_text()
    page = Page(text)
    assert not {"img", "link", "iframe", "object", "embed", "video", "base", "form"} & set(page.tags)
    assert not [a for a in page.attributes if a[1] in ("src", "srcset", "onload", "onerror", "onclick")]
    assert "url(" not in text
    assert "@import" not in text
    assert [s for s in page.scripts if "type" not in s] == [{}]
    assert "default-src 'none'" in text
    board = json.loads((Path(take.__file__).parents[1] / "generated" / "fleet.json").read_text())
    assert page.tags.count("article") == sum(panel["type"] != "row" for panel in board["panels"])


def test_labels_stay_text_wherever_they_stand(fake: FakePrometheus, tmp_path: Path) -> None:
    labels = dict.fromkeys(
        ("pool", "model", "replica", "cluster", "alertname", "severity", "state", "reason"), HOSTILE
    )
    fake.reply = lambda expr: [({**labels, "le": "1"}, 1.0)]
    fake.values = {"replica": [HOSTILE]}
    result = snapshot(tmp_path / "page.html", "--board", "all", "--from", "-10m")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert "img" not in page.tags
    assert not [a for a in page.attributes if a[1].startswith("on")]
    assert [s for s in page.scripts if "type" not in s] == [{}]
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    for data in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL):
        json.loads(data)


def test_a_password_is_sent_to_prometheus_and_never_written(fake: FakePrometheus, tmp_path: Path) -> None:
    url = fake.url.replace("http://", "http://someone:s3cret-word@")
    fake.reply = lambda expr: (400, json.dumps({"status": "error", "errorType": "bad_data", "error": "no"}))
    result = snapshot(tmp_path / "page.html", "--prometheus", url)
    assert result.exit_code == 1
    result = snapshot(tmp_path / "page.html", "--prometheus", "http://someone:s3cret-word@127.0.0.1:1")
    assert result.exit_code == 1
    assert "s3cret-word" not in result.output
    assert not (tmp_path / "page.html").exists()
    fake.reply = lambda expr: []
    result = snapshot(tmp_path / "page.html", "--prometheus", url)
    assert result.exit_code == 0, result.output
    assert fake.authorization[-1] == "Basic c29tZW9uZTpzM2NyZXQtd29yZA=="
    text = (tmp_path / "page.html").read_text()
    assert "s3cret-word" not in text + result.output
    assert "someone" not in text
    assert fake.url in text


def test_a_token_file_is_sent_as_bearer(fake: FakePrometheus, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    result = snapshot(tmp_path / "page.html", "--token-file", str(tmp_path / "token"))
    assert result.exit_code == 0, result.output
    assert set(fake.authorization) == {"Bearer t0ken"}
    assert "t0ken" not in (tmp_path / "page.html").read_text()


def test_a_failed_query_is_told_in_its_panel_and_by_the_exit_status(
    fake: FakePrometheus, tmp_path: Path
) -> None:
    def reply(expr: str) -> Reply:
        if "ttft_seconds:p99_1m" in expr:
            return 422, json.dumps(
                {"status": "error", "errorType": "execution", "error": "<too many> samples"}
            )
        return [({}, 1.0)]

    fake.reply = reply
    result = snapshot(tmp_path / "page.html")
    assert result.exit_code == 1
    assert "queries failed" in result.output
    assert '<p class="error">execution: &lt;too many&gt; samples</p>' in (tmp_path / "page.html").read_text()


def test_panels_without_data_say_why_in_the_boards_words(fake: FakePrometheus, tmp_path: Path) -> None:
    result = snapshot(tmp_path / "page.html", "--board", "fleet")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "page.html").read_text()
    assert "no alert fires" in text
    assert "NaN" not in text
    assert 'class="error"' not in text


def test_alerts_that_fired_are_bands_and_are_listed_with_their_times(
    fake: FakePrometheus, tmp_path: Path
) -> None:
    fake.reply = lambda expr: (
        [({"alertname": "ExaServeReplicaDown", "severity": "warning"}, 1.0)]
        if expr.startswith("count by (alertname, severity)")
        else [({}, 1.0)]
    )
    result = snapshot(tmp_path / "page.html", "--from", "1700000000", "--to", "1700000600")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "page.html").read_text()
    assert (
        "<b>Alerts: ExaServeReplicaDown (warning)</b> <time>2023-11-14 22:13:20 – 22:23:20, still at the end</time>"
        in text
    )
    assert '<rect class="band" x="0.0" y="0" width="1000.0"' in text


def test_alerts_that_cant_be_had_are_not_taken_for_none(fake: FakePrometheus, tmp_path: Path) -> None:
    def reply(expr: str) -> Reply:
        if "ALERTS" in expr:
            return 422, json.dumps({"status": "error", "errorType": "execution", "error": "too many"})
        return [({}, 1.0)]

    fake.reply = reply
    assert snapshot(tmp_path / "page.html").exit_code == 1
    assert '<li class="error">Alerts: execution: too many</li>' in (tmp_path / "page.html").read_text()


def test_variables_reach_every_query_and_one_replica_is_chosen(fake: FakePrometheus, tmp_path: Path) -> None:
    fake.values = {"replica": ["replica-1", "replica-0"], "model": ["a.b", "c"]}
    result = snapshot(tmp_path / "page.html", "--board", "replica", "--var", "model=a.b", "--var", "model=c")
    assert result.exit_code == 0, result.output
    assert "replica replica-0: the first of 2; choose with --var replica=…" in result.output
    with_model = [expr for expr in fake.asked if "model=~" in expr]
    assert with_model
    assert all('model=~"(a\\\\.b|c)"' in expr for expr in with_model)
    assert not [expr for expr in fake.asked if re.search(r"\$(?!1)", expr)]
    assert "the first of 2" in (tmp_path / "page.html").read_text()


def test_a_page_is_bounded_in_lines_and_size(
    fake: FakePrometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.reply = lambda expr: [({"replica": f"r{i}", "pool": f"p{i}"}, float(i)) for i in range(50)]
    result = snapshot(tmp_path / "page.html", "--from", "-2m")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "page.html").read_text()
    assert "60 of 100 lines are left out: the lowest" in text
    assert max(panel.count('class="line') for panel in text.split("<article")) == timeseries.MOST
    monkeypatch.setattr(take, "LARGEST", 100_000)
    assert snapshot(tmp_path / "small.html", "--from", "-2m").exit_code == 0
    assert "left out: the page is as large as it may be" in (tmp_path / "small.html").read_text()
    assert (tmp_path / "small.html").stat().st_size < len(text) / 2


def test_an_answer_is_bounded_in_bytes(
    fake: FakePrometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.reply = lambda expr: [({"replica": f"r{i}"}, float(i)) for i in range(50)]
    monkeypatch.setattr(prometheus_module, "LARGEST", 10_000)
    assert snapshot(tmp_path / "page.html", "--from", "-2m").exit_code == 1
    assert "narrow it with --var" in (tmp_path / "page.html").read_text()


def test_no_query_is_asked_once_the_time_of_all_is_over(fake: FakePrometheus) -> None:
    client = prometheus_module.Prometheus(fake.url, limit=0.0)
    with pytest.raises(prometheus_module.QueryError, match="not asked: the 0 s for all queries are over"):
        client.instant("up", 0)
    assert fake.asked == []


def test_a_query_without_an_answer_in_time_is_told(fake: FakePrometheus) -> None:
    fake.reply = lambda expr: time.sleep(60) or []  # type: ignore[func-returns-value]
    client = prometheus_module.Prometheus(fake.url, timeout=0.1)
    with pytest.raises(prometheus_module.QueryError, match="no answer within"):
        client.instant("up", 0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--board", "flet"], "none of fleet"),
        (["--source", "sglang"], "none of exaserve, vllm, ray"),
        (["--board", "router", "--source", "vllm"], "none of fleet"),
        (["--from", "tomorrow"], "is no time"),
        (["--from", "-1h", "--to", "-2h"], "a snapshot shows 60 s to 400 days"),
        (["--from", "-1s"], "a snapshot shows 60 s to 400 days"),
        (["--var", "model"], "not NAME=VALUE"),
        (["--var", "modell=x"], "the variables are cluster, model, pool, replica"),
        (["--board", "replica", "--var", "replica=a", "--var", "replica=b"], "one replica at a time"),
        (["--prometheus", "127.0.0.1:9090"], "no address like"),
        (["--token-file", "/nonexistent/token"], "No such file"),
    ],
)
def test_options_that_cant_be_end_with_status_2_and_ask_nothing(
    fake: FakePrometheus, tmp_path: Path, options: list[str], told: str
) -> None:
    result = snapshot(tmp_path / "page.html", *options)
    assert result.exit_code == 2, result.output
    assert told in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "page.html").exists()
    assert set(fake.asked) <= {"vector(1)"}


def test_a_file_that_cant_be_written_ends_with_status_1(fake: FakePrometheus, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = snapshot(tmp_path / "file" / "page.html")
    assert result.exit_code == 1
    assert "can't write" in result.output


def test_what_is_not_prometheus_is_told_in_a_sentence(fake: FakePrometheus, tmp_path: Path) -> None:
    fake.reply = lambda expr: (200, "<html>login</html>")
    result = snapshot(tmp_path / "page.html")
    assert result.exit_code == 1
    assert "HTTP 200, and the answer is not Prometheus'" in result.output


@pytest.mark.parametrize("source", ["vllm", "ray"])
def test_the_boards_of_other_fleets_are_drawn_too(fake: FakePrometheus, tmp_path: Path, source: str) -> None:
    fake.reply = lambda expr: [({"model": "m", "replica": "r", "le": "1"}, 0.5)]
    fake.values = {"replica": ["r"], "model": ["m"]}
    result = snapshot(tmp_path / "page.html", "--board", "all", "--source", source, "--from", "-10m")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "page.html").read_text()
    assert 'class="error"' not in text
    assert '<section id="replica">' in text
    assert '<section id="router">' not in text
