"""``exaserve chaos run`` and ``exaserve chaos experiments``; the work is in ``runner.py``."""

from __future__ import annotations

import json
from typing import Annotated, NoReturn

import typer


def add(app: typer.Typer) -> None:
    """Put the commands into ``exaserve chaos``."""
    app.command("run")(run)
    app.command("experiments")(experiments)


def _end(message: str, code: int) -> NoReturn:
    typer.echo(f"exaserve chaos run: {message}", err=True)
    raise typer.Exit(code)


def run(
    experiment: Annotated[str, typer.Argument(help="A name (exaserve chaos experiments), or a file.")],
    place: Annotated[
        str,
        typer.Option("--place", metavar="PLACE", help="local, lab, lab:NAME, or an inventory file (*.yaml)."),
    ] = "local",
    target: Annotated[
        str, typer.Option("--target", "-t", help="What to break, in place of the experiment's.")
    ] = "",
    repeat: Annotated[
        int, typer.Option(min=1, max=50, help="Run it so often: median and worst of every figure.")
    ] = 1,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.1, max=2000, metavar="PER_SECOND", help="Of the load, in place of the experiment's."
        ),
    ] = None,
    grafana: Annotated[
        str, typer.Option(metavar="URL", help="Mark the run there: http://user:password@host:3000.")
    ] = "",
    grafana_token: Annotated[
        str, typer.Option(envvar="GRAFANA_TOKEN", metavar="TOKEN", help="In place of a password.")
    ] = "",
    router: Annotated[str, typer.Option(metavar="URL", help="Where the place does not say it.")] = "",
    admin: Annotated[str, typer.Option(metavar="URL", help="Where the place does not say it.")] = "",
    prometheus: Annotated[str, typer.Option(metavar="URL", help="Where the place does not say it.")] = "",
    alertmanager: Annotated[str, typer.Option(metavar="URL", help="Where the place does not say it.")] = "",
    metrics_port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, metavar="PORT", help="Of the run's page for Prometheus, on loopback; 0: any."
        ),
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; do nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the verdict.")] = False,
) -> None:
    """Run an experiment under load, measure how the fleet got over it, and judge it strictly.

    \b
      exaserve chaos run replica-crash
      exaserve chaos run replica-freeze --place lab --repeat 5        # median and worst of five injections
      exaserve chaos run node-killed --place lab --target node-3 --rate 60
      exaserve chaos run my-experiment.yaml --dry-run

    The load runs beside it, open loop. Report, journal and figures go to $EXASERVE_HOME/chaos/runs/RUN.

    Exit status: 0 passed; 1 failed (something raised, a fault was not proven, the steady state deviated, a goal was
    missed, something was left behind); 2 wrong usage, or the fault can't be done here, and nothing was done; 3 void: the
    fleet was not well before it began, a probe had no data, or the load could not be sent.
    """
    from chaos.run import grafana as marks
    from chaos.run import judge, plan, prepare, report, runner

    if grafana and (why := marks.problem(grafana)):
        _end(why, 2)
    addresses = {"router": router, "admin": admin, "prometheus": prometheus, "alertmanager": alertmanager}
    for name, url in addresses.items():
        if url and not url.startswith(("http://", "https://")):
            _end(f"--{name} {url}: not an address like http://127.0.0.1:8000", 2)
    options = prepare.Options(
        place, repeat, rate, target, grafana, grafana_token, addresses, metrics_port, quiet
    )
    try:
        found = plan.read(experiment)
        if dry_run:
            for line in prepare.describe(found, options):
                typer.echo(line)
            return
        outcomes = runner.run(found, options)
    except (plan.PlanError, prepare.Unusable) as error:
        _end(str(error), 2)
    except KeyboardInterrupt:
        _end("interrupted; what was put in has been taken out", 1)
    if len(outcomes) > 1:
        for row in report.summary(outcomes):
            name = row["figure"]
            goal = "" if row["goal"] is None else f"  goal {judge.show(name, row['goal'])}"
            shown = f"median {judge.show(name, row['median'])}  worst {judge.show(name, row['worst'])}"
            typer.echo(f"{name:30} {shown}{goal}  ({row['runs']} runs)")
    states = [outcome.verdict.state for outcome in outcomes]
    state: judge.State = (
        "failed" if "failed" in states or not states else "void" if "void" in states else "passed"
    )
    if len(outcomes) < repeat:
        state = "failed" if state == "passed" else state
    typer.echo(f"{found.name}: {state}" + (f" ({', '.join(states)})" if len(states) > 1 else ""))
    raise typer.Exit(judge.EXIT[state])


def experiments(json_: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """The experiments that come with ExaServe: what each breaks, what it allows, where to read on."""
    from chaos.run import judge, plan

    found = [plan.read(name) for name in plan.names()]
    if json_:
        rows = [
            {"name": e.name, "title": e.title, "goals": e.plan.goals, "runbook": e.plan.runbook,
             "faults": [str(given.get("fault")) for given in e.injections()]}
            for e in found
        ]  # fmt: skip
        typer.echo(json.dumps(rows, indent=1))
        return
    width = max(len(e.name) for e in found)
    for e in found:
        goals = [judge.Goal(name, allowed, None) for name, allowed in e.plan.goals.items()]
        told = ", ".join(
            f"{g.figure} {'≥' if g.figure in plan.SHARES else '≤'} {judge.show(g.figure, g.allowed)}"
            for g in goals
        )
        typer.echo(f"{e.name:{width}}  {e.title}")
        typer.echo(f"{'':{width}}  goals: {told or 'none but the steady state'}; runbook {e.plan.runbook}")
