"""Sums over audit records: requests, errors, tokens, cost and durations, by tenant or whatever else is asked.

Records come one at a time from ``reader.py``; memory grows with the number of groups only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from serving.audit.record import Line
from serving.router.tenants_file import Price

MAX_GROUPS = 10_000
OTHERS = "(others)"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
#: Bounds of the duration buckets grow by this: quantiles are right within half a percent.
_GROWTH = math.log(1.01)


class By(StrEnum):
    """What records can be grouped by: fields of Line."""

    TENANT = "tenant"
    MODEL = "model"
    POOL = "pool"
    REPLICA = "replica"
    DECISION = "decision"
    ROUTE = "route"
    STATUS = "status"
    OUTCOME = "outcome"
    INTENT = "intent"
    ADAPTER = "adapter"
    BASE_REVISION = "base_revision"


class QueryError(ValueError):
    """What was asked can't be read; in words."""


class Durations:
    """Seconds in buckets that grow by 1 %: 2,600 of them from a microsecond to a day."""

    def __init__(self) -> None:
        self.count = 0
        self._buckets: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        bucket = math.ceil(math.log(min(max(seconds, 1e-6), 1e6)) / _GROWTH)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1

    def quantile(self, q: float) -> float | None:
        """The smallest duration that a share of ``q`` is not above; None without any."""
        rank, below = math.ceil(q * self.count), 0
        for bucket in sorted(self._buckets):
            below += self._buckets[bucket]
            if below >= rank:
                return math.exp((bucket - 0.5) * _GROWTH)
        return None


class Group:
    """Sums of one group. Tokens by model, since prices are; requests that were rejected have no duration."""

    def __init__(self) -> None:
        self.requests = self.errors = self.rejected = 0
        self.tokens: dict[str, list[int]] = {}
        self.estimated = self.unknown = 0  # requests whose tokens are estimates, or not known at all
        self.durations = Durations()

    def add(self, line: Line) -> None:
        self.requests += 1
        if line.outcome == "rejected":
            self.rejected += 1
            return
        if line.status >= 500 or line.outcome in ("error", "cut"):
            self.errors += 1
        if line.input_tokens is None and line.output_tokens is None:
            self.unknown += 1
        else:
            self.estimated += line.tokens_estimated
            model = line.model or "-"
            if model not in self.tokens and len(self.tokens) >= MAX_GROUPS:
                model = OTHERS
            counts = self.tokens.setdefault(model, [0, 0])
            counts[0] += line.input_tokens or 0
            counts[1] += line.output_tokens or 0
        if line.duration_s is not None:
            self.durations.add(line.duration_s)

    def row(self, prices: Mapping[str, Price] | None) -> dict[str, Any]:
        """Plain data. cost is None without prices, and covers only models that have one."""
        cost: float | None = None
        without: list[str] = []
        if prices is not None:
            cost = 0.0
            for model, (tokens_in, tokens_out) in sorted(self.tokens.items()):
                price = prices.get(model)
                if price is None:
                    without.append(model)
                else:
                    cost += (tokens_in * price.input + tokens_out * price.output) / 1e6
        return {
            "requests": self.requests,
            "errors": self.errors,
            "rejected": self.rejected,
            "input_tokens": sum(t[0] for t in self.tokens.values()),
            "output_tokens": sum(t[1] for t in self.tokens.values()),
            "requests_with_estimated_tokens": self.estimated,
            "requests_without_tokens": self.unknown,
            "cost": None if cost is None else round(cost, 9),
            "models_without_price": without,
            "p50_s": _rounded(self.durations.quantile(0.5)),
            "p99_s": _rounded(self.durations.quantile(0.99)),
        }


class Summary:
    """All groups and the total. by: what a row is."""

    def __init__(self, by: Iterable[By]) -> None:
        self.by = tuple(name.value for name in by)
        self.total = Group()
        self.groups: dict[tuple[str, ...], Group] = {}

    def add(self, line: Line) -> None:
        key = tuple(["-" if (v := getattr(line, name)) in (None, "") else str(v) for name in self.by])
        group = self.groups.get(key)
        if group is None:
            if len(self.groups) >= MAX_GROUPS:
                key = (OTHERS,) * len(self.by)
            group = self.groups.setdefault(key, Group())
        group.add(line)
        self.total.add(line)

    def rows(self, prices: Mapping[str, Price] | None) -> list[dict[str, Any]]:
        """One per group, most requests first."""
        found = sorted(self.groups.items(), key=lambda item: (-item[1].requests, item[0]))
        return [{**dict(zip(self.by, key, strict=True)), **group.row(prices)} for key, group in found]


def wanted(
    since: float | None = None, until: float | None = None, status: str | None = None, **equal: str | None
) -> Callable[[Line], bool]:
    """Which records are meant: those that pass everything given.

    since, until: Unix times (until not included). status: like 429, 5xx or 200,4xx. equal: fields of Line and
    the value they must have. Raises QueryError.
    """
    first = "" if since is None else _text(since)
    end = "~" if until is None else _text(until)
    statuses = None if status is None else _statuses(status)
    fields = [(name, value) for name, value in equal.items() if value is not None]

    def passes(line: Line) -> bool:
        if not first <= line.ts < end or (statuses is not None and line.status not in statuses):
            return False
        return all(getattr(line, name) == value for name, value in fields)

    return passes


def moment(text: str, now: float) -> float | None:
    """``90s 15m 1h 7d 2w`` before ``now``, or a date or time (ISO 8601, UTC unless it says otherwise), as Unix
    time; None for ``all``. Raises QueryError."""
    if text == "all":
        return None
    short = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhdw])", text, re.ASCII)
    if short:
        return now - float(short[1]) * _UNITS[short[2]]
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise QueryError(
            f"{text}: give a span (90s, 15m, 1h, 7d), a time (2026-11-30T08:00Z) or all"
        ) from None


def _statuses(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        if not re.fullmatch(r"[1-5](xx|[0-9]{2})", part, re.ASCII):
            raise QueryError(f"{text}: give statuses like 429, 5xx or 200,4xx")
        first = int(part[0]) * 100
        found.update(range(first, first + 100) if part.endswith("x") else [int(part)])
    return frozenset(found)


def _text(unix: float) -> str:
    """As records have it; the first and the last moment that can be written where it is outside of them."""
    try:
        when = datetime.fromtimestamp(0, UTC) + timedelta(seconds=unix)
    except OverflowError:
        return "" if unix < 0 else "~"
    return when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{when.microsecond // 1000:03d}Z"


def _rounded(seconds: float | None) -> float | None:
    """Three digits: more than that the buckets don't know."""
    return None if seconds is None else float(f"{seconds:.3g}")
