"""The server of one side: an address that is there, or a command that starts it and is ended afterwards."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path


class StackError(Exception):
    """The server of ``side`` did not come up; the message says how far it got and where its log is."""

    def __init__(self, side: str, message: str) -> None:
        super().__init__(f"{side}: {message}")
        self.side = side


class Stack:
    """command: None where the server is somebody else's. Its processes form a group, so that none is left over."""

    def __init__(self, side: str, address: str, command: str | None, log: Path, ready_timeout: float) -> None:
        self.side, self.address, self.command = side, address.rstrip("/"), command
        self._log, self._ready_timeout = log, ready_timeout
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, say: Callable[[str], None], settle: float) -> None:
        """Returns when the address answers and has done so for ``settle`` seconds. Raises StackError."""
        if self.command is not None:
            if self._problem() is None:
                raise StackError(
                    self.side,
                    f"something answers at {self.address} already: end it, or leave --{self.side}-command out",
                )
            say(f"{self.side}: starting `{self.command}`")
            with self._log.open("ab") as log:
                try:
                    self._process = subprocess.Popen(
                        shlex.split(self.command),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                except OSError as error:
                    raise StackError(
                        self.side, f"`{self.command}` can't be started: {error.strerror or error}"
                    ) from None
        until = time.monotonic() + (self._ready_timeout if self.command is not None else 30.0)
        while (problem := self._problem()) is not None:
            if self._process is not None and (status := self._process.poll()) is not None:
                hint = "; give a command that stays in the foreground" if status == 0 else ""
                raise StackError(
                    self.side, f"`{self.command}` ended with status {status}{hint} (its words: {self._log})"
                )
            if time.monotonic() > until:
                where = f" (its words: {self._log})" if self.command is not None else ""
                raise StackError(self.side, f"{self.address}/v1/models does not answer: {problem}{where}")
            time.sleep(0.5)
        if self.command is not None:
            time.sleep(settle)

    def _problem(self) -> str | None:
        try:
            with urllib.request.urlopen(f"{self.address}/v1/models", timeout=10) as answer:  # noqa: S310
                return None if answer.status == 200 else f"status {answer.status}"
        except urllib.error.HTTPError as error:
            # Somebody who wants a key is there; locust has it.
            return None if error.code in (401, 403) else f"status {error.code}"
        except (OSError, ValueError) as error:
            return str(getattr(error, "reason", error))

    def stop(self, patience: float = 90.0) -> None:
        """SIGTERM to the command, SIGKILL to what is left of its group; nothing for an address."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
