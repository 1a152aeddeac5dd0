"""Counts that workers see of each other: own row, others' sum, dead workers, numbers that are used again."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.fleet.replica import Replica
from serving.router.shared import MAX_REPLICAS, Counts


def replicas(n: int) -> list[Replica]:
    out = [Replica(f"r{i}", f"http://x:{i + 1}", "x", i + 1) for i in range(n)]
    for i, r in enumerate(out):
        r.index = i
    return out


@pytest.fixture
def three() -> tuple[Counts, list[Counts]]:
    """The master's view and those of three workers."""
    master, fd = Counts.create(3)
    workers = [Counts.attach(fd, 3, i) for i in range(3)]
    os.close(fd)
    return master, workers


def test_a_worker_sees_the_sum_of_the_others_without_its_own(three: tuple[Counts, list[Counts]]) -> None:
    _, workers = three
    for i, n, work in ((0, 1, 10.0), (1, 2, 20.0), (2, 4, 40.5)):
        workers[i].cells[1] = n
        workers[i].work[1] = work
    seen = replicas(2)
    workers[0].refresh(seen)
    assert (seen[1].others, seen[1].others_work) == (6, 60.5)
    assert (seen[0].others, seen[0].others_work) == (0, 0.0)


def test_the_master_sees_all_of_them(three: tuple[Counts, list[Counts]]) -> None:
    master, workers = three
    for w in workers:
        w.cells[0] = 3
    seen = replicas(1)
    master.refresh(seen)
    assert seen[0].others == 9
    assert [master.open(i) for i in range(3)] == [3, 3, 3]


def test_counts_of_a_dead_worker_disappear(three: tuple[Counts, list[Counts]]) -> None:
    master, workers = three
    workers[0].cells[0], workers[0].work[0] = 5, 500.0
    workers[1].cells[0], workers[1].work[0] = 2, 200.0
    seen = replicas(1)
    workers[2].refresh(seen)
    assert seen[0].others == 7
    master.empty(0)
    workers[2].refresh(seen)
    assert (seen[0].others, seen[0].others_work) == (2, 200.0)


def test_a_number_that_gets_a_new_replica_starts_at_nothing(three: tuple[Counts, list[Counts]]) -> None:
    master, workers = three
    workers[1].cells[0], workers[1].work[0] = 2, 200.0
    workers[0].refresh(replicas(1))
    master.clear(0)
    (new,) = replicas(1)
    workers[0].refresh([new])
    assert (new.others, new.others_work) == (0, 0.0)


def test_numbers_without_a_replica_are_passed_over(three: tuple[Counts, list[Counts]]) -> None:
    _, workers = three
    workers[1].cells[0] = workers[1].cells[1] = 1
    _, b = replicas(2)
    workers[0].refresh([None, b])
    assert b.others == 1


def test_the_last_row_and_the_last_number_are_there(three: tuple[Counts, list[Counts]]) -> None:
    master, workers = three
    workers[2].cells[MAX_REPLICAS - 1] = 1
    workers[2].work[MAX_REPLICAS - 1] = 2.0
    assert master.open(2) == 1
    with pytest.raises(IndexError):
        workers[2].cells[MAX_REPLICAS] = 1


def test_a_single_process_has_no_others() -> None:
    counts = Counts.local()
    counts.cells[0] = 4
    seen = replicas(1)
    counts.refresh(seen)
    assert seen[0].others == 0


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 50)), min_size=1, max_size=40))
def test_the_sum_is_right_after_any_writes(writes: list[tuple[int, int, int]]) -> None:
    _, fd = Counts.create(3)
    workers = [Counts.attach(fd, 3, i) for i in range(3)]
    os.close(fd)
    seen = replicas(5)
    expected = {(w, i): 0 for w in range(3) for i in range(5)}
    for w, i, n in writes:
        workers[w].cells[i], workers[w].work[i] = n, float(n)
        expected[w, i] = n
        workers[0].refresh(seen)
        for r in seen:
            others = expected[1, r.index] + expected[2, r.index]
            assert (r.others, r.others_work) == (others, float(others))
