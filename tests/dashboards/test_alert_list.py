"""``exaserve alerts list``: every alert of the rule files, in lines or in JSON."""

from __future__ import annotations

import json

import yaml
from typer.testing import CliRunner

from dashboards import build
from dashboards.alerts_cli import app


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(args))
    return result.exit_code, result.output


def test_list_has_every_alert_of_the_rule_files() -> None:
    written = {
        rule["alert"]
        for path in (build.GENERATED / "rules").glob("*.yaml")
        for rule in yaml.safe_load(path.read_text())["groups"][0]["rules"]
        if "alert" in rule
    }
    code, output = run("list")
    *rows, last = output.splitlines()
    assert (code, {row.split()[1] for row in rows}) == (0, written)
    assert last == f"{len(written)} alerts; what to do: exaserve runbook NAME"


def test_list_chooses_by_severity_and_gives_json() -> None:
    critical = json.loads(run("list", "--severity", "critical", "--json")[1])
    assert critical
    assert {rule["severity"] for rule in critical} == {"critical"}
    assert set(critical[0]) == {"name", "severity", "wait", "file", "labels", "annotations"}
    assert run("list", "--severity", "loud")[0] == 2
