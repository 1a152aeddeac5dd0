"""Options of arrivals: what they mean together, and one line with a cure where they contradict each other."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import pytest

from loadtest._lib import _arrival_options
from loadtest._lib._arrival_options import plan
from loadtest._lib._plan import Plan


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = [f"{at},m,10,5,15,x" for at in (0, 1, 2, 90)]
    path.write_text(
        "\n".join(["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", *rows])
    )
    return path


def options(*arguments: str, slo: str = "") -> Any:
    parser = argparse.ArgumentParser()
    _arrival_options.add(parser)
    found = parser.parse_args(arguments)
    found.slo = slo
    return found


def test_without_options_it_is_a_closed_loop() -> None:
    assert plan(options()) == Plan()
    assert plan(options()).as_dict() == {"kind": "closed"}


def test_a_rate_is_open_ended_or_as_long_as_the_run() -> None:
    asked = options("--arrivals", "poisson", "--rate", "50")
    assert math.isinf(plan(asked).seconds)
    assert plan(asked, 60.0).as_dict() == {
        "kind": "poisson",
        "max_open": 5000,
        "stages": ["50x60"],
        "rate": 50.0,
    }
    assert (
        plan(asked, 60.0).words()
        == "open loop, poisson arrivals: 50x60 (requests/s x s), about 3,000 requests in 60 s"
    )


def test_one_and_a_half_times_the_peak(trace: Path) -> None:
    assert plan(options("--arrivals", "constant", "--rate", "1.5x80")).stages[0].start == 120.0
    asked = (
        "--arrivals",
        "poisson",
        "--rate",
        "1.5xpeak",
        "--trace",
        str(trace),
        "--trace-format",
        "burstgpt",
    )
    assert plan(options(*asked)).stages[0].start == pytest.approx(0.075)  # three of the four in one minute


def test_stages_are_poisson_unless_told_otherwise() -> None:
    assert plan(options("--stages", "10x60,10-100x60")).kind == "poisson"
    assert plan(options("--stages", "10x60", "--arrivals", "constant")).kind == "constant"


@pytest.mark.parametrize("given", [("--cv", "2"), ("--burstiness", "0.25")])
def test_burstiness_is_one_through_the_square_of_the_variation(given: tuple[str, str]) -> None:
    assert plan(options("--arrivals", "gamma", "--rate", "1", *given)).cv == 2.0


def test_a_trace_is_played_at_its_speed(trace: Path) -> None:
    asked = plan(options("--trace", str(trace), "--trace-format", "burstgpt", "--trace-speed", "2x"))
    assert (asked.kind, asked.seconds) == ("trace", 45.0)
    assert asked.as_dict()["trace"]["file"] == "trace.csv"
    assert "time in s" in asked.words()
    assert "at 2 times its pace: 45.0 s" in asked.words()


def test_a_search_needs_no_kind() -> None:
    asked = plan(options("--search", "1-200", "--search-step", "1m", slo="ttft=1s")).as_dict()
    assert asked["kind"] == "poisson"
    assert asked["search"] == {
        "low": 1.0, "high": 200.0, "step_seconds": 60.0, "step_warmup_seconds": 10.0, "precision": 0.05,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--rate 50", "--rate 50: say how they come, like --arrivals poisson"),
        ("--arrivals poisson", "at what rate? give --rate 50"),
        ("--arrivals poisson --rate 5 --stages 5x5", "--stages has the rates; leave one of them out"),
        ("--arrivals poisson --rate 5 --cv 2", "--cv 2: is for --arrivals gamma, not poisson"),
        ("--arrivals gamma --rate 5", "how bursty? give --cv 2"),
        ("--arrivals gamma --rate 5 --cv 2 --burstiness 1", "leave one of them out"),
        ("--arrivals gamma --rate 5 --cv 11", "--cv 11: give a number from 0 to 10"),
        ("--arrivals gamma --rate 5 --burstiness 0", "--burstiness 0: give a number from 0.01"),
        ("--arrivals gamma --rate 5 --cv nan", "--cv nan"),
        ("--arrivals trace", "which? give --trace FILE"),
        ("--arrivals poisson --rate 2xpeak", "the peak of what? give --trace FILE"),
        ("--trace none.csv --trace-format azure", "--trace none.csv: No such file"),
        ("--trace {trace}", "--trace-format mooncake, azure, burstgpt"),
        ("--trace {trace} --trace-format azure", "column 'ContextTokens': is missing"),
        ("--trace {trace} --trace-format burstgpt --trace-unit h", "--trace-unit h: give one of s, ms, us"),
        (
            "--trace {trace} --trace-format burstgpt --stages 1x1 --arrivals trace",
            "--trace-speed 2x plays it faster",
        ),
        (
            "--trace {trace} --trace-format burstgpt --trace-from x",
            "--trace-from: 'x' is not a number of seconds",
        ),
        ("--trace {trace} --trace-format burstgpt --trace-limit 0", "--trace-limit 0: give at least 1"),
        ("--trace {trace} --trace-format burstgpt --trace-clip -1", "--trace-clip -1"),
        ("--search 1-200", "--search: for what? give --slo"),
        ("--search 1-200 --rate 5 --arrivals poisson", "leave --rate out, it finds the rate"),
        ("--search 1-200 --search-precision 0", "--search-precision 0: give per cent"),
        ("--arrivals poisson --rate 5 --max-open 0", "--max-open 0: give at least 1"),
    ],
)
def test_what_does_not_fit_together_is_one_line_with_a_cure(given: str, words: str, trace: Path) -> None:
    asked = options(*given.format(trace=trace).split(), slo="ttft=1s" if "precision" in given else "")
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the words are compared below
        plan(asked)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--rate 0", "'0' is not a rate above 0"),
        ("--stages 5y5", "stage 1, '5y5'"),
        ("--search 200-1", "'200-1' is not a range of rates like 1-200"),
        ("--search 5", "'5' is not a range of rates"),
        ("--trace-speed 0x", "'0x' is not a speed like 1x"),
        ("--arrivals bursts", "invalid choice"),
        ("--search-step 0", "not a number of seconds"),
    ],
)
def test_a_wrong_value_is_usage(given: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options(*given.split())
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
