"""``exaserve loadtest``: options of each level. The commands are made and run in ``_command``; locust does the work."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from loadtest._levels import _command

_CODES = """
\b
Exit status: 0 passed · 1 the SLO was missed · 2 wrong usage · 3 void, the client was too slow · 4 no request ended ·
5 all failed. Results: $EXASERVE_HOME/loadtest/RUN; `exaserve report RUN -o report.html` makes a page of them.
"""
_EPILOG = (
    """
\b
Examples:
  exaserve loadtest single -H http://127.0.0.1:8100                  one replica, few requests: what it is capable of
  exaserve loadtest cluster -H http://127.0.0.1:8000                 3,000 users
  exaserve loadtest cluster -H URL --rate 1.5x80 --slo ttft=1s       1.5 times a peak of 80 requests a second
  exaserve loadtest replay hour.jsonl -H URL --speed 2x              recorded traffic, twice as fast
  exaserve loadtest search 1-200 -H URL --slo ttft=1s,e2e=20s        the highest rate that holds
  exaserve loadtest selftest                                         is this machine's client right?
"""
    + _CODES
)

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    epilog=_EPILOG,
    help="Load tests by level: each prints the locust command it runs. Any OpenAI-compatible address will do.",
)

_Host = Annotated[str, typer.Option("--host", "-H", metavar="URL", help="Like http://127.0.0.1:8000.")]
_Model = Annotated[str, typer.Option(help="Default: the first of /v1/models.")]
_Slo = Annotated[
    str, typer.Option(metavar="ttft=1s,e2e=20s", help="What a good request is; also itl=, tpot=.")
]
_Seed = Annotated[int | None, typer.Option(help="The same one sends the same again; default: drawn.")]
_Processes = Annotated[int | None, typer.Option("--processes", min=1, max=1024, help="Of the client.")]
_Name = Annotated[str, typer.Option("--run-name", help="Of the run's folder; default: time and profile.")]
_Dry = Annotated[bool, typer.Option("--dry-run", help="Print the command only.")]
_More = Annotated[list[str] | None, typer.Argument(metavar="-- LOCUST OPTIONS", help="Passed on to locust.")]
_Profile = Annotated[str, typer.Option(help="One of `exaserve loadtest profiles`, or several with commas.")]


@app.command(epilog=_CODES)
def single(
    host: _Host,
    more: _More = None,
    rate: Annotated[
        float, typer.Option(min=0.001, max=1000, help="Chats a second; long documents: a fifth.")
    ] = 1.0,
    seconds: Annotated[int, typer.Option(min=1, max=86_400, help="Of each of the two runs.")] = 60,
    slo: _Slo = "",
    model: _Model = "",
    seed: _Seed = None,
    run_name: _Name = "",
    dry_run: _Dry = False,
) -> None:
    """One replica at rates that it can't help but hold: chat, then long documents.

    What a request costs when it is nearly alone: the floor that no load goes below. Exit status: the worse of the two.
    """
    codes = []
    for profile, its_rate in (("chat", rate), ("long_document", rate / 5)):
        named = f"{run_name}-{profile}" if run_name else ""
        words = _made(
            [profile], host, "--arrivals", "poisson", "--rate", its_rate, "-t", f"{seconds}s", "--slo", slo,
            "--model", model, "--seed", seed, "--run-name", named,
        )  # fmt: skip
        codes.append(_run([*words, *(more or ())], dry_run))
        if codes[-1] == 2:
            break
    raise typer.Exit(max(codes))


@app.command(epilog=_CODES)
def cluster(
    host: _Host,
    more: _More = None,
    users: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Closed loop.", show_default="3000")
    ] = None,
    rate: Annotated[
        str, typer.Option(metavar="R", help="Open loop instead: 50, or 1.5x80 for 1.5 x a peak.")
    ] = "",
    stages: Annotated[str, typer.Option(metavar="RxS,…", help="Open loop by stages: 10x60,10-100x120.")] = "",
    seconds: Annotated[int, typer.Option(min=1, max=604_800, help="How long (stages: by themselves).")] = 300,
    profile: _Profile = "mixed",
    processes: _Processes = None,
    slo: _Slo = "",
    model: _Model = "",
    seed: _Seed = None,
    run_name: _Name = "",
    dry_run: _Dry = False,
) -> None:
    """The whole fleet behind its router: 3,000 users, or a rate.

    Users ask when they have their answer, so a slow fleet is asked less and looks better than it is; a rate comes
    whatever the fleet does. Without --processes: one a core, less one for what is tested where it is on this machine.
    """
    if users is not None and (rate or stages):
        _wrong("cluster", "--users is a closed loop and --rate or --stages an open one; give one of them")
    if rate and stages:
        _wrong("cluster", "--stages has the rates; give --rate or --stages")
    count = processes or max(1, _command.cores() - 1)
    names = profile.split(",")
    if rate or stages:
        kind: list[str | float | None] = ["--arrivals", "poisson", "--rate", rate, "--stages", stages]
        kind += ["-t", "" if stages else f"{seconds}s"]
    else:
        people = users or 3000
        # In 30 s, but at most 100 a second in a process, beyond which locust warns.
        kind = ["-u", people, "-r", max(1.0, min(people / 30, 100.0 * count)), "-t", f"{seconds}s"]
    words = _made(
        names, host, *kind, "--slo", slo, "--model", model, "--seed", seed, "--run-name", run_name, processes=count,
        level="cluster",
    )  # fmt: skip
    raise typer.Exit(_run([*words, *(more or ())], dry_run))


@app.command(epilog=_CODES)
def replay(
    trace: Annotated[str, typer.Argument(metavar="FILE", help="A trace: times and tokens of real requests.")],
    host: _Host,
    more: _More = None,
    format: Annotated[
        str, typer.Option(metavar="NAME", help="mooncake, azure or burstgpt; none for ExaServe's own.")
    ] = "",
    speed: Annotated[str, typer.Option(metavar="F", help="2x: in half its time.")] = "1x",
    begin: Annotated[str, typer.Option("--from", metavar="SECONDS", help="Begin there in the trace.")] = "",
    seconds: Annotated[str, typer.Option(metavar="SECONDS", help="So much of it, in its own time.")] = "",
    clip: Annotated[int, typer.Option(min=0, help="Cut longer inputs to so many tokens; 0: no.")] = 0,
    processes: _Processes = None,
    slo: _Slo = "",
    model: _Model = "",
    seed: _Seed = None,
    run_name: _Name = "",
    dry_run: _Dry = False,
) -> None:
    """Recorded traffic at its own pace or a multiple of it.

    Of the fleet's own traffic: `exaserve audit export-trace --since 1h -o hour.jsonl`. Prompts are made to the trace's
    numbers of tokens, with the shared prefixes that a Mooncake trace tells of.
    """
    words = _made(
        ["chat"], host, "--trace", trace, "--trace-format", format, "--trace-speed", speed, "--trace-from", begin,
        "--trace-seconds", seconds, "--trace-clip", clip or None, "--slo", slo, "--model", model, "--seed", seed,
        "--run-name", run_name, processes=processes or 1,
    )  # fmt: skip
    raise typer.Exit(_run([*words, *(more or ())], dry_run))


@app.command(epilog=_CODES)
def search(
    rates: Annotated[
        str, typer.Argument(metavar="LOW-HIGH", help="Requests a second to look between: 1-200.")
    ],
    host: _Host,
    slo: Annotated[str, typer.Option(metavar="ttft=1s,e2e=20s", help="What has to hold.")],
    more: _More = None,
    step: Annotated[str, typer.Option(metavar="SECONDS", help="Measured part of a step.")] = "30s",
    warmup: Annotated[str, typer.Option(metavar="SECONDS", help="Of each step, not counted.")] = "10s",
    precision: Annotated[float, typer.Option(min=0.1, max=100, help="Per cent.")] = 5.0,
    profile: _Profile = "chat",
    processes: _Processes = None,
    model: _Model = "",
    seed: _Seed = None,
    run_name: _Name = "",
    dry_run: _Dry = False,
) -> None:
    """The highest rate at which the SLO holds: doubled until it misses, then halved in between.

    Poisson arrivals. Exit status 0: found, 1: not even LOW holds, 3: this client can't send LOW on time.
    """
    words = _made(
        profile.split(","), host, "--search", rates, "--search-step", step, "--search-warmup", warmup,
        "--search-precision", precision, "--slo", slo, "--model", model, "--seed", seed, "--run-name", run_name,
        processes=processes or 1, level="search",
    )  # fmt: skip
    raise typer.Exit(_run([*words, *(more or ())], dry_run))


@app.command()
def selftest() -> None:
    """Measure a server of known pace: does this client, on this machine, tell the truth? Exit status 1 if not."""
    from loadtest._lib import _selftest

    raise typer.Exit(_selftest.run())


@app.command()
def profiles() -> None:
    """What can be played, with the lengths of each."""
    from rich.console import Console
    from rich.table import Table

    from loadtest._lib._profiles import _table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("PROFILE", "WHAT", "LENGTHS"):
        table.add_column(name)
    for row in _table.lines():
        table.add_row(*row)
    # A pipe has no width: nothing must be cut there.
    Console(width=None if sys.stdout.isatty() else 400, highlight=False, emoji=False).print(table)


def _made(
    profile_names: list[str],
    host: str,
    *options: str | float | None,
    processes: int = 1,
    level: str = "single",
) -> list[str]:
    try:
        return _command.command(profile_names, host, *options, processes=processes)
    except KeyError as error:
        _wrong(level, f"--profile: {error.args[0]}")


def _run(words: list[str], dry_run: bool) -> int:
    typer.echo(_command.shown(words))
    return 0 if dry_run else _command.run(words)


def _wrong(level: str, problem: str) -> NoReturn:
    """One line, where to look, status 2."""
    typer.echo(f"{problem}\nsee `exaserve loadtest {level} --help`", err=True)
    raise typer.Exit(2)
