"""``exaserve dashboards snapshot``: options, messages and exit statuses. The work is in this folder's other modules."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dashboards.usage_error import usage

if TYPE_CHECKING:
    from dashboards.snapshot.prometheus import Prometheus
    from dashboards.snapshot.span import Span

#: Prometheus' own port on this machine.
_PROMETHEUS = "http://127.0.0.1:9090"

EPILOG = """
\b
The last hour of the whole fleet, for an incident report:
  exaserve dashboards snapshot --board fleet --from -1h -o incident.html

\b
Every board of a Prometheus elsewhere, one model, a time that is over:
  exaserve dashboards snapshot --board all --prometheus https://prometheus.example \\
    --from 2026-05-01T12:00 --to 2026-05-01T13:30 --var model=llama-70b -o report.html

\b
Exit status: 0 when every query was answered; 1 when some were not (the page is written and says which) or
nothing could be written; 2 for options that can't be.
"""


def snapshot(
    out: Annotated[
        str,
        typer.Option("--out", "-o", metavar="FILE", help="The HTML page to write; - for standard output."),
    ],
    board: Annotated[
        list[str] | None,
        typer.Option(
            "--board",
            metavar="NAME",
            help="fleet, replica, … or all; repeatable, several are tabs of one page.",
        ),
    ] = None,
    from_: Annotated[
        str, typer.Option("--from", metavar="TIME", help="-1h, -1h30m, 2026-05-01T12:00 or Unix seconds.")
    ] = "-1h",
    to: Annotated[str, typer.Option("--to", metavar="TIME", help="Like --from, or now.")] = "now",
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Default: EXASERVE_PROMETHEUS, else the running stack's, else http://127.0.0.1:9090. A user and"
            " password in it never get onto the page.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the bearer token that Prometheus wants.")
    ] = None,
    var: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="cluster, model, pool, replica …; repeatable, also for one name."
        ),
    ] = None,
    source: Annotated[
        str, typer.Option(metavar="NAME", help="What the fleet is: exaserve, vllm, ray (as for build).")
    ] = "exaserve",
    runbooks: Annotated[
        str, typer.Option(metavar="BASE", help="Address of the runbooks, for links.")
    ] = "runbooks",
    grafana: Annotated[str, typer.Option(metavar="BASE", help="Address of Grafana, for links.")] = "",
    utc: Annotated[bool, typer.Option("--utc", help="Times in UTC, not in this machine's zone.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds of one query.")] = 15.0,
    limit: Annotated[float, typer.Option(min=1, max=3600, help="Seconds of all queries together.")] = 180.0,
) -> None:
    """Draw boards from Prometheus into one HTML page that needs nothing else, for an incident report."""
    from datetime import UTC

    from dashboards.snapshot import span as spans
    from dashboards.snapshot.page import page
    from dashboards.snapshot.prometheus import Prometheus, QueryError
    from dashboards.snapshot.take import take

    boards = _boards(board or ["fleet"], source, runbooks, grafana)
    given = _variables(var or [], boards.values())
    now, zone = time.time(), UTC if utc else None
    try:
        start, end = spans.moment(from_, now, zone), min(now, spans.moment(to, now, zone))
        token = token_file.read_text().strip() if token_file else None
    except (ValueError, OSError) as error:
        raise usage("dashboards snapshot", str(error)) from None
    if not spans.SHORTEST <= end - start <= spans.LONGEST:
        raise usage(
            "dashboards snapshot",
            f"--from {from_} --to {to}: a snapshot shows {spans.SHORTEST} s to {spans.LONGEST // 86_400} days",
        )
    try:
        asked = Prometheus(prometheus or _own_prometheus(), token, timeout, limit)
    except ValueError as error:
        raise usage("dashboards snapshot", f"--prometheus: {error}") from None
    try:
        shown: Span = spans.span(start, end, _scrape(asked), zone)
        taken = take(boards, given, asked, shown, lambda line: typer.echo(line, err=True))
    except ValueError as error:
        raise usage("dashboards snapshot", str(error)) from None
    except QueryError as error:
        typer.echo(f"{asked.shown}: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        asked.close()
    text = page(taken, shown, asked.shown, source, now)
    _write(out, text)
    for one in taken:
        for name, value in one.values.items():
            if value.note:
                typer.echo(f"{one.name}: {name} {value.text}: {value.note}", err=True)
    if out != "-":
        typer.echo(f"wrote {out} ({len(text.encode()) / 2**20:.1f} MiB)", err=True)
    if failed := sum(one.failed for one in taken):
        typer.echo(f"{failed} queries failed; the page says which", err=True)
        raise typer.Exit(1)


def _boards(names: list[str], source: str, runbooks: str, grafana: str) -> dict[str, dict[str, Any]]:
    """The boards of those names as Grafana's JSON. Exits with 2 for a name that there is not."""
    from dashboards import build
    from dashboards.rulefile import Links
    from dashboards.sources import SOURCES

    if source not in SOURCES:
        raise usage("dashboards snapshot", f"--source: {source!r} is none of {', '.join(SOURCES)}")
    of = SOURCES[source]
    there = build.board_names(of)
    names = there if "all" in names else list(dict.fromkeys(names))
    for name in names:
        if name not in there:
            raise usage(
                "dashboards snapshot",
                f"--board: {name!r} is none of {', '.join(there)}, all (of --source {source})",
            )
    links = Links(runbooks.rstrip("/"), grafana.rstrip("/"))
    return {name: json.loads(build.board_json(name, links, of)) for name in names}


def _variables(given: list[str], boards: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Values by variable. Exits with 2 for what is no NAME=VALUE, or a name that no board has."""
    from dashboards.snapshot.variables import names

    known = set().union(*(names(board) for board in boards))
    values: dict[str, list[str]] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not value:
            raise usage("dashboards snapshot", f"--var {text}: not NAME=VALUE")
        if name not in known:
            raise usage("dashboards snapshot", f"--var {name}: the variables are {', '.join(sorted(known))}")
        values.setdefault(name, []).append(value)
    return values


def _scrape(asked: Prometheus) -> float:
    """Its scrape interval. Exits with 1 where no Prometheus answers."""
    from dashboards.snapshot.prometheus import QueryError

    try:
        return asked.scrape()
    except QueryError as error:
        typer.echo(f"no Prometheus at {asked.shown}: {error}\nname it: --prometheus URL", err=True)
        raise typer.Exit(1) from None


def _own_prometheus() -> str:
    """That of EXASERVE_PROMETHEUS, of the stack that ``exaserve up`` runs here (serving/record.py), or the usual one."""
    if named := os.environ.get("EXASERVE_PROMETHEUS"):
        return named
    own = os.environ.get("EXASERVE_RUN")
    run = Path(own) if own else Path(os.environ.get("EXASERVE_HOME", "~/.exaserve")).expanduser() / "run"
    try:
        return str(json.loads((run / "stack.json").read_text())["addresses"]["prometheus"])
    except (OSError, ValueError, KeyError, TypeError):
        return _PROMETHEUS


def _write(out: str, text: str) -> None:
    """The page, whole or not at all. Exits with 1 where it can't be written."""
    if out == "-":
        sys.stdout.write(text)
        return
    from dashboards import build

    path = Path(out)
    try:
        build.write(path.parent, {path.name: text})
    except OSError as error:
        typer.echo(f"can't write {out}: {error.strerror or error}", err=True)
        raise typer.Exit(1) from None
