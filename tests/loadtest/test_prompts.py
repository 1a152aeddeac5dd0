"""Prompts of the load tests: lengths, uniqueness, repeatability."""

from __future__ import annotations

import statistics

from loadtest._lib._prompts import MAX_WORDS, MEDIAN_WORDS, MIN_WORDS, Prompts
from loadtest._lib._stats import bucket


def words(prompt: str) -> int:
    return len(prompt.partition(": Tell a story in which these words occur: ")[2].split())


def test_lengths_have_the_stated_median_and_bounds() -> None:
    prompts = Prompts(1, "0/0")
    lengths = [words(prompts.next()) for _ in range(4000)]
    assert abs(statistics.median(lengths) - MEDIAN_WORDS) <= 4
    assert sum(n < 240 for n in lengths) / len(lengths) > 0.93
    assert min(lengths) >= MIN_WORDS
    assert max(lengths) == MAX_WORDS


def test_no_two_prompts_share_their_first_16_characters() -> None:
    heads = set()
    for user in range(20):
        prompts = Prompts(5, f"0/{user}")
        heads |= {prompts.next()[:16] for _ in range(200)}
    assert len(heads) == 4000


def test_one_seed_and_user_repeat_and_another_seed_does_not() -> None:
    first, again, other = Prompts(3, "0/1"), Prompts(3, "0/1"), Prompts(4, "0/1")
    sequence = [(first.next(), first.tokens(16, 64)) for _ in range(5)]
    assert sequence == [(again.next(), again.tokens(16, 64)) for _ in range(5)]
    assert sequence != [(other.next(), other.tokens(16, 64)) for _ in range(5)]
    assert all(16 <= tokens <= 64 for _, tokens in sequence)


def test_response_times_keep_three_digits() -> None:
    given = [20.26, 109.4, 1049.0, 23_456.0, 0.04]
    assert [bucket(ms) for ms in given] == [20.3, 109, 1050, 23_500, 0.0]
