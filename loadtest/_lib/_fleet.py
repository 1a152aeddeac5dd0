"""What the fleet itself said while a run lasted, asked of its Prometheus: ``fleet.json`` of the run's folder.

Only the recorded series that every source of ``dashboards/signals.py`` has are asked for, by their names, so that the
same works for ExaServe's fleets, plain vLLM servers and vLLM under Ray. What a fleet doesn't have is listed under
``absent``. A Prometheus that is slow, away or no Prometheus costs a run its ``fleet.json`` and nothing else.

``fleet.json``: {"version": 1, "prometheus", "start", "end" (Unix seconds), "step" (seconds), "taken",
"signals": {key: {"title", "unit", "query", "series": [{"labels", "values" (null: none; one each step)}], "left_out"}},
"pools": [{"labels", key: value}] (means over the whole run), "alerts": [{"alert", "severity", "labels", "from", "to"}],
"absent": [key], "failed": {key: why}}
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

FILE = "fleet.json"
VERSION = 1
#: Points of each series, and the shortest distance of two: series are recorded each 5 to 15 s.
_POINTS, _SHORTEST = 240, 5
#: Replicas of which each series is kept; those with the highest values. More can't be read in a plot.
REPLICAS = 32
#: Seconds of one query and of all of them.
_TIMEOUT, _LIMIT = 10.0, 60.0

_SHORT, _LONG = "1m", "5m"
_RATE = f"pool:exaserve_requests:rate{_SHORT}"
_FAILED = f"pool:exaserve_requests_failed:rate{_SHORT}"
_ALERTS = (
    'count by (alertname, severity, cluster, model, pool, replica) (ALERTS{alertname=~"ExaServe.+",'
    ' alertstate="firing", severity=~"critical|warning"})'
)


@dataclass(frozen=True, slots=True)
class Signal:
    """title: of its plot. unit: s, reqps, tokps, ratio, count. name: of the recorded series. query: PromQL of it.

    by_replica: there is one for each, so only some are kept.
    """

    key: str
    title: str
    unit: str
    name: str
    query: str
    by_replica: bool = False


def _quantile(q: float, latency: str, over: str = "{}") -> str:
    """over: what is asked of the buckets, ``avg_over_time({}[5m])`` say."""

    def of(matchers: str = "") -> str:
        return over.format(f"pool:exaserve_{latency}_seconds_bucket:rate{_SHORT}{matchers}")

    everything = f"""sum by (cluster, model, pool) ({of('{le="+Inf"}')}) > 0"""
    return (
        f"histogram_quantile({q:g}, sum by (cluster, model, pool, le) ({of()}))"
        f" and on (cluster, model, pool) ({everything})"
    )


def _latency(latency: str, q: float, title: str) -> Signal:
    name = f"pool:exaserve_{latency}_seconds_bucket:rate{_SHORT}"
    return Signal(f"{latency}_p{q * 100:g}", f"{title} p{q * 100:g}", "s", name, _quantile(q, latency))


def _replica(key: str, title: str, unit: str, name: str) -> Signal:
    return Signal(key, title, unit, name, name, by_replica=True)


SIGNALS = (
    Signal("requests", "requests", "reqps", _RATE, f"sum by (cluster, model, pool) ({_RATE})"),
    Signal("failed", "failed requests", "reqps", _FAILED, f"sum by (cluster, model, pool) ({_FAILED})"),
    *(
        _latency(latency, q, title)
        for latency, title in (("ttft", "TTFT"), ("inter_token", "gaps between tokens"), ("e2e", "E2E"))
        for q in (0.5, 0.99)
    ),
    _replica("running", "requests running", "count", "replica:exaserve_requests_running:sum"),
    _replica("waiting", "requests waiting", "count", "replica:exaserve_requests_waiting:sum"),
    _replica("kv", "KV blocks in use", "ratio", "replica:exaserve_kv_block_utilisation:ratio"),
    _replica("preemptions", "preemptions", "reqps", f"replica:exaserve_preemptions:rate{_SHORT}"),
    _replica("prefix_hits", "prefix cache hits", "ratio", f"replica:exaserve_prefix_hits:ratio_rate{_LONG}"),
    _replica("prompt_tokens", "prompt tokens", "tokps", f"replica:exaserve_prompt_tokens:rate{_SHORT}"),
    _replica("tokens", "generated tokens", "tokps", f"replica:exaserve_generation_tokens:rate{_SHORT}"),
    _replica("first_tokens", "requests begun", "reqps", f"replica:exaserve_first_tokens:rate{_LONG}"),
    _replica("replica_ttft", "mean TTFT", "s", f"replica:exaserve_ttft_seconds:mean{_LONG}"),
    _replica("up", "replica serves", "count", "replica:exaserve_replica_up:effective"),
)


class FleetError(Exception):
    """Why the fleet's signals can't be had, for people."""


def save(folder: Path, url: str, start: float, end: float) -> str | None:
    """Write ``fleet.json`` into a run's folder. Returns None, or one line that says why there is none."""
    try:
        fleet = ask(url, start, end)
        part = folder / f".{FILE}.{os.getpid()}"
        part.write_text(json.dumps(fleet, separators=(",", ":")), encoding="utf-8")
        part.replace(folder / FILE)
    except (FleetError, OSError) as error:
        return f"no {FILE}: {error}"
    if not fleet["signals"]:
        return f"{fleet['prometheus']} has none of the fleet's recorded series in this time: are ExaServe's rules in it?"
    return None


