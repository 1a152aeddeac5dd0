"""Consistent hashing with bounded load, and the hybrid that uses the same ring."""

from __future__ import annotations

import random

import pytest

from serving.fleet.replica import Replica
from serving.router.policies.consistent_hash import FACTOR, FLOOR

from .fleet import Request, busy, eligible, fleet, policy

both = pytest.mark.parametrize("name", ["consistent_hash", "hybrid"])
_RNG = random.Random(11)
KEYS = [_RNG.getrandbits(64) | 1 for _ in range(400)]


@both
@pytest.mark.parametrize("size", [2, 12, 384])
def test_a_session_stays_where_it_is(name: str, size: int) -> None:
    replicas = fleet(size)
    a, b, those = policy(name, replicas), policy(name, replicas[::-1]), eligible(replicas)
    homes = {key: a.choose(Request(key), those, ()) for key in KEYS}
    assert {key: b.choose(Request(key), those, ()) for key in KEYS} == homes  # in any worker
    assert len(set(homes.values())) > size / 3


@both
def test_only_sessions_of_one_that_is_out_move_and_they_come_back(name: str) -> None:
    replicas = fleet(12)
    chooser, those = policy(name, replicas), eligible(replicas)
    homes = {key: chooser.choose(Request(key), those, ()) for key in KEYS}
    out = replicas[4]
    those.discard(out)
    for key, home in homes.items():
        now = chooser.choose(Request(key), those, ())
        assert now is not out
        assert now is home or home is out
    those.add(out)
    assert {key: chooser.choose(Request(key), those, ()) for key in KEYS} == homes


@both
def test_a_retry_goes_elsewhere_and_always_to_the_same(name: str) -> None:
    replicas = fleet(12)
    chooser, those = policy(name, replicas), eligible(replicas)
    for key in KEYS[:50]:
        home = chooser.choose(Request(key), those, ())
        assert home is not None
        second = {chooser.choose(Request(key), those, [home]) for _ in range(5)}
        assert len(second) == 1
        assert home not in second


def test_a_full_replica_hands_its_sessions_on() -> None:
    replicas = fleet(8)
    chooser, those = policy("consistent_hash", replicas), eligible(replicas)
    home = chooser.choose(Request(KEYS[0]), those, ())
    assert home is not None
    busy(home, FLOOR - 1)
    assert chooser.choose(Request(KEYS[0]), those, ()) is home
    busy(home, 1)
    next_one = chooser.choose(Request(KEYS[0]), those, ())
    assert next_one is not home
    # 13 against a mean of (7 x 10 + 12) / 8 = 10.25, which allows 12.8.
    for r in replicas:
        r.attempts.clear()
        busy(r, 10)
    busy(home, 2)
    assert chooser.choose(Request(KEYS[0]), those, ()) is home
    busy(home, 1)
    assert chooser.choose(Request(KEYS[0]), those, ()) is next_one


@pytest.mark.parametrize("size", [8, 60])
def test_one_key_alone_overloads_nobody(size: int) -> None:
    replicas = fleet(size)
    chooser, those = policy("consistent_hash", replicas), eligible(replicas)
    for i in range(40 * size):
        r = chooser.choose(Request(KEYS[0]), those, ())
        assert r is not None
        r.attempts.add(i)
        r.work += 300
    most = max(r.in_flight for r in replicas)
    # A large fleet's mean is sampled, and behind the truth while load grows.
    assert most <= FACTOR * 40 + (1 if size == 8 else 10)


def test_weights_are_shares_of_sessions_and_move_no_others() -> None:
    replicas = fleet(5)
    chooser, those = policy("consistent_hash", replicas), eligible(replicas)
    keys = KEYS * 1
    homes = {key: chooser.choose(Request(key), those, ()) for key in keys}
    before = [sum(home is r for home in homes.values()) for r in replicas]
    replicas[3].weight = 0.25
    now = {key: chooser.choose(Request(key), those, ()) for key in keys}
    assert all(now[key] is homes[key] or homes[key] is replicas[3] for key in keys)
    assert 0.1 < sum(home is replicas[3] for home in now.values()) / before[3] < 0.45


def test_without_a_session_the_better_of_two_is_taken() -> None:
    a, b = fleet(2)
    busy(a, 3)
    assert policy("consistent_hash", [a, b]).choose(Request(0), eligible([a, b]), ()) is b


# --- hybrid ---


def home_and_others(size: int) -> tuple[object, object, Replica, list[Replica]]:
    replicas = fleet(size)
    chooser, those = policy("hybrid", replicas), eligible(replicas)
    home = chooser.choose(Request(KEYS[0]), those, ())
    assert home is not None
    return chooser, those, home, [r for r in replicas if r is not home]


def test_without_a_session_the_least_work_is_taken() -> None:
    replicas = fleet(5)
    for r in replicas[1:]:
        busy(r, 1)
    assert policy("hybrid", replicas).choose(Request(0), eligible(replicas), ()) is replicas[0]


def test_a_session_goes_home_as_long_as_that_saves_more_than_it_costs() -> None:
    chooser, those, home, others = home_and_others(2)
    for r in others:
        r.work = 5000.0
    # 1,000 of the prompt are saved, and one request's 256 more is always allowed.
    request = Request(KEYS[0], work=1200.0, output_tokens=200)
    home.work = 5000.0 + 1000.0 + 256.0
    assert chooser.choose(request, those, ()) is home  # type: ignore[attr-defined]
    home.work += 1.0
    assert chooser.choose(request, those, ()) is others[0]  # type: ignore[attr-defined]


def test_a_session_that_is_away_from_home_goes_to_one_other_place() -> None:
    chooser, those, home, others = home_and_others(40)
    for r in others:
        r.work = 2000.0
    home.work = 1e5
    assert len({chooser.choose(Request(KEYS[0]), those, ()) for _ in range(20)}) == 1  # type: ignore[attr-defined]


def test_a_failing_home_loses_its_sessions() -> None:
    chooser, those, home, _ = home_and_others(4)
    home.penalty = 1000.0
    assert chooser.choose(Request(KEYS[0]), those, ()) is not home  # type: ignore[attr-defined]


def test_members_may_change_between_two_requests() -> None:
    replicas = fleet(6)
    chooser, those = policy("hybrid", replicas[:5]), eligible(replicas)
    homes = {key: chooser.choose(Request(key), those, ()) for key in KEYS}
    assert replicas[5] not in homes.values()
    chooser.set_replicas(replicas)
    now = {key: chooser.choose(Request(key), those, ()) for key in KEYS}
    assert all(now[key] is homes[key] or now[key] is replicas[5] for key in KEYS)
    assert replicas[5] in now.values()
