"""While the stack runs: its configuration file, read again when it changes, and handed to the router.

The router takes its own sections (``serving/router/reload.py``); all others need the stack to be started anew, and
that is said. A file that is refused changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from serving.config import Config
from serving.config_errors import ConfigError

EVERY_SECONDS = 1.0
_ROUTERS = ("router", "pools", "tenants")


class Reread:
    """``look()`` as often as you like.

    path: the file, None if there is none. load: reads it with the options of the command line, raises ConfigError.
    take: writes what the router reads, raises OSError. say: takes one line for the user.
    """

    def __init__(
        self,
        running: Config,
        path: Path | None,
        load: Callable[[], Config],
        take: Callable[[Config], object],
        say: Callable[[str], None],
    ) -> None:
        self._running = running
        self._path = path
        self._load = load
        self._take = take
        self._say = say
        self._seen = self._version()
        self._next = 0.0

    def _version(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat() if self._path is not None else None
        except OSError:
            return None
        return found and (found.st_mtime_ns, found.st_ino, found.st_size)

    def look(self) -> None:
        """Once a second at most: a stat, and when the file changed all of it."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_SECONDS
        seen = self._version()
        if seen == self._seen or seen is None:
            return
        self._seen = seen
        before = self._running
        try:
            new = self._load()
            if any(getattr(new, s) != getattr(before, s) for s in _ROUTERS):
                self._take(before.model_copy(update={s: getattr(new, s) for s in _ROUTERS}))
                self._say(f"{self._path} changed; the router takes it over (exaserve logs router)")
        except (ConfigError, OSError) as error:
            self._say(f"{self._path} changed and was not taken over:\n{error}")
            return
        later = [
            s for s in Config.model_fields if s not in _ROUTERS and getattr(new, s) != getattr(before, s)
        ]
        if later:
            self._say(f"not taken over before exaserve down and up: {', '.join(later)}")
        self._running = new
