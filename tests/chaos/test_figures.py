"""Figures from fabricated records: each exact, and unknown where it never came."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.run.figures import Seen, compute, is_good
from chaos.run.plan import Objective
from chaos.run.timeline import Alert, Change, Timeline

#: The injection is at 100, watching from 90 to 120; a request every 0.05 s that is answered within 0.1 s.
BEGUN, INJECTED, ENDED = 90.0, 100.0, 120.0


def record(due: float, **changed: Any) -> dict[str, Any]:
    told = {
        "outcome": "ok",
        "due": due,
        "sent": due,
        "first": due + 0.05,
        "ended": due + 0.1,
        "ttft": 0.05,
        "e2e": 0.1,
        "gaps": [10.0],
        "replica": "b",
        "status": 200,
        "input_tokens": 100,
        "request_id": f"id-{due:.2f}",
        "retry_after": None,
    }
    return told | changed


def steady(**at: dict[str, Any]) -> list[dict[str, Any]]:
    """400 before and after. at: due time as text -> what is otherwise in the request of then."""
    dues = [BEGUN + 0.05 * i for i in range(600)]
    return [record(due, **at.get(f"{due:.2f}", {})) for due in dues]


def seen(records: list[dict[str, Any]], **changed: Any) -> Seen:
    told: dict[str, Any] = {
        "begun": BEGUN,
        "injected": INJECTED,
        "proven": INJECTED + 0.2,
        "undone": INJECTED + 5,
        "ended": ENDED,
        "victims": ("a",),
        "records": records,
        "timeline": Timeline([Change(80.0, "a", "ready"), Change(80.0, "b", "ready")]),
        "objective": Objective(ttft=1.0, attainment=0.95),
        "window": 0.5,
        "least": 8,
    }
    return Seen(**(told | changed))


def failed(**changed: Any) -> dict[str, Any]:
    return {"outcome": "failed", "status": 502, "first": None, "ttft": None, "replica": None} | changed


def test_nothing_that_happened_gives_zeros_and_no_detection() -> None:
    figures = compute(seen(steady(), victims=()))
    assert figures.values == {
        "detection": None,
        "reroute": None,
        "slo_recovery": 0.0,
        "capacity_recovery": 0.0,
        "lost_requests": 0,
        "cut_streams": 0,
        "failed_requests": 0,
        "refused_requests": 0,
        "refused_without_retry_after": 0,
        "failed_after_injection": 0,
        "recomputed_tokens": None,
        "good_admitted": 1.0,
        "good_during": 1.0,
    }
    assert figures.resolution == 0.5
    assert figures.before["rate"] == pytest.approx(20, rel=0.01)


def test_detection_is_the_first_new_state_or_alert_whichever_was_first() -> None:
    changes = [Change(80.0, "a", "ready"), Change(101.25, "a", "down"), Change(100.5, "b", "degraded")]
    both = Timeline(changes, [Alert(100.75, "X", {}), Alert(95.0, "Old", {})])
    assert compute(seen(steady(), timeline=both)).values["detection"] == 0.75
    assert compute(seen(steady(), timeline=Timeline(changes))).values["detection"] == 1.25
    anybody = compute(seen(steady(), timeline=Timeline(changes), victims=()))
    assert anybody.values["detection"] == 0.5


def test_reroute_is_the_last_request_sent_to_the_victim_before_it_came_back() -> None:
    changes = [Change(80.0, "a", "ready"), Change(101.0, "a", "down"), Change(104.0, "a", "ready")]
    at = {f"{due:.2f}": {"replica": "a"} for due in (99.0, 100.4, 100.9, 104.5)}
    assert compute(seen(steady(**at), timeline=Timeline(changes))).values["reroute"] == 0.9


def test_a_request_that_the_router_sent_again_went_to_the_victim_first() -> None:
    timeline = Timeline([Change(101.0, "a", "frozen")])
    known = compute(
        seen(steady(), timeline=timeline, retries={"id-100.50": 1, "id-102.00": 1, "id-95.00": 1})
    )
    assert known.values["reroute"] == 0.5  # at 102 it was out: that one was another replica's
    assert known.values["recomputed_tokens"] == 200
    unknown = compute(seen(steady(), timeline=timeline))
    assert (unknown.values["reroute"], unknown.values["recomputed_tokens"]) == (0.0, None)


def test_a_victim_that_is_sent_requests_until_the_end_was_never_left_alone() -> None:
    at = {f"{INJECTED + 0.05 * i:.2f}": {"replica": "a"} for i in range(100)}
    figures = compute(seen(steady(**at)))
    assert figures.values["reroute"] is None
    assert "a stayed in rotation and was sent requests until the fault was taken out" in figures.notes


def test_a_victim_that_stays_in_rotation_and_is_avoided_was_left_alone() -> None:
    assert compute(seen(steady(**{"101.00": {"replica": "a"}}))).values["reroute"] == 1.0


def test_the_objective_is_back_at_the_first_of_three_windows_in_a_row() -> None:
    """Missed at 0-0.5; 0.5 and 1.0 meet it, 1.5 misses; from 2.0 on it is met."""
    at = {"100.20": failed(), "101.70": failed()}
    figures = compute(seen(steady(**at)))
    assert figures.values["slo_recovery"] == 2.0
    assert "2 windows of 0.5 s missed the objective" in figures.notes


def test_an_objective_that_does_not_come_back_is_unknown() -> None:
    at = {f"{INJECTED + 0.05 * i:.2f}": failed() for i in range(400)}
    figures = compute(seen(steady(**at)))
    assert figures.values["slo_recovery"] is None
    assert figures.values["capacity_recovery"] is None


def test_silence_meets_nothing() -> None:
    """All requests of the first second hang for three: no window in between has an answer."""
    at = {f"{INJECTED + 0.05 * i:.2f}": {"ended": 103.2, "first": 103.1, "ttft": 3.0} for i in range(60)}
    assert compute(seen(steady(**at))).values["slo_recovery"] == 3.5


def test_capacity_is_back_with_the_first_span_at_95_percent_of_before() -> None:
    """Nothing is answered from 101 to 103: the first whole span of 2 s without a gap is 103.0-105.0."""
    records = [r for r in steady() if not 101 <= r["ended"] < 103]
    assert compute(seen(records)).values["capacity_recovery"] == 5.0


def test_lost_cut_and_refused_are_told_apart() -> None:
    at = {
        "99.95": failed(first=100.0, ended=100.3, replica="a"),  # begun before, broke after
        "100.50": failed(),
        "100.60": failed(status=429, retry_after=2.0),
        "100.70": failed(status=503),
        "100.80": {"outcome": "open", "first": None, "ended": None},
        "98.00": failed(),  # before: another story
    }
    values = compute(seen(steady(**at))).values
    assert values["cut_streams"] == 1
    assert values["lost_requests"] == 4
    assert values["failed_requests"] == 5
    assert values["refused_requests"] == 2
    assert values["refused_without_retry_after"] == 1
    assert values["failed_after_injection"] == 4


def test_shares_are_of_requests_due_while_the_fault_was_in() -> None:
    """From 100.2 to 105: 96 requests; one refused, one late."""
    at = {"102.00": failed(status=503, retry_after=1.0), "103.00": {"ttft": 1.5}}
    values = compute(seen(steady(**at))).values
    assert values["good_admitted"] == pytest.approx(94 / 95)
    assert values["good_during"] == pytest.approx(94 / 96)


@pytest.mark.parametrize(
    ("changed", "good"),
    [
        ({}, True),
        ({"ttft": 1.01}, False),
        ({"gaps": [5, 210]}, False),
        ({"e2e": 3.1}, False),
        ({"outcome": "open"}, False),
    ],
)
def test_a_request_is_good_if_whole_and_within_every_part_of_the_objective(
    changed: dict[str, Any], good: bool
) -> None:
    assert is_good(record(1.0, **changed), Objective(ttft=1.0, itl=0.2, e2e=3.0)) is good
