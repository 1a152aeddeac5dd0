"""Marks of a run in Grafana, tagged ``exaserve`` and ``chaos``: the fault from its injection to its end, and the run.

Boards show faults from Prometheus by themselves; marks also reach a Grafana whose Prometheus does not read the run's
page. A Grafana that can't be reached ends no run.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

TAGS = ("exaserve", "chaos")


def client(url: str, token: str = "") -> Any:
    """A client for ``http://user:password@host:3000`` or, with a token, ``http://host:3000``."""
    from grafana_client import GrafanaApi

    if token:
        from grafana_client.client import TokenAuth

        return GrafanaApi.from_url(url, credential=TokenAuth(token), timeout=5.0)
    return GrafanaApi.from_url(url, timeout=5.0)


def problem(url: str) -> str | None:
    """What is wrong with the address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"--grafana {url}: not an address like http://admin:secret@127.0.0.1:3000"
    return None


def mark(url: str, token: str, text: str, start: float, end: float, tags: list[str]) -> str | None:
    """One annotation from start to end (Unix seconds); why not, if it could not be made."""
    try:
        client(url, token).annotations.add_annotation(
            time_from=int(start * 1000), time_to=int(end * 1000), tags=[*TAGS, *tags], text=text
        )
    except Exception as error:  # the client raises what its HTTP library and Grafana come up with
        host = urlsplit(url).hostname
        return f"Grafana at {host} takes no annotation: {error or type(error).__name__}"
    return None
