"""What a run says while it lasts: what it does now, and the load's numbers, on one line that is renewed."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from typing import Any

from chaoslib.run import RunEventHandler

from chaos.load import Load
from chaos.run.timeline import Watch

_EVERY, _EVERY_QUIET = 1.0, 10.0  # seconds between two looks at the load, where somebody sees it and in a log


class Screen(RunEventHandler):
    """Lines with the seconds since the beginning. It is also told by the Chaos Toolkit what it does."""

    def __init__(self, quiet: bool = False) -> None:
        self._begin = time.monotonic()
        self._quiet, self._live = quiet, sys.stdout.isatty() and not quiet
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._load: Load | None = None
        self._watch: Watch | None = None

    def say(self, text: str) -> None:
        """One line."""
        if self._quiet:
            return
        with self._lock:
            sys.stdout.write(f"{self._clear()}{time.monotonic() - self._begin:7.1f} s  {text}\n")
            sys.stdout.flush()

    def follow(self, load: Load, watch: Watch) -> None:
        """Show these from now on, until ``stop``."""
        self._load, self._watch = load, watch
        threading.Thread(target=self._renew, daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        if self._live:
            with self._lock:
                sys.stdout.write(self._clear())

    def numbers(self) -> str:
        """Of the last three seconds that are known."""
        load, watch = self._load, self._watch
        if load is None or watch is None:
            return ""
        records = load.records()
        last = max((r.get("ended") or 0.0 for r in records), default=0.0)
        recent = [r for r in records[-20_000:] if (r.get("ended") or 0.0) > last - 3.0]
        good = [r for r in recent if r["outcome"] == "ok"]
        first = sorted(r["ttft"] for r in good if r.get("ttft") is not None)
        told = f"{len(good) / 3:.0f} answers/s, {len(recent) - len(good)} failed in 3 s"
        told += f", first token P50 {first[len(first) // 2] * 1e3:.0f} ms" if first else ""
        states = ", ".join(f"{n} {s}" for s, n in sorted(Counter(watch.states().values()).items()))
        return f"{told}; replicas: {states}"

    def start_activity(self, activity: Any) -> None:
        self.say(str(activity.get("name")))

    def activity_completed(self, activity: Any, run: Any) -> None:
        if run.get("status") != "succeeded":
            said = (run.get("exception") or ["failed"])[-1]
            self.say(f"  failed: {str(said).strip()}")
        elif activity.get("type") == "probe":
            self.say(f"  {run.get('output')!r}"[:200])

    def start_hypothesis_before(self, experiment: Any) -> None:
        self.say("is the fleet in its steady state?")

    def start_hypothesis_after(self, experiment: Any) -> None:
        self.say("is it again?")

    def start_rollbacks(self, experiment: Any) -> None:
        self.say("putting everything right")

    def _renew(self) -> None:
        while not self._over.wait(_EVERY if self._live else _EVERY_QUIET):
            told = self.numbers()
            if self._live:
                with self._lock:
                    sys.stdout.write(f"{self._clear()}   load: {told}"[:160])
                    sys.stdout.flush()
            else:
                self.say(f"load: {told}")

    def _clear(self) -> str:
        return "\r\x1b[K" if self._live else ""
