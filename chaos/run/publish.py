"""Tells the page of series what a run does and what came of it."""

from __future__ import annotations

import signal
from typing import Any

from chaoslib.run import RunEventHandler

from chaos.run.plan import SECONDS
from chaos.run.report import Outcome
from chaos.run.series import Page


class Faults(RunEventHandler):
    """Tells the page when faults come and go; and has SIGTERM end a run as Ctrl-C does.

    The toolkit's own handler raises an exception that it then takes for the failure of the activity that runs.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._active: list[tuple[str, str]] = []

    def started(self, experiment: Any, journal: Any) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)

    def activity_completed(self, activity: Any, run: Any) -> None:
        func = (activity.get("provider") or {}).get("func")
        output = run.get("output")
        if func == "inject_fault" and run.get("status") == "succeeded" and isinstance(output, list):
            for one in output:
                key = (str(one["fault"]), str(one["target"]))
                self._active.append(key)
                self._page.put("fault_active", 1, *key)
                self._page.put("fault_injected_timestamp_seconds", one["injected_at"], *key)
                self._page.put("undo_pending", float(len(self._active)))
        elif func == "undo_fault":
            for key in self._active:
                self._page.put("fault_active", 0, *key)
            self._page.put("undo_pending", 0)


def publish(page: Page, outcome: Outcome) -> None:
    """The figures and the verdict."""
    figures = outcome.figures
    if figures is not None:
        page.put("resolution_seconds", figures.resolution)
        for fault in outcome.faults:
            key = (str(fault["fault"]), str(fault["target"]))
            page.put("fault_active", 0, *key)
            for name in SECONDS:
                page.put(f"{name}_seconds", figures.values.get(name), *key)
        for name in ("lost_requests", "cut_streams", "recomputed_tokens"):
            page.put(f"{name}_total", figures.values.get(name))
    page.state(outcome.verdict.state)
