"""Asks a Prometheus over its HTTP API, within limits: time of a query, time of all, bytes of an answer.

Errors are sentences for the page and never hold the address's password. What is asked is ``take.py``'s.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import yaml

from dashboards.snapshot.span import Span, duration

#: Seconds between scrapes where Prometheus doesn't say.
SCRAPE = 15.0
#: Bytes of one answer above which it is left: some 400 series of POINTS each are 2 MB.
LARGEST = 32 * 2**20
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class QueryError(Exception):
    """Why there is no answer, as a sentence."""


@dataclass(frozen=True)
class Answer:
    """``result`` as Prometheus gives it, and what it warns of."""

    kind: str
    result: Any
    warnings: tuple[str, ...] = ()


class Prometheus:
    """One Prometheus. token: a bearer token. timeout: seconds of one query; limit: seconds of all of them."""

    def __init__(
        self, url: str, token: str | None = None, timeout: float = 15.0, limit: float = 180.0
    ) -> None:
        """Raises ValueError if ``url`` is no http(s) address without query and fragment."""
        try:
            address = httpx.URL(url)
        except (httpx.InvalidURL, TypeError) as error:
            raise ValueError(f"no address: {error}") from None
        if address.scheme not in ("http", "https") or not address.host:
            raise ValueError("no address like http://127.0.0.1:9090")
        if address.query or address.fragment:
            raise ValueError("an address with ? or # is none of a Prometheus")
        #: The address without user and password, for people.
        self.shown = str(address.copy_with(username=None, password=None)).rstrip("/")
        auth = (address.username, address.password) if address.username or address.password else None
        self._limit = limit
        self._timeout = timeout
        self._until = time.monotonic() + limit
        self._client = httpx.Client(
            auth=auth,
            headers={"authorization": f"Bearer {token}"} if token else {},
            # A proxy set for the network outside knows no way back to this machine.
            trust_env=address.host not in _LOOPBACK,
        )

    def close(self) -> None:
        self._client.close()

    def instant(self, expr: str, when: float) -> Answer:
        """What holds at that time. Raises QueryError."""
        return self._query("query", {"query": expr, "time": f"{when:.3f}"})

    def over(self, expr: str, span: Span) -> Answer:
        """What held at each of the span's points. Raises QueryError."""
        times = {"start": f"{span.at(0):.3f}", "end": f"{span.end:.3f}", "step": str(span.step)}
        return self._query("query_range", {"query": expr, **times})

    def values(self, label: str, selector: str, span: Span) -> list[str]:
        """Values that a label of a selector's series had in the span, in order. Raises QueryError."""
        times = {"start": f"{span.start:.3f}", "end": f"{span.end:.3f}"}
        data = self._ask(f"label/{quote(label, safe='')}/values", {"match[]": selector, **times})["data"]
        return sorted(str(value) for value in data or ())

    def scrape(self) -> float:
        """Its global scrape interval in seconds; SCRAPE where it doesn't say. Raises QueryError if it is not there."""
        self._ask("query", {"query": "vector(1)"})
        try:
            text = self._ask("status/config", {}, post=False)["data"]["yaml"]
            return duration(yaml.safe_load(text)["global"]["scrape_interval"]) or SCRAPE
        except (QueryError, KeyError, TypeError, ValueError, yaml.YAMLError):
            return SCRAPE

    def _query(self, path: str, params: dict[str, str]) -> Answer:
        answer = self._ask(path, params | {"timeout": f"{self._timeout:g}s"})
        try:
            warnings = tuple(str(w)[:200] for w in answer.get("warnings") or ())
            return Answer(answer["data"]["resultType"], answer["data"]["result"], warnings)
        except (KeyError, TypeError, AttributeError):
            raise QueryError("the answer is not Prometheus'") from None

    def _ask(self, path: str, params: dict[str, str], post: bool = True) -> dict[str, Any]:
        left = self._until - time.monotonic()
        if left <= 0:
            raise QueryError(f"not asked: the {self._limit:g} s for all queries are over")
        until = time.monotonic() + min(left, self._timeout + 1)
        url = f"{self.shown}/api/v1/{path}"
        # Long queries don't fit into every server's line; label values are only read.
        method = "POST" if post and path.startswith("query") else "GET"
        sent: dict[str, Any] = {"data" if method == "POST" else "params": params}
        try:
            with self._client.stream(method, url, timeout=min(left, self._timeout + 1), **sent) as answer:
                status, body = answer.status_code, self._read(answer, until)
        except httpx.TimeoutException:
            raise QueryError(f"no answer within {self._timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise QueryError(f"no answer: {str(error) or type(error).__name__}") from None
        try:
            data = json.loads(body)
            good = data["status"] == "success" and "data" in data
        except (ValueError, KeyError, TypeError, RecursionError):
            raise QueryError(f"HTTP {status}, and the answer is not Prometheus'") from None
        if not good:
            raise QueryError(
                f"{data.get('errorType') or f'HTTP {status}'}: {str(data.get('error') or '')[:500]}"
            )
        return dict(data)

    def _read(self, answer: httpx.Response, until: float) -> bytes:
        body = bytearray()
        for chunk in answer.iter_bytes():
            body += chunk
            if len(body) > LARGEST:
                raise QueryError(f"the answer has more than {LARGEST // 2**20} MiB; narrow it with --var")
            if time.monotonic() > until:
                raise QueryError(f"no whole answer within {self._timeout:g} s")
        return bytes(body)
