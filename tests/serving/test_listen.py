"""Listening sockets: one a worker and address, refusals that name the key, unix sockets that outlive nobody."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.router import listen
from serving.router.listen import CannotStart
from tests.conftest import free_ports


@pytest.fixture
def closed() -> Iterator[list[list[socket.socket]]]:
    rows: list[list[socket.socket]] = []
    yield rows
    listen.close(rows)


def names(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[int, str]) -> None:
    """``replicas.example`` has these addresses."""

    def lookup(host: str, port: int, **_: Any) -> list[Any]:
        if host != "router.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (f, socket.SOCK_STREAM, 6, "", (a, port) if f == socket.AF_INET else (a, port, 0, 0))
            for f, a in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)


def test_every_worker_has_a_socket_of_its_own_on_one_port(closed: list[Any]) -> None:
    port = free_ports()
    closed += listen.bind("127.0.0.1", port, 3)
    assert [[s.getsockname() for s in row] for row in closed] == [[("127.0.0.1", port)]] * 3
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))  # bound is not listening


def test_a_name_with_several_addresses_is_listened_on_at_all_of_them(
    monkeypatch: pytest.MonkeyPatch, closed: list[Any]
) -> None:
    names(
        monkeypatch,
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET, "127.0.0.2"),
        (socket.AF_INET, "127.0.0.1"),
    )
    port = free_ports()
    closed += listen.bind("router.example", port, 2)
    assert [[s.getsockname()[0] for s in row] for row in closed] == [["127.0.0.1", "127.0.0.2"]] * 2


def test_an_address_that_the_machine_lacks_is_left_out_where_another_works(
    monkeypatch: pytest.MonkeyPatch, closed: list[Any]
) -> None:
    names(monkeypatch, (socket.AF_INET, "192.0.2.1"), (socket.AF_INET, "127.0.0.1"))
    closed += listen.bind("router.example", free_ports(), 1)
    assert [s.getsockname()[0] for s in closed[0]] == ["127.0.0.1"]
    names(monkeypatch, (socket.AF_INET, "192.0.2.1"))
    with pytest.raises(CannotStart, match=r"router\.host, --host"):
        listen.bind("router.example", 1, 1)


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_ipv6_and_ipv4_of_one_port_are_two_addresses(closed: list[Any]) -> None:
    port = free_ports()
    closed += listen.bind("::", port, 1)
    closed += listen.bind("0.0.0.0", port, 1)
    assert closed[0][0].family == socket.AF_INET6


def test_a_name_without_an_address_is_said_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch)
    with pytest.raises(
        CannotStart, match=r"^nowhere has no address: .* \(router\.admin_host, --admin-host\)$"
    ):
        listen.bind("nowhere", 1, 1, "admin_")


def test_a_port_of_another_router_is_taken_though_both_would_share_it(closed: list[Any]) -> None:
    port = free_ports()
    closed += listen.bind("127.0.0.1", port, 2)
    closed[0][0].listen()
    for key, words in (("", r"router\.port, --port"), ("admin_", r"router\.admin_port, --admin-port")):
        with pytest.raises(CannotStart, match=rf"127\.0\.0\.1:{port}: Address already in use \({words}\)"):
            listen.bind("127.0.0.1", port, 1, key)


def test_another_socket_on_the_same_address_takes_no_connection_before_it_listens(closed: list[Any]) -> None:
    port = free_ports()
    closed += listen.bind("127.0.0.1", port, 1)
    old = closed[0][0]
    old.listen()
    closed[0][0] = listen.again(old)
    assert closed[0][0].getsockname() == ("127.0.0.1", port)
    assert old.fileno() == -1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_unix_socket_that_nobody_listens_on_is_replaced_and_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "router.sock"
    first = listen.bind_unix(path)
    first.listen()
    with pytest.raises(CannotStart, match=r"router\.unix_socket"):
        listen.bind_unix(path)
    first.close()
    listen.bind_unix(path).close()
    path.unlink()
    path.write_text("mine")
    with pytest.raises(CannotStart, match=r"router\.unix_socket"):
        listen.bind_unix(path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("path", ["/nowhere/at/all.sock", "/" + "x" * 300])
def test_a_path_that_can_not_be_a_socket_is_refused_in_words(path: str) -> None:
    with pytest.raises(CannotStart, match=r"router\.unix_socket"):
        listen.bind_unix(Path(path))
    assert not os.path.exists(path)
