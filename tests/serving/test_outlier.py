"""Passive health on a clock of its own: who is ejected, for how long, and what share of the traffic it costs."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable
from math import log
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.config_router import Ejection
from serving.fleet.discovery import static
from serving.fleet.outcomes import LocalOutcomes
from serving.fleet.outlier import ANSWERS_FOR_TRIAL, MOST_ANSWERS, Outliers
from serving.fleet.replica import Replica
from tests.fakes import FakeEngine
from tests.serving.routing import router, run


class Fleet:
    """Replicas, their passive health, and the clock."""

    def __init__(self, n: int = 4, **rules: object) -> None:
        self.time = 1000.0
        self.replicas = [static.parse(f"r{i}=http://127.0.0.1:{8000 + i}") for i in range(n)]
        for i, r in enumerate(self.replicas):
            r.index = i
            r.enter("ready", "")
        self.changes: list[tuple[str, str]] = []
        self.rules = Ejection(**rules)  # type: ignore[arg-type]
        self.outliers = Outliers(self.rules, self._note, lambda: self.time)
        self.outliers.set_pools({"default": self.replicas})

    def _note(self, replica: Replica) -> None:
        self.changes.append((replica.name, replica.state))

    def wait(self, seconds: float) -> None:
        end = self.time + seconds
        while self.time < end:
            self.time = min(self.time + 0.25, end)
            self.outliers.tick()

    def others_answer(self, n: int = ANSWERS_FOR_TRIAL) -> None:
        self.outliers.observe(self.replicas[-1], n, 0)

    def states(self) -> list[str]:
        return [r.state for r in self.replicas]


# --- error rate ---


def test_half_of_ten_failed_answers_eject_for_the_first_duration() -> None:
    f = Fleet()
    bad = f.replicas[0]
    for _ in range(4):
        f.outliers.observe(bad, 1, 0)
        f.outliers.observe(bad, 0, 1)
    f.outliers.observe(bad, 1, 0)
    assert bad.state == "ready"  # nine answers say nothing yet
    f.outliers.observe(bad, 0, 1)
    assert bad.state == "ejected"
    assert bad.reason == "5 of its last 10 answers failed; ejected for 10 s (1 in a row)"
    assert bad.ejected_until == f.time + 10
    assert f.changes == [("r0", "ejected")]


def test_what_fails_on_a_replica_that_is_out_is_not_held_against_it_when_it_is_back() -> None:
    f = Fleet()
    bad = f.replicas[0]
    bad.enter("frozen", "silent for 2 s")
    f.outliers.observe(bad, 0, 30)  # all that was open
    bad.enter("ready", "")
    f.outliers.restarted(bad)
    f.outliers.observe(bad, 1, 0)
    assert bad.state == "ready"
    for _ in range(9):
        f.outliers.observe(bad, 0, 1)
    assert bad.state == "ejected"  # as anybody


def test_answers_older_than_the_window_do_not_count_beside_enough_newer_ones() -> None:
    f = Fleet()
    for _ in range(4):
        f.outliers.observe(f.replicas[0], 1, 1)
    f.wait(11)
    f.outliers.observe(f.replicas[0], 9, 0)
    f.outliers.observe(f.replicas[0], 0, 1)
    f.wait(2)
    f.outliers.observe(f.replicas[0], 0, 1)  # two of the eleven of this window
    assert f.states() == ["ready"] * 4


def test_where_requests_are_rare_the_last_ten_answers_count_however_old() -> None:
    f = Fleet()
    for _ in range(4):
        f.outliers.observe(f.replicas[0], 1, 0)
        f.wait(100)
        f.outliers.observe(f.replicas[0], 0, 1)
        f.wait(100)
    f.outliers.observe(f.replicas[0], 1, 0)
    assert f.states() == ["ready"] * 4
    f.outliers.observe(f.replicas[0], 0, 1)
    assert f.replicas[0].state == "ejected"


def test_three_failures_in_a_row_eject_however_rare_requests_are() -> None:
    f = Fleet()
    for _ in range(2):
        f.outliers.observe(f.replicas[0], 0, 1)
        f.wait(600)
    assert f.replicas[0].state == "ready"
    f.outliers.observe(f.replicas[0], 0, 1)
    assert f.replicas[0].reason.startswith("answers fail one after another")


def test_switched_off_it_ejects_nobody_and_still_knows_first_tokens() -> None:
    f = Fleet(enabled=False)
    f.outliers.observe(f.replicas[0], 20, 20, 20, 20 * log(0.3))
    assert f.replicas[0].state == "ready"
    assert f.replicas[0].first_token_seconds == pytest.approx(0.3)


def test_at_most_half_of_a_pool_is_ejected_and_never_the_last_in_rotation() -> None:
    f = Fleet(4)
    for r in f.replicas:
        f.outliers.observe(r, 0, 10)
    assert f.states() == ["ejected", "ejected", "ready", "ready"]
    g = Fleet(4, max_share=1.0)
    for r in g.replicas:
        g.outliers.observe(r, 0, 10)
    assert g.states() == ["ejected", "ejected", "ejected", "ready"]


def test_the_only_replica_of_a_pool_stays() -> None:
    f = Fleet(1)
    f.outliers.observe(f.replicas[0], 0, 100)
    assert f.states() == ["ready"]


def test_the_share_counts_in_each_pool() -> None:
    f = Fleet(4)
    f.outliers.set_pools({"a": f.replicas[:1], "b": f.replicas[1:]})
    for r in f.replicas:
        f.outliers.observe(r, 0, 10)
    assert f.states() == ["ready", "ejected", "ready", "ready"]


# --- return ---


def test_it_comes_back_on_trial_after_its_time_and_enough_answers_of_others() -> None:
    f = Fleet()
    bad = f.replicas[0]
    f.outliers.eject(bad, "test")
    f.wait(10.5)
    assert bad.state == "ejected"  # nobody was asked meanwhile: a trial would be all of the traffic
    f.others_answer()
    f.wait(0.25)
    assert (bad.state, bad.trial, bad.weight) == ("ready", 3, 0.1)
    bad.attempts.add("request")
    assert not bad.may_take
    bad.attempts.clear()
    assert bad.may_take
    f.outliers.observe(bad, 3, 0)
    assert bad.trial == 0


def test_without_any_traffic_it_is_back_after_ten_minutes() -> None:
    f = Fleet()
    f.outliers.eject(f.replicas[0], "test")
    f.wait(599)
    assert f.replicas[0].state == "ejected"
    f.wait(2)
    assert f.replicas[0].state == "ready"


def test_each_failure_in_the_trial_doubles_the_time_up_to_the_longest() -> None:
    f = Fleet()
    bad = f.replicas[0]
    f.outliers.eject(bad, "test")
    lengths = []
    for _ in range(6):
        lengths.append(bad.ejected_until - f.time)
        f.others_answer(MOST_ANSWERS)
        f.wait(lengths[-1])
        assert bad.state == "ready"
        f.outliers.observe(bad, 0, 1)
        assert bad.state == "ejected"
    assert lengths == [10, 20, 40, 80, 120, 120]
    assert bad.ejections_total == 7


def test_ejections_are_forgiven_one_by_one_for_time_and_good_answers() -> None:
    f = Fleet()
    bad = f.replicas[0]
    for _ in range(2):
        f.outliers.eject(bad, "test")
        f.others_answer(MOST_ANSWERS)
        f.wait(bad.ejected_until - f.time)
    assert bad.ejections == 2
    f.wait(60)
    assert bad.ejections == 2  # time without requests shows nothing
    f.outliers.observe(bad, 20, 0)
    f.wait(0.25)
    assert bad.ejections == 1
    f.outliers.observe(bad, 20, 0)
    f.wait(9)
    assert bad.ejections == 1
    f.wait(2)
    assert bad.ejections == 0


def test_the_share_grows_from_a_tenth_to_one_over_slow_start() -> None:
    f = Fleet()
    back = f.replicas[0]
    back.enter("down", "refused")
    back.enter("ready", "")
    f.outliers.restarted(back)
    weights = [back.weight]
    for _ in range(3):
        f.wait(10)
        weights.append(round(back.weight, 2))
    assert weights == [0.1, 0.36, 0.68, 1.0]  # in steps of 0.05, not to tell all processes of each tick


def test_without_slow_start_the_whole_share_is_there_at_once() -> None:
    f = Fleet(slow_start=0.0)
    f.outliers.restarted(f.replicas[0])
    assert f.replicas[0].weight == 1.0
    f.outliers.eject(f.replicas[1], "test")
    f.others_answer()
    f.wait(10)
    assert (f.replicas[1].state, f.replicas[1].weight) == ("ready", 1.0)


def test_a_restart_ends_an_ejection() -> None:
    f = Fleet()
    f.outliers.eject(f.replicas[0], "test")
    f.replicas[0].enter("down", "refused")
    assert f.replicas[0].state == "down"
    f.replicas[0].enter("ready", "")
    f.outliers.restarted(f.replicas[0])
    assert (f.replicas[0].state, f.replicas[0].trial) == ("ready", 3)


def test_answers_to_what_was_asked_before_do_not_prolong_an_ejection() -> None:
    f = Fleet()
    f.outliers.eject(f.replicas[0], "test")
    until = f.replicas[0].ejected_until
    f.outliers.observe(f.replicas[0], 0, 50)
    f.others_answer()
    f.wait(10)
    assert f.replicas[0].state == "ready"
    assert until == 1010.0


def test_what_is_known_of_replicas_that_stay_survives_a_change_of_the_fleet() -> None:
    f = Fleet()
    f.outliers.eject(f.replicas[0], "test")
    f.outliers.eject(f.replicas[1], "test")
    f.outliers.set_pools({"default": f.replicas[1:]})
    f.others_answer()
    f.wait(10)
    assert f.replicas[1].state == "ready"
    f.outliers.observe(f.replicas[0], 0, 10)  # a late word of one that is gone


# --- slow first tokens ---


def _first_tokens(f: Fleet, seconds: list[float], n: int = 10) -> None:
    for r, s in zip(f.replicas, seconds, strict=True):
        f.outliers.observe(r, n, 0, n, n * log(s))


def test_a_first_token_four_times_the_median_ejects() -> None:
    f = Fleet()
    _first_tokens(f, [0.8, 0.2, 0.19, 0.21])
    f.wait(1)
    assert f.states() == ["ejected", "ready", "ready", "ready"]
    assert f.replicas[0].ejected_why.startswith("first token after 800 ms where the pool's median is 200 ms")


@pytest.mark.parametrize(
    ("seconds", "n", "why"),
    [
        ([0.79, 0.2, 0.2, 0.2], 10, "below four times"),
        ([0.8, 0.2, 0.2, 0.2], 9, "too few answers"),
        ([0.049, 0.002, 0.002, 0.002], 10, "fast enough for anybody"),
        ([5.0, 5.0, 0.2, 0.2], 10, "two of four are no outliers"),
    ],
)
def test_otherwise_a_slow_one_stays(seconds: list[float], n: int, why: str) -> None:
    f = Fleet()
    _first_tokens(f, seconds, n)
    f.wait(1)
    out = f.states().count("ejected")
    assert out == (2 if why.startswith("two") else 0), why


def test_two_replicas_have_no_median() -> None:
    f = Fleet(2)
    _first_tokens(f, [5.0, 0.1])
    f.wait(2)
    assert f.states() == ["ready", "ready"]


def test_one_that_is_still_slow_in_its_trial_goes_out_again() -> None:
    f = Fleet()
    _first_tokens(f, [0.8, 0.2, 0.2, 0.2])
    f.wait(1)
    for _ in range(4):
        _first_tokens(f, [0.8, 0.2, 0.2, 0.2])  # the ejected one's are not counted
        f.wait(2.5)
    assert (f.replicas[0].state, f.replicas[0].trial) == ("ready", 3)
    for _ in range(3):
        f.outliers.observe(f.replicas[0], 1, 0, 1, log(0.8))
    assert f.replicas[0].state == "ejected"
    assert f.replicas[0].ejections == 2


# --- in the processes that relay ---


def _local(f: Fleet, provisional: bool = False) -> tuple[LocalOutcomes, list[str]]:
    reports: list[str] = []
    return LocalOutcomes(f.rules, lambda r, why: reports.append(r.name), f._note, provisional), reports


def test_three_failures_in_a_row_are_reported_with_the_third() -> None:
    f = Fleet()
    local, reports = _local(f)
    for _ in range(2):
        local.bad(f.replicas[0], 0, f.time)
    assert reports == []
    local.bad(f.replicas[0], 0, f.time)
    assert reports == ["r0"]


@pytest.mark.parametrize(
    ("pattern", "ejects"), [("FFG", True), ("FG", False), ("FGG", False), ("GGGGFFF", True)]
)
def test_what_fails_more_than_half_of_the_time_is_reported(pattern: str, ejects: bool) -> None:
    f = Fleet()
    local, reports = _local(f)
    for c in pattern * 20:
        if c == "F":
            local.bad(f.replicas[0], 0, f.time)
        else:
            local.good(f.replicas[0], 0.1)
    assert bool(reports) == ejects


def test_streams_that_break_off_count_as_failures_though_they_began_well() -> None:
    f = Fleet()
    local, reports = _local(f)
    for _ in range(3):
        local.good(f.replicas[0], 0.1)
        local.cut(f.replicas[0], 0, f.time)
    assert reports == ["r0"]
    assert local.take()[0][:3] == (0, 0, 3)


def test_counters_are_handed_over_once() -> None:
    f = Fleet()
    local, _ = _local(f)
    local.good(f.replicas[1], 0.5)
    local.good(f.replicas[1], 2.0)
    local.bad(f.replicas[2], 100, f.time)
    rows = sorted(local.take())
    assert [r[:4] for r in rows] == [(1, 2, 0, 2), (2, 0, 1, 0)]
    assert rows[0][4] == pytest.approx(0.0)  # log 0.5 + log 2
    assert local.take() == []
    local.cut(f.replicas[1], 0, f.time)  # what began before the hand-over
    assert [r[:3] for r in local.take()] == [(1, -1, 1)]


def test_a_failed_request_stays_counted_as_work_for_a_while() -> None:
    f = Fleet()
    local, _ = _local(f)
    local.tick(f.time)
    local.bad(f.replicas[0], 800, f.time)
    assert f.replicas[0].penalty == 800
    local.tick(f.time + 2)
    assert f.replicas[0].penalty == pytest.approx(400)
    local.tick(f.time + 60)
    assert f.replicas[0].penalty == 0


def test_a_worker_ejects_at_once_until_the_poller_speaks() -> None:
    f = Fleet()
    local, reports = _local(f, provisional=True)
    r = f.replicas[0]
    for _ in range(3):
        local.bad(r, 0, f.time)
    assert (r.state, reports) == ("ejected", ["r0"])
    local.tick(f.time + 1.9)
    assert r.state == "ejected"
    local.tick(f.time + 2.0)  # no word from it
    assert r.state == "ready"


def test_the_pollers_verdict_replaces_the_workers_own() -> None:
    f = Fleet()
    local, _ = _local(f, provisional=True)
    here, there = f.replicas[0], static.parse("r0=http://127.0.0.1:8000")
    there.enter("ready", "")
    for _ in range(3):
        local.bad(here, 0, f.time)
    there.eject("much failed", f.time + 20, 2)
    assert not here.take_state(there.state_news())  # it was out and stays out
    local.tick(f.time + 5)
    assert (here.state, here.reason, here.ejected_until) == ("ejected", "much failed", f.time + 20)
    there.readmit(3, 0.1)
    assert here.take_state(there.state_news())
    assert (here.state, here.trial, here.weight) == ("ready", 3, 0.1)


# --- what it costs in traffic ---

Verdict = Callable[[float, int], bool]


def failed_share(
    policy: str, rate: float, requests: int, fails: Verdict, workers: int = 1, seed: int = 0
) -> float:
    """Share of ``requests`` that fail on replica 0 of four; ``fails(time, how many it got)``.

    They arrive at random, ``rate`` a second. A failure takes 2 ms, a good answer a second. Outcomes reach the poller every 100 ms, as between processes.
    """
    f = Fleet()
    random = Random(seed)
    locals_ = [
        LocalOutcomes(f.rules, f.outliers.eject, lambda r: None, provisional=False) for _ in range(workers)
    ]
    got: Counter[str] = Counter()
    failed, turn = 0, 0
    ends: list[tuple[float, int, Replica]] = []
    next_tick = f.time
    for n in range(requests):
        f.time += random.expovariate(rate)
        while next_tick <= f.time:
            now, f.time = f.time, next_tick
            for local in locals_:
                local.tick(f.time)
                for index, ok, errors, count, logs in local.take():
                    f.outliers.observe(f.replicas[index], ok, errors, count, logs)
            f.outliers.tick()
            f.time = now
            next_tick += max(0.1, 0.2 / rate)
        while ends and ends[0][0] <= f.time:
            _, i, replica = heapq.heappop(ends)
            replica.attempts.discard(i)
        able = [r for r in f.replicas if r.may_take]
        if policy == "round_robin":
            turn += 1
            chosen = able[turn % len(able)]
        else:
            chosen = min(able, key=lambda r: ((100 * (1 + len(r.attempts)) + r.penalty) / r.weight, n % 7))
        got[chosen.name] += 1
        local = locals_[n % workers]
        if chosen is f.replicas[0] and fails(f.time - 1000, got["r0"]):
            failed += 1
            local.bad(chosen, 100, f.time)
        else:
            local.good(chosen, 0.1)
            chosen.attempts.add(n)
            heapq.heappush(ends, (f.time + 1, n, chosen))
    return failed / requests


@pytest.mark.parametrize("policy", ["round_robin", "least_work"])
@pytest.mark.parametrize("rate", [0.05, 1, 20, 500])
@pytest.mark.parametrize("workers", [1, 4])
def test_one_that_fails_in_2_ms_gets_less_than_5_percent(policy: str, rate: float, workers: int) -> None:
    assert failed_share(policy, rate, 1000, lambda time, got: True, workers) < 0.05


@settings(max_examples=25, deadline=None)
@given(
    policy=st.sampled_from(["round_robin", "least_work"]),
    rate=st.sampled_from([0.1, 0.5, 2, 10, 50]),
    period=st.floats(1, 240),
    broken=st.floats(0.6, 1.0),
    workers=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_nor_do_more_than_5_percent_fail_when_it_flaps(
    policy: str, rate: float, period: float, broken: float, workers: int, seed: int
) -> None:
    """Broken most of the time; near ejection.error_rate (0.5) and below, a coin decides whether it is to stay."""

    def fails(time: float, got: int) -> bool:
        return time % period < broken * period

    assert failed_share(policy, rate, 1000, fails, workers, seed) < 0.05


def test_every_third_good_answer_does_not_keep_it_in() -> None:
    assert failed_share("round_robin", 20, 1000, lambda time, got: got % 3 != 0) < 0.05


@pytest.mark.parametrize("strategy", ["hybrid", "round_robin"])
def test_through_the_router_one_that_fails_at_once_gets_less_than_5_percent(strategy: str) -> None:
    @run
    async def test() -> None:
        async with router(
            FakeEngine("error_500"), FakeEngine(), FakeEngine(), FakeEngine(), strategy=strategy
        ) as r:

            async def client() -> None:
                for _ in range(100):
                    await r.post({"model": "m", "messages": [{"role": "user", "content": "x"}]})

            await asyncio.gather(*(client() for _ in range(3)))
            assert sum(len(e.requests) for e in r.engines) >= 300
            assert len(r.engines[0].requests) < 15
            if strategy == "round_robin":  # the hybrid's penalty keeps requests away before three have failed
                assert r.replica(0).state == "ejected"

    test()
