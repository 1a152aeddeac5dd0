"""The options of arrivals: how requests come, at what rate, by which stages, trace or search.

Parsed into one ``Plan`` (``_plan``), which ``_conduct`` has played. Options stay text on locust's command line and web page, so a
plan is made anew whenever a run begins.
"""

from __future__ import annotations

import argparse
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

from loadtest._lib import _arrivals, _traces
from loadtest._lib._arrivals import Stage
from loadtest._lib._plan import Plan, Steps

KINDS = ("closed", "constant", "poisson", "gamma", "trace")
_EPILOG = """
Arrivals: examples
  --arrivals poisson --rate 50 -t 5m             50 requests a second on average, whatever the server does
  --arrivals gamma --cv 2 --rate 50              the same in bursts
  --arrivals poisson --rate 1.5x80               1.5 times a peak of 80 a second
  --arrivals poisson --stages 10x60,10-100x120   a minute at 10 a second, then up to 100 in two
  --trace conversation.jsonl --trace-format mooncake --trace-speed 2x
  --search 1-200 --slo ttft=1s,e2e=20s           the highest rate that holds the SLO
"""


def add(parser: Any) -> None:
    """Register the options, once."""
    group = parser.add_argument_group("ExaServe arrivals", _EPILOG)
    option = group.add_argument
    option("--arrivals", choices=KINDS, default="closed",
           help="closed: users (-u) that ask when they have their answer; the others: requests that come by themselves, "
           "timed from when they were due (default: closed; poisson with --stages or --search, trace with --trace)")  # fmt: skip
    option("--rate", default="", metavar="R", type=_checked(_arrivals.parse_rate),
           help="requests a second, all processes together: 50, 1.5x80 (1.5 times a peak of 80) or 1.5xpeak (of the "
           "busiest minute of --trace)")  # fmt: skip
    option("--cv", default="", metavar="C",
           help="of gamma arrivals: standard deviation / mean of the intervals; 1 is Poisson, above it bursts")  # fmt: skip
    option(
        "--burstiness",
        default="",
        metavar="B",
        help="the same as vllm bench serve says it: 1/CV²; below 1 bursts",
    )
    option("--stages", default="", metavar="RxS,…", type=_checked(_arrivals.parse_stages),
           help="rates one after the other: requests/s x seconds, a ramp as FROM-TOxSECONDS, 0x30 is a pause")  # fmt: skip
    option("--max-open", type=int, default=5000, metavar="N",
           help="requests open at once in one process; one that is due beyond it is not sent and counts as bad "
           "(default: 5000)")  # fmt: skip
    group = parser.add_argument_group("ExaServe trace replay")
    option = group.add_argument
    option("--trace", default="", metavar="FILE",
           help="replay it: each request at its time with its numbers of tokens. On every machine that has workers")  # fmt: skip
    option("--trace-format", default="", metavar="NAME",
           help="mooncake (JSON lines, milliseconds), azure (CSV with dates), burstgpt (CSV, seconds); none for a trace "
           "of exaserve audit export-trace")  # fmt: skip
    option(
        "--trace-unit",
        default="",
        metavar="UNIT",
        help="s, ms or us, where a file's times are not its format's",
    )
    option(
        "--trace-speed",
        default="1x",
        metavar="F",
        type=_checked(_speed),
        help="2x plays it in half its time (default: 1x)",
    )
    option("--trace-from", default="", metavar="SECONDS", help="begin there (default: at its first request)")
    option(
        "--trace-seconds", default="", metavar="SECONDS", help="so much of it, in its own time (default: all)"
    )
    option("--trace-limit", type=int, default=_traces.DEFAULT_ROWS, metavar="N",
           help=f"read at most so many requests (default: {_traces.DEFAULT_ROWS})")  # fmt: skip
    option(
        "--trace-clip",
        type=int,
        default=0,
        metavar="TOKENS",
        help="cut longer inputs to so many tokens (default: no)",
    )
    option("--trace-eos", action="store_true",
           help="let answers end where the model ends them (default: ignore_eos, so that they get the trace's length)")  # fmt: skip
    group = parser.add_argument_group("ExaServe search")
    option = group.add_argument
    option("--search", default="", metavar="LOW-HIGH", type=_checked(_range),
           help="find the highest rate at which --slo holds: doubled from LOW until it misses, then halved in between")  # fmt: skip
    option("--search-step", default="30s", metavar="SECONDS", type=_checked(_arrivals.seconds),
           help="measured part of each step (default: 30s)")  # fmt: skip
    option("--search-warmup", default="10s", metavar="SECONDS", type=_checked(_arrivals.seconds),
           help="of each step, not counted (default: 10s)")  # fmt: skip
    option("--search-precision", type=float, default=5.0, metavar="PERCENT",
           help="stop when the rate that misses is so much above the one that holds (default: 5)")  # fmt: skip


