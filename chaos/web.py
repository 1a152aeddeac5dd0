"""JSON over HTTP for actions and probes: bounded, past no proxy, with errors that name the address."""

from __future__ import annotations

from typing import Any

import httpx
from chaoslib.exceptions import ActivityFailed

#: Seconds for one answer. A router or Prometheus that takes longer can't steer an experiment.
TIMEOUT = 5.0


def get(url: str, params: dict[str, str] | None = None) -> Any:
    """The JSON at ``url``. Raises ActivityFailed: not reached, not 200, no JSON."""
    try:
        answer = httpx.get(url, params=params, timeout=TIMEOUT, trust_env=False)
        answer.raise_for_status()
        return answer.json()
    except httpx.HTTPStatusError as error:
        raise ActivityFailed(f"{url} answered {error.response.status_code}") from None
    except httpx.HTTPError as error:
        raise ActivityFailed(f"{url} can't be read: {error or type(error).__name__}") from None
    except (ValueError, httpx.InvalidURL) as error:
        raise ActivityFailed(f"{url} is no address of JSON: {error}") from None


def query(prometheus: str, promql: str) -> list[dict[str, Any]]:
    """Result vector of an instant query. Raises ActivityFailed."""
    answer = get(f"{prometheus.rstrip('/')}/api/v1/query", {"query": promql})
    try:
        return list(answer["data"]["result"])
    except (KeyError, TypeError):
        raise ActivityFailed(f"{prometheus} gave no result for {promql}") from None
