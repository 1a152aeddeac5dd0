"""The way to peers: real connections on this machine, and what is made of the collector's samples."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from doctor_trees import Machine, rows

from exporters.doctor.checks.peers import _connect, _path, peers


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_no_peer_is_listed(machine: Machine) -> None:
    assert [f.verdict for f in peers(machine.node())] == ["not here"]


def test_a_peer_that_listens_one_that_does_not_and_one_that_is_none(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        good, bad = (f"127.0.0.1:{s.getsockname()[1]}" for s in (server, closed))
        found = rows(list(peers(machine.node(peers=(good, bad, "nonsense")))))

    assert found["connect", good][0] in ("ok", "warn")
    assert found["connect", bad] == ("fail", "failed: refused")
    assert found["connect", "nonsense"][0] == "fail"
    assert ("path MTU", bad) not in found


@pytest.mark.parametrize(
    ("samples", "verdict", "value"),
    [
        ({("connect_duration_seconds",): 0.0004}, "ok", "400 µs"),
        ({("connect_duration_seconds",): 0.006}, "warn", "6 ms"),
        ({("connects_total", "ok"): 0, ("connects_total", "no_route"): 1}, "fail", "failed: no route"),
        ({("connects_total", "name"): 1}, "fail", "its name has no address"),
    ],
)
def test_a_connection(samples: dict[tuple[str, ...], float], verdict: str, value: str) -> None:
    found = _connect("gpu-2:22", samples, 0.005)
    assert (found.verdict, found.value) == (verdict, value)


@pytest.mark.parametrize(
    ("size", "own", "verified", "verdict", "value"),
    [
        (9000, 9000, 1, "ok", "9000, such packets arrive"),
        (9000, 9000, 0, "fail", "packets of 9000 vanish, small ones arrive"),
        (1500, 9000, 1, "warn", "1500"),
        (9000, 9000, None, "unknown", "9000, not verified: the peer answers no probe"),
    ],
)
def test_a_path(size: int, own: int, verified: int | None, verdict: str, value: str) -> None:
    samples: dict[tuple[str, ...], float] = {("path_mtu_bytes",): size, ("interface_mtu_bytes", "ib0"): own}
    if verified is not None:
        samples["path_mtu_verified",] = verified

    found = _path("gpu-2:22", samples)

    assert (found.verdict, found.value) == (verdict, value)
    assert found.expected == "9000 of ib0, and such packets arrive"
