"""``exaserve chaos run`` against a stand-in of a stack: what lies, what is blind, what is unwell never passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaos import fault as faults
from chaos import places
from chaos.fault import Fault
from chaos.place import Identity
from chaos.run import figures, measure, plan, prepare, runner
from chaos.run.plan import PlanError
from chaos.run.report import Outcome
from tests.chaos.framework import Here, Steps, records

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.alone


def probe(name: str, tolerance: Any, **arguments: Any) -> dict[str, Any]:
    provider = {"type": "python", "module": "chaos.probes", "func": name, "arguments": arguments}
    return {"name": name, "type": "probe", "tolerance": tolerance, "provider": provider}


def action(name: str, **arguments: Any) -> dict[str, Any]:
    provider = {"type": "python", "module": "chaos.actions", "func": name, "arguments": arguments}
    return {"name": name, "type": "action", "provider": provider}


def experiment(folder: Path, goals: dict[str, float] | None = None, **block: Any) -> Path:
    """Short: the fault ``of_test``, held for a second."""
    told = {
        "name": "exaserve",
        "runbook": "ExaServeReplicaDown",
        "load": {"rate": 30, "max_tokens": 4},
        "baseline": 1,
        "settle": 0.2,
        "window": 0.5,
        "least": 4,
        "objective": {"ttft": 60.0},  # a busy machine misses none
        "goals": goals or {"failed_requests": 0},
        "data": ["pool:exaserve_requests:rate1m > 0"],
    }
    content = {
        "title": "Something happens",
        "description": "Of a test.",
        "extensions": [told | block],
        "configuration": {
            n: {"type": "env", "key": f"EXASERVE_{n.upper()}"} for n in ("router", "admin", "prometheus")
        },
        "steady-state-hypothesis": {
            "title": "well",
            "probes": [
                probe("all_replicas_in_rotation", True, admin="${admin}"),
                probe(
                    "error_ratio",
                    {"type": "range", "range": [0, 0.01]},
                    prometheus="${prometheus}",
                    timeout=0.2,
                ),
            ],
        },
        "method": [
            action("start_load", router="${router}"),
            action("inject_fault", fault="of_test", target="replica-0", duration=20),
            action("watch", seconds=1),
            action("undo_fault", fault="of_test"),
        ],
        "rollbacks": [action("undo_fault"), action("stop_load")],
    }
    path = folder / "something.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


class Stacked(Here):
    """The stand-in as a place."""

    def __init__(self, stack: Any) -> None:
        names = dict.fromkeys(("router", "admin", "prometheus"), stack.url)
        super().__init__({n: (r.url, r.process.pid) for n, r in stack.replicas.items()}, **names)

    def processes(self, replica: Any) -> list[Identity]:
        raise AssertionError


@pytest.fixture
def run(make_stack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the experiment against a stand-in with a fault of these steps; the outcomes."""

    def go(path: Path, before: Any = None, repeat: int = 1, **steps: Any) -> list[Outcome]:
        stack = make_stack()
        if before:
            before(stack)
        place = Stacked(stack)
        made = Fault("of_test", "replica", "what a test needs", (Steps(**steps),))
        monkeypatch.setattr(places, "open", lambda *_, **__: place)
        monkeypatch.setattr(faults, "load", lambda name: made)
        for name in ("ROUTER", "ADMIN", "PROMETHEUS", "PLACE", "RATE"):
            monkeypatch.setenv(f"EXASERVE_{name}", "")
        monkeypatch.setattr(runner, "_DATA", 3.0)
        # Where the machine stands still, requests are sent late; no figure that is looked at here is one of seconds.
        monkeypatch.setattr(measure, "_LATE", 1.0)
        return runner.run(plan.read(str(path)), prepare.Options(repeat=repeat, quiet=True))

    return go


def touch(path: Path) -> list[dict[str, Any]]:
    return [{"op": "write", "path": str(path), "text": "x", "mode": 420}]


def test_a_fault_that_is_in_and_out_passes_and_leaves_a_report(
    run: Any, tmp_path: Path, own_home: Path
) -> None:
    mark = tmp_path / "mark"
    undo = [{"op": "remove", "path": str(mark)}]
    outcomes = run(experiment(tmp_path), do=touch(mark), undo=undo, proof=str(mark), repeat=2)
    assert [(o.verdict.state, o.verdict.reasons) for o in outcomes] == [("passed", [])] * 2
    folder = own_home / "chaos" / "runs" / outcomes[0].run.rpartition("-")[0]
    found = json.loads((folder / "1" / "figures.json").read_text())
    assert found["state"] == "passed"
    assert found["figures"]["failed_requests"] == 0
    assert found["figures"]["good_during"] == 1.0
    seen = outcomes[0].seen
    assert seen is not None
    dues = sorted(r["due"] for r in seen.records)
    assert (len(dues) - 1) / (dues[-1] - dues[0]) == pytest.approx(30, rel=0.05)
    ended = sum(seen.begun <= (r["ended"] or seen.ended) < seen.injected for r in seen.records)
    assert found["before"]["rate"] == pytest.approx(ended / (seen.injected - seen.begun))
    assert json.loads((folder / "1" / "journal.json").read_text())["status"] == "completed"
    page = (folder / "2" / "report.html").read_text()
    assert "Plotly.newPlot" in page
    assert "http://" not in page.partition("Plotly.newPlot")[2]
    rows = {r["figure"]: r for r in json.loads((folder / "summary.json").read_text())["figures"]}
    assert rows["failed_requests"] == {
        "figure": "failed_requests", "median": 0.0, "worst": 0.0, "goal": 0.0, "runs": 2, "unknown": 0,
    }  # fmt: skip
    assert not mark.exists()
    assert records(own_home) == []


