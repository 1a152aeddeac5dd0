"""``exaserve acceptance``: options, messages, exit statuses."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, NoReturn

import typer


def acceptance(
    place: Annotated[
        str, typer.Option("--place", metavar="lab:NAME", help="A lab that is up. Without: one is built.")
    ] = "",
    name: Annotated[str, typer.Option("--name", help="Of the lab that is built and taken down.")] = "acc",
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="ROW", help="Only this row; repeatable. See --rows.")
    ] = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="List the rows and what each expects; do nothing.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Default: below $EXASERVE_HOME/chaos/acceptance."),
    ] = None,
) -> None:
    """Try the acceptance matrix on a lab: what must go well when something breaks, and what went.

    Each row puts something into the fleet under load, measures what requests felt, and says whether that is what is
    promised. The lab (four simulated nodes, two regions) is built and taken down; takes about five minutes. Needs root.

    \b
      exaserve acceptance                                  # everything, on a lab of its own
      exaserve acceptance --only node-lost --only peak
      exaserve acceptance --place lab:mine -o report/

    The page is acceptance.html in the output folder, beside it the same as Markdown and JSON, and the evidence: every
    request's record, every state of every replica. Exit status: 0 all rows passed, 1 a row failed or could not be run,
    2 wrong usage. A row that is not built yet counts neither way, and is named.
    """
    from chaos import recover
    from chaos.acceptance import page, result, runner
    from chaos.acceptance.rows import ROWS
    from chaos.fault import ActivityFailed

    known = {row.key: row for row in ROWS}
    if rows:
        for row in ROWS:
            typer.echo(f"{row.key:20} {row.expected if row.act else 'not built: ' + row.missing}")
        return
    for key in only or []:
        if key not in known:
            _end(f"--only: no row {key!r}; rows: {', '.join(known)}", 2)
    if place and not place.startswith("lab"):
        _end(
            "--place: a lab is needed, like lab:NAME; on a cluster the rows are run by hand (runbooks/GameDay.md)",
            2,
        )
    chosen = [row for row in ROWS if not only or row.key in only]
    started = time.time()
    folder = output or recover.folder().parent / "acceptance" / time.strftime("%Y%m%d-%H%M%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _end(f"--output {folder}: {error.strerror}", 2)

    def keep(found: list[result.Result]) -> None:
        command = shlex.join(["exaserve", *sys.argv[1:]])
        page.write(folder.absolute(), page.Run(place or f"lab:{name}", started, time.time(), command), found)

    lab = nullcontext(place) if place else runner.own_lab(name, _say)
    try:
        with lab as where:
            found = runner.run(chosen, where, folder.absolute(), _say, not place, keep)
    except KeyboardInterrupt:
        _end("interrupted; what was put in is out again", 130)
    except runner.LabFailed as error:
        _end(str(error), 1)
    except ActivityFailed as error:
        _end(f"--place: {error}" if place else str(error), 2 if place else 1)
    _say(f"{result.verdict(found)}, in {time.time() - started:.0f} s: {folder / 'acceptance.html'}")
    raise typer.Exit(result.exit_code(found))


def _say(line: str) -> None:
    print(line, flush=True)


def _end(message: str, code: int) -> NoReturn:
    typer.echo(f"exaserve acceptance: {message}", err=True)
    raise typer.Exit(code)
