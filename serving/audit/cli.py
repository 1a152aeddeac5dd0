"""``exaserve audit``: who used what, from the router's audit files. The work is in query.py and tail.py."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.audit.export_trace import Export
from serving.audit.query import By, QueryError, Summary, moment, wanted
from serving.audit.reader import Seen, current_files, parse, raw_lines
from serving.audit.record import Line
from serving.audit.tail import Tail

if TYPE_CHECKING:
    from serving.router.tenants_file import Price

app = typer.Typer(add_completion=False, rich_markup_mode=None, invoke_without_command=True)

_Folder = Annotated[
    Path | None,
    typer.Option("--dir", help="Folder of the audit files; default: router.audit.folder."),
]
_Files = Annotated[
    list[Path] | None, typer.Option("--file", help="Just this file and its rotated ones; repeatable.")
]
_Config = Annotated[Path | None, typer.Option("--config", help="Default: ./exaserve.yaml if it is there.")]
_Json = Annotated[bool, typer.Option("--json", help="For programs.")]
_Tenant = Annotated[str | None, typer.Option(help="Only this tenant.")]
_Status = Annotated[str | None, typer.Option(help="Only these, like 429, 5xx or 200,4xx.")]

_EPILOG = """
\b
Examples:
  exaserve audit                                  the last 24 hours, per tenant
  exaserve audit --since 7d --by tenant --by model
  exaserve audit --since 1h --status 5xx --by replica     who fails
  exaserve audit --since 1h --outcome rejected --by decision   why requests are refused
  exaserve audit --since 2026-11-01 --until 2026-12-01 --prices prices.yaml --json
  exaserve audit tail -f                          requests as they end
  exaserve audit show REQUEST_ID                  everything about one (x-request-id of its answer)
  exaserve audit export-trace --since 1h -o hour.jsonl   for a load test: times and tokens, no prompts, no names
