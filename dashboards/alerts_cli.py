"""``exaserve alerts``: Alertmanager's configuration; ``list`` and ``test`` are in ``drill_cli.py``.

The work is in ``alertmanager.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dashboards import drill_cli
from dashboards.usage_error import usage

app = typer.Typer(
    help="Who is told of alerts, and whether they arrive.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)

_EPILOG = """
\b
For example, who-is-told.yaml (all keys: dashboards/alerting.example.yaml):
  receivers:
    on-call: {pagerduty: [{routing_key_file: /etc/prometheus/secrets/pagerduty-key}]}
  routes: {critical: on-call}
and then:
  exaserve alerts config --file who-is-told.yaml --out /etc/prometheus/alertmanager.yml
  amtool check-config /etc/prometheus/alertmanager.yml
"""


app.command("list", epilog=drill_cli.LIST_EPILOG)(drill_cli.list_)
app.command("test", epilog=drill_cli.TEST_EPILOG)(drill_cli.try_out)


@app.callback()
def alerts() -> None:
    """Who is told of alerts, and whether they arrive."""


@app.command(epilog=_EPILOG)
def config(
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Receivers and routes. Without it alerts are only shown."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write. Default: standard output.")
    ] = None,
) -> None:
    """Write alertmanager.yml: routes by severity and team, grouping, inhibition, receivers."""
    from dashboards import alerting, alertmanager, build

    try:
        options = alerting.read(file) if file else alerting.Alerting()
    except OSError as error:
        raise usage("alerts config", f"--file: {error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise usage("alerts config", f"--file {file}:\n{error}") from None
    text = alertmanager.config(options)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        build.write(out.parent, {out.name: text})
    except OSError as error:
        typer.echo(f"can't write {out}: {error.strerror or error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"wrote {out}")
