"""Probes of experiments: the fleet, the alerts, the error ratio.

Those that wait have a timeout and return seconds, from the last injection in this run (from the call, if
there was none) to the moment it came true: for a replica the router's own time of the change, else when it
was seen. A wait whose time is up raises ActivityFailed and says what it last saw.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import httpx
from chaoslib.exceptions import ActivityFailed

from chaos import fleet, load, timeline, web

__all__ = [
    "alert_is_firing",
    "all_replicas_in_rotation",
    "error_ratio",
    "only_streams_of_replica_were_lost",
    "replicas_in_rotation",
    "requests_succeed",
    "slo_attainment",
    "wait_all_in_rotation",
    "wait_for_alert",
    "wait_for_load",
    "wait_in_rotation",
    "wait_out_of_rotation",
    "wait_some_out_of_rotation",
]

_EVERY = 0.1  # seconds between two looks at the router
_EVERY_ALERT = 0.5


def replicas_in_rotation(admin: str) -> int:
    """How many replicas the router may send new requests to."""
    return sum(r.in_rotation for r in fleet.read(admin).values())


def all_replicas_in_rotation(admin: str, at_least: int = 2) -> bool:
    """True if there are ``at_least`` replicas and every one is in rotation."""
    replicas = fleet.read(admin)
    return len(replicas) >= at_least and all(r.in_rotation for r in replicas.values())


def error_ratio(prometheus: str, window: str = "1m", timeout: float = 20.0) -> float:
    """Share (0-1) of the requests of the window (``1m``, ``5m``) that failed, as recorded; 0 if there was none.

    Raises ActivityFailed if Prometheus has not recorded requests, also after ``timeout`` seconds (a stack that was just
    started has not been scraped yet): no data is not 0.
    """
    total = f"sum(pool:exaserve_requests:rate{window})"
    if not _recorded(prometheus, total, timeout):
        return 0.0
    return _share(prometheus, f"sum(pool:exaserve_requests_failed:rate{window})", total, timeout)


def slo_attainment(
    prometheus: str, latency: str = "ttft", seconds: float = 2.5, window: str = "1m", timeout: float = 20.0
) -> float:
    """Share (0-1) of the requests of the window whose latency was within ``seconds``; 1 if there was no request.

    latency: ``ttft``, ``inter_token`` or ``e2e``. seconds: an upper edge of its histogram. Raises ActivityFailed without
    data, as ``error_ratio``; also where there were requests and no latency of that kind.
    """
    series = f"pool:exaserve_{latency}_seconds_bucket:rate{window}"
    if not _recorded(prometheus, f"sum(pool:exaserve_requests:rate{window})", timeout):
        return 1.0
    good = f'sum({series}{{le=~"{_edge(seconds)}"}})'
    return _share(prometheus, good, f'sum({series}{{le=~"\\\\+Inf"}})', timeout)


def alert_is_firing(alertmanager: str, alert: str, replica: str = "") -> bool:
    """True if Alertmanager has the alert active (for that replica, if one is named)."""
    return _firing(alertmanager, alert, replica, "alertmanager")


def wait_for_alert(
    url: str,
    alert: str,
    replica: str = "",
    firing: bool = True,
    source: str = "alertmanager",
    timeout: float = 90.0,
) -> float:
    """Wait until the alert fires, or with ``firing: false`` until it does not; seconds since the injection.

    source: what ``url`` is, ``alertmanager`` or ``prometheus`` (there a pending alert does not count).
    """
    if source not in ("alertmanager", "prometheus"):
        raise ActivityFailed(f"source is alertmanager or prometheus, not {source!r}")
    wanted = "fires" if firing else "is resolved"
    return _wait(
        lambda: time.time() if _firing(url, alert, replica, source) is firing else f"not so in {source}",
        f"{alert} {wanted}",
        timeout,
        _EVERY_ALERT,
    )


def wait_out_of_rotation(admin: str, replica: str, timeout: float = 15.0) -> float:
    """Wait until the router sends the replica no new requests; seconds since the injection.

    A replica that was out and is back already counts: its state began after the injection.
    """
    injected = timeline.start()

    def look() -> float | str:
        seen = _one(admin, replica)
        if not seen.in_rotation:
            return seen.since
        return time.time() if seen.since > injected else f"it is {seen.state}"

    return _wait(look, f"{replica} is out of rotation", timeout, _EVERY)


def wait_in_rotation(admin: str, replica: str, timeout: float = 120.0) -> float:
    """Wait until the router sends the replica requests (again); seconds since the injection."""

    def look() -> float | str:
        seen = _one(admin, replica)
        return seen.since if seen.in_rotation else f"it is {seen.state} {seen.reason}".rstrip()

    return _wait(look, f"{replica} is in rotation", timeout, _EVERY)


def wait_all_in_rotation(admin: str, timeout: float = 120.0) -> float:
    """Wait until every replica is in rotation (again); seconds since the injection to the last one's change."""
    injected = timeline.start()

    def look() -> float | str:
        replicas = fleet.read(admin).values()
        out = [f"{r.name} is {r.state} {r.reason}".rstrip() for r in replicas if not r.in_rotation]
        if out or not replicas:
            return "; ".join(out) or "there is no replica"
        return max([injected, *(r.since for r in replicas if r.since >= injected)])

    return _wait(look, "every replica is in rotation", timeout, _EVERY)


