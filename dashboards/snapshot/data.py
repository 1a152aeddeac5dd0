"""What queries answered, as series that are drawn: named by their legend, one value for each point of the span."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dashboards.snapshot.prometheus import Answer, QueryError
from dashboards.snapshot.span import Span

#: Series of a query that are read at all; more than any panel draws.
READ = 2000
_LABEL = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")


@dataclass
class Series:
    """values: one for each point, None where there is none; an instant query has one value."""

    name: str
    labels: dict[str, str]
    values: list[float | None]

    @property
    def last(self) -> float | None:
        """The last value that there is (Grafana's lastNotNull)."""
        return next((v for v in reversed(self.values) if v is not None), None)

    @property
    def highest(self) -> float | None:
        return max((v for v in self.values if v is not None), default=None)


@dataclass
class Result:
    """What one target of a panel got. error: why there is nothing; more: series that were not read."""

    ref: str
    expr: str
    series: list[Series] = field(default_factory=list)
    error: str = ""
    warnings: tuple[str, ...] = ()
    more: int = 0


def legend(form: str, labels: Mapping[str, str]) -> str:
    """``{{replica}} p99`` with the labels' values; without a form, the labels as Prometheus writes them."""
    if form and form != "__auto":
        return " ".join(_LABEL.sub(lambda m: labels.get(m[1], ""), form).split())
    pairs = ", ".join(f'{k}="{v}"' for k, v in sorted(labels.items()) if k != "__name__")
    return labels.get("__name__", "") + (f"{{{pairs}}}" if pairs else "")


def result(ref: str, expr: str, form: str, answer: Answer, span: Span) -> Result:
    """An answer as series. Raises QueryError if it is none of Prometheus."""
    try:
        if answer.kind in ("scalar", "string"):
            rows: list[dict[str, Any]] = [{"metric": {}, "value": answer.result}]
        else:
            rows = list(answer.result)
        series = [_series(row, form, span) for row in rows[:READ]]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise QueryError("the answer is not Prometheus'") from None
    return Result(ref, expr, series, warnings=answer.warnings, more=max(0, len(rows) - READ))


def _series(row: Mapping[str, Any], form: str, span: Span) -> Series:
    labels = {str(k): str(v) for k, v in row["metric"].items()}
    if "value" in row:
        return Series(legend(form, labels), labels, [_number(row["value"][1], infinite=True)])
    count, first, step = span.count, span.at(0), span.step
    values: list[float | None] = [None] * count
    for when, value in row["values"]:
        index = round((float(when) - first) / step)
        if 0 <= index < count:
            values[index] = _number(value)
    return Series(legend(form, labels), labels, values)


def _number(text: str, infinite: bool = False) -> float | None:
    """None for what can't be drawn; infinities are kept where they are only written."""
    value = float(text)
    return value if math.isfinite(value) or (infinite and math.isinf(value)) else None
