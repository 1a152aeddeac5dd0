"""``exaserve gate``: options, messages and exit statuses. The work is in the modules beside this one."""

from __future__ import annotations

import glob
import json
import math
import os
import random
import re
import shlex
import signal
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from ._compare import Result
    from ._measure import Plan
    from ._runs import Run

WORKLOADS = ("chat", "long_document", "code")


def gate(
    locust: Annotated[
        list[str] | None, typer.Argument(metavar="-- LOCUST OPTIONS", help="Further ones of the runs.")
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(metavar="URL|FOLDER", help="An address, or stored runs (repeatable, globs)."),
    ] = None,
    candidate: Annotated[
        list[str] | None, typer.Option(metavar="URL|FOLDER", help="The same for the other side.")
    ] = None,
    baseline_command: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Starts the baseline; stays in the foreground.")
    ] = None,
    candidate_command: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Starts the candidate; stays in the foreground.")
    ] = None,
    self_check: Annotated[
        bool, typer.Option("--self-check", help="The baseline against itself: false alarms show here.")
    ] = False,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="Locustfile to play, repeatable [default: chat, long_document, code]."),
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[WORKLOAD=]R", help="Requests a second; for all workloads or for one; repeatable."
        ),
    ] = None,
    arrivals: Annotated[str, typer.Option(help="constant, poisson or gamma.")] = "poisson",
    runs: Annotated[int, typer.Option(min=2, max=200, help="Runs of each workload a side.")] = 5,
    requests: Annotated[
        int, typer.Option(min=10, max=10_000_000, help="Measured requests of a run, at least.")
    ] = 5000,
    warmup: Annotated[float, typer.Option(min=0, max=3600, help="Seconds of a run that do not count.")] = 30,
    latency: Annotated[
        list[str] | None,
        typer.Option(help="ttft, tpot, e2e or itl; repeatable [default: ttft, tpot, e2e]."),
    ] = None,
    margin: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SHARE", help="Like p99=8%; p50, p99, p999, attainment; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the order of sides, of arrivals and prompts.")] = 1,
    processes: Annotated[int, typer.Option(min=1, max=256, help="locust's processes of a run.")] = 1,
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Started servers stay up side by side till the end.")
    ] = False,
    ready_timeout: Annotated[
        float, typer.Option(min=1, max=86_400, help="Seconds for a started server to answer.")
    ] = 900,
    settle: Annotated[
        float,
        typer.Option(min=0, max=3600, help="Seconds that a started server gets after its first answer."),
    ] = 5,
    folder: Annotated[
        Path | None, typer.Option(help="Of this gate [default: a new one in $EXASERVE_HOME/loadtest/gates].")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Show metrics that passed too.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON, nothing else.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs and their locust commands, measure nothing.")
    ] = False,
) -> None:
    """Is the candidate as fast as the baseline? Measured side by side, run for run.

    Each side is an address, an address with the command that starts it, or folders of runs that exist.

    \b
      exaserve gate --baseline http://old:8000 --candidate http://new:8000 --rate chat=8 --rate long_document=1 --rate code=4
      exaserve gate --baseline http://127.0.0.1:8200 --baseline-command 'exaserve up --config old.yaml' \\
                    --candidate http://127.0.0.1:8300 --candidate-command 'exaserve up --config new.yaml' --rate 4
      exaserve gate --baseline 'runs/old-*' --candidate 'runs/new-*'       # nothing is measured
      exaserve gate --self-check --baseline http://old:8000 --rate 4       # A against A: it has to pass
      exaserve gate … --folder DIR --runs 10       # goes on with what is in DIR: after a break, or for more runs
      exaserve gate … --rate 4 -- --max-tokens 64 --slo ttft=1s            # after --: locust's own options

    \b
    Within a pair of runs the order of sides is drawn (--seed); workloads are chat, long_document and code, in an open
    loop. The run is the unit: exact quantiles of each run, Welch's t on their logarithms, Holm over all metrics.
    Margins: 5 % at P50 and P99, 20 % at P999 (which needs 3,688 requests a run). A metric passes if the change is shown
    to be within its margin, fails if it is slower for certain and not shown to be within. Void runs are not used.

    \b
    Exit status: 0 pass, 1 fail (or the candidate did not start), 2 wrong usage, 3 inconclusive: how many more runs are
    needed is printed.
    """
    from . import _compare, _runs

    latencies = tuple(latency or _runs.LATENCIES[:3])
    for name in latencies:
        if name not in _runs.LATENCIES:
            _end(f"--latency {name}: one of {', '.join(_runs.LATENCIES)}")
    margins = _margins(margin or [])
    sides = {"baseline": baseline or [], "candidate": candidate or []}
    if self_check:
        if sides["candidate"] or candidate_command:
            _end("--self-check compares the baseline with itself: leave --candidate out")
        sides["candidate"], candidate_command = sides["baseline"], baseline_command
    for side, given in sides.items():
        if not given:
            _end(f"give --{side} an address like http://127.0.0.1:8000, or folders of runs")
    addressed = {side: [v for v in given if "://" in v] for side, given in sides.items()}
    if any(addressed.values()):
        for side, given in sides.items():
            if len(given) != 1 or not re.match(r"https?://[^/\s]+/?$", given[0]):
                _end(
                    f"--{side} {' '.join(given)}: one address like http://127.0.0.1:8000 on each side, or folders"
                )
        plan = _plan(
            {side: given[0] for side, given in sides.items()},
            {"baseline": baseline_command, "candidate": candidate_command},
            _rates(tuple(workload or WORKLOADS), rate or []),
            requests,
            runs,
            seed,
            arrivals,
            warmup,
            processes,
            list(locust or ()),
            ready_timeout,
            settle,
            keep_running,
        )
        folder = folder or _new_folder()
        if dry_run:
            _list(plan, folder)
            return
        found = _measured(plan, folder, json_)
        workloads: tuple[str, ...] = tuple(plan.rates)
        settings = plan.settings()
    else:
        if locust:
            quote = "; quote patterns: --baseline 'a-*'" if Path(locust[0]).is_dir() else ""
            _end(f"{' '.join(locust)}: stored runs are compared as they are, nothing goes to locust{quote}")
        if baseline_command or candidate_command:
            _end("a command starts what an address reaches: give --baseline and --candidate http://… with it")
        found = _stored(sides, self_check, seed)
        workloads = tuple(workload or ())
        settings = {side: " ".join(given) for side, given in sides.items()}
    result = _compare.compare(found["baseline"], found["candidate"], latencies, margins, workloads)
    result.settings = settings
    _show(result, folder, all_, json_, self_check)
    raise typer.Exit(result.exit_code)


