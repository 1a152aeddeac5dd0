"""Runs the router: sockets, signals, the admin API beside the data plane, start and end."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence

import uvloop

from serving.config import Router
from serving.fleet.replica import Replica
from serving.router.admin import AdminThread
from serving.router.client import Client
from serving.router.server import Server


class CannotStart(Exception):
    """What keeps the router from starting, in words."""


async def _serve(settings: Router, replicas: Sequence[Replica]) -> None:
    server = Server(settings, replicas)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        listener = await loop.create_server(
            lambda: Client(server), settings.host, settings.port, backlog=4096
        )
    except OSError as e:
        raise CannotStart(
            f"could not listen on {settings.host}:{settings.port}: {e.strerror} (router.port, --port)"
        ) from e
    admin = AdminThread(server, settings.admin_host, settings.admin_port)
    admin.start()
    server.health.start()
    sweeper = asyncio.create_task(server.expire_clients())
    while not admin.server.started and admin.is_alive():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    if not admin.server.started:
        raise CannotStart(f"{admin.failed} (router.admin_port, --admin-port)")
    print(
        f"router on http://{settings.host}:{settings.port}, admin API on "
        f"http://{settings.admin_host}:{settings.admin_port}, {len(replicas)} replicas",
        flush=True,
    )
    await stop.wait()
    print("stopping: open answers may end", flush=True)
    listener.close()
    await server.drain()
    sweeper.cancel()
    await server.health.stop()
    admin.stop()


def run(settings: Router, replicas: Sequence[Replica]) -> None:
    """Serve until SIGTERM or SIGINT. Raises CannotStart."""
    _raise_file_limit()
    uvloop.run(_serve(settings, replicas))


def _raise_file_limit() -> None:
    """Two sockets a stream: the usual 1,024 files are gone at 500 streams."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as e:
            print(f"could not raise the limit of open files above {soft}: {e}", file=sys.stderr)
