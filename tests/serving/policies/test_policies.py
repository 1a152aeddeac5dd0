"""What holds for every policy."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.router import policies

from .fleet import Request, busy, eligible, fleet, policy, traffic_with_a_failing_one

every = pytest.mark.parametrize("name", policies.NAMES)


def test_a_policys_name_is_its_files() -> None:
    folder = Path(policies.__file__).parent
    with_policy = {p.stem for p in folder.glob("*.py") if "\nclass Policy:" in p.read_text()}
    assert with_policy == set(policies.NAMES)
    assert [policies.load(name).name for name in policies.NAMES] == list(policies.NAMES)


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="'least_wrok'; there are: hybrid, least_work, consistent_hash"):
        policies.load("least_wrok")


@every
def test_nobody_eligible_is_nobody_chosen(name: str) -> None:
    replicas = fleet(3)
    for session in (0, 5):
        assert policy(name, replicas).choose(Request(session), eligible([]), ()) is None
        assert policy(name, replicas).choose(Request(session), eligible(replicas), replicas) is None
        assert policy(name, []).choose(Request(session), eligible([]), ()) is None


@every
@pytest.mark.parametrize("size", [3, 12, 13, 3072])
def test_the_one_that_is_eligible_and_untried_is_found(name: str, size: int) -> None:
    replicas = fleet(size)
    chooser = policy(name, replicas)
    for session in (0, 77, 2**64 - 1):
        assert chooser.choose(Request(session), eligible([replicas[2]]), ()) is replicas[2]
        assert chooser.choose(Request(session), eligible(replicas[:3]), replicas[:2]) is replicas[2]


@every
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_the_chosen_is_eligible_and_untried_or_there_is_none(name: str, data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 2, 5, 12, 13, 40]))
    replicas = fleet(size)
    chooser = policy(name, replicas)
    those = eligible(replicas)
    weights = st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0])
    for _ in range(data.draw(st.integers(1, 12))):
        r = data.draw(st.sampled_from(replicas))
        match data.draw(st.integers(0, 4)):
            case 0:
                those.discard(r)
            case 1:
                r.enter(data.draw(st.sampled_from(["ready", "degraded"])), "")
                those.add(r)
            case 2:
                r.weight = data.draw(weights)
            case 3:
                busy(r, data.draw(st.integers(0, 40)))
            case 4:
                r.penalty = data.draw(st.floats(0, 1e9))
        tried = data.draw(st.lists(st.sampled_from(replicas), max_size=3))
        session = data.draw(st.sampled_from([0, 1, 2**63, 2**64 - 1]))
        chosen = chooser.choose(Request(session), those, tried)
        free = [r for r in those if r not in tried]
        assert chosen in free if free else chosen is None


@every
def test_idle_replicas_of_a_large_fleet_all_get_some(name: str) -> None:
    replicas = fleet(100)
    chooser, those = policy(name, replicas), eligible(replicas)
    rng = random.Random(3)
    got = Counter(
        r.name
        for _ in range(6000)
        if (r := chooser.choose(Request(rng.getrandbits(64) if "h" in name else 0), those, ()))
    )
    assert len(got) == 100
    assert max(got.values()) < 6 * 60


@pytest.mark.parametrize("name", ["round_robin", "least_requests", "power_of_two", "least_work"])
def test_a_quarter_of_the_weight_gets_about_a_quarter_of_the_requests(name: str) -> None:
    replicas = fleet(4)
    replicas[0].weight = 0.25
    chooser, those = policy(name, replicas), eligible(replicas)
    for i in range(650):  # none of them ends
        r = chooser.choose(Request(), those, ())
        assert r is not None
        r.attempts.add(i)
        r.work += 300
    counts = [r.in_flight for r in replicas]
    # Of two random ones the light one is one half of the time, and then gets it if the other has four times as much.
    assert 30 <= counts[0] <= 85, counts
    assert min(counts[1:]) > 150


@pytest.mark.parametrize("name", policies.NAMES)
@given(
    size=st.integers(4, 30),
    busyness=st.floats(0.5, 8.0),
    seconds=st.floats(0.5, 10.0),
    seed=st.integers(0, 99),
)
@settings(max_examples=15, deadline=None)
def test_one_that_fails_at_once_attracts_no_traffic(
    name: str, size: int, busyness: float, seconds: float, seed: int
) -> None:
    """It never gets more than its even share, with or without sessions, busy or not."""
    rng = random.Random(seed)
    keys = (rng.getrandbits(64) if rng.random() < 0.5 else 0 for _ in itertools.count())
    gap = seconds / (size * busyness)
    got, replicas = traffic_with_a_failing_one(name, size, gap, seconds, 600, keys)
    assert got["replica-0"] <= 1.25 * 600 / size + 3
    assert all(r.work == 0 and not r.attempts for r in replicas)


@pytest.mark.parametrize("name", ["hybrid", "least_work"])
def test_one_that_fails_at_once_gets_less_than_5_percent_of_a_busy_pool_of_four(name: str) -> None:
    got, _ = traffic_with_a_failing_one(name, 4, 0.02, 1.0, 3000, itertools.repeat(0))
    assert got["replica-0"] < 150
