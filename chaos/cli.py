"""``exaserve chaos``: faults listed, explained, put in, taken out. The work is in the modules that it calls."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from chaos.gameday import cli as gameday
from chaos.run import cli as running

if TYPE_CHECKING:
    from chaos.inject import Injection
    from chaos.place import Place

_HELP = """Break things on purpose, for a bounded time, and have them put right whatever happens.

\b
  exaserve chaos list                                          # every fault, and whether it works here
  exaserve chaos describe replica_freeze
  exaserve chaos inject replica_freeze --target replica-0 --duration 20
  exaserve chaos inject link_loss --target node-2 --duration 30 -p percent=10 --place lab
  exaserve chaos inject node_killed --target any --duration 60 --place lab --dry-run
  exaserve chaos status                                        # what is in now
  exaserve chaos recover                                       # everything put right, from any state; safe twice
  exaserve chaos experiments                                   # whole experiments, with what each allows
  exaserve chaos run replica-crash --place lab --repeat 5      # under load, measured, judged, with a report

Nothing is done unless an undo record is on the disk and a second process stands ready that takes the fault out when
its time is over, or this command dies. A fault that can't be measured is taken out again and reported as failed."""

app = typer.Typer(help=_HELP, add_completion=False, no_args_is_help=True, rich_markup_mode=None)

_PlaceOption = Annotated[
    str, typer.Option("--place", metavar="PLACE", help="local, lab, lab:NAME, or an inventory file (*.yaml).")
]
_AdminOption = Annotated[
    str,
    typer.Option(
        "--admin", metavar="URL", help="The router's admin address, where the place does not say it."
    ),
]

_RouterOption = Annotated[
    str,
    typer.Option("--router", metavar="URL", help="The router's address, where the place does not say it."),
]


def _end(message: str, code: int) -> NoReturn:
    _say(f"exaserve chaos: {message}", err=True)
    raise typer.Exit(code)


def _say(text: str, err: bool = False) -> None:
    """Names and messages come from nodes, routers and files: none of them may steer the terminal."""
    typer.echo(
        "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text), err=err
    )


def _open(place: str, admin: str, router: str = "") -> Place:
    from chaos import places
    from chaos.fault import ActivityFailed

    try:
        return places.open(place, admin, router)
    except ActivityFailed as error:
        _end(f"--place: {error}", 2)
    except ImportError as error:
        _end(f"--place {place}: {error}", 2)


