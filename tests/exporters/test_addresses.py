"""Names are looked up beside the work, kept, and outlive a name server that fails."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from exporters.collectors import _addresses
from exporters.collectors._addresses import Address, Addresses

NUMBERED = socket.AF_INET


def wait_for(check: Callable[[], object]) -> object:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = check()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("nothing came")


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> list[list[str] | Exception]:
    """The answers that look-ups get, one after the other."""
    answers: list[list[str] | Exception] = []

    def look(host: str, *_: object, **kwargs: object) -> object:
        if kwargs.get("flags"):
            raise socket.gaierror(-2, "not a number")
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [(NUMBERED, 1, 6, "", (a, 0)) for a in answer]

    monkeypatch.setattr(_addresses.socket, "getaddrinfo", look)
    _addresses._literal.cache_clear()
    return answers


def test_literal_addresses_are_answered_at_once() -> None:
    addresses = Addresses()
    assert addresses.of("127.0.0.1", 80) == [Address(socket.AF_INET, ("127.0.0.1", 80))]
    assert addresses.of("::1", 80) == [Address(socket.AF_INET6, ("::1", 80))]


def test_a_name_is_looked_up_once_for_all_its_ports(resolver: list[list[str] | Exception]) -> None:
    resolver.append(["10.0.0.1", "10.0.0.2", "10.0.0.1"])
    addresses = Addresses()
    assert addresses.of("h", 1) is None
    wait_for(lambda: addresses.of("h", 1))
    assert addresses.of("h", 2) == [(NUMBERED, ("10.0.0.1", 2)), (NUMBERED, ("10.0.0.2", 2))]
    assert resolver == []


def test_a_name_without_an_address_is_an_error_until_it_is_looked_up_again(
    resolver: list[list[str] | Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver += [socket.gaierror(-2, "Name or service not known"), ["10.0.0.9"]]
    addresses = Addresses()
    assert addresses.of("h", 1) is None

    def failed() -> bool:
        try:
            addresses.of("h", 1)
        except OSError as error:
            return str(error) == "no address of h: Name or service not known"
        return False

    wait_for(failed)
    addresses._known["h"].until = 0.0
    assert wait_for(lambda: addresses.of("h", 1)) == [(NUMBERED, ("10.0.0.9", 1))]


def test_the_last_addresses_outlive_a_name_server_that_fails(resolver: list[list[str] | Exception]) -> None:
    resolver += [["10.0.0.1"], socket.gaierror(-3, "Temporary failure")]
    addresses = Addresses()
    wait_for(lambda: addresses.of("h", 1))
    addresses._known["h"].until = 0.0
    assert addresses.of("h", 1) == [(NUMBERED, ("10.0.0.1", 1))]
    wait_for(lambda: not addresses._known["h"].looking)
    assert addresses.of("h", 1) == [(NUMBERED, ("10.0.0.1", 1))]


def test_names_that_nobody_asks_for_are_forgotten(resolver: list[list[str] | Exception]) -> None:
    resolver.append(["10.0.0.1"])
    addresses = Addresses()
    wait_for(lambda: addresses.of("h", 1))
    addresses.forget()
    assert list(addresses._known) == ["h"]
    addresses._known["h"].asked -= _addresses.FORGET_SECONDS + 1
    addresses.forget()
    assert addresses._known == {}
