"""``exaserve dashboards``: the command line of the boards and rules. The work is in ``build.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Grafana boards and Prometheus rules, generated from the code in dashboards/.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)

_EPILOG = """
\b
Then, in prometheus.yml:
  rule_files: [/path/to/dashboards/generated/rules/*.yaml]
and in Grafana: import dashboards/generated/*.json, or name the folder in a dashboard provider.

\b
With links that lead to your own servers:
  exaserve dashboards build --out /etc/exaserve/boards --runbooks https://wiki.example/runbooks --grafana https://grafana.example
"""


@app.callback()
def dashboards() -> None:
    """Grafana boards and Prometheus rules, generated from the code in dashboards/."""


@app.command(epilog=_EPILOG)
def build(
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to write. Default: the package's own generated/."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 and name the files that differ.")
    ] = False,
    runbooks: Annotated[
        str,
        typer.Option(metavar="BASE", help="Folder or address of the runbooks, for links and runbook_url."),
    ] = "runbooks",
    grafana: Annotated[
        str, typer.Option(metavar="BASE", help="Address of Grafana, for dashboard_url; without it: relative.")
    ] = "",
) -> None:
    """Write boards and rules as files for Grafana and Prometheus."""
    from dashboards import build as builder
    from dashboards.rulefile import Links

    links = Links(runbooks.rstrip("/"), grafana.rstrip("/"))
    out = out or builder.GENERATED
    if check:
        wrong = builder.differing(out, links)
        for name in wrong:
            typer.echo(f"differs: {out / name}")
        if wrong:
            typer.echo("run `exaserve dashboards build` and commit what it writes", err=True)
            raise typer.Exit(1)
        typer.echo(f"{len(builder.files(links))} files in {out} are what the code writes")
        return
    try:
        written = builder.write(out, links)
    except OSError as error:
        typer.echo(f"can't write into {out}: {error.strerror or error}", err=True)
        raise typer.Exit(1) from None
    for path in written:
        typer.echo(f"wrote {path}")
