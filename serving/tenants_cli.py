"""``exaserve tenants``: API keys and limits of those who may ask. The file's editing is tenants_edit.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Who may ask, and how much: the tenants file.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
_File = Annotated[
    Path | None, typer.Option("--file", help="The tenants file; default: tenants.file of the configuration.")
]
_Config = Annotated[Path | None, typer.Option("--config", help="Default: ./exaserve.yaml if it is there.")]

_KEY_EPILOG = """
\b
Examples:
  exaserve tenants key alice --new --file tenants.yaml     a new tenant, without limits
  KEY=$(exaserve tenants key alice --file tenants.yaml)    one more key for it
  curl -H "Authorization: Bearer $KEY" http://127.0.0.1:8000/v1/models

\b
In exaserve.yaml (a running router takes a changed tenants file over by itself):
  tenants: {file: tenants.yaml}
"""


@app.command(epilog=_KEY_EPILOG)
def key(
    name: Annotated[str, typer.Argument(help="The tenant.")],
    file: _File = None,
    new: Annotated[bool, typer.Option("--new", help="Make the tenant (and the file) if need be.")] = False,
    config: _Config = None,
) -> None:
    """Make an API key for a tenant: printed once, its hash goes into the file.

    The key is all of standard output. Nobody can read it out of the file again; to withdraw it, remove the line.
    """
    from serving import tenants_edit

    path = _file(file, config)
    try:
        made = tenants_edit.add_key(path, name, new)
    except tenants_edit.EditError as error:
        typer.echo(f"{path}: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(made.key)
    typer.echo(
        f"{path}: {name} has {made.keys} key{'s' * (made.keys > 1)} now; this one is shown only here",
        err=True,
    )
    if made.new:
        typer.echo(f"{name} is new and has no limits; set requests_per_minute, … in the file", err=True)
    if made.rewritten:
        typer.echo(f"written anew, without its comments; as it was: {made.rewritten}", err=True)
    _warn(path)


@app.command("list")
def list_(
    file: _File = None,
    config: _Config = None,
    json_: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show the tenants and their limits; of keys only how many."""
    from serving.router.tenants_file import read

    path = _file(file, config)
    found = read(path)
    _warn(path)
    if json_:
        import json

        rows = [{**t.model_dump(exclude={"keys"}), "keys": len(t.keys)} for t in found.tenants]
        typer.echo(json.dumps(rows, indent=1))
        return
    if not found.tenants:
        typer.echo(f"{path}: no tenants; exaserve tenants key NAME --new makes one")
        return
    from rich.console import Console
    from rich.table import Table

    columns = ("requests_per_minute", "tokens_per_minute", "max_in_flight", "max_tokens", "priority")
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("TENANT", no_wrap=True)
    for head in ("KEYS", "REQUESTS/min", "TOKENS/min", "IN FLIGHT", "MAX TOKENS", "PRIORITY"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("POOLS", no_wrap=True)
    for t in found.tenants:
        limits = ["-" if (v := getattr(t, c)) is None else f"{v:,}" for c in columns]
        table.add_row(t.name, str(len(t.keys)), *limits, ", ".join(t.pools or ["all"]))
    Console(width=None if sys.stdout.isatty() else 400, highlight=False).print(table)


@app.command()
def check(
    file: Annotated[Path | None, typer.Argument(help="Default: tenants.file of the configuration.")] = None,
    config: _Config = None,
) -> None:
    """Check a tenants file whole; every error with its key, line and cure."""
    from serving.router.tenants_file import read

    path = _file(file, config)
    found = read(path)
    keys = sum(len(t.keys) for t in found.tenants)
    typer.echo(f"{path}: fine ({len(found.tenants)} tenants, {keys} keys, {len(found.prices)} prices)")
    for t in found.tenants:
        if not t.keys:
            typer.echo(
                f"{t.name} has no key, so nobody can ask as {t.name}: exaserve tenants key {t.name}", err=True
            )
    _warn(path)


def _file(file: Path | None, config: Path | None) -> Path:
    if file is not None:
        return file
    from serving.config import load

    named = load(config).tenants.file
    if named is None:
        typer.echo("which file? give it, or set tenants.file in exaserve.yaml", err=True)
        raise typer.Exit(2)
    return Path(named)


def _warn(path: Path) -> None:
    from serving.router.tenants_file import warnings

    for text in warnings(path):
        typer.echo(text, err=True)
