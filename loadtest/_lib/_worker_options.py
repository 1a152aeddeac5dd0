"""Makes locust's workers quick at beginning users, however many options there are.

For each message that begins users (one a second of a ramp) a locust 2.47 worker compares each option of the master with
locust's own ones, and builds the whole argument parser anew for every single comparison (``runners.py``,
``WorkerRunner.handle_message``: ``k not in argument_parser.default_args_dict()`` inside a comprehension). With a hundred
options that is a quarter of a second of a worker's time, on a busy machine many; heartbeats and requests wait. The names
of locust's own options don't change, so they are looked up once.
"""

from __future__ import annotations

from functools import cache

from locust import argument_parser


def look_up_once() -> None:
    """Keep what ``default_args_dict`` returns. Calling it again does nothing."""
    if not hasattr(argument_parser.default_args_dict, "cache_info"):
        argument_parser.default_args_dict = cache(argument_parser.default_args_dict)
