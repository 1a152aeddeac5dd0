"""The verdict: everything that the Chaos Toolkit lets pass, and must not, has its own sentence."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from chaos.run.judge import EXIT, judge

PROBE = {
    "activity": {"name": "it is well", "type": "probe"},
    "status": "succeeded",
    "output": True,
    "tolerance_met": True,
}
ENTRY = {
    "fault": "replica_crash",
    "target": "replica-0",
    "proof": "process 7 is gone",
    "proven_at": 5.0,
    "injected_at": 4.0,
}
INJECT = {"name": "kill it", "type": "action", "provider": {"func": "inject_fault"}}


def journal(**changed: Any) -> dict[str, Any]:
    state = {"steady_state_met": True, "probes": [copy.deepcopy(PROBE)]}
    told: dict[str, Any] = {
        "status": "completed",
        "deviated": False,
        "experiment": {"method": [INJECT]},
        "steady_states": {"before": copy.deepcopy(state), "after": copy.deepcopy(state)},
        "run": [{"activity": INJECT, "status": "succeeded", "output": [copy.deepcopy(ENTRY)]}],
        "rollbacks": [{"activity": {"name": "undo"}, "status": "succeeded", "output": []}],
    }
    return told | changed


def test_all_that_came_true_passes() -> None:
    verdict = judge(
        journal(), {"reroute": 2.0, "good_during": 0.9}, {"reroute": 2.0, "good_during": 0.95}, []
    )
    assert (verdict.state, verdict.reasons) == ("passed", [])
    assert EXIT == {"passed": 0, "failed": 1, "void": 3}


def test_an_unhealthy_start_is_void_and_says_which_probe() -> None:
    sick = journal()
    sick["steady_states"]["before"]["steady_state_met"] = False
    sick["steady_states"]["before"]["probes"][0] |= {"output": False, "tolerance_met": False}
    verdict = judge(sick, {"reroute": 2.0}, {}, [])
    assert verdict.state == "void"
    assert verdict.reasons == ["the fleet was not in its steady state before the fault: it is well: False"]


@pytest.mark.parametrize("output", [None, float("nan")])
def test_a_probe_without_data_is_void_whatever_its_tolerance(output: float | None) -> None:
    blind = journal()
    blind["steady_states"]["before"]["probes"][0]["output"] = output
    assert judge(blind, {}, {}, []).state == "void"


def test_a_probe_that_raised_before_is_void_with_what_it_said() -> None:
    blind = journal()
    blind["steady_states"]["before"]["probes"][0] |= {
        "status": "failed",
        "exception": ["Traceback", "chaoslib.exceptions.ActivityFailed: no data for x\n"],
    }
    verdict = judge(blind, {}, {}, [])
    assert verdict.state == "void"
    assert verdict.reasons[0].endswith("it is well: no data for x")


def test_without_a_steady_state_nobody_knows() -> None:
    unknown = journal(steady_states={"before": None, "after": None})
    assert judge(unknown, {}, {}, []).state == "void"


def test_an_action_that_raised_fails_though_the_toolkit_says_completed() -> None:
    raised = journal(
        run=[
            {"activity": INJECT, "status": "failed", "exception": ["chaoslib.exceptions.ActivityFailed: no"]}
        ]
    )
    verdict = judge(raised, {}, {}, [])
    assert (verdict.state, verdict.reasons) == ("failed", ["kill it: no"])


@pytest.mark.parametrize("entry", [{"proof": ""}, {"proven_at": None}])
def test_a_fault_without_a_proof_fails(entry: dict[str, Any]) -> None:
    silent = journal()
    silent["run"][0]["output"][0] |= entry
    assert judge(silent, {}, {}, []).reasons == ["kill it: replica_crash on replica-0 was not proven"]


def test_a_fault_that_put_nothing_in_fails() -> None:
    nothing = journal()
    nothing["run"][0]["output"] = []
    assert judge(nothing, {}, {}, []).reasons == ["kill it: nothing was put in"]


def test_a_method_without_a_fault_fails() -> None:
    other = {"name": "wait", "type": "action", "provider": {"func": "watch"}}
    idle = journal(
        run=[{"activity": other, "status": "succeeded", "output": 1}], experiment={"method": [other]}
    )
    assert judge(idle, {}, {}, []).reasons == [
        "no fault was put in: the method has no inject_fault, or did not get to it"
    ]


def test_activities_that_never_ran_fail() -> None:
    short = journal()
    short["experiment"]["method"] = [INJECT, INJECT]
    assert judge(short, {}, {}, []).reasons == ["1 of 2 activities of the method were not carried out"]


def test_a_steady_state_that_did_not_come_back_fails() -> None:
    worse = journal(deviated=True)
    worse["steady_states"]["after"]["steady_state_met"] = False
    worse["steady_states"]["after"]["probes"][0] |= {"output": 0.5, "tolerance_met": False}
    assert judge(worse, {}, {}, []).reasons == ["the steady state deviated: it is well: 0.5"]
    assert (
        judge(journal(steady_states={"before": journal()["steady_states"]["before"]}), {}, {}, []).state
        == "failed"
    )


def test_a_rollback_that_raised_fails() -> None:
    left = journal(rollbacks=[{"activity": {"name": "undo"}, "status": "failed", "exception": ["stuck"]}])
    assert judge(left, {}, {}, []).reasons == ["rollback: undo: stuck"]


def test_what_is_left_behind_fails_and_is_named_also_where_it_is_void() -> None:
    assert judge(journal(), {}, {}, ["a table"]).reasons == ["left behind: a table"]
    sick = journal(steady_states={"before": None})
    verdict = judge(sick, {}, {}, ["a table"])
    assert (verdict.state, verdict.reasons[-1]) == ("void", "left behind: a table")


def test_goals_are_missed_by_more_by_less_of_a_share_and_by_what_is_not_known() -> None:
    goals = {"reroute": 2.0, "good_during": 0.99, "slo_recovery": 1.0}
    verdict = judge(journal(), goals, {"reroute": 2.1, "good_during": 0.98}, [])
    assert verdict.state == "failed"
    assert verdict.reasons == [
        "goal missed: reroute is 2.10 s, allowed at most 2.00 s",
        "goal missed: good_during is 98.00 %, allowed at least 99.00 %",
        "goal missed: slo_recovery is unknown, allowed at most 1.00 s",
    ]


def test_a_load_that_says_nothing_is_void() -> None:
    assert judge(journal(), {}, {}, [], ["it sent late"]).state == "void"


def test_an_interrupted_run_and_one_without_a_journal_fail() -> None:
    assert judge(journal(status="interrupted"), {}, {}, []).reasons == ["it was interrupted"]
    assert judge(None, {}, {}, []).state == "failed"
