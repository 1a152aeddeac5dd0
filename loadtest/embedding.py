"""Texts to embed, several a request, through /v1/embeddings.

    locust -f loadtest/embedding.py --headless -u 8 -t 60s -H http://127.0.0.1:8000

Needs a model that embeds: the server of a chat model refuses (404), and each such request counts as failed.
There are no tokens to wait for, so of the latencies only e2e exists. Tokens of each text, and texts a
request:

=========  =======================================
each text  log-normal, median 80, sigma 0.7, 8-400
texts      uniform, 1-16
=========  =======================================
"""

from __future__ import annotations

import sys
from pathlib import Path

# locust puts this folder on sys.path, not the one above it; needed where the package is not installed.
_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from loadtest._lib._profiles import _embedding  # noqa: E402
from loadtest._lib._user import ProfileUser  # noqa: E402


class EmbeddingUser(ProfileUser):
    """Has texts embedded, again and again."""

    weight = 5
    profile = staticmethod(_embedding.session)
    by_default = False  # a chat model refuses
