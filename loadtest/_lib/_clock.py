"""The one clock of a load test's process: Unix seconds that never jump.

The wall clock is read once, at the import, and a monotonic clock counts on from there: a step of the system's time
during a run moves no latency. Processes of one machine agree to the microseconds between their readings; processes of
several machines as well as their clocks do.
"""

from __future__ import annotations

import time
from time import perf_counter

_BEGAN = time.time() - perf_counter()


def now() -> float:
    """Unix seconds."""
    return _BEGAN + perf_counter()