def ask(
    url: str, start: float, end: float, said: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """``fleet.json``'s content. said: gets a line a query. Raises FleetError."""
    step = max(_SHORTEST, math.ceil((end - start) / _POINTS))
    found: dict[str, Any] = {
        "version": VERSION,
        "prometheus": shown(url),
        "start": start,
        "end": end,
        "step": step,
        "taken": time(),
        "signals": {},
        "pools": [],
        "alerts": [],
        "absent": [],
        "failed": {},
    }
    asked = _Asked(url, start, end, step)
    for signal in SIGNALS:
        said(signal.title)
        try:
            series = asked.range(_top(signal, end - start) if signal.by_replica else signal.query)
        except _QueryError as error:
            found["failed"][signal.key] = str(error)
            continue
        # Requests of no model that was served are counted without labels; nothing of them is to be seen.
        series = [one for one in series if one["labels"] or any(one["values"])]
        if not series:
            found["absent"].append(signal.key)
            continue
        found["signals"][signal.key] = {
            "title": signal.title,
            "unit": signal.unit,
            "query": signal.query,
            "series": series,
        }
    said("pools")
    try:
        found["pools"] = _pools(asked, end - start)
    except _QueryError as error:
        found["failed"]["pools"] = str(error)
    said("alerts")
    try:
        found["alerts"] = [_alert(one, start, step) for one in asked.range(_ALERTS)]
    except _QueryError as error:
        found["failed"]["alerts"] = str(error)
    return found


def _pools(asked: _Asked, span: float) -> list[dict[str, Any]]:
    """Each pool's rates and latencies over the whole run, from the buckets of all of it."""
    over = f"avg_over_time({{}}[{max(_SHORTEST, math.ceil(span))}s])"
    queries = {
        "requests": f"sum by (cluster, model, pool) ({over.format(_RATE)})",
        "failed": f"sum by (cluster, model, pool) ({over.format(_FAILED)})",
    }
    queries |= {
        f"{latency}_p{q * 100:g}": _quantile(q, latency, over)
        for latency in ("ttft", "inter_token", "e2e")
        for q in (0.5, 0.99)
    }
    pools: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for key, query in queries.items():
        for one in asked.at_end(query):
            labels = one["labels"]
            pool = pools.setdefault(tuple(sorted(labels.items())), {"labels": labels})
            pool[key] = one["values"][0]
    return [pools[of] for of in sorted(pools) if of or pools[of].get("requests")]


def shown(url: str) -> str:
    """The address without a user's name and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def _top(signal: Signal, span: float) -> str:
    """The replicas with the highest values, those too that were gone before the end."""
    highest = f"topk({REPLICAS}, max_over_time(({signal.query})[{math.ceil(span) + 1}s:15s] @ end()))"
    return f"{signal.query} and on (cluster, model, replica) {highest}"


class _QueryError(Exception):
    """One query was refused; others may not be."""


class _Asked:
    def __init__(self, url: str, start: float, end: float, step: int) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise FleetError(f"{shown(url)!r} is not an address like http://127.0.0.1:9090")
        self._url, self._start, self._end, self._step = url.rstrip("/"), start, end, step
        self._count = int((end - start) // step) + 1
        self._until = monotonic() + _LIMIT

    def range(self, query: str) -> list[dict[str, Any]]:
        """Series with one value a step. Raises _QueryError, or FleetError where asking on makes no sense."""
        told = self._told("query_range", query, start=self._start, end=self._end, step=self._step)
        return [_series(one, self._start, self._step, self._count) for one in told]

    def at_end(self, query: str) -> list[dict[str, Any]]:
        """Series with the one value that they have at the end. Raises the same."""
        told = self._told("query", query, time=self._end)
        return [_series({**one, "values": [one["value"]]}, self._end, self._step, 1) for one in told]

    def _told(self, what: str, query: str, **more: float) -> list[dict[str, Any]]:
        left = self._until - monotonic()
        if left <= 0:
            raise FleetError(f"{shown(self._url)} took over {_LIMIT:g} s for its answers")
        form = {"query": query, **more}
        try:
            answer = httpx.post(
                f"{self._url}/api/v1/{what}",
                data={key: str(value) for key, value in form.items()},
                timeout=min(_TIMEOUT, left),
                follow_redirects=True,
                trust_env=False,
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise FleetError(f"{shown(self._url)}: {error or type(error).__name__}") from None
        try:
            told = answer.json()
            if told["status"] != "success":
                raise _QueryError(str(told.get("error", "refused"))[:300])
            result: list[dict[str, Any]] = told["data"]["result"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FleetError(
                f"{shown(self._url)} is no Prometheus (it answered {answer.status_code})"
            ) from None

        return result


def _series(one: dict[str, Any], start: float, step: float, count: int) -> dict[str, Any]:
    values: list[float | None] = [None] * count
    for at, text in one["values"]:
        where, value = round((float(at) - start) / step), float(text)
        if 0 <= where < count and math.isfinite(value):
            values[where] = float(f"{value:.6g}")
    return {"labels": {k: v for k, v in one["metric"].items() if k != "__name__" and v}, "values": values}


def _alert(series: dict[str, Any], start: float, step: int) -> dict[str, Any]:
    """When it fired first and last; what was in between is not told apart."""
    fired = [i for i, value in enumerate(series["values"]) if value]
    labels = dict(series["labels"])
    return {
        "alert": labels.pop("alertname", ""),
        "severity": labels.pop("severity", ""),
        "labels": labels,
        "from": start + fired[0] * step if fired else start,
        "to": start + fired[-1] * step if fired else start,
    }
