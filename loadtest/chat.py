"""Chat: short questions, streamed, no two alike.

    locust -f loadtest/chat.py --headless -u 8 -t 60s -H http://127.0.0.1:8000

Each user asks, reads the stream to its end and asks again, with no pause: the users bound the concurrency, and a slow
server gets fewer requests (a closed loop). ``--arrivals poisson --rate 5`` sends on a schedule instead, whatever the
server does. Needs nothing of ExaServe behind the address.

Tokens, scaled down where the model takes fewer:

======  ========================================
prompt  log-normal, median 90, sigma 0.8, 16-600
answer  uniform, 16-64
======  ========================================

Rows of locust's table (type ``chat``), milliseconds:

====  ==================================================================  ====================================
e2e   send → last token                                                   one value a good request
TTFT  send → first token of any kind, not the role-only chunk             one value a good request
ITL   gaps between chunks with tokens, as they arrived                    chunks − 1 values a good request
TPOT  (last − first token) ÷ (n − 1), n from the server's usage           one value a good request with usage
====  ==================================================================  ====================================

In an open loop ``e2e`` and ``TTFT`` count from when the request was due. "Aggregated" counts requests alone: the other
three rows are derived from the same requests and stay out of it. A failed request (not 200, error event, no token, no
finish_reason, no [DONE], cut, too slow) is counted in ``e2e`` with its reason and adds no time to any row. Requests
still open when the time is up get 30 s to end (``-s``); what is open then is in no row of the table, but in the run's
folder and its verdict. Each request also fires locust's ``request`` event with ``context={"record": Record}``.

locust's table is of the whole run; the run's summary leaves the warm-up out.
"""

from __future__ import annotations

import sys
from pathlib import Path

# locust puts this folder on sys.path, not the one above it; needed where the package is not installed.
_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from loadtest._lib._profiles import _chat  # noqa: E402
from loadtest._lib._user import ProfileUser  # noqa: E402


class ChatUser(ProfileUser):
    """Asks for a streamed chat completion, reads it to its end, asks again."""

    profile = staticmethod(_chat.session)
    weight = 35
