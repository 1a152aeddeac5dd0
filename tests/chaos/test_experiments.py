"""The experiments and the extension as Chaos Toolkit sees them: its own command, its own journal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from chaoslib import substitute
from chaoslib.configuration import load_configuration
from chaoslib.experiment import ensure_experiment_is_valid
from chaoslib.loader import load_experiment

from chaos import fault as faults
from chaos.run import plan

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((ROOT / "chaos" / "experiments").glob("*.yaml"))
#: Those that the stand-in can play: it has two processes that can be killed and stopped, and no more.
PLAYED = [e for e in EXPERIMENTS if e.stem in ("replica-crash", "replica-freeze")]


def chaos(cwd: Path, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).parent / "chaos", "--no-version-check", *arguments]
    return subprocess.run(command, cwd=cwd, env=os.environ | env, capture_output=True, text=True, timeout=280)


def test_discover_lists_every_action_and_probe_with_its_arguments(tmp_path: Path) -> None:
    run = chaos(tmp_path, "discover", "--no-install", "exaserve")
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "discovery.json").read_text())
    assert found["extension"]["name"] == "exaserve"
    activities = {a["name"]: a for a in found["activities"]}
    assert {n for n, a in activities.items() if a["type"] == "action"} == {
        *("freeze_replica", "inject_fault", "kill_replica", "recover", "start_load", "stop_load"),
        *("thaw_replica", "undo_fault", "watch"),
    }
    assert [a["name"] for a in activities["kill_replica"]["arguments"]] == [
        *("admin", "replica", "max_affected", "allow_last")
    ]
    assert all(a["doc"] for a in activities.values())
    assert {"wait_for_alert", "error_ratio", "all_replicas_in_rotation"} <= set(activities)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda p: p.stem)
def test_every_experiment_is_valid(experiment: Path) -> None:
    """As ``chaos validate`` has it: also that every action and probe exists and takes its arguments."""
    ensure_experiment_is_valid(load_experiment(str(experiment)))


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda p: p.stem)
def test_every_experiment_undoes_in_its_rollbacks_and_looks_at_what_users_have(experiment: Path) -> None:
    content = yaml.safe_load(experiment.read_text())
    assert content["runtime"] == {"rollbacks": {"strategy": "always"}}
    assert [a["provider"]["func"] for a in content["rollbacks"]] == ["undo_fault", "stop_load"]
    probes = {p["provider"]["func"] for p in content["steady-state-hypothesis"]["probes"]}
    assert {"all_replicas_in_rotation", "error_ratio", "slo_attainment"} <= probes


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda p: p.stem)
def test_every_experiments_fault_takes_its_parameters(experiment: Path) -> None:
    found = plan.read(experiment.stem)
    configuration = load_configuration(found.content["configuration"])
    for given in found.injections():
        arguments = substitute(given, configuration, {})
        fault = faults.load(arguments["fault"])
        fault.parse(arguments.get("parameters") or {})
        fault.check_duration(float(arguments["duration"]))


@pytest.mark.parametrize("experiment", PLAYED, ids=lambda p: p.stem)
def test_it_completes_without_deviation_on_a_stack_that_heals(
    experiment: Path, make_stack: Any, tmp_path: Path
) -> None:
    stack = make_stack()
    places = dict.fromkeys(("EXASERVE_ROUTER", "EXASERVE_ADMIN", "EXASERVE_PROMETHEUS"), stack.url)
    run = chaos(tmp_path, "run", experiment, **places)
    journal = json.loads((tmp_path / "journal.json").read_text())
    assert (journal["status"], journal["deviated"]) == ("completed", False), run.stderr
    assert [a["activity"]["name"] for a in journal["run"] if a["status"] != "succeeded"] == [], run.stderr
    assert journal["steady_states"]["after"]["steady_state_met"] is True
    load = journal["rollbacks"][-1]["output"]
    assert load["requests"] > 8
    # Those that were due just before it was stopped, and that a busy machine had not sent, were nobody's to lose.
    assert load["failed"] - load["reasons"].get("the client was too slow to begin it", 0) == load["cut"]
    assert run.returncode == 0


@pytest.mark.parametrize("experiment", PLAYED, ids=lambda p: p.stem)
def test_it_touches_nothing_when_the_fleet_is_not_well_before(
    experiment: Path, make_stack: Any, tmp_path: Path
) -> None:
    stack = make_stack(replicas=1)
    places = dict.fromkeys(("EXASERVE_ROUTER", "EXASERVE_ADMIN", "EXASERVE_PROMETHEUS"), stack.url)
    chaos(tmp_path, "run", experiment, **places)
    journal = json.loads((tmp_path / "journal.json").read_text())
    assert journal["steady_states"]["before"]["steady_state_met"] is False
    assert journal["run"] == []
    assert stack.replicas["replica-0"].process.poll() is None


def test_a_stack_that_does_not_heal_is_told_by_the_journal(make_stack: Any, tmp_path: Path) -> None:
    stack = make_stack(restart=3600)
    places = dict.fromkeys(("EXASERVE_ROUTER", "EXASERVE_ADMIN", "EXASERVE_PROMETHEUS"), stack.url)
    experiment = tmp_path / "crash.yaml"
    text = (ROOT / "chaos" / "experiments" / "replica-crash.yaml").read_text()
    assert len(re.findall(r"timeout: \d{3}\b", text)) == 1
    experiment.write_text(re.sub(r"timeout: \d{3}\b", "timeout: 2", text))  # or the test would wait that long
    chaos(tmp_path, "run", experiment, **places)
    journal = json.loads((tmp_path / "journal.json").read_text())
    assert journal["deviated"] is True
    failed = [a["activity"]["name"] for a in journal["run"] if a["status"] == "failed"]
    assert failed == ["seconds until every replica is in rotation"]
    assert journal["rollbacks"][-1]["status"] == "succeeded"
