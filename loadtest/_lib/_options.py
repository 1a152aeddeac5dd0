"""The load test's own options of the ``locust`` command, and what is wrong with them in one line.

Not here: options of arrivals (``_arrival_options``), of profiles (``_profile_options``) and of what is shown while it
lasts (``_live``). Values stay text where
locust's web page shows them and sends them back as text; ``checked`` reads them.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from loadtest._lib._limits import Limits
from loadtest._lib._objectives import Objectives

#: Requests that are open when the time is up get so long to end; locust's own default drops them.
STOP_TIMEOUT = 30
#: What makes sense to change from one run to the next of a locust that stays up.
_IN_WEB_PAGE = (
    *(
        "model",
        "max_tokens",
        "seed",
        "request_timeout",
        "api_key",
        "slo",
        "slo_attainment",
        "warmup",
        "run_name",
    ),
    *("baseline", "gpus"),
)
#: Characters of a key's file; no key is longer.
_KEY_FILE = 1 << 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_EXIT_CODES = (
    "Exit codes of a headless run: 0 passed; 1 objectives missed (fewer than --slo-attainment of the measured requests "
    "were good; without --slo each completed one is good); 2 wrong usage; 3 void (the client itself was too slow); 4 not "
    "one measured request ended; 5 all failed. Folder of a run: $EXASERVE_HOME/loadtest/NAME."
)


def add(parser: Any) -> None:
    """Put the options in. parser: locust's, as the event ``init_command_line_parser`` gives it."""
    parser.set_defaults(stop_timeout=str(STOP_TIMEOUT))
    group = parser.add_argument_group("ExaServe load test", _EXIT_CODES)
    group.add_argument("--model", default="", help="model to ask for (default: the first of /v1/models)")
    group.add_argument(
        "--max-tokens",
        type=_text(tokens),
        default="",
        metavar="N|LOW-HIGH",
        help="new tokens per answer: a number, or a range from which each is drawn (default: each profile's own; chat: "
        "16-64)",
    )
    group.add_argument(
        "--seed",
        type=_text(seed),
        default="",
        metavar="NUMBER",
        help="of prompts, lengths and arrivals; the same seed draws the same again (default: drawn, and printed)",
    )
    group.add_argument(
        "--request-timeout",
        type=_parsed(timeout),
        default=120.0,
        metavar="SECONDS",
        help="a request that has not ended by then has failed (default: 120)",
    )
    group.add_argument("--api-key", default="", help="sent as a bearer token", env_var="EXASERVE_API_KEY")
    group.add_argument("--api-key-file", default="", metavar="FILE", help="the same, read from a file")
    group.add_argument(
        "--slo",
        type=_text(Objectives.parse),
        default="",
        metavar="ttft=1s,itl=200ms,tpot=50ms,e2e=30s",
        help="what a good request is: each of them is a limit (itl: of its longest gap); any may be left out",
    )
    group.add_argument(
        "--slo-attainment",
        type=_parsed(share),
        default=0.99,
        metavar="RATIO",
        help="share of the offered requests that must be good; failed, unsent and open ones are not (default: 0.99)",
    )
    group.add_argument(
        "--warmup",
        type=_text(warmup),
        default="auto",
        metavar="SECONDS|auto",
        help="requests due in the first so many seconds are kept but not counted; auto (the default): until all users are "
        "there, and a tenth of -t (at most 30 s; 10 s without -t), in all at most half of -t",
    )
    group.add_argument(
        "--run-name", type=_text(name), default="", help="name of the run's folder (default: time, profile)"
    )
    group.add_argument(
        "--run-folder", default="", metavar="DIR", help="the run's folder itself, where it shall be elsewhere"
    )
    group.add_argument(
        "--no-save", action="store_true", default=False, help="keep no folder; the summary is printed only"
    )
    group.add_argument(
        "--baseline",
        default="",
        metavar="RUN",
        help="an earlier run that dashboards and reports compare this one with",
    )
    group.add_argument(
        "--gpus",
        type=_text(gpus),
        default="",
        metavar="N",
        help="GPUs behind the address, for tokens per GPU-hour",
    )
    group.add_argument(
        "--client-limits",
        type=_text(Limits.parse),
        default="",
        metavar="lag=50ms,delay=50ms,cpu=0.9",
        help="from where on the client is too slow and the run void: 99th percentiles of how late requests were sent and "
        "of how late timers were, and the share of a core in over a tenth of the seconds (default: as shown)",
    )
    for action in group._group_actions:  # locust's parser marks those of no group by itself
        action.include_in_web_ui = action.dest in _IN_WEB_PAGE
        action.is_secret = action.dest == "api_key"


