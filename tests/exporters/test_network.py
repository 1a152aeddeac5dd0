"""Network peers: connections on this machine, names that hang, and real paths in network namespaces."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exporters.catalog import metric
from exporters.collectors.network import MAX_PEERS, NetworkCollector
from exporters.registry import NoData
from exporters.settings import Settings, parse_peer
from tests.conftest import closed_port

HERE = Path(__file__).parent
UP, SECONDS = "exaserve_network_peer_up", "exaserve_network_connect_duration_seconds"
CONNECTS = "exaserve_network_connects_total"
MTU, VERIFIED = "exaserve_network_path_mtu_bytes", "exaserve_network_path_mtu_verified"
INTERFACE = "exaserve_network_interface_mtu_bytes"

Samples = dict[tuple[str, ...], float]


def collect(collector: NetworkCollector, seconds: float = 60.0) -> Samples:
    samples = collector.collect(time.monotonic() + seconds)
    assert all(len(metric(s.name).labels) == len(s.labels) for s in samples)
    found = {(s.name, *s.labels): s.value for s in samples}
    assert len(found) == len(samples)
    return found


def results(found: Samples, peer: str) -> dict[str, float]:
    return {key[2]: value for key, value in found.items() if key[:2] == (CONNECTS, peer) and value}


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(name="closed_port")
def a_closed_port() -> Iterator[int]:
    with closed_port() as port:
        yield port


@pytest.fixture
def silent() -> Iterator[int]:
    """A port whose queue of connections is full: nobody takes them, so another one gets no answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1]
        filling = [socket.socket() for _ in range(4)]
        for s in filling:
            s.setblocking(False)
            s.connect_ex(("127.0.0.1", port))
        time.sleep(0.05)
        yield port
        for s in filling:
            s.close()


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("node-7:22", ("node-7", 22)),
        ("10.0.0.7:65535", ("10.0.0.7", 65_535)),
        ("[fd00::7]:22", ("fd00::7", 22)),
        ("[fe80::1%eth0]:22", ("fe80::1%eth0", 22)),
    ],
)
def test_a_peer_is_host_and_port(text: str, peer: tuple[str, int]) -> None:
    assert parse_peer(text) == peer


@pytest.mark.parametrize(
    "text", ["", "node", "node:", "node:0", "node:65536", ":22", "fd00::7:22", "a b:1", "a/b:1"]
)
def test_anything_else_is_refused_with_the_cure(text: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        parse_peer(text)


def test_without_peers_there_is_no_data_and_too_many_are_refused() -> None:
    with pytest.raises(NoData):
        NetworkCollector(Settings()).collect(time.monotonic() + 1)
    with pytest.raises(ValueError, match=f"at most {MAX_PEERS}"):
        NetworkCollector(Settings(peers=tuple(f"a:{i}" for i in range(1, MAX_PEERS + 2))))


def test_a_peer_that_takes_connections_is_up_and_another_one_says_why_not(
    listening: int, closed_port: int, silent: int
) -> None:
    well, refusing, mute = (f"127.0.0.1:{port}" for port in (listening, closed_port, silent))
    began = time.monotonic()
    # The mute one takes all of the timeout; the others have as much.
    found = collect(NetworkCollector(Settings(peers=(well, refusing, mute), timeout=3.0)))
    assert time.monotonic() - began < 18  # a third of the time is for connections
    assert [found[UP, peer] for peer in (well, refusing, mute)] == [1, 0, 0]
    assert 0 < found[SECONDS, well] < 18
    assert {key for key in found if key[0] == SECONDS} == {(SECONDS, well)}
    assert results(found, well) == {"ok": 1}
    assert results(found, refusing) == {"refused": 1}
    assert results(found, mute) == {"timeout": 1}
    assert {key[1] for key in found if key[0] == MTU} <= {well}


def test_every_result_of_a_peer_has_a_series_from_the_start(listening: int) -> None:
    peer = f"127.0.0.1:{listening}"
    found = collect(NetworkCollector(Settings(peers=(peer,))))
    assert {key[2] for key in found if key[0] == CONNECTS} == {
        "ok", "refused", "timeout", "no_route", "name", "other",
    }  # fmt: skip


Names = Callable[[str], list[str]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[[Names], None]:
    """names(function) -> the resolver asks it; it gives IPv4 addresses, raises, or hangs."""
    real = socket.getaddrinfo

    def put(look: Names) -> None:
        def getaddrinfo(host: str, *rest: Any, flags: int = 0, **more: Any) -> list[Any]:
            if flags & socket.AI_NUMERICHOST:
                return real(host, *rest, flags=flags, **more)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, 0)) for a in look(host)]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return put


