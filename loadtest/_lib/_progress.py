"""A line on the screen every few seconds of a closed loop without locust's own tables (``--only-summary``).

An open loop tells more, from its conductor (``_conduct``).
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from loadtest._lib import _clock, _hooks
from loadtest._lib._record import Record
from loadtest._lib._run import Run

EVERY = 5.0  # seconds


class _Seen:
    """Of the current run."""

    def __init__(self, on: bool) -> None:
        self.on = on
        self.began = self.told = _clock.now()
        self.samples: dict[str, dict[str, Any]] = {}
        self.outcomes: Counter[str] = Counter()


_seen = _Seen(False)


def _begin(environment: Any, run: Run) -> None:
    options = environment.parsed_options
    _seen.on = bool(
        options.headless and options.only_summary and run.arrivals.get("kind", "closed") == "closed"
    )
    _seen.began = _seen.told = _clock.now()
    _seen.samples, _seen.outcomes = {}, Counter()


def _records(worker: int, lines: bytes, records: list[Record]) -> None:
    _seen.outcomes.update(record.outcome for record in records)


def _client(sample: dict[str, Any]) -> None:
    _seen.samples[sample["worker"]] = sample
    if not _seen.on or _clock.now() - _seen.told < EVERY:
        return
    _seen.told = _clock.now()
    samples = _seen.samples.values()
    users = sum(sum(sample["users"].values()) for sample in samples)
    open_ = sum(sum(sample["in_flight"].values()) for sample in samples)
    logging.info(
        "closed loop: %.0f s, %s users; %s completed, %s failed, %s open; a process uses up to %.0f %% of a core",
        _seen.told - _seen.began, f"{users:,}", f"{_seen.outcomes['ok']:,}", f"{_seen.outcomes['failed']:,}",
        f"{open_:,}", max(sample["cpu"] for sample in samples) * 100,
    )  # fmt: skip


_hooks.on_begin.append(_begin)
_hooks.on_records.append(_records)
_hooks.on_client.append(_client)
