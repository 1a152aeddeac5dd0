"""Replicas named by hand: ``URL`` or ``NAME=URL``, where the URL is http, https or a unix socket."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlsplit

from serving.fleet.replica import Replica

#: Names become values of labels and of the x-exaserve-replica header.
NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,255}")
_FORMS = "http://HOST:PORT, https://HOST:PORT or unix:/PATH, without a path; NAME= may stand before it"


def parse(text: str) -> Replica:
    """``http://host:port``, ``https://host:port`` or ``unix:/path``, with or without ``name=``, as a Replica.

    Without a name it is ``host:port``, or the file name of the socket. Raises ValueError that says what is wrong.
    """
    name, url = "", text.strip()
    named = re.match(rf"({NAME.pattern})=(.*)$", url, re.DOTALL)
    if named:
        name, url = named[1], named[2]
    return make(name, url, text)


def make(name: str, url: str, text: str = "", *, weight: float = 1.0, model: str = "") -> Replica:
    """A Replica at ``url``; ``text`` is what errors quote, the URL if it is empty."""
    text = text or url
    if url.startswith("unix:"):
        return _at_socket(name, url, text, weight, model)
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:  # brackets that don't hold an IPv6 address
        raise ValueError(f"{text!r}: a replica is {_FORMS}") from None
    extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or extra:
        raise ValueError(f"{text!r}: a replica is {_FORMS}")
    try:
        port = (443 if parts.scheme == "https" else 80) if parts.port is None else parts.port
    except ValueError:
        port = 0
    if not port:
        raise ValueError(f"{text!r}: the port must be a number from 1 to 65535") from None
    url = f"{parts.scheme}://{parts.netloc}"
    name = name or f"{host}:{port}"
    return Replica(name, url, host, port, scheme=parts.scheme, weight=weight, model=model)


def _at_socket(name: str, url: str, text: str, weight: float, model: str) -> Replica:
    path = url.removeprefix("unix:")
    path = "/" + path.lstrip("/") if path.startswith("//") else path
    # 107 bytes are all that Linux takes for a socket's path.
    if not path.startswith("/") or path == "/" or "\0" in path or len(path.encode()) > 107:
        raise ValueError(f"{text!r}: a unix socket is unix:/PATH, absolute and at most 107 bytes")
    name = name or re.sub(r"[^A-Za-z0-9._:-]", "-", path.rsplit("/", 1)[-1])[:64]
    return Replica(name, f"unix:{path}", "", 0, path=path, weight=weight, model=model)


def parse_all(texts: Sequence[str]) -> list[Replica]:
    """All of them. Raises ValueError on a name or address given twice, or when there is none."""
    replicas = [parse(t) for t in texts]
    if not replicas:
        raise ValueError("name at least one replica: --replica http://HOST:PORT")
    refuse_twins(replicas)
    return replicas


def refuse_twins(replicas: Sequence[Replica]) -> None:
    """Raises ValueError on a name or a URL that two of them have."""
    for what in ("name", "url"):
        seen = Counter(getattr(r, what) for r in replicas)
        twice = sorted(value for value, n in seen.items() if n > 1)
        if twice:
            raise ValueError(f"replica {what} given twice: {', '.join(twice[:5])}")


def merge(old: Sequence[Replica], new: Sequence[Replica]) -> list[Replica]:
    """``new``, with the object of ``old`` wherever name and URL are the same, so that what is known and open stays.

    A kept one gets the new one's weight.
    """
    known = {(r.name, r.url): r for r in old}
    merged = []
    for replica in new:
        kept = known.get((replica.name, replica.url), replica)
        if kept is not replica and kept.base_weight != replica.base_weight:
            kept.weight *= replica.base_weight / kept.base_weight
            kept.base_weight = replica.base_weight
        merged.append(kept)
    return merged
