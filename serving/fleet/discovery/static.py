"""Replicas named by hand: ``URL`` or ``NAME=URL``."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from serving.fleet.replica import Replica


def parse(text: str) -> Replica:
    """``http://host:port`` or ``name=http://host:port`` as a Replica; without a name it is ``host:port``.

    Raises ValueError that says what is wrong with it.
    """
    name, url = "", text.strip()
    named = re.match(r"([A-Za-z0-9._:-]{1,64})=(.*)$", url)
    if named:
        name, url = named[1], named[2]
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
        raise ValueError(f"{text!r}: a replica is http://HOST:PORT or NAME=http://HOST:PORT (without a path)")
    try:
        port = parts.port or 80
    except ValueError:
        raise ValueError(f"{text!r}: the port must be a number from 1 to 65535") from None
    name = name or f"{parts.hostname}:{port}"
    return Replica(name, f"http://{parts.netloc}", parts.hostname, port)


def parse_all(texts: list[str]) -> list[Replica]:
    """All of them. Raises ValueError on a name or address given twice, or when there is none."""
    replicas = [parse(t) for t in texts]
    if not replicas:
        raise ValueError("name at least one replica: --replica http://HOST:PORT")
    for what in ("name", "url"):
        seen = [getattr(r, what) for r in replicas]
        twice = {s for s in seen if seen.count(s) > 1}
        if twice:
            raise ValueError(f"replica {what} given twice: {', '.join(sorted(twice))}")
    return replicas
