"""``exaserve drain``: take a replica out of the router's rotation and wait until nothing is open on it."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

PAUSE_SECONDS = 0.5
CALL_SECONDS = 10.0


class DrainError(Exception):
    """What keeps it from being drained. code: exit status."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def drain(
    replica: Annotated[str, typer.Argument(help="Its name, as in /fleet.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it have requests again.")] = False,
    timeout: Annotated[
        float,
        typer.Option(min=0, max=86_400, help="Seconds to wait for open requests; it stays drained after."),
    ] = 300.0,
    admin: Annotated[
        str | None,
        typer.Option(help="The router's admin API; default: the running stack's, else port 8001 here."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token, where router.admin_token_file is set.")
    ] = None,
) -> None:
    """Give a replica no new requests and wait until its open ones have ended: then it may be stopped.

    Exit status 0: nothing is open on it; 1: not within the time, or the router refused; 2: bad usage.
    """
    try:
        base = admin or _running()
        token = _token(token_file)
        if undo:
            found = ask(base, f"/replicas/{urllib.parse.quote(replica, safe='')}/undrain", token)
            typer.echo(f"{replica} is {found['state']} again")
            return
        wait(base, replica, token, timeout)
    except DrainError as error:
        typer.echo(f"exaserve drain: {error}", err=True)
        raise typer.Exit(error.code) from None


def wait(base: str, name: str, token: str | None, seconds: float) -> None:
    """Drain it and return when nothing is open on it in any worker. Raises DrainError."""
    path = f"/replicas/{urllib.parse.quote(name, safe='')}"
    end = time.monotonic() + seconds
    found = ask(base, f"{path}/drain", token)
    said = None
    while True:
        n = found["in_flight"]
        if n == 0:
            # What was assigned just before the drain is counted within a refresh of the shared counts.
            time.sleep(0.2)
            n = ask(base, path, None)["in_flight"]
            if n == 0:
                break
        if n != said:
            typer.echo(f"{name}: {n} in flight")
            said = n
        if time.monotonic() >= end:
            raise DrainError(
                f"{name} still has {n} requests open after {seconds:g} s; it stays drained (--undo ends that)"
            )
        time.sleep(min(PAUSE_SECONDS, max(end - time.monotonic(), 0.01)))
        found = ask(base, path, None)
    typer.echo(f"{name} is drained: nothing is in flight")


def ask(base: str, path: str, token: str | None) -> dict[str, Any]:
    """POST where the path ends in a verb, else GET. Raises DrainError with the router's own words."""
    method = "POST" if path.endswith("drain") else "GET"
    if urllib.parse.urlsplit(base).scheme not in ("http", "https"):
        raise DrainError(f"--admin {base}: must be a URL like http://127.0.0.1:8001", 2)
    request = urllib.request.Request(base.rstrip("/") + path, method=method)  # noqa: S310
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:  # noqa: S310
            found = json.loads(answer.read(2**20))
    except urllib.error.HTTPError as error:
        raise DrainError(_words(error), 2 if error.code == 404 else 1) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise DrainError(f"no answer from the router's admin API at {base}: {reason}") from None
    if not isinstance(found, dict) or not isinstance(found.get("in_flight"), int):
        raise DrainError(f"{base} is not a router's admin API")
    return found


def _words(error: urllib.error.HTTPError) -> str:
    try:
        detail = json.loads(error.read(2**16))["detail"]
    except (OSError, ValueError, LookupError, TypeError):
        detail = error.reason
    return f"{detail} (status {error.code})"


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DrainError(f"--token-file {path}: {getattr(error, 'strerror', error)}", 2) from None


def _running() -> str:
    from serving import record

    found = record.read() if record.is_up() else None
    return (found.addresses.get("admin") if found else None) or "http://127.0.0.1:8001"


if __name__ == "__main__":
    typer.run(drain)
    sys.exit(0)
