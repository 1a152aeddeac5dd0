"""Every alert leads to a runbook that is whole; of all runbooks the commands, metrics, keys and links exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from runbook_text import FILTERS, PROGRAMS, ROOT, RUNBOOKS, blocks, command_lines, promql, simple_commands

from exporters.catalog import CATALOG

sys.path.insert(0, str(ROOT / "tests" / "dashboards"))

import alert_index
from alert_index import INDEX
from queries import FOLDERS, metrics_of, rules

TEMPLATE = ROOT / "runbooks" / "TEMPLATE.md"
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation", "Verification", "Escalation"]

RULES: list[dict[str, Any]] = [rule for folder in FOLDERS.values() for rule in rules(folder)]
ALERTS = {r["alert"] for r in RULES if "alert" in r}
RECORDED = {r["record"] for r in RULES if "record" in r}
#: What Prometheus itself and a vLLM of any version have.
OTHERS = {
    "up", "ALERTS", "scrape_duration_seconds", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
    "prometheus_rule_evaluation_failures_total", "prometheus_rule_group_last_duration_seconds",
    "prometheus_notifications_alertmanagers_discovered", "prometheus_tsdb_head_series",
    "alertmanager_notifications_failed_total",
}  # fmt: skip
_SERIES = {
    f"{name}{suffix}" for name, m in CATALOG.items() if m.kind == "histogram" for suffix in ("_bucket", "_count", "_sum")
}  # fmt: skip
KNOWN = RECORDED | set(CATALOG) | _SERIES | OTHERS

#: Paths of the router, its admin API, Prometheus, Alertmanager and the exporter that runbooks may ask.
PATHS = {
    "8000": {"/v1/models", "/v1/chat/completions"},
    "8001": {"/livez", "/readyz", "/metrics", "/fleet", "/sd", "/workers"},
    "9090": {"/-/healthy", "/-/ready", "/api/v1/targets", "/api/v1/rules", "/api/v1/alerts", "/metrics"},
    "9093": {"/-/healthy", "/-/ready", "/api/v2/alerts", "/api/v2/silences", "/api/v2/status", "/metrics"},
    "9420": {"/metrics", "/healthz"},
}

each_runbook = pytest.mark.parametrize("path", RUNBOOKS.values(), ids=RUNBOOKS)


@pytest.fixture(scope="module")
def cli() -> Any:
    """The command ``exaserve`` with all its subcommands, which it has only where none is asked for."""
    from serving.cli import build_app

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["exaserve"])
        return typer.main.get_command(build_app())


def commands(path: Path) -> list[list[str]]:
    """The words of every program that a runbook says to run."""
    return [c for line in command_lines(path.read_text()) for c in simple_commands(line)]


# --- which runbooks there are -----------------------------------------------------------------------------


def test_every_alert_has_a_runbook_and_every_runbook_named_like_an_alert_has_one() -> None:
    assert {name for name in RUNBOOKS if name.startswith("ExaServe")} == ALERTS


def test_every_alerts_runbook_url_leads_to_a_file() -> None:
    for rule in RULES:
        if "alert" in rule:
            assert (ROOT / rule["annotations"]["runbook_url"]).is_file()


def test_the_index_leads_to_every_runbook_and_to_nothing_else() -> None:
    links = set(re.findall(r"\]\((\w+)\.md\)", INDEX.read_text()))
    assert links == set(RUNBOOKS) | {"TEMPLATE"}


def test_the_index_tells_every_alert_with_its_severity_and_what_its_runbook_says() -> None:
    """``python tests/runbooks/alert_index.py`` writes the table anew."""
    assert alert_index.written() == alert_index.table()


# --- each runbook -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*RUNBOOKS.values(), TEMPLATE], ids=lambda p: p.stem)
def test_a_runbook_has_all_headings_in_order_and_none_is_empty(path: Path) -> None:
    text = path.read_text()
    title = "AlertName" if path == TEMPLATE else path.stem
    assert text.startswith(f"# {title}\n\n")
    parts = re.split(r"^## (.+)$", text, flags=re.M)
    assert parts[1::2] == HEADINGS
    assert all(len(body.strip()) > 40 for body in parts[2::2])


@each_runbook
def test_every_metric_that_a_runbook_names_exists(path: Path) -> None:
    named = set(re.findall(r"(?:\b\w+:)?\bexaserve_\w+(?::\w+)?", path.read_text()))
    assert named
    assert named - KNOWN == set()


@each_runbook
def test_every_query_of_a_runbook_parses_and_uses_known_metrics(path: Path) -> None:
    queries = [query for line in command_lines(path.read_text()) for query in promql(line)]
    assert queries
    for query in queries:
        assert metrics_of(query) - KNOWN == set(), query


@each_runbook
def test_every_command_of_a_runbook_is_one_for_bash_and_of_a_program_that_runbooks_use(path: Path) -> None:
    lines = command_lines(path.read_text())
    checked = subprocess.run(
        ["bash", "-n"], input="\n".join(lines), text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    for line in lines:
        assert line.split()[0] in PROGRAMS, line
        assert {words[0] for words in simple_commands(line)} <= PROGRAMS | FILTERS, line


@each_runbook
def test_every_exaserve_command_of_a_runbook_exists_with_its_options(path: Path, cli: Any) -> None:
    for words in commands(path):
        if words[0] == "exaserve":
            assert not (missing := unknown_words(cli, words[1:])), f"{missing} of {' '.join(words)}"


@each_runbook
def test_every_exaserve_command_in_the_text_of_a_runbook_exists(path: Path, cli: Any) -> None:
    prose = "".join(re.split(r"^```.*?^```$", path.read_text(), flags=re.S | re.M))
    for said in re.findall(r"`exaserve ([^`]+)`", prose):
        assert not (missing := unknown_words(cli, said.split())), f"{missing} of exaserve {said}"


@each_runbook
def test_every_address_that_a_runbook_asks_is_one_of_the_stacks(path: Path) -> None:
    for line in command_lines(path.read_text()):
        for port, place in re.findall(r"127\.0\.0\.1:(\d+)((?:/[-\w.]+)*)", line):
            assert place in PATHS[port] | {""}, line


@each_runbook
def test_a_runbook_begins_with_what_anybody_can_ask(path: Path) -> None:
    """The parts' states, or the router's view of replicas that others started."""
    assert {"exaserve status", "curl -s 127.0.0.1:8001/fleet"} & set(command_lines(path.read_text()))


@each_runbook
def test_every_sample_of_output_is_said_to_be_good_or_bad(path: Path) -> None:
    for block in blocks(path.read_text()):
        if not block.is_commands:
            assert re.search(r"\b(good|bad)\b", block.lead, re.I), block.lead


@each_runbook
def test_every_example_is_followed_from_diagnosis_by_good_and_bad(path: Path) -> None:
    diagnosis = path.read_text().split("## Diagnosis")[1].split("## Mitigation")[0]
    assert len(re.findall(r"\b[Gg]ood\b", diagnosis)) >= 3
    assert len(re.findall(r"\b[Bb]ad\b", diagnosis)) >= 1


@each_runbook
def test_every_configuration_key_that_a_runbook_names_exists(path: Path) -> None:
    config = pytest.importorskip("serving.config")
    schema = json.loads(json.dumps(config.to_schema()))
    sections = "model|engine|fleet|router|network|exporter|monitoring"
    for section, key in re.findall(rf"`({sections})\.(\w+)`", path.read_text()):
        name = schema["properties"][section]
        definition = schema["$defs"][(name.get("$ref") or name["allOf"][0]["$ref"]).rpartition("/")[2]]
        assert key in definition["properties"], f"{section}.{key}"


@pytest.mark.parametrize("path", [*RUNBOOKS.values(), TEMPLATE, INDEX], ids=lambda p: p.stem)
def test_links_of_a_runbook_lead_to_files(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert "://" in link or (path.parent / link).is_file(), link


# --- the checks themselves --------------------------------------------------------------------------------


def unknown_words(command: Any, words: list[str]) -> list[str]:
    """Subcommands and options that the command line does not have."""
    for n, word in enumerate(words):
        if word.startswith("-") or not getattr(command, "commands", None):
            options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
            return [w for w in words[n:] if w.startswith("-") and w.partition("=")[0] not in options]
        if word not in command.commands:
            return [word]
        command = command.commands[word]
    return []


def test_a_command_or_an_option_that_is_not_there_is_found(cli: Any) -> None:
    assert unknown_words(cli, ["status", "--json"]) == []
    assert unknown_words(cli, ["statuses"]) == ["statuses"]
    assert unknown_words(cli, ["logs", "replica-0", "-n", "20", "--forever"]) == ["--forever"]
    assert unknown_words(cli, ["tenants", "lst"]) == ["lst"]


def test_blocks_and_lines_are_taken_apart_as_bash_does() -> None:
    text = "## Diagnosis\nWhich?\n```\nexaserve status | grep -E 'a|b' > x.txt; ss -tn\n```\ngood:\n```\nPART\n```\n"
    assert [(b.section, b.lead, b.is_commands) for b in blocks(text)] == [
        ("Diagnosis", "Which?", True),
        ("Diagnosis", "good:", False),
    ]
    assert [simple_commands(line) for line in command_lines(text)] == [
        [["exaserve", "status"], ["grep", "-E", "a|b"], ["ss", "-tn"]]
    ]
    assert promql("promtool query instant http://127.0.0.1:9090 'a > 0'") == ["a > 0"]
    with pytest.raises(ValueError, match="not `promtool query instant"):
        promql("promtool query range http://127.0.0.1:9090 'a'")
