"""Where parts of the load test join in: plain lists of functions, called in their order.

A part appends when it is imported; ``_plugin`` imports each once. What a hook raises is logged, with its traceback, and
the run goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from loadtest._lib._record import Record
from loadtest._lib._run import Run

#: (parser): add an option group.
on_options: list[Callable[[Any], None]] = []
#: (options) → what is wrong with them in one line, or None; before anything begins.
on_check: list[Callable[[Any], str | None]] = []
#: (environment, run): in every process, when a run begins, before its users are there. ValueError: the run is refused.
on_begin: list[Callable[[Any, Run], None]] = []
#: (worker, lines, records): in the process that holds the run (the master, or the only one), each worker's batch.
on_records: list[Callable[[int, bytes, list[Record]], None]] = []
#: (sample): there too, each line of client.jsonl.
on_client: list[Callable[[dict[str, Any]], None]] = []
#: (environment, run, summary): there too, when the summary is made.
on_end: list[Callable[[Any, Run, dict[str, Any]], None]] = []


def call(hooks: Iterable[Callable[..., Any]], *arguments: Any) -> None:
    for hook in list(hooks):
        try:
            hook(*arguments)
        except Exception:
            logging.exception("load test: %s.%s", hook.__module__, getattr(hook, "__name__", "?"))