"""


@app.callback(epilog=_EPILOG)
def audit(
    ctx: typer.Context,
    since: Annotated[
        str, typer.Option(help="A span (90s, 15m, 1h, 7d), a time (2026-11-30T08:00Z) or all.")
    ] = "24h",
    until: Annotated[str | None, typer.Option(help="As --since; default: now.")] = None,
    by: Annotated[
        list[By] | None,
        typer.Option(
            metavar="FIELD", help=f"What a row is: {', '.join(By)}; repeatable.", show_default="tenant"
        ),
    ] = None,
    tenant: _Tenant = None,
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
    pool: Annotated[str | None, typer.Option(help="Only this pool.")] = None,
    replica: Annotated[str | None, typer.Option(help="Only this replica.")] = None,
    status: _Status = None,
    outcome: Annotated[str | None, typer.Option(help="Only ok, error, cut, aborted or rejected.")] = None,
    prices: Annotated[
        Path | None,
        typer.Option(help="File with prices: {MODEL: {input: …, output: …}}; default: tenants.file."),
    ] = None,
    folder: _Folder = None,
    file: _Files = None,
    config: _Config = None,
    json_: _Json = False,
) -> None:
    """Requests, errors, tokens, cost and durations per tenant, from the router's audit files.

    The router writes them with `router.audit.enabled: true`. Cost needs prices per million tokens. ERRORS are
    5xx and broken answers; REJECTED were never sent to a replica and are in no duration.
    """
    if ctx.invoked_subcommand is not None:
        given = [n for n in ctx.params if getattr(ctx.get_parameter_source(n), "name", "") == "COMMANDLINE"]
        if given:
            name = ctx.invoked_subcommand
            typer.echo(f"options of {name} come after it: exaserve audit {name} …", err=True)
            raise typer.Exit(2)
        return
    now, seen = time.time(), Seen()
    start, end = _moment(since, now, "--since"), _moment(until or "all", now, "--until")
    passes = _wanted(
        since=start, until=end, status=status, tenant=tenant, model=model, pool=pool, replica=replica,
        outcome=outcome,
    )  # fmt: skip
    table = _prices(prices, config, asked=folder is None and file is None)
    summary = Summary(by or [By.TENANT])
    for line in _lines(_paths(folder, file, config), seen, start):
        if passes(line):
            summary.add(line)
    rows, total = summary.rows(table), summary.total.row(table)
    if json_:
        import json

        found = {"since": start, "until": end or now, "by": list(summary.by), "groups": rows, "total": total}
        typer.echo(json.dumps({**found, "foreign_lines": seen.foreign, "lost_records": seen.lost}, indent=1))
    elif rows:
        _show(summary, rows, total)
    else:
        typer.echo("no records pass" + ("" if start is None else f" since {since}; --since all?"))
    _say(seen)
    if total["models_without_price"]:
        typer.echo(f"no price, so not in the cost: {', '.join(total['models_without_price'])}", err=True)


@app.command()
def tail(
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, max=10_000, help="Last records.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    tenant: _Tenant = None,
    status: _Status = None,
    folder: _Folder = None,
    file: _Files = None,
    config: _Config = None,
    json_: _Json = False,
) -> None:
    """Show the last requests, one a line.

    Time (UTC), status and outcome, tenant, route, model, replica, tokens in+out (~ estimated), seconds to the
    first token and in all, request id.
    """
    seen = Seen()
    where = None if file else _folder(folder, config)
    watched = Tail(where, _paths(where, file, config), _wanted(tenant=tenant, status=status), seen)
    for line in watched.last(lines):
        typer.echo(_json(line) if json_ else _words(line))
    _say(seen)
    while follow:
        time.sleep(0.25)
        for line in watched.more():
            typer.echo(_json(line) if json_ else _words(line))


@app.command()
def show(
    request_id: Annotated[str, typer.Argument(help="As the answer's x-request-id has it.")],
    folder: _Folder = None,
    file: _Files = None,
    config: _Config = None,
    json_: _Json = False,
) -> None:
    """Show everything about one request. Exit status 1 if there is no record of it."""
    seen = Seen()
    found = [x for x in _lines(_paths(folder, file, config), seen) if x.request_id == request_id]
    for line in sorted(found, key=lambda x: x.ts):
        if json_:
            typer.echo(_json(line))
        else:
            width = max(map(len, line.__struct_fields__))
            for name in line.__struct_fields__:
                typer.echo(f"{name:<{width}}  {_cell(getattr(line, name))}")
    _say(seen)
    if not found:
        typer.echo(f"no record of {_cell(request_id)}", err=True)
        raise typer.Exit(1)


@app.command("export-trace")
def export_trace(
    since: Annotated[str, typer.Option(help="As of exaserve audit; of when requests ended.")] = "24h",
    until: Annotated[str | None, typer.Option(help="As --since; default: now.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: standard output.")
    ] = None,
    tenant: _Tenant = None,
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
    pool: Annotated[str | None, typer.Option(help="Only this pool.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=20_000_000, help="At most the first so many.")] = 2_000_000,
    folder: _Folder = None,
    file: _Files = None,
    config: _Config = None,
) -> None:
    """Write a trace that a load test replays: when requests came, their tokens, their intent.

    No prompts are in it, and no names of tenants, models or replicas. Play it with
    `exaserve loadtest replay FILE -H URL`, or `locust … --trace FILE --trace-speed 2x`. Exit status 1 if nothing passes.
    """
    now, seen = time.time(), Seen()
    start, end = _moment(since, now, "--since"), _moment(until or "all", now, "--until")
    passes = _wanted(since=start, until=end, tenant=tenant, model=model, pool=pool)
    found = Export(limit)
    for line in _lines(_paths(folder, file, config), seen, start):
        if passes(line):
            found.add(line)
    _say(seen)
    left = found.left_out_words()
    if not found.requests:
        said = f"no request to export since {since}" + (f" ({left})" if left else "") + "; --since all?"
        typer.echo(said, err=True)
        raise typer.Exit(1)
    try:
        found.write(output)
    except OSError as error:
        typer.echo(f"--output {output}: {error.strerror}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{found.requests} requests" + (f"; left out: {left}" if left else ""), err=True)


# --- what was asked ---


def _folder(folder: Path | None, config: Path | None) -> Path:
    if folder is None:
        from serving.config import load
        from serving.home import home

        named = load(config).router.audit.folder
        folder = Path(named) if named else home() / "audit"
    return folder


def _paths(folder: Path | None, files: list[Path] | None, config: Path | None) -> list[Path]:
    """The files to read; ends the command where there are none."""
    if files:
        for path in files:
            if not path.is_file():
                typer.echo(f"{path}: no such file", err=True)
                raise typer.Exit(2)
        return files
    where = _folder(folder, config)
    try:
        found = current_files(where)
    except FileNotFoundError:
        found = []
    except OSError as error:
        typer.echo(f"{where}: {error.strerror}", err=True)
        raise typer.Exit(2) from None
    if not found:
        typer.echo(
            f"no audit files in {where}; the router writes them with router.audit.enabled: true", err=True
        )
        raise typer.Exit(1)
    return found


def _lines(paths: list[Path], seen: Seen, since: float | None = None) -> Iterator[Line]:
    for raw in raw_lines(paths, seen, since or 0.0):
        line = parse(raw, seen)
        if line is not None:
            yield line


def _prices(path: Path | None, config: Path | None, asked: bool) -> Mapping[str, Price] | None:
    """asked: whether the configuration may be asked for the tenants file."""
    from serving.router.tenants_file import read

    if path is None and asked:
        from serving.config import load

        named = load(config).tenants.file
        path = Path(named) if named else None
        return (read(path).prices or None) if path else None
    if path is None:
        return None
    found = read(path).prices
    if not found:
        typer.echo(f"{path}: no prices: in it", err=True)
        raise typer.Exit(2)
    return found


def _moment(text: str, now: float, option: str) -> float | None:
    try:
        return moment(text, now)
    except QueryError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _wanted(**given: Any) -> Any:
    try:
        return wanted(**given)
    except QueryError as error:
        raise typer.BadParameter(str(error), param_hint="--status") from None


# --- what is shown ---


def _show(summary: Summary, rows: Iterable[Mapping[str, Any]], total: Mapping[str, Any]) -> None:
    import sys

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", show_footer=True, pad_edge=False)
    for i, name in enumerate(summary.by):
        table.add_column(name.upper(), "total" if i == 0 else "", no_wrap=True)
    numbers = ["requests", "errors", "rejected", "input_tokens", "output_tokens"]
    numbers += ["cost", "p50_s", "p99_s"] if total["cost"] is not None else ["p50_s", "p99_s"]
    for number in numbers:
        head = {"p50_s": "P50 s", "p99_s": "P99 s"}.get(number, number.replace("_", " ").upper())
        table.add_column(head, _number(number, total), justify="right", no_wrap=True)
    for row in rows:
        names = [Text(_cell(row[name])) for name in summary.by]
        table.add_row(*names, *(_number(number, row) for number in numbers))
    # A pipe has no width: nothing must be cut there.
    Console(width=None if sys.stdout.isatty() else 400, highlight=False, emoji=False).print(table)
    if total["requests_with_estimated_tokens"] or total["requests_without_tokens"]:
        typer.echo(
            f"tokens are estimated for {total['requests_with_estimated_tokens']} requests "
            f"and unknown for {total['requests_without_tokens']}"
        )


def _number(name: str, row: Mapping[str, Any]) -> str:
    value = row[name]
    if value is None:
        return "-"
    if name == "cost":
        return f"{value:,.4f}" + ("+" if row["models_without_price"] else "")
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _words(line: Line) -> str:
    tokens = f"{'~' if line.tokens_estimated else ''}{_cell(line.input_tokens)}+{_cell(line.output_tokens)}"
    first, whole = (
        "-" if s is None else f"{s:.3f}" for s in (line.ttft_s, line.duration_s)
    )  # fmt: skip
    why = line.decision if line.outcome == "rejected" else line.outcome
    cells = [_cell(x) for x in (line.tenant, line.route, line.model, line.replica)]
    return " ".join(
        (line.ts, f"{line.status:3d}", f"{_cell(why):<10}", *cells, f"{tokens} tokens", f"{first}/{whole} s",
         _cell(line.request_id))
    )  # fmt: skip


def _json(line: Line) -> str:
    import msgspec

    return msgspec.json.encode(line).decode()


def _cell(value: object) -> str:
    """Text that a terminal can't be steered with: parts of it were chosen by clients."""
    if value is None or value == "":
        return "-"
    return "".join(c if c.isprintable() else "?" for c in str(value))


def _say(seen: Seen) -> None:
    for problem in seen.unreadable:
        typer.echo(f"not read: {problem}", err=True)
    if seen.lost:
        typer.echo(f"{seen.lost} records are missing: the router could not write them", err=True)
    if seen.foreign:
        typer.echo(f"{seen.foreign} lines are no audit records (torn or foreign); passed over", err=True)
