"""Small HTTP reads of our own parts, with a bound on time and size. Not for the data path."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

_MAX_BYTES = 4 * 2**20


def get(url: str, timeout: float = 1.0) -> tuple[int, bytes] | None:
    """Status and body (its first 4 MiB) of a GET; None if nobody answers within ``timeout`` seconds a step."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout)
    try:
        connection.request("GET", f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/")
        answer = connection.getresponse()
        return answer.status, answer.read(_MAX_BYTES)
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def get_json(url: str, timeout: float = 1.0) -> Any:
    """The decoded body of a 200; None otherwise."""
    found = get(url, timeout)
    if found is None or found[0] != 200:
        return None
    try:
        return json.loads(found[1])
    except ValueError:
        return None


def listens(host: str, port: int) -> bool:
    """Whether a connection is taken there."""
    try:
        socket.create_connection((host.strip("[]"), port), timeout=0.5).close()
    except OSError:
        return False
    return True