def problem(options: Any) -> str | None:
    """What is wrong beyond single options, or None: one line that names the option and the cure."""
    if options.run_folder and options.run_name:
        return "--run-folder and --run-name: give one of them; the folder's last part is the name"
    if options.no_save and (options.run_folder or options.run_name):
        return "--no-save keeps no folder: leave --run-folder and --run-name out, or --no-save"
    if options.run_folder and (Path(options.run_folder) / "run.json").exists():
        return f"--run-folder {options.run_folder}: there is a run in it already; name a new folder"
    if options.run_folder and not _NAME.fullmatch(Path(options.run_folder).name):
        return f"--run-folder {options.run_folder}: its last part names the run; take letters, digits, dots and dashes"
    try:
        api_key(options)
    except ValueError as error:
        return str(error)
    return None


def api_key(options: Any) -> str | None:
    """The key itself. Raises ValueError if its file can't be read, or if it can't stand in a header."""
    key, option = str(options.api_key or ""), "--api-key"
    if options.api_key_file:
        option = f"--api-key-file {options.api_key_file}"
        try:
            with Path(options.api_key_file).open(encoding="utf-8") as file:
                key = file.read(_KEY_FILE).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{option}: {getattr(error, 'strerror', 'is no text')}") from None
        if not key:
            raise ValueError(f"{option}: is empty; put the key into it, or leave the option out")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError(f"{option}: a key is one word of ASCII characters, without spaces or further lines")
    return key or None


def tokens(text: str) -> tuple[int, int] | None:
    """Both ends of a range of tokens; None for empty text. Raises ValueError."""
    low, _, high = text.partition("-")
    if not text:
        return None
    if low.isdecimal() and (high or low).isdecimal() and 1 <= int(low) <= int(high or low) <= 1_000_000:
        return int(low), int(high or low)
    raise ValueError(f"{text!r} is neither a number of tokens nor a range like 16-64")


def warmup(text: str) -> float | None:
    """Seconds, None for ``auto``. Raises ValueError."""
    if text in ("auto", ""):
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86_400:
        raise ValueError(f"{text!r} is neither auto nor a number of seconds from 0 to 86400")
    return value


def seed(text: str) -> int | None:
    """None for empty text. Raises ValueError."""
    if text and not re.fullmatch(r"-?\d{1,18}", text):
        raise ValueError(f"{text!r} is no whole number")
    return int(text) if text else None


def gpus(text: str) -> float | None:
    """None for empty text. Raises ValueError."""
    try:
        value = float(text) if text else 1.0
    except ValueError:
        value = 0.0
    if not 0 < value <= 1_000_000:
        raise ValueError(f"{text!r} is no number of GPUs above 0")
    return value if text else None


def name(text: str) -> str:
    if text and not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no name for a run: letters, digits, dots and dashes, at most 100")
    return text


def _text(check: Any) -> Any:
    """Checked, but left as text."""

    read = _parsed(check)

    def checked(text: str) -> str:
        read(text)
        return text

    return checked


def _parsed(check: Any) -> Any:
    """The checked value itself."""

    def parsed(text: str) -> Any:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def timeout(value: str | float) -> float:
    """Seconds. Raises ValueError."""
    return _number(value, 86_400, "a number of seconds")


def share(value: str | float) -> float:
    """Raises ValueError."""
    return _number(value, 1, "a share")


def _number(value: str | float, most: float, what: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number <= most:
        raise ValueError(f"{str(value)!r} is not {what} above 0, at most {most:g}")
    return number
