"""The generated alertmanager.yml as Alertmanager itself reads it: whole, right receivers, the right silences."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from dashboards import alerting, alertmanager, build
from dashboards.alerts_cli import app
from tests.conftest import free_ports

EXAMPLE = Path(alerting.__file__).with_name("alerting.example.yaml")
BINARY = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")

needs_amtool = pytest.mark.skipif(
    not shutil.which("amtool"), reason="amtool is not installed (Debian: prometheus-alertmanager)"
)


def options(text: str, tmp_path: Path) -> alerting.Alerting:
    file = tmp_path / "alerting.yaml"
    file.write_text(text)
    return alerting.read(file)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    file = tmp_path / "alertmanager.yml"
    file.write_text(alertmanager.config(alerting.read(EXAMPLE)))
    return file


@needs_amtool
@pytest.mark.parametrize("of", ["example", "nothing"])
def test_amtool_takes_the_configuration(of: str, tmp_path: Path) -> None:
    file = tmp_path / "alertmanager.yml"
    file.write_text(alertmanager.config(alerting.read(EXAMPLE) if of == "example" else alerting.Alerting()))
    check = subprocess.run(["amtool", "check-config", file], capture_output=True, text=True)
    assert check.returncode == 0, check.stdout + check.stderr


@needs_amtool
@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ("alertname=ExaServePoolOut severity=critical team=serving", "on-call"),
        ("alertname=ExaServeErrorBudgetBurn severity=critical team=serving model=m", "on-call"),
        ("alertname=ExaServeReplicaDown severity=warning team=serving", "serving"),
        ("alertname=ExaServeFabricCongested severity=warning team=network", "network"),
        ("alertname=ExaServeFabricPortDown severity=warning team=network", "network"),
        ("alertname=ExaServeStorageSlow severity=warning team=storage", "network"),
        ("alertname=ExaServeGPULost severity=warning team=platform", "serving"),
        ("alertname=ExaServeTenantLimited severity=info team=serving", "tickets"),
        ("alertname=ExaServeWatchdog severity=info team=platform", "dead-man"),
        ("alertname=ExaServeReplicaOnDownNode severity=info team=platform", "nobody"),
        ("alertname=SomebodyElses severity=page", "nobody"),
    ],
)
def test_an_alert_goes_to_the_receiver_of_its_team_and_severity(
    labels: str, receiver: str, example: Path
) -> None:
    found = subprocess.run(
        ["amtool", "config", "routes", "test", f"--config.file={example}", *labels.split()],
        capture_output=True,
        text=True,
    )
    assert (found.stdout.strip(), found.returncode) == (receiver, 0)


def test_who_is_told_is_told_of_the_end_too_and_a_dead_mans_switch_is_not(example: Path) -> None:
    receivers = yaml.safe_load(example.read_text())["receivers"]
    told = {
        f"{r['name']} {kind}": entry["send_resolved"]
        for r in receivers
        for kind, entries in r.items()
        if kind != "name"
        for entry in entries
    }
    assert told == {
        "on-call pagerduty_configs": True,
        "on-call slack_configs": True,
        "serving slack_configs": True,
        "network email_configs": True,
        "tickets webhook_configs": True,
        "dead-man webhook_configs": False,
    }


def test_no_secret_is_in_the_options_or_the_configuration() -> None:
    """Keys that would hold one are unknown; there are only paths of files."""
    for kind, entry in [
        ("pagerduty", {"routing_key": "s"}),
        ("slack", {"api_url": "https://s", "channel": "#c"}),
        ("webhook", {"url": "http://x", "token": "s"}),
    ]:
        with pytest.raises(ValueError, match="Extra inputs are not permitted"):
            alerting.Alerting.model_validate({"receivers": {"a": {kind: [entry]}}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("routes: {critical: on-cal}\nreceivers: {on-call: {}}", "routes.critical: on-cal is none of receivers"),
        ("teams: {network: {warning: x}}", "teams.network.warning: x is none of receivers (nobody)"),
        ("teams: {sales: {}}", "teams.sales"),
        ("watchdog: gone", "watchdog: gone is none of receivers"),
        ("receivers: {nobody: {}}", "nobody is there already"),
        ("receivers: {a: {email: [{to: a@example.org}]}}", "smtp: a receiver sends mail"),
        ("receivers: {a: {webhook: [{}]}}", "give url or url_file, one of them"),
        ("receivers: {a: {pagerduty: [{routing_key_file: key}]}}", "routing_key_file"),
        ("receivers: [", "is no YAML"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_with_their_place(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        options(text, tmp_path)
    assert said in str(raised.value)


def test_every_alert_that_the_configuration_names_exists() -> None:
    rules = [r for g in build.groups(build.SOURCES["exaserve"], build.DEFAULT).values() for r in g.rules]
    known = {r.name for r in rules if hasattr(r, "severity")}
    texts = [m for r in alertmanager.inhibitions() for m in (*r["source_matchers"], *r["target_matchers"])]
    named = {
        name
        for text in texts
        if text.startswith("alertname") and "(" not in text
        for name in text.split('"')[1].split("|")
    }
    assert named - known == set()


def test_the_command_writes_the_file_and_says_what_is_wrong(tmp_path: Path) -> None:
    out = tmp_path / "alertmanager.yml"
    result = CliRunner().invoke(app, ["config", "--file", str(EXAMPLE), "--out", str(out)])
    assert (result.exit_code, result.output) == (0, f"wrote {out}\n")
    assert yaml.safe_load(out.read_text())["route"]["receiver"] == "nobody"
    printed = CliRunner().invoke(app, ["config"])
    assert yaml.safe_load(printed.output)["receivers"] == [{"name": "nobody"}]
    (tmp_path / "bad.yaml").write_text("routes: {critical: x}")
    bad = CliRunner().invoke(app, ["config", "--file", str(tmp_path / "bad.yaml")])
    assert bad.exit_code == 2
    assert "routes.critical: x is none of receivers" in bad.output
    assert CliRunner().invoke(app, ["config", "--file", str(tmp_path / "none.yaml")]).exit_code == 2


def rendered(tmp_path: Path, text: str, firing: int, resolved: int) -> str:
    """A message as Alertmanager writes it."""
    of = [("firing", i) for i in range(firing)] + [("resolved", i) for i in range(resolved)]
    links = {"runbook_url": "R", "dashboard_url": "D"}
    alerts = [
        {"status": status, "annotations": {"summary": f"{status} {i}.", "description": "Do.", **links}}
        for status, i in of
    ]
    (tmp_path / "data.json").write_text(json.dumps({"alerts": alerts}))
    (tmp_path / "none.tmpl").write_text("")
    run = subprocess.run(
        ["amtool", "template", "render", f"--template.glob={tmp_path}/*.tmpl",
         f"--template.data={tmp_path}/data.json", f"--template.text={text}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return run.stdout


@needs_amtool
def test_a_message_names_what_fires_and_what_is_over(example: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(example.read_text())
    slack = next(r["slack_configs"][0]["text"] for r in config["receivers"] if "slack_configs" in r)
    assert rendered(tmp_path, slack, 1, 1) == "firing 0.\nDo.\n<R|Runbook> <D|Board>\n\nOver: resolved 0.\n"


@needs_amtool
@pytest.mark.parametrize(("firing", "resolved"), [(3072, 0), (0, 3072)])
def test_a_message_about_a_whole_fleet_is_short(
    example: Path, tmp_path: Path, firing: int, resolved: int
) -> None:
    config = yaml.safe_load(example.read_text())
    mail = next(r["email_configs"][0]["text"] for r in config["receivers"] if "email_configs" in r)
    message = rendered(tmp_path, mail, firing, resolved)
    assert len(message) < 1000
    assert "3072 in all" in message or "3072 are over in all" in message
    assert "firing 9." in message or "resolved 9." in message
    assert " 10." not in message


@pytest.fixture
def running(example: Path, tmp_path: Path) -> Iterator[str]:
    """Address of an Alertmanager with the example's configuration."""
    if BINARY is None:
        pytest.skip("Alertmanager is not installed (Debian: prometheus-alertmanager)")
    port = free_ports()
    text = example.read_text()
    for secret in ("pagerduty-key", "slack-url", "tickets-token", "smtp-password"):
        (tmp_path / secret).write_text("http://127.0.0.1:1/")
        text = text.replace(f"/etc/prometheus/secrets/{secret}", str(tmp_path / secret))
    example.write_text(text)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [BINARY, f"--config.file={example}", f"--storage.path={tmp_path / 'data'}",
             "--cluster.listen-address=", f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 90
        while not _ready(url):
            assert time.monotonic() < end, (tmp_path / "log").read_text()
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready").status_code == 200
    except httpx.HTTPError:
        return False


def alert(name: str, severity: str = "warning", **labels: str) -> dict[str, Any]:
    return {"labels": {"alertname": name, "severity": severity, "cluster": "c", **labels}}


def test_alertmanager_silences_what_another_alert_explains_and_nothing_else(running: str) -> None:
    sent = [
        alert("ExaServeNodeDown", instance="n1:9420"),
        alert("ExaServeReplicaOnDownNode", "info", instance="n1:9420", replica="r1"),
        alert("ExaServeReplicaDown", replica="r1", model="m"),
        alert("ExaServeGPULost", instance="n1:9420", gpu="0"),
        alert("ExaServeReplicaDown", replica="r2", model="m"),
        alert("ExaServeGPULost", instance="n2:9420", gpu="0"),
        alert("ExaServePoolOut", "critical", condition="model", model="x"),
        alert("ExaServeReplicaDown", replica="r3", model="x"),
        alert("ExaServePanic", "critical", pool="p"),
        alert("ExaServeCapacityRefused", "critical", pool="p"),
        alert("ExaServeCapacityRefused", pool="p"),
        alert("ExaServeCapacityRefused", pool="q"),
        alert("ExaServeReplicaFrozen", replica="r4", model="m"),
        alert("ExaServeReplicaDown", replica="r4", model="m"),
        alert("ExaServeTargetMissing", condition="exporter", instance="n3:9420"),
        alert("ExaServeFabricCongested", instance="n3:9420", device="mlx5_0"),
        alert("ExaServeErrorBudgetBurn", "critical", model="m"),
    ]
    httpx.post(f"{running}/api/v2/alerts", json=sent, timeout=60).raise_for_status()
    held: set[str] = set()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = httpx.get(f"{running}/api/v2/alerts", timeout=60).json()
        held = {_said(a["labels"]) for a in found if a["status"]["inhibitedBy"]}
        if len(found) == len(sent) and len(held) >= 7:
            break
        time.sleep(0.2)
    assert held == {
        "ExaServeReplicaDown r1",
        "ExaServeGPULost n1:9420",
        "ExaServeReplicaDown r3",
        "ExaServePanic p",
        "ExaServeCapacityRefused p warning",
        "ExaServeReplicaDown r4",
        "ExaServeFabricCongested n3:9420",
    }


def _said(labels: dict[str, str]) -> str:
    which = next(labels[name] for name in ("replica", "instance", "pool", "model") if name in labels)
    more = f" {labels['severity']}" if labels["alertname"] == "ExaServeCapacityRefused" else ""
    return f"{labels['alertname']} {which}{more}"
