"""Counts the Xids of one GPU: its own NVML event set, its own thread, so that a GPU that hangs costs no other.

Errors from before the thread's start are in the kernel log only.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from exporters.collectors._nvml import TIMEOUT

#: Different codes that are told apart for one GPU; NVIDIA has some 170.
MAX_CODES = 64
_XID_EVENT = 0x8
#: Milliseconds of one wait: how long a watch may take to end.
_WAIT_MS = 500


class Xids:
    """Counts and times of one GPU's Xids. Kept when NVML is initialised again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, float]] = {}

    def add(self, code: int) -> None:
        with self._lock:
            name = str(code)
            if name not in self._seen and len(self._seen) >= MAX_CODES:
                name = "other"
            self._seen[name] = (self._seen.get(name, (0, 0.0))[0] + 1, time.time())

    def seen(self) -> dict[str, tuple[int, float]]:
        """Count and Unix time of the last one, by code."""
        with self._lock:
            return dict(self._seen)


class Watch:
    """Waits for Xids of one GPU until ``stop``, or until NVML says that it can't."""

    def __init__(self, nvml: Any, handle: Any, xids: Xids) -> None:
        self.active = False
        self._nvml, self._handle, self._xids = nvml, handle, xids
        self._stop = threading.Event()
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="xid", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started

    def stop(self) -> None:
        self._stop.set()

    def join(self, seconds: float) -> bool:
        """Whether it has ended."""
        self._thread.join(seconds)
        return not self.alive

    def _work(self) -> None:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(self._handle, _XID_EVENT, events)
            self.active = True
            while not self._stop.is_set():
                self._wait(events)
            nvml.nvmlEventSetFree(events)
        except Exception:  # not supported, no permission, the GPU or the driver is gone: nothing to wait for
            return
        finally:
            self.active = False

    def _wait(self, events: Any) -> None:
        try:
            event = self._nvml.nvmlEventSetWait_v2(events, _WAIT_MS)
        except self._nvml.NVMLError as error:
            if error.value != TIMEOUT:
                raise
            return
        if event.eventType & _XID_EVENT:
            self._xids.add(int(event.eventData))
