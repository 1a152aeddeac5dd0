"""The ring of virtual nodes."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.fleet.replica import Replica
from serving.router.policies.ring import OWNER_MASK, POINTS, Ring, accepts, seed_of

from .fleet import fleet

_RNG = random.Random(5)
KEYS = [_RNG.getrandbits(64) for _ in range(3000)]


def owner(ring: Ring, key: int) -> str:
    r = ring.owners[ring.points[ring.start(key)] & OWNER_MASK]
    assert r is not None
    return r.name


def ring_of(names: list[str]) -> Ring:
    ring = Ring()
    ring.update(named(names))
    return ring


def named(names: list[str]) -> list:
    replicas = fleet(len(names))
    for r, name in zip(replicas, names, strict=True):
        r.name = name
    return replicas


names = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=12, unique=True)


@given(names, st.data())
@settings(max_examples=40, deadline=None)
def test_only_keys_of_those_that_left_move_and_only_to_those_that_came(
    before: list[str], data: st.DataObject
) -> None:
    after = [*data.draw(st.lists(st.sampled_from(before), unique=True)), "new"]
    ring = ring_of(before)
    owners = {key: owner(ring, key) for key in KEYS[:400]}
    ring.update(named(after))
    assert len(ring) == len(after)
    assert len(ring.points) == POINTS * len(after)
    for key, old in owners.items():
        now = owner(ring, key)
        assert now == old or old not in after or now == "new"


@given(names, st.permutations(range(12)))
@settings(max_examples=30, deadline=None)
def test_a_ring_follows_from_its_members_not_from_how_it_came_to_be(
    members: list[str], order: list[int]
) -> None:
    ring = Ring()
    shuffled = [members[i] for i in order if i < len(members)]
    for count in range(1, len(shuffled) + 1):
        ring.update(named([*shuffled[:count], "passing by"]))
    ring.update(named(members))
    straight = ring_of(members)
    assert [owner(ring, key) for key in KEYS[:300]] == [owner(straight, key) for key in KEYS[:300]]


@pytest.mark.parametrize("size", [2, 12, 384])
def test_shares_are_even_within_what_64_points_give(size: int) -> None:
    ring = ring_of([f"replica-{i}" for i in range(size)])
    rng = random.Random(2)
    draws = 400 * size
    got = Counter(owner(ring, rng.getrandbits(64)) for _ in range(draws))
    assert len(got) == size
    assert max(got.values()) < 1.6 * 400  # 1 standard deviation: 12.5 % of the ring, 5 % of the draw
    assert min(got.values()) > 0.5 * 400


def test_every_key_has_an_owner_at_both_ends_too() -> None:
    ring = ring_of(["a"])
    assert [owner(ring, key) for key in (0, 1, 2**63, 2**64 - 1)] == ["a"] * 4
    for key in (0, 2**64 - 1, *KEYS[:200]):
        at = ring.start(key)
        assert ring.points[at] >= key or (at == 0 and ring.points[-1] < key)
        assert at == 0 or ring.points[at - 1] < key


def test_a_name_that_returns_is_the_new_replica_at_the_old_place() -> None:
    ring = ring_of(["a", "b"])
    owners = [owner(ring, key) for key in KEYS[:100]]
    again = named(["a", "b"])
    ring.update(again)
    assert [owner(ring, key) for key in KEYS[:100]] == owners
    assert {r for r in ring.owners if r} == set(again)


def test_an_empty_ring_has_no_points() -> None:
    ring = ring_of(["a"])
    ring.update([])
    assert (len(ring), len(ring.points)) == (0, 0)


def test_too_many_are_refused() -> None:
    with pytest.raises(ValueError, match="65537 replicas; a ring holds at most 65536"):
        Ring().update([Replica(str(i), "", "", 0) for i in range(65537)])


def test_places_are_the_same_in_another_process() -> None:
    code = (
        "from serving.router.policies.ring import seed_of, Ring\n"
        "class N:\n    def __init__(s, n): s.name = n\n"
        "r = Ring(); r.update([N('replica-0'), N('réplica')])\n"
        "print(seed_of('replica-0'), [p >> 16 for p in r.points][:5])"
    )
    there = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    ).stdout
    here = ring_of(["replica-0", "réplica"])
    assert there.split(" ", 1)[0] == str(seed_of("replica-0")) == "9011195730372987862"
    assert there.split(" ", 1)[1].strip() == str([p >> 16 for p in here.points][:5])


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.floats(0, 1), st.floats(0, 1))
def test_a_growing_share_keeps_the_keys_it_had(key: int, salt: int, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert not accepts(key, salt, low) or accepts(key, salt, high)
    assert accepts(key, salt, 1.0)
    assert not accepts(key, salt, 0.0)


def test_a_share_is_that_share_of_keys() -> None:
    assert abs(sum(accepts(key, 12345, 0.3) for key in KEYS) / len(KEYS) - 0.3) < 0.04
