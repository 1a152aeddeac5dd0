"""``exaserve dashboards push``: the command line. The work is in ``push.py``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dashboards.usage_error import usage

if TYPE_CHECKING:
    from dashboards.push import Change

#: Lines of a board's differences that are shown without --all.
_LINES = 12

EPILOG = """
\b
Examples:
  exaserve dashboards push --url https://grafana.example --token-file token --dry-run
  exaserve dashboards push --url https://grafana.example --token-file token
  GRAFANA_TOKEN=… exaserve dashboards push --url https://host/grafana --source vllm --folder "vLLM"

\b
The token is that of a service account (Administration, Service accounts) with the role Editor. It is read from the
file, or from $GRAFANA_TOKEN, and shown nowhere. Boards go by their uid: a second push changes nothing.
Exit code: 0 all boards are there as they should be (or --dry-run could tell), 1 Grafana refused or is not to be
reached, 2 wrong usage.
"""


def push(
    url: Annotated[str, typer.Option(metavar="URL", help="Grafana's address, with its path if it has one.")],
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Holds the token, alone; - for stdin. Default: $GRAFANA_TOKEN."),
    ] = None,
    folder: Annotated[
        str, typer.Option(metavar="TITLE", help="Grafana's folder; made if there is none of that title.")
    ] = "ExaServe",
    source: Annotated[
        str, typer.Option(metavar="NAME", help="What the fleet is: exaserve, vllm or ray.")
    ] = "exaserve",
    runbooks: Annotated[
        str, typer.Option(metavar="BASE", help="Address of the runbooks, for the boards' links.")
    ] = "runbooks",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing; show what would change, line by line.")
    ] = False,
    all_: Annotated[
        bool, typer.Option("--all", help="Every line of what changes, not the first dozen.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also over what somebody saved while this command ran.")
    ] = False,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate that signed Grafana's, if your own did.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=300, help="Seconds for each request.")] = 15.0,
) -> None:
    """Create or update the boards in a running Grafana, in a folder of their own."""
    from dashboards.push import Grafana, PushError, address
    from dashboards.push import push as bring
    from dashboards.sources import SOURCES

    if source not in SOURCES:
        raise usage("dashboards push", f"--source: {source!r} is none of {', '.join(SOURCES)}")
    if not folder.strip():
        raise usage("dashboards push", "--folder: give it a title")
    if ca_file is not None and not ca_file.is_file():
        raise usage("dashboards push", f"--ca-file: {ca_file} is not a file")
    token = _token(token_file)
    try:
        parts, _ = address(url)
        grafana = Grafana(url, token, timeout, ca_file)
    except PushError as error:
        raise usage("dashboards push", str(error)) from None
    if token and parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        typer.echo("warning: the token goes over the network unencrypted (http)", err=True)
    boards = _boards(source, runbooks.rstrip("/"))
    counts, uid = dict.fromkeys(("create", "update", "unchanged"), 0), ""
    try:
        for change in bring(grafana, boards, folder.strip(), force, dry_run):
            _show(change, dry_run, all_)
            uid = uid or change.folder
            counts[change.kind] += not change.folder
    except PushError as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(1) from None
    done = "to create, {} to update" if dry_run else "created, {} updated"
    typer.echo(f"{counts['create']} {done.format(counts['update'])}, {counts['unchanged']} as they should be")
    if not dry_run:
        typer.echo(f"{url.rstrip('/')}/dashboards/f/{uid}")


def _boards(source: str, runbooks: str) -> dict[str, dict[str, object]]:
    from dashboards import build
    from dashboards.rulefile import Links

    texts = build.files(Links(runbooks), source)
    return {
        name.removesuffix(".json"): json.loads(text) for name, text in texts.items() if name.endswith(".json")
    }


def _show(change: Change, dry: bool, every: bool) -> None:
    said = {"create": "would create", "update": "would update"} if dry else {}
    past = {"create": "created", "update": "updated", "unchanged": "unchanged"}
    typer.echo(f"{said.get(change.kind, past[change.kind]):<12}  {change.what}")
    shown = change.lines if every else change.lines[:_LINES]
    for line in shown:
        typer.echo(f"    {line}")
    if len(change.lines) > len(shown):
        typer.echo(f"    … and {len(change.lines) - len(shown)} more (--all shows them)")


def _token(file: Path | None) -> str | None:
    """The token; None where there is none. Never part of a message."""
    if file is None:
        text = os.environ.get("GRAFANA_TOKEN", "")
        where = "$GRAFANA_TOKEN"
    else:
        where = f"--token-file: {file}"
        try:
            text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="ascii")
        except OSError as error:
            raise usage("dashboards push", f"{where}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise usage("dashboards push", f"{where}: holds no token") from None
    token = text.strip()
    if file is not None and not token:
        raise usage("dashboards push", f"{where}: is empty")
    if not token.isascii() or len(token.split()) > 1:
        raise usage("dashboards push", f"{where}: holds more than a token")
    return token or None
