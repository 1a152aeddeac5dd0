"""Generated rules as Prometheus itself evaluates them: ``promtool check`` and the unit tests ``*.yaml`` beside."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from dashboards import build

HERE = Path(__file__).parent
RULES = sorted((build.GENERATED / "rules").glob("*.yaml"))
CASES = sorted(HERE.glob("*.yaml"))

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)"
)


@needs_promtool
@pytest.mark.parametrize("path", RULES, ids=lambda p: p.stem)
def test_promtool_takes_every_rule_file(path: Path) -> None:
    check = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True)
    assert (check.returncode, check.stderr) == (0, "")


@needs_promtool
@pytest.mark.parametrize(
    ("path", "number"),
    [(path, i) for path in CASES for i in range(len(yaml.safe_load(path.read_text())["tests"]))],
    ids=lambda v: v.stem if isinstance(v, Path) else str(v),
)
def test_promtool_unit_test(path: Path, number: int, tmp_path: Path) -> None:
    """One case of one file, so that a failure names it."""
    data = yaml.safe_load(path.read_text())
    data["rule_files"] = [str(build.GENERATED / "rules" / name) for name in data["rule_files"]]
    data["tests"] = [data["tests"][number]]
    (tmp_path / "case.yaml").write_text(yaml.dump(data))
    run = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "case.yaml"], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, f"{data['tests'][0]['name']}\n{run.stdout}{run.stderr}"


def test_every_alert_has_a_case_that_fires_and_one_that_keeps_quiet() -> None:
    alerts = {
        r["alert"]
        for p in RULES
        for g in yaml.safe_load(p.read_text())["groups"]
        for r in g["rules"]
        if "alert" in r
    }
    checks = [
        c
        for path in CASES
        for t in yaml.safe_load(path.read_text())["tests"]
        for c in t.get("alert_rule_test", [])
    ]
    assert {c["alertname"] for c in checks if c.get("exp_alerts")} == alerts
    assert {c["alertname"] for c in checks if not c.get("exp_alerts")} == alerts


def test_every_alert_has_severity_and_annotations() -> None:
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            assert group["interval"] == "5s"
            for rule in (r for r in group["rules"] if "alert" in r):
                assert rule["labels"]["severity"] in ("critical", "warning", "info")
                assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}
                assert "$value" in rule["annotations"]["summary"]
                assert rule["annotations"]["runbook_url"].endswith(f"/{rule['alert']}.md")