def _show(result: Result, folder: Path | None, everything: bool, as_json: bool, self_check: bool) -> None:
    from rich.console import Console

    from . import _page, _text

    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "result.json").write_text(json.dumps(result.plain(), indent=1))
            (folder / "report.md").write_text(_text.markdown(result))
            (folder / "report.html").write_text(_page.page(result))
        except OSError as error:
            _end(f"--folder {folder}: {error.strerror or error}")
    if as_json:
        typer.echo(json.dumps(result.plain()))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # a log, a pipe: nothing is cut
    _text.show(result, console, everything)
    if self_check and result.verdict == "fail":
        typer.echo("both sides are the same server: this is a false alarm; runs are disturbed, or not alike")
    if folder is not None:
        typer.echo(f"{folder / 'report.html'}, report.md and result.json beside it")


def _measured(plan: Plan, folder: Path, quiet: bool) -> dict[str, list[Run]]:
    from ._measure import MeasureError, measure, stored
    from ._stack import StackError

    def say(line: str) -> None:
        typer.echo(f"{datetime.now():%H:%M:%S} {line}", err=quiet)

    say(f"folder: {folder}")
    # As Ctrl-C: servers that were started here, and a locust that runs, have to end with the gate.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        measure(plan, folder, say)
    except MeasureError as error:
        _end(str(error), 2 if error.usage else 3)
    except StackError as error:
        # A candidate that does not even start has failed; without a baseline nothing is known.
        _end(str(error), 1 if error.side == "candidate" and plan.commands["candidate"] else 3)
    except KeyboardInterrupt:
        _end(f"broken off; the same command with --folder {shlex.quote(str(folder))} goes on", 130)
    finally:
        signal.signal(signal.SIGTERM, before)
    return stored(folder)


def _list(plan: Plan, folder: Path) -> None:
    from ._measure import command, order

    for step in order(plan):
        typer.echo(shlex.join(command(plan, step, folder / "runs" / step.name)))


