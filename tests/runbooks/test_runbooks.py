"""Every alert leads to a runbook that is whole, and whose commands, metrics and keys exist."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dashboards import build
from exporters.catalog import CATALOG

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "dashboards"))

from queries import metrics_of, rules  # noqa: E402

RUNBOOKS = sorted((ROOT / "runbooks").glob("*.md"))
ALERT_RUNBOOKS = [p for p in RUNBOOKS if p.stem != "TEMPLATE"]
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation", "Verification", "Escalation"]

RULES: list[dict[str, Any]] = list(rules(build.GENERATED))
ALERTS = {r["alert"] for r in RULES if "alert" in r}
RECORDED = {r["record"] for r in RULES if "record" in r}

#: Subcommands of `exaserve` (the whole-stack tests run them) and paths of the admin API and the exporter.
COMMANDS = {"up", "down", "status", "logs", "ask", "config", "router", "exporter", "dashboards"}
PATHS = {
    "8000": {"/v1/models"},
    "8001": {"/livez", "/readyz", "/metrics", "/fleet", "/sd"},
    "9420": {"/metrics"},
}
PATHS["8000"].add("/v1/chat/completions")

each_runbook = pytest.mark.parametrize("path", ALERT_RUNBOOKS, ids=lambda p: p.stem)


def commands(path: Path) -> list[str]:
    """The lines of code blocks that are commands."""
    blocks = re.findall(r"^```\n(.*?)^```$", path.read_text(), re.S | re.M)
    lines = [part.strip() for block in blocks for line in block.splitlines() for part in line.split("; ")]
    return [line for line in lines if re.match(r"(exaserve|curl|promtool|dmesg|ss) ", line)]


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert {p.stem for p in ALERT_RUNBOOKS} == ALERTS


def test_every_alerts_runbook_url_leads_to_a_file() -> None:
    for rule in RULES:
        if "alert" in rule:
            assert (ROOT / rule["annotations"]["runbook_url"]).is_file()


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda p: p.stem)
def test_a_runbook_has_all_headings_in_order_and_none_is_empty(path: Path) -> None:
    text = path.read_text()
    title = "AlertName" if path.stem == "TEMPLATE" else path.stem
    assert text.startswith(f"# {title}\n\n")
    parts = re.split(r"^## (.+)$", text, flags=re.M)
    assert parts[1::2] == HEADINGS
    assert all(len(body.strip()) > 40 for body in parts[2::2])


@each_runbook
def test_every_metric_that_a_runbook_names_exists(path: Path) -> None:
    named = set(re.findall(r"(?:\b\w+:)?\bexaserve_\w+(?::\w+)?", path.read_text()))
    assert named
    assert named - RECORDED - set(CATALOG) == set()


@each_runbook
def test_every_query_of_a_runbook_parses(path: Path) -> None:
    queries = [
        re.fullmatch(r"promtool query instant \S+ '(.+)'", c) for c in commands(path) if "promtool" in c
    ]
    assert queries
    for query in queries:
        assert query, "a promtool command of another shape"
        assert metrics_of(query[1]) <= RECORDED | set(CATALOG)


@each_runbook
def test_every_command_of_a_runbook_exists(path: Path) -> None:
    found = commands(path)
    assert "exaserve status" in found
    for command in found:
        program, first = command.split()[:2]
        if program == "exaserve":
            assert first in COMMANDS, command
        for port, place in re.findall(r"127\.0\.0\.1:(\d+)(/[\w/]+)", command):
            assert place in PATHS[port], command


@each_runbook
def test_every_example_is_followed_from_diagnosis_by_good_and_bad(path: Path) -> None:
    diagnosis = path.read_text().split("## Diagnosis")[1].split("## Mitigation")[0]
    assert len(re.findall(r"\b[Gg]ood\b", diagnosis)) >= 3
    assert len(re.findall(r"\b[Bb]ad\b", diagnosis)) >= 1


@each_runbook
def test_every_configuration_key_that_a_runbook_names_exists(path: Path) -> None:
    config = pytest.importorskip("serving.config")
    schema = json.loads(json.dumps(config.to_schema()))
    for section, key in re.findall(r"`(model|engine|fleet|router|monitoring)\.(\w+)`", path.read_text()):
        name = schema["properties"][section]
        definition = schema["$defs"][(name.get("$ref") or name["allOf"][0]["$ref"]).rpartition("/")[2]]
        assert key in definition["properties"], f"{section}.{key}"


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda p: p.stem)
def test_links_of_a_runbook_lead_to_files(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert "://" in link or (path.parent / link).is_file(), link
