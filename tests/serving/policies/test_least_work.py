"""Weighted least work."""

from __future__ import annotations

from collections import Counter

import pytest

from serving.router.policies.least_work import EXACT

from .fleet import Request, busy, eligible, fleet, policy


@pytest.mark.parametrize("size", [2, EXACT])
@pytest.mark.parametrize("what", ["work", "others_work", "penalty"])
def test_of_a_small_fleet_the_one_with_the_least_is_taken(size: int, what: str) -> None:
    replicas = fleet(size)
    for i, r in enumerate(replicas):
        setattr(r, what, 100.0 + (i - 1) ** 2)
    chooser, those = policy("least_work", replicas), eligible(replicas)
    assert {chooser.choose(Request(), those, ()) for _ in range(50)} == {replicas[1]}
    second = chooser.choose(Request(), those, [replicas[1]])
    assert second in (replicas[0], replicas[2 % size])


def test_of_a_large_fleet_the_busiest_are_not_taken() -> None:
    replicas = fleet(100)
    for i, r in enumerate(replicas):
        r.work = 300.0 * i
    chooser, those = policy("least_work", replicas), eligible(replicas)
    got = Counter(replicas.index(r) for _ in range(2000) if (r := chooser.choose(Request(), those, ())))
    assert sum(got[i] for i in range(50)) > 1800
    assert all(got[i] for i in range(5))


def test_work_is_divided_by_weight_and_an_idle_light_one_is_not_preferred() -> None:
    heavy, light = fleet(2)
    light.weight = 0.25
    chooser, those = policy("least_work", [heavy, light]), eligible([heavy, light])
    assert {chooser.choose(Request(work=300), those, ()) for _ in range(20)} == {heavy}
    heavy.work = 1000.0  # 1300 against 300 / 0.25
    assert {chooser.choose(Request(work=300), those, ()) for _ in range(20)} == {light}


def test_equal_work_is_spread_evenly() -> None:
    replicas = fleet(4)
    chooser, those = policy("least_work", replicas), eligible(replicas)
    got = Counter(r.name for _ in range(4000) if (r := chooser.choose(Request(), those, ())))
    assert min(got.values()) > 800


def test_a_degraded_one_is_taken_when_the_others_have_eight_requests_more() -> None:
    good, slow = fleet(2)
    slow.enter("degraded", "")
    chooser, those = policy("least_work", [good, slow]), eligible([good, slow])
    busy(good, 8, 250)
    assert chooser.choose(Request(), those, ()) is good
    busy(good, 1, 250)
    assert chooser.choose(Request(), those, ()) is slow


def test_load_of_a_large_fleet_stays_even() -> None:
    """Requests of two sizes, none of which ends: the spread stays within a few requests."""
    replicas = fleet(200)
    chooser, those = policy("least_work", replicas), eligible(replicas)
    for i in range(4000):
        work = 2000 if i % 10 == 0 else 200
        r = chooser.choose(Request(work=work), those, ())
        assert r is not None
        r.work += work
    works = [r.work for r in replicas]
    assert max(works) - min(works) < 4000  # the mean is 7,600; drawn at random they spread by 15,000