@app.command("list")
def list_(
    place: _PlaceOption = "local",
    admin: _AdminOption = "",
    json_: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Every fault with its engines, and whether each works here, else why not."""
    from chaos import catalogue

    there = _open(place, admin)
    rows = catalogue.rows(there)
    if json_:
        typer.echo(json.dumps(rows, indent=1))
        return
    for line in catalogue.table(rows):
        _say(line)


@app.command()
def describe(
    fault: Annotated[str, typer.Argument(help="Its name, see `exaserve chaos list`.")],
    place: _PlaceOption = "local",
    admin: _AdminOption = "",
) -> None:
    """What a fault does, its parameters with their units and bounds, its engines."""
    from chaos import catalogue
    from chaos.fault import Refused

    try:
        for line in catalogue.description(fault, _open(place, admin)):
            _say(line)
    except Refused as error:
        _end(str(error), 2)


@app.command()
def inject(
    fault: Annotated[str, typer.Argument(help="Its name, see `exaserve chaos list`.")],
    target: Annotated[
        str,
        typer.Option(
            "--target", "-t", help="replica-0, node-2, node-2/shared, a list, any, 25%, fleet, router."
        ),
    ],
    duration: Annotated[
        float, typer.Option("--duration", "-d", metavar="SECONDS", help="Taken out after these.")
    ],
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="KEY=VALUE", help="Of the fault; repeatable."),
    ] = None,
    place: _PlaceOption = "local",
    admin: _AdminOption = "",
    router: _RouterOption = "",
    max_affected: Annotated[int, typer.Option(min=1, help="At most so many broken at a time.")] = 1,
    allow_last: Annotated[bool, typer.Option("--allow-last", help="Also the last one that serves.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the exact steps; do nothing.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON line for each event.")] = False,
) -> None:
    """Put a fault in, prove it, hold it for its duration, take it out. Ctrl-C takes it out at once.

    \b
      exaserve chaos inject replica_slow --target any --duration 60 -p factor=5
      exaserve chaos inject replica_error -t replica-1 -d 30 -p status=429 -p retry_after=2

    Exit status: 0 it was in, proven, and is out again; 1 it was not proven, or something could not be undone (then
    `exaserve chaos recover`); 2 refused, nothing was done; 130 Ctrl-C, and it is out again.
    """
    from chaos import inject as injecting
    from chaos import steps
    from chaos.fault import ActivityFailed, Refused

    there, given = _open(place, admin, router), _parameters(parameter or [])
    options: dict[str, Any] = {
        "name": fault,
        "target": target,
        "place": there,
        "duration": duration,
        "parameters": given,
        "max_affected": max_affected,
        "allow_last": allow_last,
    }
    try:
        if dry_run:
            for one, engine, plan in injecting.dry_run(**options):
                _say(f"{fault} on {one.name} by {engine.name}, for {duration:g} s. Nothing was done.")
                for word, found in (("do", plan.do), ("undo", plan.undo)):
                    for step in found:
                        _say(f"  {word:4} {steps.text(step)}")
            return
        with injecting.held(**options) as injections:
            for injection in injections:
                _say_in(injection, json_)
            _hold(injections, json_)
    except KeyboardInterrupt:
        typer.echo(
            json.dumps({"event": "interrupted", "at": time.time()})
            if json_
            else "interrupted: taken out, undone"
        )
        raise typer.Exit(130) from None
    except Refused as error:
        _end(str(error), 2)
    except ActivityFailed as error:
        _end(str(error), 1)


def _say_in(injection: Injection, json_: bool) -> None:
    proof = injection.proof
    assert proof is not None
    took = (injection.proven_at or 0.0) - injection.injected_at
    if json_:
        told: dict[str, Any] = {
            "event": "in",
            "id": injection.id,
            "fault": injection.fault.name,
            "target": injection.target.name,
        }
        told |= {
            "engine": injection.engine.name,
            "injected_at": injection.injected_at,
            "until": injection.until,
        }
        typer.echo(json.dumps(told | {"proof": proof.measured, "value": proof.value}))
        return
    _say(
        f"{injection.fault.name} is in {injection.target.name} (by {injection.engine.name}), proven after {took:.2f} s: "
        f"{proof.measured}"
    )


def _hold(injections: list[Injection], json_: bool) -> None:
    """Until all are over, with the time left shown where somebody looks."""
    screen = sys.stdout.isatty() and not json_
    end = max(injection.until for injection in injections)
    while not all(injection.over or injection.wait(0.2) for injection in injections):
        if screen:
            sys.stdout.write(f"\r{max(0.0, end - time.time()):6.1f} s left; Ctrl-C takes it out now ")
            sys.stdout.flush()
    if screen:
        sys.stdout.write("\r" + " " * 50 + "\r")
    for injection in injections:
        injection.undo()
    for injection in injections:
        if json_:
            typer.echo(json.dumps({"event": "out", "id": injection.id, "at": time.time()}))
        else:
            why = "nothing was held" if injection.momentary else "undone"
            _say(f"{injection.fault.name} on {injection.target.name}: over, {why}")


@app.command()
def recover(place: _PlaceOption = "local", admin: _AdminOption = "") -> None:
    """Take out every fault that left a record, and clear what is left without one; safe to run twice.

    Exit status 1 if something could not be put right; it is named and its record is kept.
    """
    from chaos import places
    from chaos import recover as recovering
    from chaos.fault import ActivityFailed

    try:
        there: Place | None = places.open(place, admin)
    except (ActivityFailed, ImportError) as error:
        _say(f"{error}; only records are looked at")
        there = None
    try:
        found = recovering.recover(there)
    except ActivityFailed as error:
        _end(str(error), 1)
    for done in found.undone:
        _say(f"undone: {done}")
    for left in found.leftovers:
        _say(f"cleared: {left}")
    for path, why in found.failed:
        _say(f"left: {path}: {why}", err=True)
    if not (found.undone or found.failed or found.leftovers):
        typer.echo(f"nothing to undo in {recovering.folder()}")
    raise typer.Exit(1 if found.failed else 0)


@app.command()
def status(json_: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """Faults that are in, or left a record. Exit status 1 if one has outlived its time (see recover)."""
    from chaos import catalogue
    from chaos.fault import ActivityFailed

    try:
        rows = catalogue.active()
    except ActivityFailed as error:
        _end(str(error), 1)
    if json_:
        typer.echo(json.dumps(rows, indent=1))
    else:
        for row in rows:
            _say(catalogue.active_text(row))
        if not rows:
            typer.echo("no fault is in")
    raise typer.Exit(1 if any(row["state"] in ("left behind", "damaged") for row in rows) else 0)


def _parameters(words: list[str]) -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key:
            _end(f"--parameter {word!r}: KEY=VALUE is wanted, like factor=5", 2)
        if key in found:
            _end(f"--parameter {word!r}: {key} is given twice", 2)
        try:
            found[key] = yaml.safe_load(value) if value else ""
        except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date like 2026-13-45
            found[key] = value
    return found


running.add(app)
gameday.add(app)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
