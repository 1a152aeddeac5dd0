"""Faults that a real engine does not show on demand, set over ``POST /_sim/fault``.

Only on a replica that was started with ``--faults``, and only from this machine. One fault at a time; a new
one replaces it, ``{"kind": "none"}`` ends it, ``seconds`` ends it by itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .api import ApiError
from .scheduler import Engine

#: Kind -> its fields: name -> (default, smallest, largest).
KINDS: dict[str, dict[str, tuple[float, float, float]]] = {
    "none": {},
    # Every engine step takes `factor` times as long.
    "slow": {"factor": (10.0, 1.0, 10_000.0)},
    # Requests for text get HTTP `status`.
    "error": {"status": (500.0, 400.0, 599.0)},
    # The engine does nothing more; requests are taken and never answered, /health says 200.
    "stuck": {},
    # Every stream's connection is cut after `after_tokens` tokens.
    "die_mid_stream": {"after_tokens": (3.0, 1.0, 1_000_000.0)},
}


class Faults:
    """The fault in force. ``kind`` is ``none`` without one; ``values``: its fields."""

    def __init__(self, engine: Engine) -> None:
        self.kind = "none"
        self.values: dict[str, float] = {}
        self._engine = engine
        self._timer: asyncio.TimerHandle | None = None

    def set(self, body: dict[str, Any]) -> dict[str, Any]:
        """Put the described fault in force and return it as it is now. Raises ApiError naming the field."""
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
        self._apply(kind, values)
        if seconds is not None and kind != "none":
            self._timer = asyncio.get_running_loop().call_later(seconds, self._apply, "none", {})
        return self.state()

    def state(self) -> dict[str, Any]:
        """The fault in force, for the one who asks."""
        return {"kind": self.kind, **self.values}

    def _apply(self, kind: str, values: dict[str, float]) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.kind, self.values = kind, values
        self._engine.slowdown = values.get("factor", 1.0)
        self._engine.stuck = kind == "stuck"
        self._engine.wake()


def _number(value: Any, name: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ApiError(400, f"{name} must be a number from {low:g} to {high:g}, not {value!r}", param=name)
    return float(value)
