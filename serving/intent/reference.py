"""The normal mix of intents, saved to a file that the exporter compares the router's traffic with.

Counts come from a running router's page (since it started) or from a Prometheus (over a range of time). What
is done with the file is the exporter's work (``exporters/collectors/intent_drift.py``), which has a reader of
its own: the folders don't import each other, and a test holds the two to one format."""

from __future__ import annotations

import json
import math
import os
import re
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from exporters.catalog import metric
from serving.home import write_whole

FORMAT, VERSION = "exaserve intent reference", 1
#: Requests below which the exporter compares nothing with a reference.
ENOUGH = 2000
#: As many as a model has at most.
MAX_INTENTS = 64

COUNTER = metric("exaserve_router_classifications_total").name
_SECONDS = 10.0
_MAX_PAGE, _MAX_FILE = 32 * 2**20, 256 * 1024
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class NoReference(Exception):
    """Why there is no reference. status: exit status of the command."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Reference:
    """counts: requests by intent. begin, end: unix times between which they came; begin None: unknown.

    model: name of the model that classified them, if known. source: where the counts were read.
    made_by: version of ExaServe.
    """

    counts: dict[str, int]
    begin: float | None
    end: float
    model: str | None
    source: str
    made_by: str

    @property
    def size(self) -> int:
        return sum(self.counts.values())


def from_router(url: str, model: str | None = None) -> Reference:
    """What a router has counted since it started. url: of its admin API or its metrics page."""
    url = _checked(url, "--router")
    address = url if url.endswith("/metrics") else f"{url}/metrics"
    page = _get(address, {})
    if COUNTER.encode() not in page:
        raise NoReference(f"{address} is not the metrics page of an ExaServe router")
    counts: dict[str, float] = {}
    for labels, value in re.findall(
        rb"^" + COUNTER.encode() + rb"\{([^\n]*)\}[ \t]+([0-9.eE+]+)", page, re.M
    ):
        found = re.search(rb'(?:^|,)intent="((?:[^"\\]|\\.)*)"', labels)
        if found and found[1]:
            escaped = found[1].decode(errors="replace")
            intent = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], escaped)
            counts[intent] = counts.get(intent, 0.0) + _float(value)
    return _made(counts, None, time.time(), model, _without_secrets(address))


def from_prometheus(url: str, since: str, until: str | None = None, model: str | None = None) -> Reference:
    """What all routers counted in a range of time, counter resets taken into account.

    since, until: how long ago the range begins and ends, like ``-7d`` and ``-1d``; until None: now.
    """
    url = _checked(url, "--prometheus")
    begin, end = ago(since, "--from"), ago(until, "--to") if until is not None else 0
    if begin <= end:
        raise NoReference(f"--from {since} has to be before --to {until or 'now'}", 2)
    now = time.time()
    span = f"{begin - end}s"
    counts = {
        labels.get("intent", ""): value
        for labels, value in _query(url, f"sum by (intent) (increase({COUNTER}[{span}]))", now - end)
    }
    # A Prometheus that is younger, or keeps less, has the first samples later than was asked for.
    step = max(60, (begin - end) // 200)
    first = _query(url, f"min(min_over_time(timestamp({COUNTER})[{span}:{step}s]))", now - end)
    starts = max(now - begin, first[0][1]) if first else now - begin
    return _made(counts, starts, now - end, model, _without_secrets(url))


def ago(text: str, option: str) -> int:
    """``-7d`` as seconds (also s, m, h, w; the minus may be left out). Raises NoReference with the cure."""
    found = re.fullmatch(r"-?(\d{1,6})([smhdw])", text)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not found or (seconds == 0 and option != "--to") or seconds > 5 * 365 * 86_400:
        raise NoReference(f"{option} {text}: how long ago, like -7d or -12h", 2)
    return seconds


def write(reference: Reference, path: Path) -> None:
    """Whole or not at all. Raises OSError."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "counts": dict(sorted(reference.counts.items())),
        "from": reference.begin,
        "to": reference.end,
        "model": reference.model,
        "source": reference.source,
        "exaserve": reference.made_by,
    }
    write_whole(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def read(path: Path) -> Reference:
    """Raises NoReference that names the file and what is wrong."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise NoReference(f"{path}: not a file")
        with path.open("rb") as f:
            data = f.read(_MAX_FILE + 1)
        found = json.loads(data) if len(data) <= _MAX_FILE else None
    except OSError as error:
        raise NoReference(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise NoReference(f"{path}: not a file of `exaserve intent reference save`")
    if found.get("version") != VERSION:
        raise NoReference(f"{path}: of version {found.get('version')!r}, this reads {VERSION}")
    counts: Any = found.get("counts")
    begin: Any = found.get("from")
    end: Any = found.get("to")
    sound = (
        isinstance(counts, dict)
        and all(_number(n) and n >= 0 for n in counts.values())
        and _number(end)
        and (begin is None or _number(begin))
    )
    if not sound:
        raise NoReference(f"{path}: damaged; save it again")
    whole = {str(intent): int(n) for intent, n in counts.items()}
    model = found.get("model")
    return Reference(
        whole, begin, end, None if model is None else str(model), str(found.get("source")),
        str(found.get("exaserve")),
    )  # fmt: skip


def table(reference: Reference) -> str:
    """For people: where from, of when, and the shares."""
    return "\n".join(map(_printable, _lines(reference)))


def _printable(said: str) -> str:
    """What a file or a server says, without what would move the cursor of whoever reads it."""
    return "".join(c if c.isprintable() else " " for c in said)


def _lines(reference: Reference) -> list[str]:
    begin = "the router's start" if reference.begin is None else _time(reference.begin)
    width = max(map(len, ["intent", *reference.counts]))
    lines = [
        f"source  {reference.source}",
        f"time    {begin} to {_time(reference.end)}",
        f"model   {reference.model or 'not named'}",
        "",
        f"{'intent':<{width}}  requests   share",
    ]
    by_size = sorted(reference.counts.items(), key=lambda item: (-item[1], item[0]))
    lines += [f"{intent:<{width}}  {n:>8}  {n / max(1, reference.size):6.1%}" for intent, n in by_size]
    return [*lines, f"{'all':<{width}}  {reference.size:>8}"]


def _time(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    except (ValueError, OverflowError, OSError):
        return f"{at:g}"


def _made(
    counts: dict[str, float], begin: float | None, end: float, model: str | None, source: str
) -> Reference:
    whole = {intent: round(n) for intent, n in counts.items() if intent and math.isfinite(n) and n > 0}
    if not sum(whole.values()):
        raise NoReference(
            f"{source} has counted no intent; is `router.intent.enabled` true, and was there traffic?"
        )
    if len(whole) > MAX_INTENTS:
        raise NoReference(f"{source} has more than {MAX_INTENTS} intents")
    return Reference(whole, begin, end, model, source, version("exaserve"))


def _query(url: str, promql: str, at: float) -> list[tuple[dict[str, str], float]]:
    body = _get(f"{url}/api/v1/query", {"query": promql, "time": f"{at:.3f}"})
    try:
        rows = json.loads(body)["data"]["result"]
        return [({str(k): str(v) for k, v in row["metric"].items()}, float(row["value"][1])) for row in rows]
    except (AttributeError, ValueError, LookupError, TypeError, RecursionError):
        raise NoReference(f"{url} is not a Prometheus") from None


def _get(address: str, parameters: dict[str, str]) -> bytes:
    body, end = bytearray(), time.monotonic() + _SECONDS
    try:
        # A proxy of the environment's knows nothing of this machine's own addresses.
        proxies = urlsplit(address).hostname not in ("127.0.0.1", "::1", "localhost")
        with httpx.stream(
            "GET", address, params=parameters or None, timeout=_SECONDS, trust_env=proxies
        ) as answer:
            for chunk in answer.iter_bytes():
                body += chunk
                if len(body) > _MAX_PAGE or time.monotonic() > end:
                    raise NoReference(f"{_without_secrets(address)}: too long an answer")
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        why = str(error) or type(error).__name__
        raise NoReference(f"no answer from {_without_secrets(address)}: {why}") from None
    if answer.status_code != 200:
        raise NoReference(f"{_without_secrets(address)} answered {answer.status_code}{_said(body)}")
    return bytes(body)


def _said(body: bytearray) -> str:
    """Prometheus' own words about a query that it refused."""
    try:
        return f": {_printable(str(json.loads(body)['error']))}"
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""


def _checked(url: str, option: str) -> str:
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or re.search(r"[\s\x00-\x1f\x7f]", url) or "?" in url or "#" in url:
        raise NoReference(f"{option} {_without_secrets(url)}: must be a URL like http://127.0.0.1:8001", 2)
    return url.rstrip("/")


def _without_secrets(address: str) -> str:
    return re.sub(r"//.*@", "//", address, flags=re.DOTALL)


def _float(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _number(value: Any) -> bool:
    # Not math.isfinite, which raises for a whole number of 400 digits.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
