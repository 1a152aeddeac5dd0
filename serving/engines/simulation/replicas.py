"""Many simulated replicas in one process, a port each: starting, refusing, ending them.

What one of them does is in ``server.py``; the command line is ``cli.py``, for a single one
``serving/engines/simulated.py``.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .profile import Profile
from .server import Server, Shared

# Beside sockets: standard streams, event loop, files read for a moment.
_OTHER_FILES = 64
_BACKLOG = 1024
MAX_REPLICAS = 16_384


class CannotStart(Exception):
    """The replicas can't be started here; the message says what to do."""


@dataclass(eq=False)
class Replica:
    """One replica on its port. listener: None while a fault has the port closed."""

    name: str
    host: str
    server: Server
    port: int = 0
    listener: asyncio.Server | None = None
    _opening: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def listen(self) -> None:
        """Open its port; port 0 becomes a free one. Raises OSError."""
        sock = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.host, self.port))
            sock.listen(_BACKLOG)
            loop = asyncio.get_running_loop()
            self.listener = await loop.create_server(self.server.protocol, sock=sock, backlog=_BACKLOG)
        except BaseException:
            sock.close()
            raise
        self.port = sock.getsockname()[1]
        self.server.on_refuse = self._refuse

    def _refuse(self, refuse: bool) -> None:
        if refuse:
            self.close()
        else:
            self._opening = asyncio.create_task(self._reopen())

    async def _reopen(self) -> None:
        while True:
            try:
                await self.listen()
                return
            except OSError:  # another process has the port for a moment
                await asyncio.sleep(0.5)

    def close(self) -> None:
        """Close the port; open connections stay."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self.listener is not None:
            self.listener.close()
            self.listener = None


async def start(
    shared: Shared,
    count: int,
    host: str,
    first_port: int,
    progress: Callable[[int], None] = lambda started: None,
) -> list[Replica]:
    """Replicas ``sim-0`` … on ``first_port`` and the ports after it; on free ones if it is 0.

    progress: called now and then with how many are up. Raises CannotStart.
    """
    raise_file_limit(count)
    replicas: list[Replica] = []
    try:
        for index in range(count):
            replica = Replica(f"sim-{index}", host, Server(shared), first_port + index if first_port else 0)
            try:
                await replica.listen()
            except OSError as error:
                raise CannotStart(_why(replica, error)) from None
            replicas.append(replica)
            if not index % 256:
                progress(index)
                await asyncio.sleep(0)
    except CannotStart:
        for replica in replicas:
            replica.close()
        raise
    progress(count)
    return replicas


def _why(replica: Replica, error: OSError) -> str:
    said = f"can't listen on {replica.host}:{replica.port}: {error.strerror or error}"
    if error.errno == errno.EADDRINUSE:
        return f"{said}; give another --port, or 0 for free ones"
    return said


def raise_file_limit(count: int) -> int:
    """Let this process open as many files as it may, and return how many that is.

    Raises CannotStart where ``count`` replicas with one connection each do not fit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # a limit that may not be raised is the limit
    needed = 2 * count + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise CannotStart(
            f"{count} replicas with one connection each need {needed} open files, and this process may have {soft}: "
            f"start fewer, or raise the limit (`ulimit -n {needed}`, for systemd LimitNOFILE=)"
        )
    return soft


async def until_told_to_end() -> None:
    """Return on SIGTERM or SIGINT."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()


async def stop(replicas: list[Replica], shared: Shared) -> None:
    """As vLLM does it: open answers end with an error, then the connections go. At most 2 s."""
    for replica in replicas:
        replica.close()
        replica.server.fail_all()
    shared.connections.close()
    for _ in range(200):  # for clients that do not read
        if not shared.connections:
            break
        await asyncio.sleep(0.01)


def write_list(path: Path, replicas: list[Replica]) -> None:
    """``name=URL`` lines for ``exaserve router``, whole or not at all. Raises OSError."""
    text = "".join(f"{replica.name}={replica.url}\n" for replica in replicas)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def told(profile: Profile) -> str:
    """A profile in a line."""
    kind = f"measured: {profile.measured}" if profile.measured else "not measured"
    return f"{profile.description or 'no description'} ({kind})"
