"""Which processes have a context on which GPU, by NVML: told by the gpu collector, asked by the numa collector.

Both run in one exporter. NVML can hang, so it is asked by one of them only, in threads of its own; here lies what
it said last.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable

#: Seconds after which what was told of a GPU doesn't count any more: it hangs, or nobody scrapes.
KEPT = 120.0

_lock = threading.Lock()
_told: dict[str, tuple[float, frozenset[int]]] = {}


def tell(gpu: str, pids: Iterable[int]) -> None:
    """All processes that have a context on the GPU now. gpu: PCI address, as NVML or sysfs spells it."""
    with _lock:
        _told[gpu] = (time.monotonic(), frozenset(pids))


def latest() -> dict[int, frozenset[str]] | None:
    """GPUs by process, as they were told; None if nothing was told in the last ``KEPT`` seconds. Never blocks."""
    now = time.monotonic()
    with _lock:
        for gpu in [gpu for gpu, (at, _) in _told.items() if now - at > KEPT]:
            del _told[gpu]
        if not _told:
            return None
        found: dict[int, set[str]] = defaultdict(set)
        for gpu, (_, pids) in _told.items():
            for pid in pids:
                found[pid].add(gpu)
    return {pid: frozenset(gpus) for pid, gpus in found.items()}
