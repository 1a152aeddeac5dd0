"""Results of nodes by the pages of their exporters: what the node, gpu, infiniband, network and storage collectors say.

Less than the doctor finds on the node itself, but without ssh. Rows have the names of the doctor's own checks. What
a page lacks (collector off, an exporter that is older) is not there, and no verdict is made of it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from exporters.collectors._page import Labels, Lines, find
from exporters.doctor import versions
from exporters.doctor.check import Compare, Finding, Limits, Verdict
from exporters.doctor.files import printable, seconds, size
from exporters.doctor.hosts import MAX_HOSTS
from exporters.doctor.result import NodeResult
from exporters.doctor.side_by_side import each
from exporters.settings import check_url, without_password

MAX_BYTES = 64 << 20
_SAME = "the same on every node"
_STATES = {1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}


def addresses(given: str) -> list[str]:
    """URLs of pages: from ``URL,URL`` or from a file with one a line (``#`` begins a comment).

    ``/metrics`` is added unless there is a path. Raises ValueError that says which is none.
    """
    path = Path(given)
    named = given.startswith(("/", "./", "../"))  # no address begins like that
    if named or ("," not in given and "://" not in given and os.path.isfile(path)):
        try:
            lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
        except OSError as error:
            raise ValueError(f"{given}: {error.strerror}") from None
    else:
        lines = given.split(",")
    found = []
    for line in lines:
        address = line.partition("#")[0].strip()
        if address:
            url = check_url(address)
            found.append(url if urlsplit(url).path.strip("/") else f"{url}/metrics")
    if not found:
        raise ValueError(f"{given}: no address of an exporter in it")
    if len(found) > MAX_HOSTS:
        raise ValueError(f"{given}: more than {MAX_HOSTS} addresses")
    return list(dict.fromkeys(found))


def read(urls: Sequence[str], limit: float, parallel: int, limits: Limits | None = None) -> list[NodeResult]:
    """A result for each page, in the order of ``urls``; ``limit``: seconds for one. Nodes are called by their host,
    with the port where several pages have one host."""
    hosts = Counter(urlsplit(url).hostname for url in urls)

    def one(url: str) -> NodeResult:
        parts = urlsplit(url)
        name = str(parts.hostname) if hosts[parts.hostname] == 1 else parts.netloc.rpartition("@")[2]
        try:
            found = tuple(findings(_get(url, limit), limits or Limits()))
        except (httpx.HTTPError, OSError, ValueError) as error:
            return NodeResult(
                name, problem=f"{without_password(url) if parts.username else 'exporter'}: {_why(error)}"
            )
        problem = "" if found else "its page has nothing of an ExaServe exporter"
        return NodeResult(name, found, problem, time.time())

    return each(one, urls, parallel)


def _get(url: str, limit: float) -> bytes:
    """Raises httpx.HTTPError, ValueError."""
    ends = time.monotonic() + limit
    headers = {"accept": "text/plain", "accept-encoding": "identity"}
    with (
        httpx.Client(timeout=limit, trust_env=False) as client,
        client.stream("GET", url, headers=headers) as answer,
    ):
        if answer.status_code != 200:
            raise ValueError(f"answered {answer.status_code}")
        body = bytearray()
        for chunk in answer.iter_bytes():
            body += chunk
            if len(body) > MAX_BYTES:
                raise ValueError(f"its page is longer than {MAX_BYTES} bytes")
            if time.monotonic() > ends:
                raise ValueError(f"no whole page within {limit:g} s")
    return bytes(body)


def _why(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    text = str(error) or type(error).__name__
    return text.partition("] ")[2] or text if text.startswith("[Errno") else text


def findings(page: bytes, limits: Limits) -> Iterator[Finding]:
    """The rows that one page gives. Raises ValueError if it has more of them than a node can have."""
    wanted = {f"exaserve_{name}".encode() for name in _READERS}
    found = find(page, b"exaserve_", wanted)
    for name, reader in _READERS.items():
        for finding in reader(found[name], limits) if name in found else ():
            yield replace(finding, value=printable(finding.value), item=printable(finding.item))


def _software(lines: Lines, _: Limits) -> Iterator[Finding]:
    releases: dict[str, list[str]] = {}
    for labels, _value in lines:
        releases.setdefault(labels.get("component", ""), []).append(labels.get("version", ""))
    for component, several in sorted(releases.items()):
        if component in versions.ROWS:
            check, what = versions.ROWS[component]
            compare: Compare = "fail" if component in versions.STRICT else "warn"
            value = ", ".join(sorted(several))
            yield Finding(what, value, "ok", _SAME, compare=compare, check=check)


def _driver(lines: Lines, _: Limits) -> Iterator[Finding]:
    for labels, _value in lines[:1]:
        for label, what in (("driver_version", "driver by NVML"), ("cuda_version", "CUDA of the driver")):
            if labels.get(label):
                yield Finding(what, labels[label], "ok", _SAME, compare="fail", check="gpu")


def _gpus(lines: Lines, _: Limits) -> Iterator[Finding]:
    kinds = Counter(labels.get("name", "?") for labels, _value in lines)
    value = "; ".join(f"{count} × {kind}" for kind, count in sorted(kinds.items()))
    yield Finding("GPUs", value, "ok", _SAME, compare="fail", check="gpu")


def _gpu_up(lines: Lines, _: Limits) -> Iterator[Finding]:
    for labels, value in lines:
        if value == 0:
            cure = "exaserve_gpu_down_reason says why; dmesg | grep -i xid"
            yield Finding("GPU up", "no", "fail", "yes", cure, labels.get("gpu", ""), check="gpu")


def _port(labels: Labels) -> str:
    return f"{labels.get('device', '?')}/{labels.get('port', '?')}"


def _states(lines: Lines, _: Limits) -> Iterator[Finding]:
    for labels, value in lines:
        state = _STATES.get(int(value), str(value))
        verdict: Verdict = "ok" if state == "ACTIVE" else "warn"
        cure = "" if verdict == "ok" else "exaserve doctor --only infiniband on the node"
        yield Finding("state", state, verdict, "ACTIVE", cure, _port(labels), "warn", "infiniband")


def _rates(lines: Lines, limits: Limits) -> Iterator[Finding]:
    expected = f"at least {limits.link_bits / 1e9:g} Gb/s"
    for labels, value in lines:
        fine = value * 8 >= limits.link_bits
        cure = "" if fine else "exaserve doctor --only infiniband on the node"
        shown = f"{value * 8 / 1e9:g} Gb/s"
        yield Finding(
            "rate", shown, "ok" if fine else "warn", expected, cure, _port(labels), "fail", "infiniband"
        )


def _link_layers(lines: Lines, _: Limits) -> Iterator[Finding]:
    for labels, _value in lines:
        layer = labels.get("link_layer") or "?"
        yield Finding("link layer", layer, "ok", item=_port(labels), compare="fail", check="infiniband")


def _mtus(lines: Lines, _: Limits) -> Iterator[Finding]:
    for labels, value in lines:
        yield Finding(
            "interface", f"{value:.0f}", "ok", _SAME, "", labels.get("interface", ""), "fail", "mtu"
        )


def _open_files(lines: Lines, _: Limits) -> Iterator[Finding]:
    for _labels, value in lines[:1]:
        yield Finding(
            "open files of the exporter", f"{value:.0f}", "ok", _SAME, compare="warn", check="limits"
        )


def _locked(lines: Lines, _: Limits) -> Iterator[Finding]:
    for _labels, value in lines[:1]:
        yield Finding(
            "locked memory of the exporter", size(value), "ok", _SAME, compare="warn", check="limits"
        )


def _stuck(lines: Lines, _: Limits) -> Iterator[Finding]:
    for labels, value in lines:
        cure = "is the server up? dmesg | tail on the node" if value else ""
        said = "stuck" if value else "yes"
        yield Finding(
            "answers", said, "fail" if value else "ok", "yes", cure, labels.get("mount", ""), check="storage"
        )


def _reads(lines: Lines, limits: Limits) -> Iterator[Finding]:
    for labels, value in lines:
        fine = value < limits.storage_seconds
        cure = (
            "" if fine else "one sample; exaserve doctor --only storage on the node takes the median of many"
        )
        expected = f"below {seconds(limits.storage_seconds)}"
        verdict: Verdict = "ok" if fine else "warn"
        yield Finding(
            "read", seconds(value), verdict, expected, cure, labels.get("mount", ""), check="storage"
        )


def _peers(lines: Lines, _: Limits) -> Iterator[Finding]:
    for labels, value in lines:
        cure = "" if value else "exaserve doctor --only peers --peer HOST:PORT on the node"
        said = "yes" if value else "no"
        yield Finding(
            "connect", said, "ok" if value else "fail", "yes", cure, labels.get("peer", ""), check="peers"
        )


def _verified(lines: Lines, _: Limits) -> Iterator[Finding]:
    for labels, value in lines:
        if not value:
            cure = "a switch or an end with a smaller MTU; ping -M do -s SIZE from the node"
            said = "packets of that size vanish"
            yield Finding(
                "path MTU", said, "fail", "they arrive", cure, labels.get("peer", ""), check="peers"
            )


#: Metric without ``exaserve_`` -> what makes rows of it, in the order of the rows.
_READERS: dict[str, Callable[[Lines, Limits], Iterable[Finding]]] = {
    "node_software_info": _software,
    "gpu_driver_info": _driver,
    "gpu_info": _gpus,
    "gpu_up": _gpu_up,
    "infiniband_port_state_id": _states,
    "infiniband_port_rate_bytes_per_second": _rates,
    "infiniband_port_info": _link_layers,
    "node_interface_mtu_bytes": _mtus,
    "node_open_files_limit": _open_files,
    "node_locked_memory_limit_bytes": _locked,
    "storage_stuck": _stuck,
    "storage_read_latency_seconds": _reads,
    "network_peer_up": _peers,
    "network_path_mtu_verified": _verified,
}
