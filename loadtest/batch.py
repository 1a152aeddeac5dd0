"""Work that nobody waits for: longer answers, not streamed, many at once.

    locust -f loadtest/batch.py --headless -u 64 -t 5m -H http://127.0.0.1:8000 --request-timeout 600

Each request carries the header ``x-exaserve-pool: batch``; a pool of low priority takes them where ExaServe's
configuration says so, elsewhere the header means nothing::

    pools:
      batch:
        match: {headers: {x-exaserve-pool: batch}}
        priority: 9
      interactive: {}

Of the latencies only e2e exists. Tokens; answers are scaled down to a quarter of a small context:

======  =========================================
prompt  log-normal, median 200, sigma 0.6, 32-600
answer  uniform, 128-512
======  =========================================
"""

from __future__ import annotations

import sys
from pathlib import Path

# locust puts this folder on sys.path, not the one above it; needed where the package is not installed.
_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from loadtest._lib._profiles import _batch  # noqa: E402
from loadtest._lib._user import ProfileUser  # noqa: E402


class BatchUser(ProfileUser):
    """Has long answers written whole, again and again."""

    weight = 5
    profile = staticmethod(_batch.session)
