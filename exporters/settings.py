"""What an exporter is told at its start: which replicas there are, and how long it may wait for one.

Replicas come from ``--replica`` and from a Prometheus HTTP service discovery (``--discover``), whose answer is
read here. Fetching that answer, and the pages of the replicas, is the collectors' work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

#: A name becomes a label value of every series, so it stays short and plain.
_NAME = re.compile(r"[A-Za-z0-9._:\[\]-]{1,100}")

_PEER = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([\w.-]{1,253})):(\d{1,5})", re.ASCII)

#: Replicas of one exporter: a whole fleet of 3,072 and room. A longer list is a mistake in the discovery.
MAX_REPLICAS = 8192
#: Bad targets that are told by name.
_TOLD = 3


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
    limits: seconds that a collector may take, by its name, where that is less than the scrape's limit.
    node_exporter_names: also give what node_exporter has under its names.
    router: metrics page of the router whose intents are watched. intent_reference: file to compare them with.
    intent_window: seconds of requests that are compared with it.
    storage_interval: seconds between two probes of a mount (15 at least). storage_stuck_after: seconds after which
    one that has not come back counts as stuck. storage_read_limit: seconds above which a read is slow.
    peer_interval: seconds between two connections to a peer (15 at least).
    numa_maps_bytes: resident memory of one process (bytes) above which its numa_maps are not read: that takes 9-20 ms
    per GiB, in which the process may have to wait. numa_maps_interval: seconds between two such readings (300 at least).
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
    limits: Mapping[str, float] = field(default_factory=dict)
    intent_window: float = 1800.0
    storage_interval: float = 15.0
    storage_stuck_after: float = 10.0
    storage_read_limit: float = 0.002
    peer_interval: float = 15.0
    numa_maps_bytes: int = 16 * 2**30
    numa_maps_interval: float = 300.0


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
        raise ValueError(
            f"{without_password(url)!r} is not the address of a server; write it like http://127.0.0.1:8100"
        )
    return url.rstrip("/")


def without_password(url: str) -> str:
    """The URL as it may be shown: what stands between ``//`` and the last ``@`` is left out.

    The last one, for a password that holds a slash makes no URL, and yet stands in the words about it.
    """
    return re.sub(r"//.*@", "//", url, flags=re.DOTALL)


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


def parse_peer(text: str) -> tuple[str, int]:
    """``host:port`` or ``[IPv6]:port``. Raises ValueError with the cure."""
    found = _PEER.fullmatch(text)
    if not found or not 0 < int(found[3]) < 65_536:
        raise ValueError(f"{text!r} is no peer; write it like node-7:22 or [fd00::7]:22")
    return found[1] or found[2], int(found[3])


class Discovered(NamedTuple):
    """What a service discovery names. skipped: targets that can't be used, by why (``SKIPPED``); why: of the first few."""

    replicas: tuple[Replica, ...]
    skipped: dict[str, int]
    why: str


#: Why a target of a service discovery is passed over: it is no address or no name; another has its name; MAX_REPLICAS.
SKIPPED = ("invalid", "duplicate", "too_many")


def parse_discovery(body: bytes) -> Discovered:
    """The replicas of a Prometheus HTTP service discovery: ``[{"targets": [...], "labels": {...}}]``.

    The label ``replica`` gives the name (without it, or where a group has several targets: host:port);
    ``__scheme__`` and ``__metrics_path__`` are honoured. A group or target that can't be used costs the others
    nothing: it is counted. Raises ValueError if the answer is no list at all.
    """
    try:
        groups = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("service discovery: the answer is not JSON") from None
    if not isinstance(groups, list):
        raise ValueError("service discovery: the answer is not a list of target groups")
    found: dict[str, Replica] = {}
    skipped = dict.fromkeys(SKIPPED, 0)
    why: list[str] = []
    for group in groups:
        for replica in _of_group(group):
            if isinstance(replica, str):
                reason, told = "invalid", replica
            elif replica.name in found:
                # The same target in two groups (a router's list and a file) is no mistake.
                if found[replica.name] == replica:
                    continue
                reason, told = "duplicate", f"{replica.name} is named twice"
            elif len(found) >= MAX_REPLICAS:
                reason, told = "too_many", f"more than {MAX_REPLICAS} replicas"
            else:
                found[replica.name] = replica
                continue
            skipped[reason] += 1
            if len(why) < _TOLD and told not in why:
                why.append(told)
    return Discovered(tuple(found.values()), skipped, "; ".join(why))


def _of_group(group: Any) -> Iterator[Replica | str]:
    """Each target of a group, or why it is none."""
    targets = group.get("targets") if isinstance(group, dict) else None
    labels = group.get("labels") or {} if isinstance(group, dict) else None
    if not isinstance(targets, list) or not isinstance(labels, dict):
        yield 'a group is not {"targets": [...], "labels": {...}}'
        return
    scheme, path = labels.get("__scheme__", "http"), labels.get("__metrics_path__", "/metrics")
    name = labels.get("replica") if len(targets) == 1 else None
    for target in targets:
        try:
            if not isinstance(target, str):
                raise ValueError(f"{str(target)[:100]!r} is not the address of a server")
            address = check_url(f"{scheme}://{target}"[:2000])
            replica = parse_replica(f"{name}={address}" if name else address)
            yield Replica(replica.name, f"{address}/{str(path).lstrip('/')}")
        except ValueError as error:
            yield str(error)
