"""What an exporter is told at its start: which replicas there are, and how long it may wait for one.

Replicas come from ``--replica`` and from a Prometheus HTTP service discovery (``--discover``), whose answer is
read here. Fetching that answer, and the pages of the replicas, is the collectors' work.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

#: A name becomes a label value of every series, so it stays short and plain.
_NAME = re.compile(r"[A-Za-z0-9._:\[\]-]{1,100}")

#: Replicas of one exporter. One exporter runs on each node; a longer list is a mistake in the discovery.
MAX_REPLICAS = 1024


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine to read. name: value of the label ``replica``; url: its metrics page."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that collectors are told.

    timeout: seconds that one replica's page may take. discover: URL of an HTTP service discovery.
    sysfs, procfs: where the kernel's file systems are mounted (``/host/sys`` in a container).
    run_folder: where ExaServe keeps the process ids of its replicas on this node.
    mounts: folders whose storage is measured. peers: ``host:port`` that connections are tried to.
    node_exporter_names: also give what node_exporter has under its names.
    router: metrics page of the router whose intents are watched. intent_reference: file to compare them with.
    """

    replicas: tuple[Replica, ...] = ()
    discover: str | None = None
    timeout: float = 3.0
    sysfs: Path = Path("/sys")
    procfs: Path = Path("/proc")
    run_folder: Path | None = None
    mounts: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    node_exporter_names: bool = False
    router: str | None = None
    intent_reference: Path | None = None


def check_url(url: str) -> str:
    """The URL, with ``http://`` put before a bare ``host:port``. Raises ValueError with the cure."""
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        bad = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:
        bad = True
    if bad or parts.query or parts.fragment or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise ValueError(f"{url!r} is not the address of a server; write it like http://127.0.0.1:8100")
    return url.rstrip("/")


def parse_replica(text: str) -> Replica:
    """``NAME=URL`` or ``URL`` (the name is then host:port). ``/metrics`` is added unless it is there.

    Raises ValueError that says what to write.
    """
    name, found, address = text.partition("=")
    if not found or "/" in name:
        name, address = "", text
    url = check_url(address)
    name = name or urlsplit(url).netloc.rpartition("@")[2]
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} can't name a replica; use letters, digits and . _ : - (at most 100)")
    return Replica(name, url if url.endswith("/metrics") else f"{url}/metrics")


def parse_discovery(body: bytes) -> tuple[Replica, ...]:
    """The replicas of a Prometheus HTTP service discovery: ``[{"targets": [...], "labels": {...}}]``.

    The label ``replica`` gives the name (without it, or where a group has several targets: host:port);
    ``__scheme__`` and ``__metrics_path__`` are honoured. Later duplicates of a name are dropped.
    Raises ValueError if the answer has another shape.
    """
    try:
        groups = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("service discovery: the answer is not JSON") from None
    if not isinstance(groups, list):
        raise ValueError("service discovery: the answer is not a list of target groups")
    found: dict[str, Replica] = {}
    for group in groups:
        for replica in _of_group(group):
            found.setdefault(replica.name, replica)
            if len(found) > MAX_REPLICAS:
                raise ValueError(f"service discovery: more than {MAX_REPLICAS} replicas")
    return tuple(found.values())


def _of_group(group: Any) -> list[Replica]:
    targets = group.get("targets") if isinstance(group, dict) else None
    labels = group.get("labels") or {} if isinstance(group, dict) else None
    if not isinstance(targets, list) or not isinstance(labels, dict):
        raise ValueError('service discovery: a group is not {"targets": [...], "labels": {...}}')
    scheme, path = labels.get("__scheme__", "http"), labels.get("__metrics_path__", "/metrics")
    name = labels.get("replica") if len(targets) == 1 else None
    found = []
    for target in targets:
        address = check_url(f"{scheme}://{target}")
        replica = parse_replica(f"{name}={address}" if name else address)
        found.append(Replica(replica.name, f"{address}/{str(path).lstrip('/')}"))
    return found
