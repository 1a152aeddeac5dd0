"""Round robin, least requests, power of two choices."""

from __future__ import annotations

from collections import Counter

import pytest

from .fleet import Request, busy, eligible, fleet, policy


def test_round_robin_goes_round_whatever_the_load() -> None:
    replicas = fleet(3)
    busy(replicas[0], 50)
    chooser, those = policy("round_robin", replicas), eligible(replicas)
    chosen = [chooser.choose(Request(), those, ()) for _ in range(6)]
    assert chosen[:3] == chosen[3:]
    assert set(chosen) == set(replicas)


@pytest.mark.parametrize("size", [2, 5, 12])
def test_least_requests_takes_the_least_whatever_their_work(size: int) -> None:
    replicas = fleet(size)
    for r in replicas:
        busy(r, 2, work=0)
    replicas[1].attempts.pop()
    replicas[1].work = 1e6
    chooser, those = policy("least_requests", replicas), eligible(replicas)
    assert {chooser.choose(Request(), those, ()) for _ in range(20)} == {replicas[1]}
    replicas[1].others = 2
    assert replicas[1] not in {chooser.choose(Request(), those, ()) for _ in range(20)}


def test_of_two_the_better_is_taken_and_the_worst_of_three_never() -> None:
    replicas = fleet(3)
    busy(replicas[1], 2)
    busy(replicas[2], 4)
    chooser, those = policy("power_of_two", replicas), eligible(replicas)
    got = Counter(r.name for _ in range(3000) if (r := chooser.choose(Request(), those, ())))
    assert got["replica-2"] == 0
    assert 1800 < got["replica-0"] < 2200  # in two of the three pairs


def test_of_two_the_untried_one_is_taken() -> None:
    replicas = fleet(2)
    busy(replicas[1], 9)
    chooser, those = policy("power_of_two", replicas), eligible(replicas)
    assert {chooser.choose(Request(), those, [replicas[0]]) for _ in range(20)} == {replicas[1]}
