"""Requests at and beyond the model's limit: a clear 400 is right for most, 200 for those just inside.

    locust -f loadtest/overlong.py --headless -u 2 -t 30s -H http://127.0.0.1:8000

===========  ====================================================================  ========
kind         what (each as often)                                                  expected
===========  ====================================================================  ========
far over     a chat of 1.5 to 3 times the context                                  400
one over     a completion whose prompt has one token more than the context         400
just inside  a completion whose prompt leaves room for one token, asks for one     200
near         a chat of about 9/10 of the context, asks for one token               200
answer over  a short chat that asks for one token more than the context            400
===========  ====================================================================  ========

Clear: OpenAI-shaped, with a message that names a limit and a number. Everything else is a failure: 413, 500,
200 for a prompt that was cut in silence, a hang. The context is max_model_len of /v1/models, or
``--context``; "one over" and "just inside" send token numbers, so they are exact.
"""

from __future__ import annotations

import sys
from pathlib import Path

# locust puts this folder on sys.path, not the one above it; needed where the package is not installed.
_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from loadtest._lib._profiles import _overlong  # noqa: E402
from loadtest._lib._user import ProfileUser  # noqa: E402


class OverlongUser(ProfileUser):
    """Sends requests that the server must refuse, and some that it must just take."""

    weight = 1
    profile = staticmethod(_overlong.session)
    by_default = False  # is about refusals