def wait_some_out_of_rotation(admin: str, timeout: float = 15.0) -> float:
    """Wait until the router sends some replica no new requests; seconds since the injection.

    One that was out and is back already counts: its state began after the injection.
    """
    injected = timeline.start()

    def look() -> float | str:
        replicas = list(fleet.read(admin).values())
        since = [r.since for r in replicas if not r.in_rotation or r.since > injected]
        return min(since) if since else "all are in rotation"

    return _wait(look, "some replica is out of rotation", timeout, _EVERY)


def requests_succeed(router: str, count: int = 4, not_by: str = "", timeout: float = 60.0) -> dict[str, int]:
    """Send ``count`` short requests one after another; replica -> answers.

    Raises ActivityFailed at the first that is not answered with 200, that replica ``not_by`` answered, or
    that begins after ``timeout`` seconds.
    """
    url = f"{router.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
    end = time.monotonic() + timeout
    answers: dict[str, int] = {}
    for i in range(count):
        if time.monotonic() > end:
            raise ActivityFailed(f"{i} of {count} requests within {timeout:g} s")
        body = {"messages": [{"role": "user", "content": f"{i}: Say hello."}], "max_tokens": 4}
        try:
            answer = httpx.post(url, json=body, timeout=timeout, trust_env=False)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ActivityFailed(f"request {i + 1} of {count}: {error or type(error).__name__}") from None
        by = answer.headers.get("x-exaserve-replica", "unknown")
        if answer.status_code != 200:
            raise ActivityFailed(
                f"request {i + 1} of {count}: HTTP {answer.status_code}: {answer.text[:200]}"
            )
        if not_by and by == not_by:
            raise ActivityFailed(f"request {i + 1} of {count} was answered by {by}")
        answers[by] = answers.get(by, 0) + 1
    return answers


def wait_for_load(replica: str = "", requests: int = 4, timeout: float = 60.0) -> float:
    """Wait until the background load has had ``requests`` good answers, one by ``replica``; seconds."""
    running = _load()

    def look() -> float | str:
        good = [r for r in running.records() if r["outcome"] == "ok"]
        if len(good) >= requests and (not replica or any(r.get("replica") == replica for r in good)):
            return time.time()
        return f"{len(good)} good answers so far"

    return _wait(
        look, f"load has {requests} answers{', one by ' + replica if replica else ''}", timeout, _EVERY
    )


def only_streams_of_replica_were_lost(replica: str) -> dict[str, object]:
    """How the background load's requests ended so far.

    Raises ActivityFailed if one failed that had not begun on that replica: those must have been retried.
    """
    running = _load()
    bad = [r for r in running.records() if r["outcome"] != "ok"]
    lost = [r for r in bad if not (load.begun(r) and r.get("replica") == replica)]
    if lost:
        told = ", ".join(sorted({f"{load.why(r)} (by {r.get('replica') or 'nobody'})" for r in lost}))
        raise ActivityFailed(f"{len(lost)} requests failed that had not begun on {replica}: {told}")
    return running.summary()


def _load() -> load.Load:
    running = load.current()
    if running is None:
        raise ActivityFailed("no background load runs; start_load comes first")
    return running


def _one(admin: str, replica: str) -> fleet.Replica:
    replicas = fleet.read(admin)
    if replica not in replicas:
        raise ActivityFailed(
            f"no replica {replica!r} in the fleet (there: {', '.join(sorted(replicas)) or 'none'})"
        )
    return replicas[replica]


def _wait(look: Callable[[], float | str], what: str, timeout: float, every: float) -> float:
    """Call ``look`` until it returns since when it is so (unix seconds); before, it tells what it sees."""
    start = timeline.start()
    end = time.monotonic() + timeout
    while True:
        try:
            seen: float | str = look()
        except ActivityFailed as error:
            seen = str(error)  # a router or Prometheus that is busy for a moment ends no experiment
        if not isinstance(seen, str):
            # A state older than the injection, or of a clock that is ahead, is taken as seen now.
            now = time.time()
            return round((seen if start <= seen <= now else now) - start, 3)
        if time.monotonic() >= end:
            raise ActivityFailed(f"waited {timeout:g} s until {what}: {seen}")
        time.sleep(every)


def _firing(url: str, alert: str, replica: str, source: str) -> bool:
    base = url.rstrip("/")
    try:
        if source == "prometheus":
            found = [a for a in web.get(f"{base}/api/v1/alerts")["data"]["alerts"] if a["state"] == "firing"]
        else:
            found = web.get(f"{base}/api/v2/alerts", {"active": "true", "filter": f'alertname="{alert}"'})
        labels = [a["labels"] for a in found]
        return any(
            one.get("alertname") == alert and (not replica or one.get("replica", replica) == replica)
            for one in labels
        )
    except (KeyError, TypeError, AttributeError):
        raise ActivityFailed(f"{url} is not the API of {source}") from None


def _recorded(prometheus: str, promql: str, timeout: float) -> float:
    """One number from Prometheus. Raises ActivityFailed if it has none, also after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while True:
        result = web.query(prometheus, promql)
        if result:
            value = float(result[0]["value"][1])
            if not math.isnan(value):
                return value
        if time.monotonic() >= end:
            raise ActivityFailed(f"{prometheus} has no data for {promql}")
        time.sleep(_EVERY_ALERT)


def _share(prometheus: str, part: str, whole: str, timeout: float) -> float:
    """One query, so that both are of the same moment; as a histogram's buckets are not, it may be a hair above 1."""
    return min(1.0, _recorded(prometheus, f"{part} / ({whole} > 0)", timeout))


def _edge(seconds: float) -> str:
    """A regular expression of a bucket's label: versions of Prometheus write 1 and 1.0."""
    return f"{seconds:g}".replace(".", r"\\.") + (r"(\\.0)?" if float(seconds).is_integer() else "")
