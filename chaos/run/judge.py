"""The verdict of a run, strict: what the Chaos Toolkit calls completed is passed only if everything came true.

The toolkit's journal says ``completed`` also for an experiment that was unhealthy before it began, or whose action
raised. Here each of these is told by its name:

- void: the run says nothing. The fleet was not healthy before, a probe had no data, the load could not be sent.
- failed: an activity raised, a fault was not proven, the steady state deviated, a goal was missed, something is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from chaos.run.plan import SECONDS, SHARES

State = Literal["passed", "failed", "void"]
EXIT: dict[State, int] = {"passed": 0, "failed": 1, "void": 3}


@dataclass(frozen=True)
class Goal:
    """One goal and what came of it. seen None: the figure never came, or is not known."""

    figure: str
    allowed: float
    seen: float | None

    @property
    def held(self) -> bool:
        if self.seen is None or math.isnan(self.seen):
            return False
        return self.seen >= self.allowed if self.figure in SHARES else self.seen <= self.allowed

    def text(self) -> str:
        word = "at least" if self.figure in SHARES else "at most"
        return f"{self.figure} is {show(self.figure, self.seen)}, allowed {word} {show(self.figure, self.allowed)}"


@dataclass
class Verdict:
    """state, and every reason that it is not ``passed``. goals: all of them, held or not."""

    state: State = "passed"
    reasons: list[str] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)

    def void(self, reason: str) -> None:
        """A run that is void stays so, whatever else went wrong."""
        self.state = "void"
        self.reasons.append(reason)

    def fail(self, reason: str) -> None:
        if self.state == "passed":
            self.state = "failed"
        self.reasons.append(reason)


def show(figure: str, value: float | None) -> str:
    """A figure for people."""
    if value is None or math.isnan(value):
        return "unknown"
    if figure in SECONDS:
        return f"{value:.2f} s"
    return f"{value * 100:.2f} %" if figure in SHARES else f"{value:g}"


def judge(
    journal: Mapping[str, Any] | None,
    goals: Mapping[str, float],
    figures: Mapping[str, float | None],
    leftovers: list[str],
    load: list[str] | None = None,
) -> Verdict:
    """The verdict.

    journal: of the Chaos Toolkit; None if it wrote none. leftovers: texts of what was not undone. load: why the load
    says nothing, if it does not.
    """
    verdict = Verdict(goals=[Goal(name, allowed, figures.get(name)) for name, allowed in goals.items()])
    if journal is None:
        verdict.fail("there is no journal: the run did not get to its end")
        _leftovers(verdict, leftovers)
        return verdict
    if not _before(verdict, journal):
        _leftovers(verdict, leftovers)
        return verdict
    for reason in load or []:
        verdict.void(reason)
    _activities(verdict, journal)
    _proofs(verdict, journal)
    _after(verdict, journal)
    _leftovers(verdict, leftovers)
    for goal in verdict.goals:
        if not goal.held:
            verdict.fail(f"goal missed: {goal.text()}")
    return verdict


def injections(journal: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What ``inject_fault`` returned for every fault of the run that was put in and proven."""
    found: list[dict[str, Any]] = []
    for activity in journal.get("run") or []:
        if _is_injection(activity) and activity.get("status") == "succeeded":
            found += [one for one in activity.get("output") or [] if isinstance(one, dict)]
    return found


def _before(verdict: Verdict, journal: Mapping[str, Any]) -> bool:
    """The gate. Without a hypothesis nobody knows whether the fleet was well."""
    state = (journal.get("steady_states") or {}).get("before")
    if not state:
        if journal.get("status") in ("interrupted", "aborted"):
            verdict.fail(f"it was {journal['status']} before it began")
        else:
            verdict.void("the steady state before the fault was not looked at")
        return False
    bad = [_told(p) for p in state.get("probes") or [] if not _held(p)]
    if state.get("steady_state_met") is not True or bad or not state.get("probes"):
        said = "; ".join(bad) or "no probe says so"
        verdict.void(f"the fleet was not in its steady state before the fault: {said}")
        return False
    return True


def _activities(verdict: Verdict, journal: Mapping[str, Any]) -> None:
    status = journal.get("status")
    if status in ("interrupted", "aborted"):
        verdict.fail(f"it was {status}")
    elif status not in ("completed", "failed"):
        verdict.fail(f"the journal's status is {status!r}")
    done = journal.get("run") or []
    wanted = len((journal.get("experiment") or {}).get("method") or [])
    for activity in done:
        if activity.get("status") != "succeeded":
            verdict.fail(_told(activity))
        elif activity.get("tolerance_met") is False:
            verdict.fail(f"{_name(activity)}: {activity.get('output')!r} is not within its tolerance")
    if len(done) < wanted:
        verdict.fail(f"{wanted - len(done)} of {wanted} activities of the method were not carried out")
    for activity in journal.get("rollbacks") or []:
        if activity.get("status") != "succeeded":
            verdict.fail(f"rollback: {_told(activity)}")


def _proofs(verdict: Verdict, journal: Mapping[str, Any]) -> None:
    """At least one fault, and each with what was measured of it."""
    activities = [a for a in journal.get("run") or [] if _is_injection(a) and a.get("status") == "succeeded"]
    if not activities and not any(_is_injection(a) for a in journal.get("run") or []):
        verdict.fail("no fault was put in: the method has no inject_fault, or did not get to it")
    for activity in activities:
        entries = activity.get("output")
        if not isinstance(entries, list) or not entries:
            verdict.fail(f"{_name(activity)}: nothing was put in")
            continue
        for entry in entries:
            if not entry.get("proof") or not entry.get("proven_at"):
                verdict.fail(
                    f"{_name(activity)}: {entry.get('fault')} on {entry.get('target')} was not proven"
                )


def _after(verdict: Verdict, journal: Mapping[str, Any]) -> None:
    state = (journal.get("steady_states") or {}).get("after")
    if not state:
        verdict.fail("the steady state after the fault was not looked at")
        return
    bad = [_told(p) for p in state.get("probes") or [] if not _held(p)]
    if state.get("steady_state_met") is not True or bad or journal.get("deviated"):
        verdict.fail(f"the steady state deviated: {'; '.join(bad) or 'it is not met'}")


def _leftovers(verdict: Verdict, leftovers: list[str]) -> None:
    for text in leftovers:
        verdict.fail(f"left behind: {text}")


def _is_injection(activity: Mapping[str, Any]) -> bool:
    what = activity.get("activity") or {}
    provider = what.get("provider") or {}
    return what.get("type") == "action" and provider.get("func") in (
        "inject_fault",
        "kill_replica",
        "freeze_replica",
    )


def _held(probe: Mapping[str, Any]) -> bool:
    """A probe without a value says nothing, whatever its tolerance."""
    output = probe.get("output")
    missing = output is None or (isinstance(output, float) and math.isnan(output))
    return probe.get("status") == "succeeded" and probe.get("tolerance_met") is True and not missing


def _name(activity: Mapping[str, Any]) -> str:
    return str((activity.get("activity") or {}).get("name") or "an activity")


def _told(activity: Mapping[str, Any]) -> str:
    """Its name and the last line of what it said."""
    if activity.get("status") == "succeeded":
        return f"{_name(activity)}: {activity.get('output')!r}"
    said = activity.get("exception") or []
    last = str(said[-1] if said else activity.get("output") or activity.get("status")).strip()
    return f"{_name(activity)}: {last.removeprefix('chaoslib.exceptions.').removeprefix('ActivityFailed: ')}"
