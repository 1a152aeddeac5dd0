"""Medical, legal and general questions in English and Chinese: for routers that tell them apart.

    locust -f loadtest/intents.py --headless -u 8 -t 60s -H http://127.0.0.1:8000

A third each, half of each Chinese, some 5,000 different questions. The label that a question was made for is
in its record (``intent``), and summaries and reports group by it. What makes a prompt unique is in a system
message before it, so that a classifier reads the question alone. Tokens (SmolLM2's; larger vocabularies take
fewer for Chinese):

========  ==============
question  uniform, 8-75
answer    uniform, 32-96
========  ==============
"""

from __future__ import annotations

import sys
from pathlib import Path

# locust puts this folder on sys.path, not the one above it; needed where the package is not installed.
_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from loadtest._lib._profiles import _intents  # noqa: E402
from loadtest._lib._user import ProfileUser  # noqa: E402


class IntentsUser(ProfileUser):
    """Asks medical, legal and general questions."""

    weight = 10
    profile = staticmethod(_intents.session)
