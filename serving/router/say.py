"""What the router's processes say, a line at a time. Nobody who listens no longer (a closed pipe) may stop them."""

from __future__ import annotations

import contextlib
import sys


def say(line: str) -> None:
    """To standard output."""
    with contextlib.suppress(OSError, ValueError):
        print(line, flush=True)


def complain(line: str) -> None:
    """To standard error."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
