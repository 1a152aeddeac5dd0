"""Text to go on with, through /v1/completions: no chat template, streamed.

    locust -f loadtest/completion.py --headless -u 8 -t 60s -H http://127.0.0.1:8000

No two prompts begin alike. Tokens:

======  =========================================
prompt  log-normal, median 120, sigma 0.7, 16-600
answer  uniform, 16-96
======  =========================================
"""

from __future__ import annotations

import sys
from pathlib import Path

# locust puts this folder on sys.path, not the one above it; needed where the package is not installed.
_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from loadtest._lib._profiles import _completion  # noqa: E402
from loadtest._lib._user import ProfileUser  # noqa: E402


class CompletionUser(ProfileUser):
    """Has text continued, again and again."""

    weight = 5
    profile = staticmethod(_completion.session)
