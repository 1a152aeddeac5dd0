"""Code to explain, complete or repair: functions (7 in 10) and whole files (3 in 10).

    locust -f loadtest/code.py --headless -u 8 -t 60s -H http://127.0.0.1:8000

Python and JavaScript made from templates, with the lengths of real code (this project's functions and files,
measured with SmolLM2's tokenizer). Tokens, where the model takes them; else scaled down so that the longest
fits:

========  ==============================
function  measured, median 117, 11-651
file      measured, median 1616, 29-5916
answer    uniform, 32-192
========  ==============================
"""

from __future__ import annotations

import sys
from pathlib import Path

# locust puts this folder on sys.path, not the one above it; needed where the package is not installed.
_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from loadtest._lib._profiles import _code  # noqa: E402
from loadtest._lib._user import ProfileUser  # noqa: E402


class CodeUser(ProfileUser):
    """Asks something about code, again and again."""

    weight = 15
    profile = staticmethod(_code.session)
