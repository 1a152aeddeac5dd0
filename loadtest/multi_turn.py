"""Conversations: each turn sends all that was said before and a new message.

    locust -f loadtest/multi_turn.py --headless -u 8 -t 2m -H http://127.0.0.1:8000 --turns 3-8 --think 2

The prefix grows by what the model answered, so a prefix cache, and a router that sends a conversation back to
where its beginning lies, make the difference that this profile shows. Sessions among themselves share
nothing. Tokens:

============  =======================================
each message  log-normal, median 40, sigma 0.6, 8-200
answer        uniform, 16-64
turns         uniform, 3-8
============  =======================================

A closed loop waits ``--think`` seconds before each later turn, exponential, as people do; an open loop sends
a turn when one is due. A conversation ends after its turns, when the next would not fit into the model's
context, or when a request failed. Turns of 1,024 tokens of context end after five or so.
"""

from __future__ import annotations

import sys
from pathlib import Path

# locust puts this folder on sys.path, not the one above it; needed where the package is not installed.
_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from loadtest._lib._profiles import _multi_turn  # noqa: E402
from loadtest._lib._user import ProfileUser  # noqa: E402


class MultiTurnUser(ProfileUser):
    """Plays conversations, one after the other."""

    weight = 20
    profile = staticmethod(_multi_turn.session)