def _stored(sides: dict[str, list[str]], self_check: bool, seed: int) -> dict[str, list[Run]]:
    from ._runs import RunError, read, twice

    found: dict[str, list[Run]] = {}
    for side, patterns in sides.items():
        paths: dict[Path, None] = {}
        for pattern in patterns:
            matches = sorted(glob.glob(pattern))
            if not matches:
                _end(f"--{side} {pattern}: there is no such folder")
            paths |= dict.fromkeys(Path(m).resolve() for m in matches if Path(m).is_dir())
        try:
            found[side] = [read(p) for p in paths]
        except RunError as error:
            _end(f"--{side}: {error}")
        if not found[side]:
            _end(f"--{side} {' '.join(patterns)}: no folder among them; give folders of runs")
    if self_check:
        runs = random.Random(seed).sample(found["baseline"], len(found["baseline"]))  # noqa: S311
        by_workload: dict[tuple[str, ...], list[Run]] = {}
        for run in runs:
            by_workload.setdefault(tuple(sorted(run.groups)), []).append(run)
        return {
            "baseline": [r for group in by_workload.values() for r in group[::2]],
            "candidate": [r for group in by_workload.values() for r in group[1::2]],
        }
    problem = twice([*found["baseline"], *found["candidate"]])
    if problem:
        _end(problem)
    return found


def _plan(
    addresses: dict[str, str],
    commands: dict[str, str | None],
    rates: dict[str, float],
    requests: int,
    runs: int,
    seed: int,
    arrivals: str,
    warmup: float,
    processes: int,
    arguments: list[str],
    ready_timeout: float,
    settle: float,
    keep: bool,
) -> Plan:
    from ._measure import LOCUSTFILES, Plan

    for name in rates:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or not (LOCUSTFILES / f"{name}.py").is_file():
            there = sorted(p.stem for p in LOCUSTFILES.glob("[a-z]*.py"))
            _end(f"--workload {name}: there is no such locustfile; there are {', '.join(there)}")
    if arrivals not in ("constant", "poisson", "gamma"):
        _end(f"--arrivals {arrivals}: constant, poisson or gamma")
    for side, line in commands.items():
        try:
            empty = line is not None and not shlex.split(line)
        except ValueError as error:
            _end(f"--{side}-command: {error}; mind the quotes")
        if empty:
            _end(f"--{side}-command is empty")
    # Chance offers fewer in every second run; three standard deviations more, and hardly any has too few.
    wanted = requests if arrivals == "constant" else requests + 3 * math.sqrt(requests)
    seconds = {name: wanted / rate for name, rate in rates.items()}
    return Plan(
        addresses, commands, rates, seconds, runs, seed, arrivals, warmup, processes, arguments, ready_timeout,
        settle, keep,
    )  # fmt: skip


def _rates(workloads: tuple[str, ...], given: list[str]) -> dict[str, float]:
    rates: dict[str, float] = {}
    everywhere = None
    for text in given:
        name, equals, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if not 0 < value <= 1e6:
            _end(f"--rate {text}: requests a second above 0, like 4 or chat=4")
        if not equals:
            everywhere = value
        elif name in workloads:
            rates[name] = value
        else:
            _end(f"--rate {text}: {name} is not among the workloads {', '.join(workloads)}")
    missing = [w for w in workloads if w not in rates]
    if missing and everywhere is None:
        _end(
            f"--rate: give the requests a second, like --rate 4 or --rate {missing[0]}=4; about 60 % of what holds"
        )
    return {w: rates.get(w, everywhere or 0.0) for w in workloads}


def _margins(given: list[str]) -> dict[str, float]:
    from ._compare import MARGINS

    found = {}
    for text in given:
        name, _, number = text.partition("=")
        try:
            value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
        except ValueError:
            value = 0.0
        if name not in MARGINS or not 0 < value < 1:
            _end(f"--margin {text}: {', '.join(MARGINS)} and a share between 0 and 1, like p99=8%")
        found[name] = value
    return found


def _new_folder() -> Path:
    home = Path(os.environ.get("EXASERVE_HOME") or Path.home() / ".exaserve")
    return home / "loadtest" / "gates" / f"{datetime.now():%Y%m%d-%H%M%S}"


def _end(message: str, status: int = 2) -> NoReturn:
    typer.echo(message + ("\nsee `exaserve gate --help`" if status == 2 else ""), err=True)
    raise typer.Exit(status)
