"""Texts of options: what they mean, and what is said of wrong ones."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest._lib import _options
from loadtest._lib._limits import Limits
from loadtest._lib._objectives import Objectives


def test_objectives_are_read_with_their_units() -> None:
    assert Objectives.parse("ttft=1s, itl=200ms,e2e=1.5s") == Objectives(ttft=1.0, itl=0.2, e2e=1.5)
    assert Objectives.parse("").as_dict() == {"ttft": None, "itl": None, "tpot": None, "e2e": None}


def test_limits_that_are_not_named_keep_their_value() -> None:
    assert Limits.parse("lag=20ms,cpu=0.5") == Limits(lag=0.02, cpu=0.5)
    assert Limits.parse("") == Limits()


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (Objectives.parse, "ttft=1", "'1' is no time with its unit"),
        (Objectives.parse, "ttft=0s", "'0s' is no time with its unit"),
        (Objectives.parse, "ttft", "'' is no time with its unit"),
        (Objectives.parse, "p99=1s", "'p99' is none of ttft, itl, tpot, e2e; write it like ttft=1s"),
        (Objectives.parse, "ttft=1s,ttft=2s", "ttft is there twice"),
        (Limits.parse, "ram=1s", "'ram' is none of lag, delay, cpu"),
        (Limits.parse, "cpu=fast", "cpu=fast is no share of a core"),
        (Limits.parse, "lag=1s,lag=1s", "lag is there twice"),
        (_options.tokens, "9-3", "'9-3' is neither a number of tokens nor a range like 16-64"),
        (_options.tokens, "x", "'x' is neither a number of tokens nor a range like 16-64"),
        (_options.warmup, "-1", "'-1' is neither auto nor a number of seconds"),
        (_options.warmup, "nan", "'nan' is neither auto nor a number of seconds"),
        (_options.seed, "1.5", "'1.5' is no whole number"),
        (_options.gpus, "0", "'0' is no number of GPUs above 0"),
        (_options.name, "../x", "'../x' is no name for a run"),
    ],
)
def test_wrong_texts_are_refused_with_the_cure(read: Callable[[str], Any], text: str, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared below
        read(text)
    assert str(error.value).startswith(message)


def test_empty_texts_mean_the_default() -> None:
    assert _options.tokens("") is _options.seed("") is _options.gpus("") is _options.warmup("auto") is None
    assert (_options.tokens("8"), _options.tokens("8-16"), _options.seed("-3")) == ((8, 8), (8, 16), -3)


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    real = parser.add_argument_group

    def group(*a: Any, **k: Any) -> Any:
        made = real(*a, **k)
        add = made.add_argument
        # locust's parser also knows env_var
        made.add_argument = lambda *x, env_var="", **y: add(*x, **y)  # type: ignore[method-assign]
        return made

    parser.add_argument_group = group  # type: ignore[method-assign]
    _options.add(parser)
    return parser.parse_args(arguments)


def test_an_untouched_command_line_has_no_problem() -> None:
    options = parsed()
    assert _options.problem(options) is None
    assert (options.slo_attainment, options.warmup, options.stop_timeout) == (0.99, "auto", "30")


def test_what_does_not_go_together(tmp_path: Path) -> None:
    (tmp_path / "run.json").touch()
    told = [
        _options.problem(parsed(*arguments))
        for arguments in (
            ("--run-folder", "x", "--run-name", "y"),
            ("--no-save", "--run-name", "y"),
            ("--run-folder", str(tmp_path)),
            ("--run-folder", "x/.hidden"),
            ("--api-key-file", str(tmp_path / "none")),
        )
    ]
    assert told == [
        "--run-folder and --run-name: give one of them; the folder's last part is the name",
        "--no-save keeps no folder: leave --run-folder and --run-name out, or --no-save",
        f"--run-folder {tmp_path}: there is a run in it already; name a new folder",
        "--run-folder x/.hidden: its last part names the run; take letters, digits, dots and dashes",
        f"--api-key-file {tmp_path / 'none'}: No such file or directory",
    ]


def test_a_key_in_a_file_wins_and_loses_its_line_end(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    assert _options.api_key(parsed("--api-key", "x", "--api-key-file", str(tmp_path / "key"))) == "secret"
    assert _options.api_key(parsed("--api-key", "x")) == "x"
    assert _options.api_key(parsed()) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [("two words", "one word"), ("a\r\nX-Evil: 1", "one word"), ("clé", "one word"), ("\n", "is empty")],
)
def test_a_key_that_can_not_stand_in_a_header_is_refused_and_not_repeated(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(ValueError, match=said) as refused:
        _options.api_key(parsed("--api-key-file", str(tmp_path / "key")))
    assert "Evil" not in str(refused.value)


@pytest.mark.parametrize("value", ["0", -1.0, "x", float("nan"), 100_000.0])
def test_numbers_that_a_web_page_sends_are_checked_like_those_of_the_command_line(value: str | float) -> None:
    """locust turns them into numbers of the option's type, and asks nobody whether they make sense."""
    with pytest.raises(ValueError, match="is not a number of seconds above 0, at most 86400"):
        _options.timeout(value)
    with pytest.raises(ValueError, match="is not a share above 0, at most 1"):
        _options.share(value)
    assert (_options.timeout(2.5), _options.share("0.9")) == (2.5, 0.9)
