"""What ``exaserve up`` says: on standard output, and with the time in ``logs/stack.log``."""

from __future__ import annotations

import contextlib
import os
import sys
import time

from serving.launch.local import bound
from serving.record import logs_folder


class Screen:
    """Takes one line at a time. A terminal that went away or a full disk ends nothing."""

    def __init__(self) -> None:
        self._log = logs_folder() / "stack.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        bound(self._log)
        self._detached = False

    def say(self, text: str = "") -> None:
        """Show one line (or several)."""
        if not self._detached:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.write(text + "\n")
                sys.stdout.flush()
        bound(self._log)
        with contextlib.suppress(OSError), self._log.open("a") as f:
            f.write(time.strftime("%Y-%m-%d %H:%M:%S ") + text + "\n")

    def detach(self) -> None:
        """From here on only the log: whoever reads our standard output sees its end."""
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        self._detached = True
        # Not /dev/null: should we ever crash, the log tells how.
        fd = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
