"""The ``exaserve`` command: options, messages and exit statuses. The work is in the modules that it calls.

Other folders bring their commands through the entry-point group ``exaserve.commands``; one that is broken
breaks only itself. Heavy imports wait until a command needs them.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Literal

import typer

_ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="Default: ./exaserve.yaml if it is there, else the defaults.")
]


def up(
    config: _ConfigFile = None,
    engine: Annotated[
        Literal["vllm", "simulated"] | None, typer.Option(help="simulated: no model, ready in seconds.")
    ] = None,
    replicas: Annotated[int | None, typer.Option(help="Replicas on this machine.")] = None,
    port: Annotated[int | None, typer.Option(help="The router's port.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any key, like router.admin_port=9001 or router.retry.budget=0.2; repeatable.",
        ),
    ] = None,
    monitoring: Annotated[
        bool, typer.Option("--monitoring/--no-monitoring", help="Prometheus and Alertmanager.")
    ] = True,
    parts: Annotated[
        str,
        typer.Option(
            metavar="PARTS", help="What runs on this machine, of replicas,router,exporter,monitoring."
        ),
    ] = "replicas,router,exporter,monitoring",
    detach: Annotated[bool, typer.Option("--detach", help="Return when it is up; it stays.")] = False,
    supervise: Annotated[bool, typer.Option("--supervise", hidden=True)] = False,
) -> None:
    """Start replicas, router, exporter, Prometheus and Alertmanager; Ctrl-C ends them all.

    Several machines: give each its parts. Replicas and exporter where the GPUs are, with the address of the router's
    admin API and the number of the first replica there, since names are unique in a fleet:

    \b
      exaserve up --parts replicas,exporter \\
        --set fleet.host=10.0.0.1 --set exporter.host=10.0.0.1 \\
        --set fleet.first_replica=8 --set fleet.router=http://10.0.0.9:8001

    Router, Prometheus and Alertmanager on another, with a file of lines like replica-8=http://10.0.0.1:8100, which is
    read again when it changes:

    \b
      exaserve up --parts router,monitoring \\
        --set fleet.replicas_file=replicas.txt --set router.host=0.0.0.0 \\
        --set router.admin_host=10.0.0.9 \\
        --set 'monitoring.exporters=["10.0.0.1:9420"]'
    """
    from serving import stack
    from serving.config import load
    from serving.parts import choose

    options: dict[str, tuple[object, str]] = {}
    for text in set_ or []:
        key, value = _setting(text)
        options[key] = (value, f"--set {text}")
    given = {"engine.kind": (engine, "--engine"), "fleet.replicas_per_node": (replicas, "--replicas")}
    given["router.port"] = (port, "--port")
    given["monitoring.enabled"] = (None if monitoring else False, "--no-monitoring")
    options |= {key: (value, option) for key, (value, option) in given.items() if value is not None}
    try:
        which = choose(parts)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--parts") from None
    loaded = load(config, options)
    if detach:
        arguments = [a for a in sys.argv[sys.argv.index("up") + 1 :] if a != "--detach"]
        raise typer.Exit(stack.detach(arguments))
    source = config or Path("exaserve.yaml")
    name = str(source.absolute()) if source.is_file() else "defaults"
    raise typer.Exit(stack.up(loaded, name, supervise, lambda: load(config, options), which))


def down() -> None:
    """End everything that `exaserve up` started."""
    from serving import stack

    stack.down(typer.echo)


def status(json_: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """Show every part: state, process, address, memory, restarts. Exit status 1 if the stack is not up."""
    from serving import status as view
    from serving.record import run_folder

    found = view.status()
    if json_:
        import json

        typer.echo(json.dumps(found, indent=1))
    else:
        typer.echo(
            view.table(found)
            if found
            else f"the stack is not up (looked in {run_folder()}); exaserve up starts it"
        )
    raise typer.Exit(0 if found else 1)


def logs(
    part: Annotated[
        str | None, typer.Argument(help="replica-0, router, stack, …; all of them without.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, max=10_000, help="Last lines of each.")] = 20,
) -> None:
    """Show the logs of the parts."""
    from serving import status as view
    from serving.launch.local import tail

    files = view.log_files()
    if not files:
        typer.echo("there are no logs yet; exaserve up writes them", err=True)
        raise typer.Exit(1)
    if part is not None and part not in files:
        typer.echo(f"no log of {part}; there are: {', '.join(files)}", err=True)
        raise typer.Exit(2)
    chosen = {part: files[part]} if part else files
    width = max(map(len, chosen))

    def show(name: str, line: str) -> None:
        typer.echo(line if part else f"{name:<{width}} | {line}")

    offsets = {name: path.stat().st_size for name, path in chosen.items()}
    for name, path in chosen.items():
        for line in tail(path, lines) if lines else []:
            show(name, line)
    if follow:
        view.follow(chosen, show, offsets)


def ask(
    text: Annotated[str, typer.Argument(help="The question.")],
    url: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible server; default: the running stack's router.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Length of the answer.")] = 32,
    timeout: Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds of silence to bear.")] = 60.0,
    indent: Annotated[bool, typer.Option("--indent", hidden=True)] = False,
) -> None:
    """Ask one question and show the answer as it comes, with its timing."""
    from serving import record
    from serving.ask import AskError
    from serving.ask import ask as send

    if url is None:
        found = record.read() if record.is_up() else None
        url = found.addresses.get("router") if found else None
        url = url or "http://127.0.0.1:8000"
    first, margin = [True], "     " if indent else ""

    def show(piece: str) -> None:
        if indent:
            piece = ("  A: " if first[0] else "") + piece.replace("\n", "\n" + margin)
        first[0] = False
        sys.stdout.write(piece)
        sys.stdout.flush()

    try:
        timing = send(url, text, show, max_tokens, timeout)
    except AskError as error:
        if not first[0]:
            typer.echo()
        typer.echo(f"{margin}{error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"\n{margin}({timing})")


config_app = typer.Typer(help="The configuration file.", no_args_is_help=True)


@config_app.command("check")
def config_check(
    file: Annotated[Path | None, typer.Argument(help="Default: ./exaserve.yaml, else the defaults.")] = None,
) -> None:
    """Check a configuration whole; every error with its key, line and cure."""
    from serving.config import load
    from serving.engines import command

    loaded = load(file)
    shown = file or (Path("exaserve.yaml") if Path("exaserve.yaml").is_file() else "the defaults")
    try:
        for i in range(loaded.fleet.replicas_per_node):
            command(loaded, i, loaded.fleet.first_port + i)
    except ValueError as error:
        typer.echo(f"{shown}: well in itself, but not for this machine: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{shown}: fine")


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of the file."""
    import json

    from serving.config import to_schema

    typer.echo(json.dumps(to_schema(), indent=2))


