"""A locust worker looks the names of locust's own options up once, not once an option of each message."""

from __future__ import annotations

import subprocess
import sys


def test_the_options_are_parsed_once_and_stay_the_same() -> None:
    # In a process of its own: importing locust replaces the sockets of the whole process.
    code = (
        "from locust import argument_parser, runners\n"
        "before = argument_parser.default_args_dict()\n"
        "from loadtest._lib._worker_options import look_up_once\n"
        "look_up_once(); look_up_once()\n"
        "found = [runners.argument_parser.default_args_dict() for _ in range(100)]\n"
        "assert all(one == before for one in found)\n"
        "print(argument_parser.default_args_dict.cache_info().misses)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout == "1\n"
