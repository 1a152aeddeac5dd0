"""The way to each listed peer: how long a TCP connection takes, and whether packets of the interface's size arrive.

Measured by the network collector (``collectors/network.py``), one try, from here only: run it on both ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from exporters.collectors import network
from exporters.doctor.check import Finding, Node, register
from exporters.doctor.files import seconds
from exporters.settings import parse_peer

SECONDS = 12.0
#: MTU of the loopback device: what it says of the way to others is nothing.
_LOOPBACK = 65536

#: The collector's samples of one peer: by name without ``exaserve_network_``, and label values after the peer.
_Samples = Mapping[tuple[str, ...], float]


def peers(node: Node) -> Iterator[Finding]:
    if not node.settings.peers:
        yield Finding("peers", "none listed (--peer HOST:PORT, exporter.peers in exaserve.yaml)", "not here")
        return
    known = []
    for text in dict.fromkeys(node.settings.peers[: network.MAX_PEERS]):
        try:
            parse_peer(text)
            known.append(text)
        except ValueError as error:
            yield Finding(
                "connect", str(error), "fail", "HOST:PORT", "correct exporter.peers or --peer", text
            )
    collector = network.NetworkCollector(replace(node.settings, peers=tuple(known)))
    found: dict[str, dict[tuple[str, ...], float]] = {text: {} for text in known}
    for sample in collector.collect(time.monotonic() + SECONDS - 2) if known else ():
        peer, *labels = sample.labels
        found[peer][sample.name.removeprefix("exaserve_network_"), *labels] = sample.value
    for text, samples in found.items():
        yield _connect(text, samples, node.limits.peer_seconds)
        if samples.get(("peer_up",)):
            yield _path(text, samples)


def _connect(text: str, samples: _Samples, most: float) -> Finding:
    expected = f"below {seconds(most)}"
    host = parse_peer(text)[0]
    took = samples.get(("connect_duration_seconds",))
    if took is None:
        why = next(
            (key[1] for key, count in samples.items() if key[0] == "connects_total" and count), "other"
        )
        if why == "name":
            return Finding(
                "connect", "its name has no address", "fail", expected, f"getent hosts {host}", text
            )
        cure = f"does something listen there? ss -ltn on the peer; firewall; ip route get {host}"
        return Finding("connect", f"failed: {why.replace('_', ' ')}", "fail", expected, cure, text)
    if took > most:
        cure = f"ping -c 20 {host}; mtr {host}; ethtool -S on both ends"
        return Finding("connect", seconds(took), "warn", expected, cure, text)
    return Finding("connect", seconds(took), "ok", expected, item=text)


def _path(text: str, samples: _Samples) -> Finding:
    host = parse_peer(text)[0]
    size = samples.get(("path_mtu_bytes",))
    verified = samples.get(("path_mtu_verified",))
    interface, own = next(
        ((key[1], value) for key, value in samples.items() if key[0] == "interface_mtu_bytes"), ("", None)
    )
    if size is None:
        return Finding("path MTU", "can't be read", "unknown", item=text)
    expected = f"{own or size:.0f}{f' of {interface}' if interface else ''}, and such packets arrive"
    ping = f"ping -M do -s {size - 28:.0f} {host}"
    if verified == 0:
        cure = f"{ping}; a switch or an end with a smaller MTU drops them and tells nobody"
        value = f"packets of {size:.0f} vanish, small ones arrive"
        return Finding("path MTU", value, "fail", expected, cure, text)
    if own is not None and size < own < _LOOPBACK:
        cure = f"a smaller MTU on the way: tracepath {host}"
        return Finding("path MTU", f"{size:.0f}", "warn", expected, cure, text)
    if verified is None:
        value = f"{size:.0f}, not verified: the peer answers no probe"
        return Finding("path MTU", value, "unknown", expected, ping, text)
    return Finding("path MTU", f"{size:.0f}, such packets arrive", "ok", expected, item=text)


register("peers", "connect time and path MTU to the listed peers", peers, SECONDS)