def test_the_next_address_of_a_name_is_tried_when_the_first_refuses(names: Callable[[Names], None]) -> None:
    names(lambda _: ["127.0.0.1", "127.0.0.2"])
    with socket.create_server(("127.0.0.2", 0)) as server:
        peer = f"two:{server.getsockname()[1]}"
        found = collect(NetworkCollector(Settings(peers=(peer,))))
    assert found[UP, peer] == 1
    assert results(found, peer) == {"ok": 1}


def test_an_address_without_a_route_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect_ex", lambda *_: errno.ENETUNREACH)
    assert results(collect(NetworkCollector(Settings(peers=("127.0.0.1:1",)))), "127.0.0.1:1") == {
        "no_route": 1
    }


def test_connections_are_at_least_15_seconds_apart_and_the_last_result_stands(listening: int) -> None:
    clock, peer = [0.0], f"127.0.0.1:{listening}"
    collector = NetworkCollector(Settings(peers=(peer,), peer_interval=0.1), clock=lambda: clock[0])
    first = collect(collector)
    clock[0] = 14.9
    assert collect(collector) == first
    clock[0] = 15.0
    assert results(collect(collector), peer) == {"ok": 2}


def test_a_name_that_is_none_and_one_whose_lookup_hangs_cost_the_others_nothing(
    listening: int, names: Callable[[Names], None]
) -> None:
    hanging = threading.Event()

    def look(host: str) -> list[str]:
        if host == "slow":
            hanging.wait(120)
        if host == "none":
            raise socket.gaierror("no such name")
        return ["127.0.0.1"]

    names(look)
    clock, well = [0.0], f"node:{listening}"
    collector = NetworkCollector(Settings(peers=("slow:1", "none:1", well)), lambda: clock[0])
    try:
        for n in (1, 2):
            clock[0] += 20
            began = time.monotonic()
            found = collect(collector, seconds=8.0)  # of which a third goes by for the name
            assert time.monotonic() - began < 30
            assert found[UP, well] == 1
            assert results(found, "slow:1") == results(found, "none:1") == {"name": n}
    finally:
        hanging.set()


# ------------------------------------------------------------------ the path


def test_on_loopback_the_path_is_what_ip_can_carry_at_most(listening: int) -> None:
    peer = f"127.0.0.1:{listening}"
    found = collect(NetworkCollector(Settings(peers=(peer,))))
    assert found[MTU, peer] == min(65_535, found[INTERFACE, peer, "lo"])


@pytest.fixture(scope="module")
def namespaces() -> list[str]:
    """The start of a command that runs in a network namespace of its own."""
    why = "there is no unshare"
    for command in (["unshare", "-rn"], ["unshare", "-n"]):
        try:
            made = subprocess.run([*command, "ip", "link"], capture_output=True, text=True, timeout=120)
        except OSError as error:
            why = str(error)
            continue
        if made.returncode == 0:
            return command
        why = made.stderr.strip()
    pytest.skip(f"no network namespace can be made here ({why})")


def measured(namespaces: list[str], kind: str) -> list[dict[str, float]]:
    run = subprocess.run(
        [*namespaces, sys.executable, str(HERE / "network_namespace.py"), kind],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=HERE.parents[1],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )
    if run.returncode and "Unknown device type" in run.stderr:
        pytest.skip("this kernel has no veth links")
    assert run.returncode == 0, run.stderr
    answers: list[dict[str, float]] = json.loads(run.stdout)
    return answers


def test_a_router_with_a_smaller_mtu_shows_as_the_paths_mtu(namespaces: list[str]) -> None:
    first, second = measured(namespaces, "narrow")
    for peer in ("10.9.2.2:7", "[fd00:2::2]:7"):
        for found in (first, second):
            assert found[f"{UP} {peer}"] == 1
            assert found[f"{MTU} {peer}"] == 1400
            assert found[f"{INTERFACE} {peer} out"] == 1500
        assert second[f"{VERIFIED} {peer}"] == 1


def test_a_link_that_swallows_large_packets_is_a_black_hole(namespaces: list[str]) -> None:
    for found in measured(namespaces, "hole"):
        for peer in ("10.9.1.2:7", "[fd00:1::2]:7"):
            assert found[f"{UP} {peer}"] == 1
            assert found[f"{MTU} {peer}"] == found[f"{INTERFACE} {peer} out"] == 9000
            assert found[f"{VERIFIED} {peer}"] == 0
