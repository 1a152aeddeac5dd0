"""Generated rules as Prometheus itself evaluates them: ``promtool check`` and the unit tests ``*.yaml`` beside.

A unit test names rule files as ``kv.yaml`` (ExaServe's fleets) or ``vllm/kv.yaml`` (another source's).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.rulefile import TEAMS
from dashboards.rules import bands, slo, slo_budget, watchdog

sys.path.insert(0, str(Path(__file__).parent))

from expected import complete
from queries import FOLDERS, boards, panels, rules

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
CASES = sorted(HERE.glob("*.yaml"))
#: Files that are not evaluated every 5 s.
INTERVALS = {
    "slo": f"{slo.INTERVAL_SECONDS}s",
    "slo_budget": slo_budget.INTERVAL,
    "bands": bands.INTERVAL,
    "leak": "1m",
    "links": "15s",
    "usage": "30s",
}

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)"
)
each_source = pytest.mark.parametrize("source", FOLDERS)


def rule_file(name: str) -> Path:
    source, _, file = name.rpartition("/")
    return FOLDERS[source or "exaserve"] / "rules" / file


def _rules_of(file: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def alerts(source: str) -> list[dict[str, Any]]:
    return [rule for rule in rules(FOLDERS[source]) if "alert" in rule]


@needs_promtool
@each_source
def test_promtool_takes_every_rule_file(source: str) -> None:
    files = sorted((FOLDERS[source] / "rules").glob("*.yaml"))
    check = subprocess.run(["promtool", "check", "rules", *files], capture_output=True, text=True)
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
    data["rule_files"] = [str(rule_file(name)) for name in data["rule_files"]]
    # Without it promtool takes the groups in any order, and one may ask for what another has not recorded yet.
    data.setdefault("group_eval_order", [f"exaserve-{Path(name).stem}" for name in data["rule_files"]])
    data["tests"] = [data["tests"][number]]
    complete(data["tests"][0], [r for f in data["rule_files"] for r in _rules_of(Path(f))])
    (tmp_path / "case.yaml").write_text(yaml.dump(data))
    run = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "case.yaml"], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, f"{data['tests'][0]['name']}\n{run.stdout}{run.stderr}"


def test_every_alert_has_a_case_that_fires_and_one_that_keeps_quiet() -> None:
    names = {alert["alert"] for source in FOLDERS for alert in alerts(source)}
    checks = [
        c
        for path in CASES
        for t in yaml.safe_load(path.read_text())["tests"]
        for c in t.get("alert_rule_test", [])
    ]
    assert {c["alertname"] for c in checks if c.get("exp_alerts")} == names
    assert {c["alertname"] for c in checks if not c.get("exp_alerts")} == names - {watchdog.ALERT}


@each_source
def test_every_alert_has_severity_and_annotations_and_leads_to_runbook_and_board(source: str) -> None:
    found = boards(FOLDERS[source])
    for rule in alerts(source):
        name = rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
        assert rule["labels"]["team"] in TEAMS, name
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}, name
        assert "$value" in rule["annotations"]["summary"], name
        assert rule["annotations"]["runbook_url"] == f"runbooks/{name}.md"
        assert (ROOT / "runbooks" / f"{name}.md").is_file()
        board = re.match(r"/d/exaserve-(\w+)", rule["annotations"]["dashboard_url"])
        assert board, name
        assert board[1] in found, name


#: Users are cut off or refused, or will be within two days.
PAGES = {
    "ExaServeCapacityRefused",
    "ExaServeCertificateExpiring",
    "ExaServeErrorBudgetBurn",
    "ExaServePanic",
    "ExaServePoolOut",
    "ExaServeRouterDown",
}


@each_source
def test_only_what_users_feel_wakes_somebody(source: str) -> None:
    critical = {rule["alert"] for rule in alerts(source) if rule["labels"]["severity"] == "critical"}
    assert critical == PAGES & {rule["alert"] for rule in alerts(source)}
    for rule in alerts(source):
        if "Users feel it now" in rule["annotations"]["description"]:
            assert rule["labels"]["severity"] == "critical", rule


@each_source
def test_rules_never_mix_clusters(source: str) -> None:
    """Clusters that share a Prometheus may have nodes, replicas and pools of one name."""
    for rule in rules(FOLDERS[source]):
        for labels in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", rule["expr"]):
            assert "cluster" in labels.replace(",", " ").split(), rule["expr"]
        for text in rule.get("annotations", {}).values():
            for asked in re.findall(r"printf `\w[\w:]*{([^`]*)}[^`]*`", text):
                assert "cluster=%q" in asked, rule["alert"]


@pytest.mark.parametrize("source", ["vllm", "ray"])
def test_where_there_is_no_router_nothing_speaks_of_it(source: str) -> None:
    """Nor asks for what only our own stack's jobs say."""
    for rule in rules(FOLDERS[source]):
        said = rule.get("annotations", {})
        assert "router" not in f"{said.get('summary')} {said.get('description')}".lower(), rule
        assert "exaserve-replica" not in rule["expr"]
        assert "exaserve_router" not in rule["expr"]
    for name, board in boards(FOLDERS[source]).items():
        for panel in panels(board):
            said = f"{panel['title']} {panel.get('description')}".lower()
            assert not re.search(r"router|pool|tenant", said), f"{name}: {said}"


@each_source
def test_every_group_is_evaluated_as_often_as_its_sums_assume(source: str) -> None:
    for path in (FOLDERS[source] / "rules").glob("*.yaml"):
        (group,) = yaml.safe_load(path.read_text())["groups"]
        assert group["interval"] == INTERVALS.get(path.stem, "5s"), path.stem
        assert group["name"] == f"exaserve-{path.stem}"


@each_source
def test_no_two_rules_record_the_same_series(source: str) -> None:
    """Two groups that wrote one series would fight over it; within a group labels tell them apart."""
    seen: dict[tuple[str, str], str] = {}
    for path in (FOLDERS[source] / "rules").glob("*.yaml"):
        for rule in yaml.safe_load(path.read_text())["groups"][0]["rules"]:
            if "record" in rule:
                key = (rule["record"], str(sorted(rule.get("labels", {}).items())))
                assert key not in seen, f"{rule['record']} in {path.stem} and {seen[key]}"
                seen[key] = path.stem
