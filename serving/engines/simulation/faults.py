"""Faults that a real engine does not show on demand: which there are, their fields, when they end.

Set over ``POST /_sim/fault`` on a replica's port (only one that was started with ``--faults``, and only from
this machine) or over the control port (``control.py``). One fault at a time; a new one replaces it,
``{"kind": "none"}`` ends it, ``seconds`` ends it by itself. What a fault does is done by ``server.py``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from random import Random
from typing import Any

from .api import ApiError

_SHARE = (1.0, 0.0, 1.0)
#: Kind -> its fields: name -> (default, smallest, largest). ``probability``: the share of requests it hits.
KINDS: dict[str, dict[str, tuple[float, float, float]]] = {
    "none": {},
    # Every engine step takes `factor` times as long.
    "slow": {"factor": (10.0, 1.0, 10_000.0)},
    # Requests for text get HTTP `status`.
    "error": {"status": (500.0, 400.0, 599.0), "probability": _SHARE},
    # Requests for text get 429, with Retry-After if `retry_after` (seconds) is not 0.
    "too_many_requests": {"retry_after": (1.0, 0.0, 86_400.0), "probability": _SHARE},
    # Requests for text get 503 at once, as from a replica that is broken and therefore looks idle.
    "fast_503": {"probability": _SHARE},
    # The engine does nothing more; requests are taken and never answered, /health says 200.
    "stuck": {},
    # Connections are taken, nothing is answered on them (but /_sim/fault), open streams stand still.
    "freeze": {},
    # As if the process were gone: every connection is reset, the port is closed until the fault ends.
    "refuse": {},
    # A connection without a request is reset `after` seconds after its last answer; those that idle now, at once.
    "reset_idle": {"after": (0.0, 0.0, 4.0)},
    # The process's memory grows by `mib_per_second` up to `limit_mib` (MiB); given back when the fault ends.
    "leak": {"mib_per_second": (10.0, 0.1, 200.0), "limit_mib": (256.0, 1.0, 16_384.0)},
    # The connection ends (FIN) after `after_tokens` tokens of a stream, without an end of the answer.
    "die_mid_stream": {"after_tokens": (3.0, 1.0, 1_000_000.0), "probability": _SHARE},
    # The same with RST; an answer that is no stream is cut in its middle.
    "reset": {"after_tokens": (3.0, 1.0, 1_000_000.0), "probability": _SHARE},
}


class Faults:
    """The fault in force on one replica.

    kind: ``none`` without one. values: its fields. changed: called after every change.
    """

    __slots__ = ("_changed", "_random", "_timer", "kind", "values")

    def __init__(self, random: Random, changed: Callable[[], None]) -> None:
        self.kind = "none"
        self.values: dict[str, float] = {}
        self._random = random
        self._changed = changed
        self._timer: asyncio.TimerHandle | None = None

    def set(self, body: dict[str, Any]) -> dict[str, Any]:
        """Put the described fault in force and return it as it is now. Raises ApiError naming the field."""
        kind, values, seconds = parse(body)
        self._apply(kind, values)
        if seconds is not None and kind != "none":
            self._timer = asyncio.get_running_loop().call_later(seconds, self._apply, "none", {})
        return self.state()

    def state(self) -> dict[str, Any]:
        """The fault in force, for the one who asks."""
        return {"kind": self.kind, **self.values}

    def hits(self, *kinds: str) -> bool:
        """Whether one of these faults is in force and, by its probability, hits this request."""
        return self.kind in kinds and self._random.random() < self.values.get("probability", 1.0)

    def cut_after(self) -> float:
        """Tokens after which the next stream is cut; infinite if it is not."""
        return self.values["after_tokens"] if self.hits("die_mid_stream", "reset") else math.inf

    def _apply(self, kind: str, values: dict[str, float]) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.kind, self.values = kind, values
        self._changed()


def parse(body: dict[str, Any]) -> tuple[str, dict[str, float], float | None]:
    """(kind, values, seconds or None) of a fault's description. Raises ApiError naming the field."""
    kind = body.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ApiError(400, f"kind must be one of {', '.join(KINDS)}, not {kind!r}", param="kind")
    fields = KINDS[kind]
    unknown = sorted(set(body) - set(fields) - {"kind", "seconds"})
    if unknown:
        raise ApiError(400, f"{kind} has no field {unknown[0]}", param=unknown[0])
    values = {
        name: _number(body.get(name, default), name, low, high)
        for name, (default, low, high) in fields.items()
    }
    seconds = _number(body["seconds"], "seconds", 0.001, 86_400.0) if "seconds" in body else None
    return kind, values, seconds


def _number(value: Any, name: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ApiError(400, f"{name} must be a number from {low:g} to {high:g}, not {value!r}", param=name)
    return float(value)
