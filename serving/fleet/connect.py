"""A connection to a replica: TCP or a unix socket, plain or TLS, by address or by a name with several of them.

Every address of a name is tried, in the resolver's order, the one that answered last first: a name whose first
address is dead costs ADDRESS_SECONDS once, not every time. What a name resolves to is asked again with every
connection that is made later than RESOLVE_SECONDS after the last look.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
import time
from collections.abc import Callable
from functools import cache
from ipaddress import ip_address
from typing import TypeVar

from serving.fleet.replica import Replica

#: For one address while others are left. A handshake across a data centre takes milliseconds; more means a
#: dropped packet (the first is sent again after 1 s) or a dead host.
ADDRESS_SECONDS = 1.0
RESOLVE_SECONDS = 30.0

P = TypeVar("P", bound=asyncio.BaseProtocol)


def was_refused(error: BaseException) -> bool:
    """Whether nobody listens. asyncio hides it in a plain OSError where it tried several addresses itself."""
    if isinstance(error, ConnectionRefusedError):
        return True
    numbers = re.findall(r"\[Errno (\d+)\]", str(error)) if isinstance(error, OSError) else []
    return bool(numbers) and all(int(n) == errno.ECONNREFUSED for n in numbers)


async def connect(
    replica: Replica, factory: Callable[[], P], tls: ssl.SSLContext | None = None
) -> tuple[asyncio.BaseTransport, P]:
    """Connect to ``replica``. ``tls`` is used where its URL says https; None then means the system's CAs.

    Raises ConnectionRefusedError if nobody listens on any of its addresses, else OSError that names each address
    and its error. No time limit of its own: wrap it in ``asyncio.timeout``.
    """
    loop = asyncio.get_running_loop()
    context = None
    if replica.scheme == "https":
        context = tls or _system_context()
    if replica.path:
        try:
            return await loop.create_unix_connection(factory, replica.path)
        except FileNotFoundError:
            raise ConnectionRefusedError(f"no socket at {replica.path}") from None
    name = replica.host if context is not None else None
    if _is_address(replica.host):
        return await loop.create_connection(
            factory, replica.host, replica.port, ssl=context, server_hostname=name
        )
    return await _by_name(replica, factory, context, name)


async def _by_name(
    replica: Replica, factory: Callable[[], P], context: ssl.SSLContext | None, name: str | None
) -> tuple[asyncio.BaseTransport, P]:
    loop = asyncio.get_running_loop()
    last, until = replica.reached or (None, 0.0)
    tried: list[str] = []
    errors: list[OSError] = []
    addresses = [last] if last is not None and time.monotonic() < until else []
    resolved = False
    while True:
        for i, address in enumerate(addresses):
            if address in tried:
                continue
            tried.append(address)
            more = not resolved or i + 1 < len(addresses)
            try:
                async with asyncio.timeout(ADDRESS_SECONDS if more else None):
                    made = await loop.create_connection(
                        factory, address, replica.port, ssl=context, server_hostname=name
                    )
            except TimeoutError:
                errors.append(OSError(errno.ETIMEDOUT, f"no answer from {address}"))
            except OSError as e:
                errors.append(e)
            else:
                # An address that came from the last look keeps that look's time.
                replica.reached = (address, time.monotonic() + RESOLVE_SECONDS if resolved else until)
                return made
        if resolved:
            break
        addresses, resolved = await _resolve(replica.host, replica.port, last), True
    replica.reached = None
    if errors and all(was_refused(e) for e in errors):
        raise ConnectionRefusedError(f"refused by {', '.join(tried)}")
    raise OSError(f"{replica.host}: {'; '.join(str(e) for e in errors)}")


async def _resolve(host: str, port: int, first: str | None) -> list[str]:
    """Its addresses; ``first`` at the front if it is still one of them. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
    if first in addresses:
        addresses.remove(first)
        addresses.insert(0, first)
    return addresses


@cache
def _system_context() -> ssl.SSLContext:
    """With the system's CAs, which take 20 ms to read: once."""
    return ssl.create_default_context()


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
