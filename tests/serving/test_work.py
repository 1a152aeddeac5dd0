"""Estimates of work."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.router.work import Estimator


def test_before_anything_is_known_four_bytes_are_a_token_and_256_tokens_an_answer() -> None:
    assert Estimator(["m"]).estimate("m", "", 4000, None, None) == (1001, 256, 256 + 500 + 1)


def test_max_tokens_is_a_ceiling_and_n_a_factor() -> None:
    e = Estimator()
    assert e.estimate(None, "", 400, 16, None)[1] == 16
    assert e.estimate(None, "", 400, 0, None)[1] == 0
    assert e.estimate(None, "", 400, 100_000, 1)[1] == 256
    assert e.estimate(None, "", 400, 16, 4)[1] == 64
    assert e.estimate(None, "", 400, 16, 10**9)[1] == 16 * 128


def test_prompts_weigh_by_the_speed_of_prefill() -> None:
    fast = Estimator(prefill_speed=10.0)
    assert fast.estimate(None, "", 40_000, 100, None) == (10001, 100, 1101)
    with pytest.raises(ValueError, match="prefill_speed must be above 0, got 0"):
        Estimator(prefill_speed=0)


def test_bytes_per_token_are_learnt_and_long_bodies_count_for_more() -> None:
    e = Estimator(["m", "other"])
    e.learn("m", "", 1000, 500, 0)
    assert e.estimate("m", "", 1000, None, None)[0] == 501
    e.learn("m", "", 9000, 1500, 0)  # together 10,000 bytes for 2,000 tokens
    assert e.estimate("m", "", 1000, None, None)[0] == 201
    assert e.estimate("other", "", 1000, None, None)[0] == 251


def test_images_teach_nothing_about_text() -> None:
    e = Estimator(["m"])
    e.learn("m", "", 4_000_000, 1000, 0)
    e.learn("m", "", 100, 5000, 0)
    assert e.estimate("m", "", 1000, None, None)[0] == 251


def test_answers_are_learnt_by_model_and_intent() -> None:
    e = Estimator(["m"], ["medical", "legal"])
    for _ in range(10):
        e.learn("m", "medical", 400, 100, 900)
    e.learn("m", "", 400, 100, 12)
    assert e.estimate("m", "medical", 400, None, None)[1] == 900
    # Of an intent that was not seen: what is usual for the model, 10 of 900 and one of 12.
    assert e.estimate("m", "legal", 400, None, None)[1] == 819
    assert e.estimate("unheard of", "legal", 400, None, None)[1] == 256


def test_a_change_is_followed_within_some_hundred_answers() -> None:
    e = Estimator()
    for _ in range(500):
        e.learn(None, "", 400, 100, 50)
    for _ in range(200):
        e.learn(None, "", 400, 100, 450)
    assert 435 <= e.estimate(None, "", 400, None, None)[1] <= 450


def test_usage_of_nothing_teaches_nothing() -> None:
    e = Estimator()
    e.learn(None, "", 0, 0, 0)
    e.learn(None, "", 400, 0, 0)
    assert e.estimate(None, "", 400, None, None) == (101, 256, 307)


def test_memory_counts_where_the_capacity_is_known() -> None:
    e = Estimator(["m"])
    e.set_capacity("m", 10_000, 0.8)  # 8,192 of work for 8,000 tokens
    assert e.estimate("m", "", 3996, 200, None) == (1000, 200, int(200 + 500 + 1200 * 1.024) + 1)
    e.set_capacity("m", None)
    assert e.estimate("m", "", 3996, 200, None) == (1000, 200, 701)


def test_a_models_knowledge_stays_while_it_is_served() -> None:
    e = Estimator(["a", "b"])
    e.learn("a", "", 400, 100, 7)
    e.learn("b", "", 400, 100, 8)
    e.set_models(["a", "c"])
    assert [e.estimate(m, "", 400, None, None)[1] for m in "abc"] == [7, 256, 256]


def test_nothing_that_clients_name_makes_it_grow() -> None:
    e = Estimator(["m"], ["legal"])
    for i in range(1000):
        e.learn(f"model {i}", f"intent {i}", 400, 100, 10)
        e.learn("m", f"intent {i}", 400, 100, 10)
    assert len(e._models) == 1
    assert not e._models["m"].outputs


@given(
    st.integers(0, 2**34), st.none() | st.integers(0, 2**40), st.none() | st.integers(0, 2**40),
    st.lists(st.tuples(st.integers(0, 2**34), st.integers(-5, 2**34), st.integers(-5, 2**34)), max_size=8),
    st.integers(0, 10**7),
)  # fmt: skip
def test_work_is_a_whole_number_of_which_the_prefill_part_is_at_most_all(
    body: int, max_tokens: int | None, n: int | None, usage: list[tuple[int, int, int]], capacity: int
) -> None:
    e = Estimator(["m"])
    e.set_capacity("m", capacity)
    for body_bytes, prompt, completion in usage:
        e.learn("m", "", body_bytes, prompt, completion)
    input_tokens, output_tokens, work = e.estimate("m", "", body, max_tokens, n)
    part = e.prefill_part(SimpleNamespace(input_tokens=input_tokens, work=work))
    assert isinstance(work, int)
    assert isinstance(part, int)
    assert 0 <= part <= work
    assert input_tokens >= 1
    assert output_tokens >= 0
