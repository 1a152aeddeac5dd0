"""What profiles are made of: lengths with their distributions, and texts whose tokens are as stated."""

from __future__ import annotations

import random
import re
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from loadtest._lib._profiles import _chinese, _english, _settings, _source, _text
from loadtest._lib._profiles._lengths import Empirical, LogNormal, Uniform

# -- lengths


@pytest.mark.parametrize(
    ("lengths", "first"),
    [
        (LogNormal(90, 0.8, 16, 600), [39, 201, 158, 54, 90]),
        (Uniform(16, 64), [24, 52, 64, 20, 32]),
        (Empirical(((0, 10), (0.5, 100), (1, 1000))), [34, 725, 575, 56, 99]),
    ],
)
def test_a_seed_gives_these_lengths(lengths: Any, first: list[int]) -> None:
    draw = random.Random(1)
    assert [lengths.draw(draw) for _ in range(5)] == first


def test_a_log_normal_has_its_median_and_spread_between_its_bounds() -> None:
    lengths = LogNormal(100, 0.5, 10, 1000)
    draw = random.Random(2)
    found = sorted(lengths.draw(draw) for _ in range(20_000))
    assert found[10_000] == pytest.approx(100, rel=0.02)
    # exp(0.5) ≈ 1.649 at one standard deviation, which 84.13 % do not exceed.
    assert found[16_826] == pytest.approx(164.9, rel=0.02)
    assert 10 <= found[0] < found[-1] <= 1000


def test_a_log_normal_piles_nothing_up_at_its_bounds() -> None:
    lengths = LogNormal(100, 1.0, 80, 120)
    draw = random.Random(3)
    counts = Counter(lengths.draw(draw) for _ in range(41_000))
    assert set(counts) == set(range(80, 121))
    assert max(counts[80], counts[120]) < 1.4 * counts[100]


def test_measured_lengths_come_out_as_they_were_measured() -> None:
    lengths = Empirical(((0, 10), (0.5, 100), (0.9, 400), (1, 1000)))
    draw = random.Random(4)
    found = sorted(lengths.draw(draw) for _ in range(20_000))
    assert found[10_000] == pytest.approx(100, rel=0.03)
    assert found[18_000] == pytest.approx(400, rel=0.03)
    assert lengths.quantile(0.7) == pytest.approx(250)
    for wrong in (
        ((0, 5),),
        ((0, 5), (0.9, 7)),
        ((0, 9), (1, 7)),
        ((0, 0), (1, 7)),
        ((0, 1), (0, 2), (1, 3)),
    ):
        with pytest.raises(ValueError, match="must be"):
            Empirical(wrong)


def test_lengths_that_do_not_fit_are_scaled_as_a_whole() -> None:
    assert LogNormal(6000, 0.35, 2000, 12000).within(600) == LogNormal(300, 0.35, 100, 600)
    assert Uniform(64, 256).within(128) == Uniform(32, 128)
    assert Empirical(((0, 10), (1, 1000))).within(100) == Empirical(((0, 1), (1, 100)))
    fits = LogNormal(90, 0.8, 16, 600)
    assert fits.within(600) is fits


# -- texts and their tokens


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("tokens", [1, 7, 100, 3000])
def test_a_text_has_the_tokens_that_were_wanted_as_counted_here(language: str, tokens: int) -> None:
    for seed in range(20):
        text = _text.text(random.Random(seed), tokens, language)
        # A Chinese character is up to 3 tokens and there is always one.
        assert tokens - 3 < _text.estimate(text, language) <= tokens + 2


def test_chinese_text_is_chinese() -> None:
    text = _text.text(random.Random(5), 400, "zh") + _text.question(random.Random(5), "zh")
    assert re.fullmatch(r"[\u4e00-\u9fff，。？]+", text)
    assert text.count("。") > 5


def test_english_text_is_ascii_with_proper_articles() -> None:
    text = _text.text(random.Random(6), 5000)
    assert text.isascii()
    assert not re.search(r"\ba [aeiou]", text)


def test_two_texts_of_one_length_differ() -> None:
    texts = {
        _text.text(random.Random(seed), 80, language) for seed in range(300) for language in ("en", "zh")
    }
    assert len(texts) == 600


@pytest.mark.real
@pytest.mark.parametrize("size", [100, 400, 4000])
@pytest.mark.parametrize("kind", ["en", "zh", *_source.LANGUAGES])
def test_smollm2_counts_within_the_stated_error(
    kind: str, size: int, smollm2: Callable[[list[str]], list[int]]
) -> None:
    prose = kind in ("en", "zh")
    make = _text.text if prose else _source.source
    counted = smollm2([make(random.Random(f"{kind}/{n}"), size, kind) for n in range(200)])
    most = _text.ERROR[kind] if prose else _source.ERROR
    assert max(abs(n / size - 1) for n in counted) <= most
    assert abs(statistics.mean(counted) / size - 1) <= 0.02


@pytest.mark.real
def test_words_and_characters_cost_what_is_said_of_them(smollm2: Callable[[list[str]], list[int]]) -> None:
    words = [
        *(
            _english.PLACES
            + _english.PEOPLE
            + _english.THINGS
            + _english.QUALITIES
            + _english.DEEDS
            + _english.TIMES
        )
    ]
    assert smollm2([f" {word}" for word in words]) == [1] * len(words)
    characters = sorted({c for n in range(300) for c in _text.text(random.Random(n), 60, "zh")})
    assert smollm2(characters) == [_chinese.cost(c) for c in characters]
    unique = [f"{random.Random(n).getrandbits(64):016x}:" for n in range(500)]
    assert max(smollm2(unique)) <= _settings.UNIQUE
