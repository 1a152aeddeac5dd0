"""Probes: what they count, how long they wait, and what they say when time is up."""

from __future__ import annotations

import time
from typing import Any

import pytest
from chaoslib.exceptions import ActivityFailed

from chaos import actions, load, probes, timeline
from tests.chaos.framework import eventually


def test_rotation_counts_ready_and_degraded_only(make_stack: Any) -> None:
    stack = make_stack()
    assert probes.replicas_in_rotation(stack.url) == 2
    assert probes.all_replicas_in_rotation(stack.url)
    assert not probes.all_replicas_in_rotation(stack.url, at_least=3)


def test_error_ratio_is_bad_over_all_and_zero_without_traffic(make_stack: Any) -> None:
    stack = make_stack()
    assert probes.error_ratio(stack.url) == 0
    stack.answered, stack.errors = 197, 3
    assert probes.error_ratio(stack.url) == pytest.approx(0.015)


def test_what_nobody_has_recorded_is_unknown_not_zero_and_not_one(make_stack: Any) -> None:
    stack = make_stack()
    stack.scraped = False
    with pytest.raises(ActivityFailed, match=r"has no data for sum.pool:exaserve_requests:rate1m"):
        probes.error_ratio(stack.url, timeout=0.1)
    with pytest.raises(ActivityFailed, match="has no data for"):
        probes.slo_attainment(stack.url, timeout=0.1)


def test_attainment_is_one_without_a_request(make_stack: Any) -> None:
    stack = make_stack()
    assert probes.slo_attainment(stack.url) == 1.0
    stack.answered = 10
    assert probes.slo_attainment(stack.url) == 1.0


def test_all_are_back_only_when_none_is_out(make_stack: Any) -> None:
    stack = make_stack(restart=1.0)
    actions.kill_replica(stack.url, "replica-1")
    out = probes.wait_some_out_of_rotation(stack.url, timeout=60)
    back = probes.wait_all_in_rotation(stack.url, timeout=60)
    assert 0 <= out <= back
    assert back >= 1.0


def test_a_kill_is_followed_from_rotation_to_alert_and_back(make_stack: Any) -> None:
    stack = make_stack(restart=6.0)  # so long that the alert is seen while it fires
    actions.kill_replica(stack.url, "replica-1")
    out = probes.wait_out_of_rotation(stack.url, "replica-1", timeout=60)
    fires = probes.wait_for_alert(stack.url, "ExaServeReplicaDown", "replica-1", timeout=60)
    back = probes.wait_in_rotation(stack.url, "replica-1", timeout=60)
    gone = probes.wait_for_alert(stack.url, "ExaServeReplicaDown", "replica-1", firing=False, timeout=60)
    assert 0 <= out <= fires <= back <= gone
    assert back >= 6.0


def test_a_replica_that_was_out_and_is_back_counts_as_out(make_stack: Any) -> None:
    """A simulated replica may be back before anybody looks."""
    stack = make_stack(restart=0.0)
    actions.kill_replica(stack.url, "replica-1")
    killed = stack.replicas["replica-1"]
    assert eventually(lambda: killed.state == "ready" and killed.since > timeline.start())
    assert probes.wait_out_of_rotation(stack.url, "replica-1", timeout=5) > 0


def test_a_wait_that_ends_says_what_it_last_saw(make_stack: Any) -> None:
    stack = make_stack()
    with pytest.raises(
        ActivityFailed, match=r"waited 0\.3 s until replica-0 is out of rotation: it is ready"
    ):
        probes.wait_out_of_rotation(stack.url, "replica-0", timeout=0.3)
    with pytest.raises(ActivityFailed, match="ExaServeReplicaDown fires: not so in prometheus"):
        probes.wait_for_alert(stack.url, "ExaServeReplicaDown", source="prometheus", timeout=0.2)
    with pytest.raises(ActivityFailed, match="can't be read"):
        probes.wait_in_rotation("http://127.0.0.1:9", "replica-0", timeout=0.2)


def test_nothing_is_waited_for_after_a_fault_that_failed(make_stack: Any) -> None:
    stack = make_stack()
    with pytest.raises(ActivityFailed):
        actions.kill_replica(stack.url, "nobody")
    with pytest.raises(ActivityFailed, match="nothing to wait for: replica_crash on nobody was not done"):
        probes.wait_for_alert(stack.url, "ExaServeReplicaDown", timeout=60)


def test_an_alert_of_another_replica_is_not_taken_for_it(make_stack: Any) -> None:
    stack = make_stack()
    stack.alerts["replica-9"] = 1
    assert probes.alert_is_firing(stack.url, "ExaServeReplicaDown")
    assert not probes.alert_is_firing(stack.url, "ExaServeReplicaDown", "replica-0")
    assert not probes.alert_is_firing(stack.url, "ExaServeKVPressure")


def test_requests_succeed_counts_who_answered_and_fails_at_the_first_that_is_not(make_stack: Any) -> None:
    stack = make_stack(restart=60)
    assert probes.requests_succeed(stack.url, count=4) == {"replica-0": 2, "replica-1": 2}
    with pytest.raises(ActivityFailed, match="was answered by replica-0"):
        probes.requests_succeed(stack.url, count=2, not_by="replica-0")
    with pytest.raises(ActivityFailed, match="request 1 of 2"):
        probes.requests_succeed("http://127.0.0.1:9", count=2)


def test_load_runs_behind_the_experiment_and_tells_how_requests_ended(make_stack: Any) -> None:
    stack = make_stack(restart=60)
    actions.start_load(stack.url, rate=30, seconds=240)
    try:
        probes.wait_for_load("replica-0", requests=6, timeout=60)
        actions.kill_replica(stack.url, "replica-0")
        probes.wait_out_of_rotation(stack.url, "replica-0", timeout=60)
        probes.wait_for_load("replica-1", requests=20, timeout=60)
        during = probes.only_streams_of_replica_were_lost("replica-0")
        stack.replicas["replica-1"].process.kill()
        stack.replicas["replica-1"].process.wait()
        running = load.current()
        assert running is not None
        assert eventually(lambda: any(r["status"] == 503 for r in running.records()))
        with pytest.raises(ActivityFailed, match="failed that had not begun on replica-1"):
            probes.only_streams_of_replica_were_lost("replica-1")
    finally:
        summary = actions.stop_load()
    assert summary is not None
    assert summary["requests"] >= during["requests"]
    assert summary["still_open"] == 0
    assert actions.stop_load() is None


def test_load_ends_at_its_deadline_and_is_bounded(make_stack: Any) -> None:
    stack = make_stack()
    actions.start_load(stack.url, rate=20, seconds=2)
    running = load.current()
    assert running is not None
    assert eventually(lambda: not running.running)
    counted = stack.answered
    time.sleep(0.5)
    assert stack.answered == counted > 0
    actions.stop_load()
    for rate, seconds in ((0, 10), (2001, 10), (1, 0), (1, 4000)):
        with pytest.raises(ActivityFailed, match=r"at most 2000 requests/s and 3600 s are possible"):
            actions.start_load(stack.url, rate, seconds)


def test_a_load_that_nobody_answers_is_said_to_have_sent_nothing() -> None:
    with pytest.raises(ActivityFailed, match=r"the load sent nothing: .*127\.0\.0\.1:9"):
        actions.start_load("http://127.0.0.1:9", rate=5, seconds=5)
    actions.stop_load()
