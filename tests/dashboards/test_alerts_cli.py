"""``exaserve alerts test``: an alert posted to a real Alertmanager, its webhook, and what holds it back."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from dashboards import alert_list, build, runbooks
from dashboards.alerts_cli import app
from dashboards.drill import drill
from dashboards.sources import SOURCES
from tests.conftest import closed_port, free_ports

BINARY = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
needs_alertmanager = pytest.mark.skipif(
    BINARY is None, reason="Alertmanager is not installed (Debian: prometheus-alertmanager)"
)
#: An alert whose texts ask for a replica and a model, and one that goes to nobody below.
ALERT, UNSENT = "ExaServeReplicaDown", "ExaServeWatchdog"


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(args))
    return result.exit_code, result.output


@cache
def all_rules(source: str) -> list[alert_list.Rule]:
    return alert_list.rules(source)


def until(look: Callable[[], Any], seconds: float = 90) -> Any:
    end = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


@dataclass
class Stage:
    """An Alertmanager and the webhook that its receiver calls."""

    url: str
    config: dict[str, Any]
    received: list[dict[str, Any]] = field(default_factory=list)

    def told(self, name: str, status: str) -> list[dict[str, Any]]:
        return [
            alert
            for message in self.received
            for alert in message["alerts"]
            if alert["labels"]["alertname"] == name and alert["status"] == status
        ]

    def active(self, **labels: str) -> list[str]:
        found = httpx.get(f"{self.url}/api/v2/alerts", timeout=60).json()
        return [each["labels"]["alertname"] for each in found if labels.items() <= each["labels"].items()]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("alertmanager")
    received: list[dict[str, Any]] = []

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if self.path == "/broken" else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def webhook(name: str, path: str) -> dict[str, Any]:
        return {"name": name, "webhook_configs": [{"url": f"http://127.0.0.1:{server.server_port}{path}"}]}

    config = {
        "route": {
            "receiver": "on-call",
            "group_by": ["alertname", "cluster"],
            "group_wait": "100ms",
            "group_interval": "1s",
            "routes": [
                {"matchers": ['severity="info"'], "receiver": "nobody"},
                {"matchers": ['cluster="slow"'], "receiver": "on-call", "group_wait": "10m"},
                {"matchers": ['cluster="broken"'], "receiver": "broken"},
            ],
        },
        "receivers": [webhook("on-call", "/"), webhook("broken", "/broken"), {"name": "nobody"}],
        "inhibit_rules": [
            {
                "source_matchers": ['alertname="NodeIsDown"'],
                "target_matchers": ['severity="warning"'],
                "equal": ["cluster"],
            }
        ],
    }
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
    port = free_ports()
    argv = [str(BINARY), f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/data"]
    argv += ["--cluster.listen-address=", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    stage = Stage(f"http://127.0.0.1:{port}", config, received)

    def ready() -> bool:
        try:
            return httpx.get(f"{stage.url}/-/ready").status_code == 200
        except httpx.HTTPError:
            return False

    try:
        assert until(ready), (folder / "log").read_text()
        yield stage
    finally:
        process.terminate()
        process.wait(60)
        server.shutdown()
        server.server_close()


@needs_alertmanager
def test_an_alert_arrives_at_the_webhook_with_its_labels_and_links_that_lead_somewhere(stage: Stage) -> None:
    code, output = run(
        "test",
        ALERT,
        "--alertmanager",
        stage.url,
        "--grafana",
        "https://grafana.example",
        "--label",
        "pool=p",
    )
    assert code == 0, output
    assert output.endswith("arrived\n")
    assert "receiver on-call (webhook); grouped by alertname=ExaServeReplicaDown, cluster=test-" in output
    (told,) = stage.told(ALERT, "firing")
    (rule,) = [rule for rule in all_rules("exaserve") if rule.name == ALERT]
    want = {"alertname": ALERT, "test": "true", "cluster": told["labels"]["cluster"], "pool": "p"}
    assert re.fullmatch("test-[0-9a-f]{6}", told["labels"]["cluster"])
    assert told["labels"] == want | {"replica": "test-replica", "model": "test-model"} | dict(rule.labels)
    texts = told["annotations"]
    assert texts["summary"].startswith("[TEST] test-replica gets no requests")
    assert (runbooks.folder().parent / texts["runbook_url"]).is_file()
    board = re.fullmatch(r"https://grafana\.example/d/(exaserve-(\w+))\?(\S+)", texts["dashboard_url"])
    assert board
    assert json.loads((build.GENERATED / f"{board[2]}.json").read_text())["uid"] == board[1]
    assert "var-replica=test-replica" in board[3]
    # It is resolved there too.
    assert until(lambda: stage.told(ALERT, "resolved"))
    assert ALERT not in stage.active()


@needs_alertmanager
def test_a_silence_that_holds_it_back_is_named_with_who_made_it_and_why(stage: Stage) -> None:
    now = datetime.now(UTC)
    silence = {
        "matchers": [{"name": "cluster", "value": "silent", "isRegex": False, "isEqual": True}],
        "startsAt": now.isoformat(),
        "endsAt": (now + timedelta(minutes=5)).isoformat(),
        "createdBy": "ops",
        "comment": "moving racks",
    }
    answer = httpx.post(f"{stage.url}/api/v2/silences", json=silence)
    assert answer.status_code == 200
    code, output = run("test", ALERT, "--alertmanager", stage.url, "--label", "cluster=silent")
    assert (code, output.endswith("did not arrive\n")) == (1, True)
    assert re.search(
        rf"held back +silence {answer.json()['silenceID']} of ops until .*: moving racks", output
    )


@needs_alertmanager
def test_an_alert_that_inhibits_it_is_named(stage: Stage) -> None:
    node = {"labels": {"alertname": "NodeIsDown", "cluster": "dark"}}
    assert httpx.post(f"{stage.url}/api/v2/alerts", json=[node], timeout=60).status_code == 200
    # Alertmanager takes an alert up after its answer; what has been sent for it has been taken up.
    assert until(lambda: stage.told("NodeIsDown", "firing"))
    given = ["--alertmanager", stage.url, "--label", "cluster=dark", "--label", "severity=warning"]
    code, output = run("test", ALERT, *given)
    assert (code, output.endswith("did not arrive\n")) == (1, True)
    assert re.search(r"held back +inhibited by alertname=NodeIsDown, cluster=dark", output)


@needs_alertmanager
def test_a_receiver_that_sends_nowhere_is_not_arrival(stage: Stage) -> None:
    code, output = run("test", UNSENT, "--alertmanager", stage.url)
    assert code == 1
    assert "receiver nobody (sends nowhere)" in output
    assert "no receiver on this route sends anything anywhere" in output


@needs_alertmanager
def test_a_receiver_that_refuses_is_not_arrival(stage: Stage) -> None:
    for wait in ("3", "20"):  # it is tried once at least in either, but on a machine that stands still
        given = ["--label", "cluster=broken", "--wait", wait]
        code, output = run("test", ALERT, "--alertmanager", stage.url, *given)
        if "failing" in output:
            break
    assert code == 1
    assert "receiver broken (webhook)" in output
    assert re.search(r"failing +webhook: \d+ requests failed", output)
    assert re.search(rf"not sent +nothing through webhook within {wait} s: it has failed so far", output)


@needs_alertmanager
def test_a_route_that_waits_longer_is_not_arrival_and_the_alert_is_resolved_all_the_same(
    stage: Stage,
) -> None:
    for wait in ("1", "20"):  # it is looked at once at least in either, but on a machine that stands still
        given = ["--label", "cluster=slow", "--wait", wait]
        code, output = run("test", ALERT, "--alertmanager", stage.url, *given)
        if "no notice" not in output:
            break
    assert code == 1
    assert "sends after 600 s" in output
    assert re.search(rf"not sent +nothing through webhook within {wait} s: ", output)
    assert until(lambda: ALERT not in stage.active())


@needs_alertmanager
def test_what_is_sent_for_another_alert_before_this_one_is_due_does_not_count(stage: Stage) -> None:
    """The message of a first alert goes out while the second waits in its group."""
    first = {"labels": {"alertname": "Other", "cluster": "slow-too"}}

    def post_the_other() -> None:
        """Once ours is there: it has been counted then what was sent before."""
        assert until(lambda: stage.active(cluster="slow"))
        httpx.post(f"{stage.url}/api/v2/alerts", json=[first], timeout=60).raise_for_status()

    poster = threading.Thread(target=post_the_other, daemon=True)
    poster.start()
    given = ["--label", "cluster=slow", "--wait", "8"]
    code, output = run("test", ALERT, "--alertmanager", stage.url, *given)
    poster.join(120)
    assert until(lambda: stage.told("Other", "firing"))
    assert code == 1, output
    assert "what it sent before this group's wait was over was another alert's" in output


@needs_alertmanager
@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed")
@pytest.mark.real
def test_with_a_prometheus_its_own_rule_external_labels_and_alertmanager_count(
    stage: Stage, tmp_path: Path
) -> None:
    rule = {"alert": ALERT, "expr": "vector(0) > 1", "labels": {"severity": "warning", "of": "here"}}
    rule["annotations"] = {"summary": "{{ $labels.rack }} is dark"}
    other = {"alert": "ExaServeKVPressure", "expr": "vector(0) > 1", "labels": {"severity": "critical"}}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule, other]}]}))
    target = stage.url.removeprefix("http://")
    config = {
        "global": {"external_labels": {"cluster": "east"}, "evaluation_interval": "1s"},
        "rule_files": [str(tmp_path / "rules.yml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [target]}]}]},
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_ports()
    argv = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*argv, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def knows_its_alertmanager() -> bool:
        try:
            return target in httpx.get(f"{url}/api/v1/alertmanagers").text
        except httpx.HTTPError:
            return False

    try:
        assert until(knows_its_alertmanager), (tmp_path / "log").read_text()
        before = len(stage.told(ALERT, "firing"))
        code, output = run("test", ALERT, "--prometheus", url)
        assert code == 0, output
        told = stage.told(ALERT, "firing")[before:][0]
        assert told["labels"] == {
            "alertname": ALERT,
            "cluster": "east",
            "severity": "warning",
            "of": "here",
            "rack": "test-rack",
            "test": "true",
        }
        assert told["annotations"] == {"summary": "[TEST] test-rack is dark"}
        # A rule that it has not loaded can't fire.
        code, output = run("test", "ExaServePathMTU", "--prometheus", url)
        assert (code, "Prometheus has no rule ExaServePathMTU (warning) loaded" in output) == (1, True)
    finally:
        process.terminate()
        process.wait(60)


def test_without_an_alertmanager_it_says_so_and_ends_with_1() -> None:
    with closed_port() as port:
        code, output = run("test", ALERT, "--alertmanager", f"http://user:secret@127.0.0.1:{port}")
    assert code == 1
    assert "no connection to http://127.0.0.1:" in output
    assert "secret" not in output


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (
            ["ExaServeReplicaDwn"],
            "no alert ExaServeReplicaDwn for exaserve; did you mean ExaServeReplicaDown",
        ),
        ([ALERT, "--source", "slurm"], "--source: 'slurm' is none of exaserve, vllm, ray"),
        ([ALERT, "--label", "replica"], "--label: replica: give KEY=VALUE"),
        ([ALERT, "--severity", "loud"], f"--severity: {ALERT} has only "),
    ],
)
def test_wrong_usage_ends_with_2_before_anything_is_posted(args: list[str], problem: str) -> None:
    code, output = run("test", *args)
    assert (code, output.startswith(problem)) == (2, True), output


@pytest.mark.parametrize("source", SOURCES)
def test_every_alerts_templates_can_be_filled(source: str) -> None:
    for rule in all_rules(source):
        alert = drill(rule, {})
        for text in (*alert.labels.values(), *alert.annotations.values()):
            assert "{{" not in text, (rule.name, text)
            assert "$" not in text, (rule.name, text)


def test_a_made_up_cluster_keeps_a_test_from_inhibiting_real_alerts() -> None:
    (rule,) = [rule for rule in all_rules("exaserve") if rule.name == UNSENT]
    one, other = (drill(rule, {}).labels["cluster"] for _ in range(2))
    assert one.startswith("test-")
    assert one != other
    assert drill(rule, {"cluster": "prod"}).labels["cluster"] == "prod"
    assert "cluster" not in drill(rule, {"cluster": ""}).labels