def test_a_fault_that_silently_did_nothing_fails(run: Any, tmp_path: Path) -> None:
    (outcome,) = run(experiment(tmp_path), do=[], undo=[], proof=str(tmp_path / "never"), within=0.3)
    assert outcome.verdict.state == "failed"
    assert "not proven within 0.3 s" in outcome.verdict.reasons[0]
    assert (outcome.folder / "report.html").exists()


def test_a_prometheus_without_series_makes_it_void_and_nothing_is_put_in(run: Any, tmp_path: Path) -> None:
    def blind(stack: Any) -> None:
        stack.scraped = False

    (outcome,) = run(experiment(tmp_path), before=blind, do=touch(tmp_path / "mark"), undo=[])
    assert (outcome.verdict.state, outcome.verdict.reasons) == (
        "void",
        ["Prometheus has no data for pool:exaserve_requests:rate1m > 0"],
    )
    assert not (tmp_path / "mark").exists()


def test_a_probe_without_data_makes_it_void_and_nothing_is_put_in(run: Any, tmp_path: Path) -> None:
    def blind(stack: Any) -> None:
        stack.scraped = False

    (outcome,) = run(experiment(tmp_path, data=[]), before=blind, do=touch(tmp_path / "mark"), undo=[])
    assert outcome.verdict.state == "void"
    assert "error_ratio: " in outcome.verdict.reasons[0]
    assert "has no data for sum(pool:exaserve_requests:rate1m)" in outcome.verdict.reasons[0]
    assert not (tmp_path / "mark").exists()


def test_an_unwell_fleet_makes_it_void_and_nothing_is_put_in(run: Any, tmp_path: Path) -> None:
    def unwell(stack: Any) -> None:
        stack.restart = 3600
        stack.replicas["replica-1"].process.kill()
        stack.replicas["replica-1"].process.wait()

    (outcome,) = run(experiment(tmp_path), before=unwell, do=touch(tmp_path / "mark"), undo=[])
    assert outcome.verdict.state == "void"
    assert "all_replicas_in_rotation: False" in outcome.verdict.reasons[0]
    assert not (tmp_path / "mark").exists()


def test_a_goal_that_is_missed_fails(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "STILL", 60.0)  # a load that stood still at the end has not left it alone
    path = experiment(tmp_path, goals={"reroute": 1.0, "failed_requests": 0})
    (outcome,) = run(path, do=[], undo=[])
    assert outcome.verdict.reasons == ["goal missed: reroute is unknown, allowed at most 1.00 s"]
    assert (
        "replica-0 stayed in rotation and was sent requests until the fault was taken out"
        in outcome.figures.notes
    )


def test_what_can_not_be_undone_fails_and_is_named(
    run: Any, tmp_path: Path, own_home: Path, monkeypatch: Any
) -> None:
    from chaos import undo

    monkeypatch.setattr(undo, "PERSIST", 0.2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (outcome,) = run(experiment(tmp_path), do=[], undo=[{"op": "remove", "path": str(tmp_path / "full")}])
    assert outcome.verdict.state == "failed"
    assert any(reason.startswith("left behind: ") for reason in outcome.verdict.reasons)
    assert records(own_home)


# --- the command --------------------------------------------------------------------------------------------


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chaos.cli", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ,
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["run", "replica-krash"],
            "no experiment 'replica-krash', neither by name nor as a file; did you mean replica-crash",
        ),
        (["run", "replica-crash"], "--place local: no stack is up here"),
        (["run", "replica-crash", "--place", "moon"], "--place moon: no place 'moon'"),
        (["run", "replica-crash", "--grafana", "host"], "--grafana host: not an address like"),
        (["run", "replica-crash", "--admin", "host"], "--admin host: not an address like"),
        (["run", "replica-crash", "--repeat", "0"], "--repeat"),
    ],
)
def test_wrong_usage_names_the_option_and_ends_with_2(words: list[str], said: str) -> None:
    done = command(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "is no YAML"),
        ("{title: a}", "at least a title and a method"),
        ("{title: a, method: [{}]}", "no block of ours"),
        (
            "{title: a, method: [{}], extensions: [{name: exaserve}]}",
            "extensions.exaserve.runbook: Field required",
        ),
        (
            "{title: a, method: [{}], extensions: [{name: exaserve, runbook: A, goals: {reruote: 1}}]}",
            "extensions.exaserve.goals: reruote is no figure; figures are detection",
        ),
    ],
)
def test_a_file_that_is_wrong_is_told_with_its_key(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(PlanError, match=said.replace(".", r"\.")):
        plan.read(str(path))


def test_a_dry_run_shows_the_steps_and_does_nothing(make_stack: Any, own_home: Path) -> None:
    stack = make_stack()
    pairs = [(f"--{name}", stack.url) for name in ("router", "admin", "prometheus")]
    done = command("run", "replica-freeze", "--dry-run", *(word for pair in pairs for word in pair))
    assert done.returncode == 0, done.stderr
    assert "replica_freeze on replica-0 by signals, for 40 s" in done.stdout
    assert "reroute" in done.stdout
    assert done.stdout.rstrip().endswith("Nothing was done.")
    assert not stack.replicas["replica-0"].stopped
    assert not (own_home / "chaos").exists()


def test_every_experiment_is_listed_with_its_goals_and_a_runbook_that_is_there() -> None:
    done = command("experiments", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert set(rows) == {p.stem for p in (ROOT / "chaos" / "experiments").glob("*.yaml")}
    assert len(rows) >= 20
    for row in rows.values():
        assert (ROOT / "runbooks" / f"{row['runbook']}.md").is_file()
        assert row["goals"]
        assert set(row["faults"]) <= set(faults.names())