#: Loaded where they may be asked for: name -> module that has the function of that name.
_COMMANDS = {"router": "serving.router.cli", "drain": "serving.drain_cli", "plan": "serving.plan.cli"}
#: The same for commands with commands of their own: name -> module that has ``app``.
_GROUPS = {
    "audit": "serving.audit.cli",
    "intent": "serving.intent.cli",
    "simulate-replicas": "serving.engines.simulation.cli",
    "tenants": "serving.tenants_cli",
}


def build_app() -> typer.Typer:
    """The whole command. The router's and other folders' parts are loaded only where they may be asked for."""
    app = typer.Typer(
        name="exaserve",
        help="A fleet of vLLM replicas behind one address, watched by Prometheus.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for command in (up, down, status, logs, ask):
        app.command()(command)
    app.add_typer(config_app, name="config")
    asked = next((a for a in sys.argv[1:] if not a.startswith("-")), None)
    own = {"up", "down", "status", "logs", "ask", "config"}
    if asked in own:
        return app
    for name, module in _COMMANDS.items():
        if asked in (None, name):
            try:
                app.command(name)(getattr(import_module(module), name))
            except Exception as error:
                _broken(app, name, error)
    for name, module in _GROUPS.items():
        if asked in (None, name):
            try:
                app.add_typer(import_module(module).app, name=name)
            except Exception as error:
                _broken(app, name, error)
    for point in sorted(entry_points(group="exaserve.commands"), key=lambda p: p.name):
        if asked in (None, point.name):
            try:
                found = point.load()
                # A command with arguments of its own is a function: a group takes them for commands' names.
                if isinstance(found, typer.Typer):
                    app.add_typer(found, name=point.name)
                else:
                    app.command(point.name)(found)
            except Exception as error:
                _broken(app, point.name, error)
    return app


def _broken(app: typer.Typer, name: str, error: Exception) -> None:
    said = f"{type(error).__name__}: {error}"

    def broken(ctx: typer.Context) -> None:
        typer.echo(f"exaserve {name} is not usable here ({said})", err=True)
        raise typer.Exit(1)

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, help=f"(not usable here: {said})", context_settings=settings)(broken)


def _setting(text: str) -> tuple[str, object]:
    """``router.port=9000`` as key and value, the value read as YAML."""
    import yaml

    key, equals, value = text.partition("=")
    section, dot, name = key.partition(".")
    if not (equals and dot and section and name):
        raise typer.BadParameter(f"{text}: give KEY=VALUE, like router.port=9000", param_hint="--set")
    try:
        return key, yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        return key, value


def main() -> None:
    """Entry point: known errors become one line and an exit status, never a traceback."""
    try:
        build_app()()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Our reader has seen enough; nothing must be flushed to it any more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except Exception as error:
        from serving.config_errors import ConfigError
        from serving.stack import StackError

        if isinstance(error, OSError) and error.filename is not None:  # $EXASERVE_HOME, mostly
            print(f"exaserve: {error.filename}: {error.strerror}", file=sys.stderr)
            sys.exit(1)
        if not isinstance(error, ConfigError | StackError):
            raise
        print(error, file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


if __name__ == "__main__":
    main()
