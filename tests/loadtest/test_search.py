"""The search for the highest rate that holds: which rates it tries, and what it says in the end."""

from __future__ import annotations

import pytest

from loadtest._lib._search import Search, Step, wilson


def played(search: Search, capacity: float, requests: int = 1000, client: float = 1e9) -> list[float]:
    """Rates tried on a server that is perfect up to capacity and good for half the requests beyond it."""
    rates = []
    while (rate := search.next_rate()) is not None:
        rates.append(rate)
        step = Step(rate, 30.0, requests, requests if rate <= capacity else requests // 2)
        if rate > client:
            step.verdict = "void"
        search.tell(step)
    return rates


def test_the_rate_is_doubled_until_it_misses_then_the_gap_is_halved() -> None:
    search = Search(1, 100, 0.99, 0.05)
    rates = played(search, 10.0)
    assert rates[:5] == [1, 2, 4, 8, 16]
    assert search.held is not None
    assert search.missed is not None
    assert search.held <= 10.0 < search.missed <= search.held * 1.05
    assert search.result()["exit_code"] == 0


def test_a_server_that_holds_everything_is_told_as_at_least() -> None:
    search = Search(1, 12, 0.99, 0.05)
    assert played(search, 1e9) == [1, 2, 4, 8, 12]
    assert search.result()["rate"] == 12
    assert search.result()["not_above"] is None
    assert "the highest rate tried" in search.words()


def test_a_server_that_misses_the_lowest_rate_ends_the_search_at_once() -> None:
    search = Search(5, 100, 0.99, 0.05)
    assert played(search, 1.0) == [5]
    assert search.result()["rate"] is None
    assert search.result()["exit_code"] == 1
    assert search.words() == "even 5 requests/s miss the SLO at 99% of the requests; try lower ones"


def test_a_client_that_is_too_slow_is_the_limit_and_is_named() -> None:
    search = Search(1, 1000, 0.99, 0.05)
    played(search, 1e9, client=50.0)
    assert search.held is not None
    assert search.held <= 50.0 < search.held * 1.05
    assert search.result()["limited_by_client"]
    assert "more than this client can send on time" in search.words()


def test_a_client_that_is_too_slow_for_the_lowest_rate_makes_it_void() -> None:
    search = Search(10, 100, 0.99, 0.05)
    assert played(search, 1e9, client=1.0) == [10]
    assert search.result()["exit_code"] == 3


def test_a_step_too_close_to_the_target_is_played_again_and_both_are_counted() -> None:
    search = Search(1, 2, 0.99, 0.05)
    search.tell(Step(1, 30.0, 100, 99))
    assert search.next_rate() == 1
    assert search.held is None
    step = search.tell(Step(1, 30.0, 100, 100))
    assert (step.offered, step.good, step.plays, step.seconds) == (200, 199, 2, 60.0)
    assert search.held == 1
    assert len(search.steps) == 1
    assert search.next_rate() == 2


def test_the_result_has_its_uncertainty() -> None:
    search = Search(1, 2, 0.9, 0.05)
    played(search, 1e9)
    assert "95 % interval 99.62% to 100.00%" in search.words()
    assert search.result()["steps"][0]["interval"] == pytest.approx((0.99617, 1.0), abs=1e-5)


def test_wilson_intervals_equal_published_ones() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
