"""A document and a question about it: mostly prefill.

    locust -f loadtest/long_document.py --headless -u 4 -t 2m -H http://127.0.0.1:8000 --document-tokens 20000

No two documents begin alike. Tokens, where the model takes them; a model of a smaller context gets the same
shape, scaled down so that the longest fits:

========  ===============================================
document  log-normal, median 6000, sigma 0.35, 2000-12000
answer    uniform, 64-256
========  ===============================================

``--document-tokens`` sets another median; a third of it to twice as much occur.
"""

from __future__ import annotations

import sys
from pathlib import Path

# locust puts this folder on sys.path, not the one above it; needed where the package is not installed.
_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from loadtest._lib._profiles import _long_document  # noqa: E402
from loadtest._lib._user import ProfileUser  # noqa: E402


class LongDocumentUser(ProfileUser):
    """Sends a document and a question, reads the answer, sends another document."""

    weight = 10
    profile = staticmethod(_long_document.session)
