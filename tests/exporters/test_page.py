"""The line finder: exact names, whole labels, finite values; anything else on a page is passed over."""

from __future__ import annotations

from exporters.collectors._page import find

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