def plan(options: Any, run_time: float | None = None) -> Plan:
    """What the options ask for. run_time: seconds of ``-t``, the length of a rate without stages.

    Reads the trace. Raises ValueError with one line that names the option and the cure.
    """
    kind, search = options.arrivals, options.search
    if kind == "closed":
        if search or options.stages:
            kind = "poisson"
        elif options.trace and "peak" not in options.rate:
            kind = "trace"
        elif options.rate:
            raise ValueError(f"--rate {options.rate}: say how they come, like --arrivals poisson")
    if kind == "closed":
        _cv(kind, options)
        return Plan()
    if kind not in KINDS:
        raise ValueError(f"--arrivals {kind}: give one of {', '.join(KINDS)}")
    if options.max_open < 1:
        raise ValueError(f"--max-open {options.max_open}: give at least 1")
    trace = _trace(options) if options.trace else None
    if kind == "trace":
        if trace is None:
            raise ValueError("--arrivals trace: which? give --trace FILE")
        if options.rate or options.stages or search:
            other = "--rate" if options.rate else "--stages" if options.stages else "--search"
            raise ValueError(f"{other}: a trace has its own times; --trace-speed 2x plays it faster")
        clip = options.trace_clip
        if clip < 0:
            raise ValueError(f"--trace-clip {clip}: give a number of tokens, or 0 for none")
        return Plan(
            "trace", trace=trace, speed=_named("--trace-speed", _speed, options.trace_speed), clip=clip,
            until_end=bool(options.trace_eos), max_open=options.max_open,
        )  # fmt: skip
    cv = _cv(kind, options)
    if search:
        if options.rate or options.stages:
            raise ValueError(
                f"--search {search}: leave {'--rate' if options.rate else '--stages'} out, it finds the rate"
            )
        if not getattr(options, "slo", ""):
            raise ValueError("--search: for what? give --slo, like --slo ttft=1s,e2e=20s")
        if not 0.1 <= options.search_precision <= 100:
            raise ValueError(f"--search-precision {options.search_precision:g}: give per cent, 0.1 to 100")
        low, high = _named("--search", _range, search)
        steps = Steps(
            low, high, _named("--search-step", _arrivals.seconds, options.search_step),
            _named("--search-warmup", _arrivals.seconds, options.search_warmup), options.search_precision / 100,
        )  # fmt: skip
        return Plan(kind, cv=cv, search=steps, max_open=options.max_open)
    if options.stages:
        if options.rate:
            raise ValueError(f"--rate {options.rate}: --stages has the rates; leave one of them out")
        return Plan(
            kind, _named("--stages", _arrivals.parse_stages, options.stages), cv, max_open=options.max_open
        )
    if not options.rate:
        raise ValueError(f"--arrivals {kind}: at what rate? give --rate 50, or --stages 10x60,50x60")
    rate, of_peak = _named("--rate", _arrivals.parse_rate, options.rate)
    if of_peak:
        if trace is None:
            raise ValueError(f"--rate {options.rate}: the peak of what? give --trace FILE")
        rate *= _arrivals.peak(trace.at)
    return Plan(kind, [Stage(rate, rate, run_time or math.inf)], cv, max_open=options.max_open)


def _trace(options: Any) -> _traces.Trace:
    begin = _named("--trace-from", _arrivals.seconds, options.trace_from) if options.trace_from else 0.0
    length = (
        _named("--trace-seconds", _arrivals.seconds, options.trace_seconds)
        if options.trace_seconds
        else math.inf
    )
    if options.trace_unit and options.trace_unit not in _traces.UNITS:
        raise ValueError(f"--trace-unit {options.trace_unit}: give one of {', '.join(_traces.UNITS)}")
    if options.trace_limit < 1:
        raise ValueError(f"--trace-limit {options.trace_limit}: give at least 1")
    path = Path(options.trace)
    try:
        changed = path.stat().st_mtime_ns
        return _read(
            options.trace,
            changed,
            options.trace_format,
            options.trace_unit,
            begin,
            length,
            options.trace_limit,
        )
    except OSError as error:
        raise ValueError(f"--trace {path}: {error.strerror}") from None
    except _traces.TraceError as error:
        raise ValueError(f"--trace {error}") from None


@lru_cache(maxsize=1)
def _read(
    path: str, changed: int, kind: str, unit: str, begin: float, length: float, limit: int
) -> _traces.Trace:
    """Kept: the check before a run and the run itself need the same one. changed: of the file, so a new one is read."""
    return _traces.read(path, kind, unit, begin, length, limit)


def _cv(kind: str, options: Any) -> float:
    if kind != "gamma":
        for name in ("cv", "burstiness"):
            if getattr(options, name):
                raise ValueError(f"--{name} {getattr(options, name)}: is for --arrivals gamma, not {kind}")
        return 1.0
    if options.cv and options.burstiness:
        raise ValueError("--cv and --burstiness say the same (burstiness is 1/CV²); leave one of them out")
    if not options.cv and not options.burstiness:
        raise ValueError("--arrivals gamma: how bursty? give --cv 2, or --burstiness 0.25")
    name, text = ("cv", options.cv) if options.cv else ("burstiness", options.burstiness)
    try:
        value = float(text)
        cv = value if name == "cv" else 1 / math.sqrt(value)
    except (ValueError, ZeroDivisionError):
        cv = math.nan
    if not 0 <= cv <= _arrivals.MAX_CV:
        low = "0" if name == "cv" else f"{_arrivals.MAX_CV**-2:g}"
        raise ValueError(
            f"--{name} {text}: give a number from {low}"
            + (f" to {_arrivals.MAX_CV:g}" if name == "cv" else "")
        )
    return cv


def _speed(text: str) -> float:
    try:
        value = float(text.strip().removesuffix("x"))
    except ValueError:
        value = 0.0
    if not 1e-3 <= value <= 1e4:
        raise ValueError(f"{text!r} is not a speed like 1x, 2x or 0.5x")
    return value


def _range(text: str) -> tuple[float, float]:
    low, dash, high = text.partition("-")
    try:
        found = _arrivals.parse_rate(low)[0], _arrivals.parse_rate(high)[0]
    except ValueError:
        found = (0.0, 0.0)
    if not dash or not 0 < found[0] < found[1] or "p" in text:
        raise ValueError(f"{text!r} is not a range of rates like 1-200")
    return found


def _named(option: str, parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _checked(parse: Any) -> Any:
    """For argparse: the text is checked but stays text, as locust's web page sends it back so; "" is not given."""

    def check(text: str) -> str:
        try:
            if text:
                parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return check
