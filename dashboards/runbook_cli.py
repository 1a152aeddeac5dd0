"""``exaserve runbook``: shows a runbook in the terminal. Finding and reading them is ``runbooks.py``'s."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dashboards.usage_error import usage

app = typer.Typer(add_completion=False, rich_markup_mode=None, subcommand_metavar="")

#: Columns, at most: longer lines are hard to read.
_WIDTH = 110

_EPILOG = """
\b
Examples:
  exaserve runbook ExaServeReplicaDown            what it means, how to find the cause, what to do
  exaserve runbook replicadown --commands         only its commands, to copy or to read beside another window
  exaserve runbook --list                         every runbook and what it is about
  exaserve runbook ExaServeKVPressure | less      plain Markdown, where it goes into a pipe or a file

\b
The name is the alert's name; an alert carries it as `alertname`, and its link as `runbook_url`.
Exit code: 0 shown, 1 the runbooks are not installed, 2 no such runbook.
"""


@app.callback(
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={"allow_interspersed_args": True},  # options may follow the name
)
def runbook(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="An alert's name; ExaServe in front may be left out.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Name the runbooks and end.")] = False,
    commands: Annotated[
        bool, typer.Option("--commands", help="Only the commands, each below its part's name.")
    ] = False,
) -> None:
    """Show the runbook of an alert: meaning, impact, diagnosis, mitigation, verification, escalation."""
    from dashboards import runbooks

    try:
        known = runbooks.found(runbooks.folder())
    except FileNotFoundError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    if list_:
        if name is not None or commands:
            raise usage("runbook", "--list goes alone")
        width = max(map(len, known), default=0)
        for each, path in known.items():
            typer.echo(f"{each:<{width}}  {runbooks.summary(_read(path))}")
        return
    if name is None:
        raise usage("runbook", "which runbook? give an alert's name, or --list")
    chosen = runbooks.named(name, known)
    if chosen is None:
        meant = runbooks.near(name, list(known))
        hint = f"did you mean {' or '.join(meant)}?" if meant else "exaserve runbook --list names them all"
        raise usage("runbook", f"no runbook {name}; {hint}")
    text = _read(chosen)
    if commands:
        _show_commands(runbooks.commands(text))
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        console = Console()
        console.print(Markdown(text), width=min(console.width, _WIDTH))
    else:
        typer.echo(text, nl=not text.endswith("\n"))


def _show_commands(blocks: list[tuple[str, str]]) -> None:
    last = None
    for heading, block in blocks:
        if heading != last:
            typer.echo(f"# {heading}" if last is None else f"\n# {heading}")
        typer.echo(block)
        last = heading


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
