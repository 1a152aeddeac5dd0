"""Several profiles at once, by parts of their requests: what a fleet sees, in one user class.

    locust -f loadtest/mixed.py --headless -u 32 -t 5m -H http://127.0.0.1:8000 --mix chat=60,long_document=10,batch=30

Default mix: 55 % chat, 20 % multi_turn, 15 % code, 10 % long_document. Records, rows and summaries name the
profile that each request belongs to. The parts are of requests: a conversation of five is begun a fifth as
often. (Where conversations end early, in a small context or because requests fail, they get fewer.)
"""

from __future__ import annotations

import sys
from pathlib import Path

# locust puts this folder on sys.path, not the one above it; needed where the package is not installed.
_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from loadtest._lib._profiles import _mixed  # noqa: E402
from loadtest._lib._user import ProfileUser  # noqa: E402


class MixedUser(ProfileUser):
    """Plays sessions of several profiles."""

    weight = 1
    profile = staticmethod(_mixed.session)
    by_default = False  # has the others in it
