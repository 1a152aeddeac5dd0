"""Runs the router's master process: limits of the system, logging, the event loop, from start to end."""

from __future__ import annotations

import logging
import resource
import sys

import uvloop

from serving.config import Config
from serving.router.listen import CannotStart
from serving.router.master import Master
from serving.router.members import Members
from serving.router.reload import Adjust, Source
from serving.router.say import complain

__all__ = ["CannotStart", "run"]

#: Files of a worker beside those of its streams: libraries, channel, listeners, kept connections to replicas, and
#: the connections beyond max_connections that are told so (client.MAX_LINGERING).
SPARE_FILES = 384
LEAST_CONNECTIONS = 16


def run(source: Source, members: Members) -> None:
    """Serve until SIGTERM or SIGINT. Raises CannotStart, ConfigError."""
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    limit = raise_file_limit()
    uvloop.run(_serve(source, members, lambda config: within_file_limit(config, limit)))


async def _serve(source: Source, members: Members, adjust: Adjust) -> None:
    await Master(source, adjust(source.load()), members, adjust).run()


def raise_file_limit() -> int:
    """The soft limit of open files goes up to the hard one; workers inherit it. What it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as e:
            complain(f"could not raise the limit of open files above {soft}: {e}")
            return soft
    return hard


def within_file_limit(config: Config, limit: int) -> Config:
    """With fewer connections where the files for them are lacking, so that the rest is refused with words.

    A stream takes two files of its worker, one to each side.
    """
    most = max((limit - SPARE_FILES) // 2, LEAST_CONNECTIONS)
    wanted = config.router.max_connections
    if most >= wanted:
        return config
    complain(
        f"the limit of open files is {limit}: each worker serves {most} connections at once, not router.max_connections "
        f"({wanted}). For all of them: ulimit -n {2 * wanted + SPARE_FILES}, or LimitNOFILE= in a systemd unit",
    )
    return config.model_copy(update={"router": config.router.model_copy(update={"max_connections": most})})
