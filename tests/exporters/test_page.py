"""The line finder: exact names, whole labels, finite values; anything else on a page is passed over."""

from __future__ import annotations

import time

import pytest

from exporters.collectors import _page, _sglang, _vllm
from exporters.collectors._page import MAX_LINE, MAX_SAMPLES, find

WANTED = {b"e:a", b"e:a_total"}


def test_names_are_exact_and_come_without_their_prefix() -> None:
    text = b'e:a 1\ne:a_total{x="1"} 2 1700000000000\ne:ab 3\nf:a 4\n# TYPE e:a gauge\n e:a 5\n'
    assert find(text, b"e:", WANTED) == {"a": [({}, 1.0)], "a_total": [({"x": "1"}, 2.0)]}


def test_label_values_with_quotes_braces_and_escapes_stay_whole() -> None:
    text = rb'e:a{m="a\"}b\\,c=\"d",x="} 9",n="l\nm"} 2'
    assert find(text, b"e:", WANTED) == {"a": [({"m": 'a"}b\\,c="d', "x": "} 9", "n": "l\nm"}, 2.0)]}


def test_lines_that_are_no_sample_or_have_no_finite_value_are_passed_over() -> None:
    text = b'e:a\ne:a{\ne:a{x="1"\ne:a{x="1"}\ne:a x\ne:a NaN\ne:a +Inf\ne:a{x="2"} 7\n\xff\xfe\n'
    assert find(text, b"e:", WANTED) == {"a": [({"x": "2"}, 7.0)]}


def test_windows_line_ends_and_a_missing_last_newline_do_no_harm() -> None:
    assert find(b"e:a 1\r\ne:a_total 2", b"e:", WANTED) == {"a": [({}, 1.0)], "a_total": [({}, 2.0)]}


def test_a_line_longer_than_an_engine_writes_is_passed_over() -> None:
    label = 'm="' + "x" * MAX_LINE + '"'
    assert find(f"e:a{{{label}}} 1\ne:a 2".encode(), b"e:", WANTED) == {"a": [({}, 2.0)]}


@pytest.mark.parametrize("labels", ["a" * 15_000, 'a="' * 5_000, "a=" * 7_000, 'a="\\' * 3_500, "," * 15_000])
def test_labels_made_to_hold_up_the_reader_take_no_time(labels: str) -> None:
    page = f"e:a{{{labels}}} 1\n".encode() * 100
    began = time.process_time()
    find(page, b"e:", WANTED)
    assert time.process_time() - began < 2


def test_more_samples_than_an_engine_can_have_are_refused() -> None:
    page = "".join(f'e:a{{m="{i}"}} 1\n' for i in range(MAX_SAMPLES)).encode()
    assert len(find(page, b"e:", WANTED)["a"]) == MAX_SAMPLES
    with pytest.raises(ValueError, match="more than 10000 samples"):
        find(page + b"e:a 1\n", b"e:", WANTED)


def test_what_is_remembered_of_pages_is_short() -> None:
    before = _page._labels.cache_info().currsize
    long = "x" * 2000
    assert find(f'e:a{{m="{long}"}} 1'.encode(), b"e:", WANTED) == {"a": [({"m": long}, 1.0)]}
    assert _page._labels.cache_info().currsize == before


def test_thousands_of_models_cost_no_square_of_their_number() -> None:
    vllm = "".join(f'vllm:kv_cache_usage_perc{{model_name="m{i}",engine="0"}} 1\n' for i in range(9000))
    sglang = "".join(f'sglang:token_usage{{model_name="m{i}"}} 1\n' for i in range(9000))
    began = time.process_time()
    for reading in (_vllm.read(vllm.encode(), "r"), _sglang.read(sglang.encode(), "r")):
        assert reading is not None
        assert len(reading.samples) == 9000
    assert time.process_time() - began < 2
