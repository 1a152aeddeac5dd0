"""``exaserve report``: options, messages and exit statuses. The work is in this folder's other modules."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from loadtest._report._folder import Folder

app = typer.Typer(add_completion=False, rich_markup_mode=None, subcommand_metavar="")

_EPILOG = """
\b
The newest run:
  exaserve report last -o report.html

\b
A run beside an earlier one, with what the fleet's Prometheus said meanwhile:
  exaserve report 20260501-120000-chat-1f2e --baseline 20260430-120000-chat-9a3b \\
    --prometheus http://127.0.0.1:9090 -o report.html

\b
For CI: a summary in the job's page, numbers for later steps (- is standard output):
  exaserve report last --markdown - --json report.json

\b
Exit status: 0 when everything was written, whatever the verdict (that is the exit status of the run itself);
1 when something could not be written; 2 for a run or an option that can't be.
"""


@app.callback(invoke_without_command=True, epilog=_EPILOG, context_settings={"allow_interspersed_args": True})
def report(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Folder of a run, its name in $EXASERVE_HOME/loadtest, or last for the newest.",
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The HTML page to write; it needs nothing else. - for standard output.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="A run to compare with. Default: the one that the run was started with, if any.",
        ),
    ] = None,
    markdown: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The same as Markdown, without plots; - for standard output."),
    ] = None,
    json_: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="The same for programs; - for standard output."),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Ask the fleet's Prometheus about the run's time, in place of the run's own fleet.json.",
        ),
    ] = None,
    utc: Annotated[bool, typer.Option("--utc", help="Times in UTC, not in this machine's zone.")] = False,
) -> None:
    """Tell what a load test found: one self-contained page, Markdown, JSON."""
    from loadtest._report import _told
    from loadtest._report._gather import gather
    from loadtest._report._page import page

    if not (out or markdown or json_):
        raise _usage("nothing to write: -o report.html, --markdown FILE or --json FILE")
    if [out, markdown, json_].count("-") > 1:
        raise _usage("only one of -o, --markdown and --json can be - (standard output)")
    said = _progress()
    folder = _folder(run, said)
    beside, note = _baseline(baseline, folder, said)
    try:
        found = gather(folder, beside, prometheus, said)
    except OSError as error:
        said("")
        raise _usage(f"{error.filename or run}: {error.strerror or error}") from None
    if note:
        found.notes.append(note)
    said("writing")
    texts: list[tuple[str | None, Callable[[], str]]] = [
        (out, lambda: page(found, utc, time.time())),
        (markdown, lambda: _told.markdown(found)),
        (json_, lambda: json.dumps(_told.as_json(found), indent=1) + "\n"),
    ]
    written = [(name, text()) for name, text in texts if name]
    said("")
    for name, text in written:
        _write(name, text)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)


def _folder(text: str, said: Callable[[str], None], option: str = "RUN") -> Folder:
    from loadtest._report._folder import RunError, find, load

    try:
        path = find(text)
        said(f"reading {path.name}")
        return load(path)
    except RunError as error:
        said("")
        raise _usage(f"{option}: {error}") from None


def _baseline(
    given: str | None, run: Folder, said: Callable[[str], None]
) -> tuple[Folder | None, str | None]:
    """The baseline, and a note where the run names one that is not here. Exits with 2 where the option names none."""
    from loadtest._report._folder import RunError, find, load

    if given is not None:
        return _folder(given, said, "--baseline"), None
    named = str(run.run.get("baseline") or "")
    if not named:
        return None, None
    try:
        return load(find(named)), None
    except RunError as error:
        return None, f"The baseline that the run was started with is not shown: {error}."


def _write(name: str, text: str) -> None:
    """Whole or not at all. Exits with 1 where it can't be written."""
    if name == "-":
        sys.stdout.write(text)
        return
    path = Path(name)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        typer.echo(f"can't write {name}: {error.strerror or error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"wrote {name} ({len(text.encode()) / 2**20:.1f} MiB)", err=True)


def _progress() -> Callable[[str], None]:
    """One line on a terminal that is written over; nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda line: None
    return lambda line: typer.echo(f"\r\033[K{line[:100]}", err=True, nl=False)


def _usage(problem: str) -> typer.Exit:
    typer.echo(f"{problem}\nsee `exaserve report --help`", err=True)
    return typer.Exit(2)
