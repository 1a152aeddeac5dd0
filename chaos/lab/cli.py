"""``exaserve lab``: options, messages, exit statuses. Status 0, 1 if it can't be done, 2 for wrong usage."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import typer

from chaos import identity
from chaos.lab import build, faults, node, state, storage, teardown, view
from chaos.lab.state import LabError, State

app = typer.Typer(
    help="A small cluster on this machine, to break: nodes in namespaces, a router and monitoring in front.\n\n"
    "Needs root. Everything is below $EXASERVE_HOME/lab and goes with `down`, whatever state it is in.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
node_app = typer.Typer(help="One node.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(node_app, name="node")

_Name = Annotated[str, typer.Option("--name", help="Several labs may run side by side.")]


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except LabError as error:
        typer.echo(f"exaserve lab: {error}", err=True)
        raise typer.Exit(2 if error.usage else 1) from None
    except OSError as error:
        typer.echo(f"exaserve lab: {error.filename or 'the machine'}: {error.strerror or error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("exaserve lab: interrupted", err=True)
        raise typer.Exit(130) from None


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:  # our reader has seen enough; a lab is not torn down for that
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _there(name: str) -> State:
    """The lab, if it is up. Raises LabError."""
    found = state.read(name)
    if found is not None and build.being_built(found):
        raise LabError(f"lab {name!r} is just being built; wait for that, or exaserve lab down")
    if found is None or not build.is_up(found):
        left = teardown.leftovers(name)
        rest = (
            f", but there is left of it: {', '.join(left[:5])}; exaserve lab down removes it" if left else ""
        )
        raise LabError(f"lab {name!r} is not up (looked in {state.folder(name)}){rest}")
    return found


@app.command()
def up(
    nodes: Annotated[int, typer.Option(min=1, max=state.MAX_NODES, help="Nodes.")] = 4,
    replicas: Annotated[int, typer.Option(min=1, max=state.MAX_REPLICAS, help="Replicas on each.")] = 1,
    real: Annotated[
        int,
        typer.Option(
            min=0, max=state.MAX_NODES, help="The first so many nodes run real vLLM, the others simulate it."
        ),
    ] = 0,
    regions: Annotated[
        int,
        typer.Option(
            min=1, max=state.MAX_REGIONS, help="Groups of nodes, each with a router and monitoring."
        ),
    ] = 1,
    profile: Annotated[
        Literal["tuned", "defaults"],
        typer.Option(
            help="The router's: `tuned` notices a silent replica within 3 s, `defaults` are exaserve.yaml's."
        ),
    ] = "tuned",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any key of the control node's exaserve.yaml; repeatable."
        ),
    ] = None,
    name: _Name = "lab",
) -> None:
    """Build a lab and wait until every replica serves.

    Each node has an address of its own, its replicas and exporter (restarted when they die), a local disk that caches
    the model, and shared storage that can be made slow, full, broken or stuck. A lab that is up stays as it is; shared
    storage whose process has died is mounted anew.

    \b
      exaserve lab up --nodes 4             # in seconds
      exaserve lab up --nodes 4 --real 2    # two of them real vLLM: a minute
      exaserve lab up --regions 2 --set monitoring.scrape_interval=1.0
    """
    with _errors():
        state.check_name(name)
        if real > nodes or regions > nodes:
            raise LabError(
                f"--{'real' if real > nodes else 'regions'}: there are only {nodes} nodes (--nodes)", True
            )
        for text in set_ or []:
            if "=" not in text or "." not in text.partition("=")[0]:
                raise LabError(f"--set: {text!r}: give KEY=VALUE, like router.workers=2", True)
        lacking = build.problems()
        if lacking:
            raise LabError("\n".join(lacking))
        teardown.check_outside()
        with state.alone(name):
            if _is_up_already(name):
                return
            state.mark_ending(name)
        faults.take_out(name, _say)  # of an earlier lab that was not ended by `down`
        with state.alone(name):
            if _is_up_already(name):  # another command has just built it
                return
            found = build.up(name, _say, nodes, replicas, real, regions, profile, set_ or [])
        option = "" if name == "lab" else f" --name {name}"
        for region in found["regions"]:
            _say(f"  {region['name']}: router {region['router']}, admin {region['admin']}")
            if region["prometheus"]:
                _say(f"            prometheus {region['prometheus']}, alertmanager {region['alertmanager']}")
        _say(f"  look       exaserve lab status{option}; exaserve lab shell node-1{option}")
        _say(f"  end        exaserve lab down{option}")


def _is_up_already(name: str) -> bool:
    """Whether the lab is up. Then it says so, and puts right what is broken of its storage. Raises LabError, OSError."""
    found = state.read(name)
    if found is None or not build.is_up(found):
        return False
    _say(f"lab {name!r} is up already; exaserve lab status shows it, exaserve lab down ends it")
    storage.ensure(found, found["nodes"], _say)
    down_ones = [n["name"] for n in found["nodes"] if not node.up(n)]
    if down_ones:
        _say(f"down: {', '.join(down_ones)}; exaserve lab node start NODE brings one back")
    return True


@app.command()
def status(
    json_: Annotated[bool, typer.Option("--json", help="For programs.")] = False, name: _Name = "lab"
) -> None:
    """Show every node: its replicas as the router sees them, its storage, memory of all. Status 1 if it is not up."""
    with _errors():
        found = view.status(_there(name))
        typer.echo(json.dumps(found, indent=1) if json_ else view.table(found))


@app.command(context_settings={"ignore_unknown_options": True})
def shell(
    node_name: Annotated[str, typer.Argument(metavar="NODE", help="Like node-1.")],
    command: Annotated[
        list[str] | None, typer.Argument(help="What to run, after --; a shell without.")
    ] = None,
    name: _Name = "lab",
) -> None:
    """Run a shell, or one command, on a node.

    \b
      exaserve lab shell node-1
      exaserve lab shell node-1 -- ip address
    """
    with _errors():
        entry = state.node_of(_there(name), node_name)
        if not node.up(entry):
            raise LabError(f"{node_name} is down; exaserve lab node start {node_name} brings it back")
        here = ["/bin/sh", "-c", 'cd "$0"; exec "$@"', os.getcwd()]  # another mount namespace begins at /
        argv = [*node.prefix(entry), *here, *(command or [os.environ.get("SHELL") or "/bin/sh"])]
        os.environ["EXASERVE_RUN"] = entry["run"]  # so that exaserve status and logs are the node's
        sys.stdout.flush()
        os.execvp(argv[0], argv)  # noqa: S606 - an argument list of ours


@app.command()
def down(name: _Name = "lab") -> None:
    """Remove a lab, whatever state it is in. Nothing there is well, too."""
    with _errors():
        state.check_name(name)
        if os.geteuid() != 0:
            raise LabError("only root may remove a lab: sudo -E exaserve lab down")
        teardown.check_outside()
        begin = time.monotonic()
        found = state.read(name)
        if found is not None and build.being_built(found):
            _say(f"lab {name!r} is just being built; stopping that")
            identity.send(found["builder"], signal.SIGTERM)
            identity.send(found["builder"], signal.SIGCONT)
        with state.alone(name):
            state.mark_ending(name)
        faults.take_out(name, _say)
        with state.alone(name):
            gone = teardown.remove(name)
        if gone:
            _say(f"lab {name!r} is gone after {time.monotonic() - begin:.1f} s: {', '.join(gone)}")
        else:
            _say(f"there is no lab {name!r} (looked in {state.folder(name)})")


@node_app.command("start")
def node_start(
    node_name: Annotated[str, typer.Argument(metavar="NODE", help="Like node-1.")],
    wait: Annotated[bool, typer.Option(help="Until its replicas and exporter are ready.")] = True,
    name: _Name = "lab",
) -> None:
    """Bring a node back that was killed: same address, same storage, its replicas anew. One that is up stays so."""
    with _errors(), state.alone(name):
        found = _there(name)
        entry = state.node_of(found, node_name)
        begin = time.monotonic()
        if not node.start(found, entry, _say):
            storage.ensure(found, [entry], _say)
            _say(f"{node_name} is up")
            return
        if wait and not build.wait_node(entry):
            raise LabError(
                f"{node_name} is not ready after {time.monotonic() - begin:.0f} s:\n{node.last_words(entry)}"
            )
        _say(f"{node_name} is {'ready' if wait else 'starting'} after {time.monotonic() - begin:.1f} s")
