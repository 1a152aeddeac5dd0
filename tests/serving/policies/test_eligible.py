"""Eligible replicas: a set with positions, and what counts as extra work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.router.policies.eligible import DEGRADED_REQUESTS, PRESSURE_WORK, REQUEST_WORK, Eligible

from .fleet import busy, eligible, fleet

FLEET = fleet(8)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7))))
def test_it_holds_what_a_set_would_hold_each_at_its_position(steps: list[tuple[bool, int]]) -> None:
    those = Eligible()
    as_set: set[object] = set()
    for add, i in steps:
        (those.add if add else those.discard)(FLEET[i])
        (as_set.add if add else as_set.discard)(FLEET[i])
        assert set(those) == set(those.items) == as_set
        assert len(those) == len(those.items) == len(those.extra) == len(as_set)
        assert all(those.items[at] is r for r, at in those.positions.items())
        assert (FLEET[i] in those) is (FLEET[i] in as_set)


def test_what_a_replica_has_extra_moves_with_it() -> None:
    a, b, c = fleet(3)
    c.enter("degraded", "slow")
    those = eligible([a, b, c])
    assert those.extra == [0.0, 0.0, DEGRADED_REQUESTS * REQUEST_WORK]
    those.discard(a)
    assert those.items == [c, b]
    assert those.extra == [DEGRADED_REQUESTS * REQUEST_WORK, 0.0]
    c.enter("ready", "")
    those.add(c)
    assert those.extra == [0.0, 0.0]


def test_what_the_engine_reports_beyond_ours_counts_from_the_second_report_on() -> None:
    (r,) = fleet(1)
    busy(r, 3)
    r.others = 2
    r.running, r.waiting, r.tokens = 8, 1, 100.0
    those = eligible([r])
    assert those.extra == [0.0]
    those.add(r)  # its state was looked at again, that is no new report
    assert those.extra == [0.0]
    r.tokens, r.running = 200.0, 10
    those.add(r)
    assert those.extra == [4 * REQUEST_WORK]


def test_a_request_that_ended_while_the_report_was_on_its_way_is_not_held_for_a_foreign_one() -> None:
    (r,) = fleet(1)
    busy(r, 5)
    r.running, r.waiting, r.tokens = 5, 0, 100.0
    those = eligible([r])
    r.attempts.clear()
    r.running, r.tokens = 5, 150.0  # taken before they ended
    those.add(r)
    assert those.extra == [0.0]
    r.running, r.tokens = 0, 160.0
    those.add(r)
    assert those.extra == [0.0]


def test_no_report_is_no_extra_work() -> None:
    (r,) = fleet(1)
    assert eligible([r]).extra == [0.0]


def test_a_nearly_full_kv_cache_counts_as_work() -> None:
    low, high = fleet(2)
    low.kv_usage, high.kv_usage = 0.7, 0.85
    assert eligible([low, high]).extra == [0.0, pytest.approx(PRESSURE_WORK / 2)]
