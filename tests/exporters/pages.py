"""Reading a page in a test: its samples by name and by what their labels say beyond replica and model."""

from __future__ import annotations

from collections.abc import Iterable

from exporters.registry import Sample


def values(samples: Iterable[Sample]) -> dict[str, float | dict[tuple[str, ...], float]]:
    """{name without exaserve_: value}, or {further labels: value} where there are any. One model only."""
    found: dict[str, float | dict[tuple[str, ...], float]] = {}
    for name, (replica, _model, *more), value in samples:
        assert replica == "r0"
        short = name.removeprefix("exaserve_")
        if not more:
            assert short not in found
            found[short] = value
        else:
            cells = found.setdefault(short, {})
            assert isinstance(cells, dict)
            assert tuple(more) not in cells
            cells[tuple(more)] = value
    return found
