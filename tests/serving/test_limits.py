"""Budgets of tenants: what is admitted, what a refusal says, and that workers together give what one would."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.router.limits import Budget, Grant, Report, balance


def lines(headers: bytes) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in headers.decode().split("\r\n") if line)


def test_a_minutes_requests_are_admitted_at_once_and_then_one_each_second() -> None:
    budget = Budget("alice", requests_per_minute=60)
    assert [budget.admit(0.0, 10) for _ in range(60)] == [None] * 60
    assert budget.admit(0.0, 10) is not None
    assert budget.admit(0.5, 10) is not None
    assert budget.admit(1.0, 10) is None
    assert budget.admit(1.5, 10) is not None


def test_an_idle_tenant_saves_no_more_than_a_minute() -> None:
    budget = Budget("alice", requests_per_minute=2)
    assert budget.admit(3600.0, 1) is None
    assert budget.admit(3600.0, 1) is None
    assert budget.admit(3600.0, 1) is not None


def test_a_refusal_names_the_limit_and_the_wait() -> None:
    budget = Budget("alice", requests_per_minute=6, tokens_per_minute=600)
    for _ in range(6):
        budget.admit(0.0, 50)
    refusal = budget.admit(2.5, 50)
    assert refusal is not None
    assert (refusal.status, refusal.reason, refusal.kind, refusal.code) == (
        429, "tenant_requests", "requests", "rate_limit_exceeded",
    )  # fmt: skip
    assert refusal.message == "alice has used its 6 requests per minute; try again in 7.5 s"
    assert lines(refusal.headers) == {
        "retry-after": "8",
        "retry-after-ms": "7500",
        "x-ratelimit-limit-requests": "6",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "57500ms",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "325",
        "x-ratelimit-reset-tokens": "27500ms",
    }


def test_tokens_are_charged_as_estimated_and_corrected_by_what_was_used() -> None:
    budget = Budget("alice", tokens_per_minute=1000)
    assert budget.admit(0.0, 600) is None
    refusal = budget.admit(0.0, 600)
    assert refusal is not None
    assert refusal.reason == "tenant_tokens"
    assert lines(refusal.headers)["retry-after"] == "12"  # 200 tokens are missing, 1000 come in a minute
    budget.settle(0.0, 600, 100)
    assert budget.admit(0.0, 600) is None
    budget.settle(0.0, 600, 900)
    assert budget.tokens == 0.0


def test_more_tokens_than_estimated_become_a_debt() -> None:
    budget = Budget("alice", tokens_per_minute=600)
    assert budget.admit(0.0, 100) is None
    budget.settle(0.0, 100, 1200)
    assert budget.tokens == -600.0
    assert lines(budget.headers())["x-ratelimit-remaining-tokens"] == "0"
    assert budget.admit(59.0, 10) is not None
    assert budget.admit(61.0, 10) is None


def test_a_request_above_the_whole_limit_is_told_not_to_come_back() -> None:
    budget = Budget("alice", tokens_per_minute=1000)
    refusal = budget.admit(0.0, 1001)
    assert refusal is not None
    assert refusal.code == "request_too_large"
    assert "retry-after" not in lines(refusal.headers)
    assert lines(refusal.headers)["x-should-retry"] == "false"
    assert budget.admit(0.0, 1000) is None


def test_requests_in_flight_are_bounded_over_all_workers() -> None:
    budget = Budget("alice", max_in_flight=3)
    budget.grant(Grant(0.5, 0.0, 0.0, others=1))
    assert budget.admit(0.0, 1) is None
    assert budget.admit(0.0, 1) is None
    refusal = budget.admit(0.0, 1)
    assert refusal is not None
    assert refusal.reason == "tenant_in_flight"
    assert lines(refusal.headers) == {"retry-after": "1", "retry-after-ms": "1000"}
    budget.release()
    assert budget.admit(0.0, 1) is None


def test_a_refused_or_undone_request_costs_nothing() -> None:
    budget = Budget("alice", requests_per_minute=2, tokens_per_minute=100, max_in_flight=1)
    assert budget.admit(0.0, 40) is None
    assert budget.admit(0.0, 40) is not None
    budget.undo(0.0, 40)
    assert (budget.requests, budget.tokens, budget.in_flight) == (2.0, 100.0, 0)


def test_without_limits_everything_passes_and_nothing_is_said() -> None:
    budget = Budget("alice")
    for _ in range(1000):
        assert budget.admit(0.0, 10**9) is None
    budget.settle(0.0, 10**9, 1)
    assert budget.headers() == b""
    assert budget.in_flight == 1000


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (
            {"requests_per_minute": 60},
            b"x-ratelimit-limit-requests: 60\r\nx-ratelimit-remaining-requests: 59\r\n"
            b"x-ratelimit-reset-requests: 1000ms\r\n",
        ),
        (
            {"tokens_per_minute": 600},
            b"x-ratelimit-limit-tokens: 600\r\nx-ratelimit-remaining-tokens: 500\r\n"
            b"x-ratelimit-reset-tokens: 10000ms\r\n",
        ),
    ],
)
def test_headers_name_only_the_limits_that_there_are(limits: dict[str, int], expected: bytes) -> None:
    budget = Budget("alice", **limits)
    budget.admit(0.0, 100)
    assert budget.headers() == expected


@pytest.mark.parametrize("asked", [None, 129, 10**9])
def test_a_ceiling_refuses_longer_answers_and_such_without_an_end(asked: int | None) -> None:
    refusal = Budget("alice", max_tokens=128).too_long(asked)
    assert refusal is not None
    assert (refusal.status, refusal.param, refusal.reason) == (400, "max_tokens", "max_tokens")
    assert "at most 128 tokens" in refusal.message


def test_a_ceiling_lets_shorter_answers_pass() -> None:
    assert Budget("alice", max_tokens=128).too_long(128) is None
    assert Budget("alice").too_long(None) is None


def test_changed_limits_keep_what_was_spent() -> None:
    budget = Budget("alice", requests_per_minute=10)
    for _ in range(4):
        budget.admit(0.0, 1)
    budget.change(5, 1000, 2, None, now=0.0)
    assert (budget.requests, budget.tokens, budget.in_flight) == (1.0, 1000.0, 4)
    assert budget.admit(0.0, 1) is not None


def test_a_worker_with_a_small_share_still_admits_now_and_then() -> None:
    budget = Budget("alice", requests_per_minute=6, tokens_per_minute=600, share=0.1)
    assert budget.admit(0.0, 500) is None  # more than its 60 tokens, less than the tenant's 600
    assert (budget.requests, budget.tokens) == (pytest.approx(-0.4), -440.0)
    assert budget.admit(60.0, 1) is not None
    later = [t for t in range(60, 1000) if budget.admit(float(t), 10) is None]
    assert later[0] == 440 + 10  # until the tokens are paid back


def test_shares_follow_demand_and_what_is_left_moves_along() -> None:
    busy, idle = Report(30.0, 0.0, math.inf, 4), Report(0.0, 30.0, math.inf, 1)
    first, second = balance([{"alice": busy}, {"alice": idle}])
    assert first["alice"] == Grant(pytest.approx(0.95), pytest.approx(28.5), 0.0, 1)  # type: ignore[arg-type]
    assert second["alice"] == Grant(pytest.approx(0.05), pytest.approx(-28.5), 0.0, 4)  # type: ignore[arg-type]


def test_without_demand_shares_are_even_and_a_worker_without_the_tenant_has_none() -> None:
    report = Report(0.0, 30.0, 5.0, 0)
    first, second, third = balance([{"alice": report}, {}, {"alice": report}])
    assert (first["alice"].share, third["alice"].share) == (0.5, 0.5)
    assert second == {}


@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(0, 2), st.integers(1, 400)), max_size=300),
    st.integers(1, 50),
)
def test_workers_together_never_give_more_than_the_tenant_has(
    requests: list[tuple[int, float, int]], every: int
) -> None:
    """Whatever comes where and when, in T minutes at most (T + 1) limits are admitted, plus one a worker."""
    per_minute = 30
    workers = [Budget("alice", per_minute, share=1 / 3) for _ in range(3)]
    now, admitted = 0.0, 0
    for i, (worker, gap, tokens) in enumerate(requests):
        now += gap
        admitted += workers[worker].admit(now, tokens) is None
        if i % every == 0:
            grants = balance([{"alice": w.report(now)} for w in workers])  # as the master does
            for w, grant in zip(workers, grants, strict=True):
                w.grant(grant["alice"])
            assert sum(w.share for w in workers) == pytest.approx(1.0)
    assert admitted <= (now / 60 + 1) * per_minute + len(workers)


@given(st.lists(st.tuples(st.sampled_from(["admit", "end", "undo"]), st.integers(0, 500)), max_size=200))
def test_in_flight_is_never_negative_and_ends_at_zero(steps: list[tuple[str, int]]) -> None:
    budget = Budget("alice", 100, 10_000, max_in_flight=5)
    now, open_ = 0.0, []
    for what, tokens in steps:
        now += 0.1
        if what == "admit":
            if budget.admit(now, tokens) is None:
                open_.append(tokens)
        elif open_:
            estimated = open_.pop()
            if what == "undo":
                budget.undo(now, estimated)
            else:
                budget.settle(now, estimated, tokens)
                budget.release()
        assert budget.in_flight == len(open_) <= 5
    for _ in open_:
        budget.release()
    assert budget.in_flight == 0
