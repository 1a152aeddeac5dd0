"""``exaserve exporter``: the command line of the exporter. The work is in registry, http, textfile and collectors."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from exporters import available

if TYPE_CHECKING:
    from exporters.config import Exporter
    from exporters.registry import Registry

# Plain help: boxes would break the examples into lines that can't be copied.
app = typer.Typer(add_completion=False, rich_markup_mode=None, subcommand_metavar="")

_EPILOG = """
\b
Examples:
  exaserve exporter                                 (this node: fabric, NUMA, GPUs, replicas that run here)
  exaserve exporter --replica http://127.0.0.1:8100 --replica gpu-1=http://gpu-1:8000
  exaserve exporter --discover http://127.0.0.1:8001/sd           (the replicas that the router knows)
  exaserve exporter --collector.disable-defaults --collector.infiniband     (one collector and nothing else)
  exaserve exporter --no-collector.gpu --mount /models --config exaserve.yaml
  exaserve exporter --textfile - --once                              (print one page and end)
  exaserve exporter --textfile /var/lib/prometheus/node-exporter/exaserve.prom --interval 30
  exaserve exporter --host 0.0.0.0 --token-file /etc/exaserve/scrape-token

\b
In a container, with the node's /sys and /proc mounted read-only below /host:
  exaserve exporter --host 0.0.0.0 --path.sysfs /host/sys --path.procfs /host/proc

\b
See what it exports, and how each collector does:
  curl 127.0.0.1:9420/metrics
  curl -s 127.0.0.1:9420/metrics | grep exaserve_exporter_collector_
In prometheus.yml, for the rules and the boards that `exaserve dashboards build` writes:
  - job_name: exaserve-exporter
    static_configs: [{targets: ["127.0.0.1:9420"]}]
"""


def exporter(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", help="exaserve.yaml; its section exporter is used, and options win over it."
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]", show_default=False)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one. [default: 9420]"),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the bearer token that a scrape must show; read again on change."),
    ] = None,
    replica: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=URL",
            help="A replica to read, again for each one. NAME is the value of the label replica; without it: host:port.",
        ),
    ] = None,
    discover: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Prometheus HTTP service discovery that lists the replicas."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.1, max=60, help="Seconds that one replica's page may take. [default: 3]"),
    ] = None,
    run_folder: Annotated[
        Path | None,
        typer.Option(help="Where exaserve up keeps its replicas' process ids ($EXASERVE_HOME/run)."),
    ] = None,
    router: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Admin API of the router (or its metrics page) whose intents are watched."
        ),
    ] = None,
    intent_reference: Annotated[
        Path | None,
        typer.Option(help="File that `exaserve intent reference save` wrote, to compare intents with."),
    ] = None,
    mount: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER", help="A folder whose storage is measured, again for each one."),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="A peer that connections are tried to, again for each one."),
    ] = None,
    node_exporter_names: Annotated[
        bool | None,
        typer.Option(
            "--node-exporter-names",
            help="Also give what node_exporter has under its names, for panels that ask.",
        ),
    ] = None,
    sysfs: Annotated[
        str | None,
        typer.Option("--path.sysfs", metavar="FOLDER", help="Where sysfs is mounted. [default: /sys]"),
    ] = None,
    procfs: Annotated[
        str | None,
        typer.Option("--path.procfs", metavar="FOLDER", help="Where procfs is mounted. [default: /proc]"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the section, like limits={storage: 1}."),
    ] = None,
    textfile: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Write pages into this file (- prints them) instead of serving them."
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option(min=1, max=3600, help="Seconds between two pages of --textfile.")
    ] = 15.0,
    once: Annotated[bool, typer.Option("--once", help="With --textfile: one page, then end.")] = False,
    disable_defaults: Annotated[
        bool,
        typer.Option("--collector.disable-defaults", help="Only the collectors that are turned on by name."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log every request.")] = False,
    **turned: bool | None,
) -> None:
    """Serve numbers about this node and its replicas to Prometheus, until Ctrl-C or SIGTERM.

    Replicas may be anybody's: vLLM, SGLang and TensorRT-LLM will do. What can't be read is absent, never 0; a device,
    file or replica that is broken or hangs costs the others nothing; nothing lives on after what it told of.
    """
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    # httpx and asyncio log every request and connection, which says nothing about the exporter.
    for name in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if once and textfile is None:
        raise _usage("--once: goes with --textfile (--textfile - --once prints a page)")
    given: dict[str, tuple[object, str]] = {}
    for key, value, option in (
        *(_setting(text) for text in set_ or ()),
        ("host", host, "--host"),
        ("port", port or None, "--port"),
        ("token_file", str(token_file) if token_file else None, "--token-file"),
        ("replicas", replica or None, "--replica"),
        ("discover", discover, "--discover"),
        ("timeout", timeout, "--timeout"),
        ("run_folder", str(run_folder) if run_folder else None, "--run-folder"),
        ("router", router, "--router"),
        ("intent_reference", str(intent_reference) if intent_reference else None, "--intent-reference"),
        ("mounts", mount or None, "--mount"),
        ("peers", peer or None, "--peer"),
        ("node_exporter_names", node_exporter_names, "--node-exporter-names"),
        ("sysfs", sysfs, "--path.sysfs"),
        ("procfs", procfs, "--path.procfs"),
    ):
        # null of --set takes back what the file says.
        if value is not None or option.startswith("--set "):
            given[key] = (value, option)
    section = _section(config, given)
    from exporters import registry
    from exporters.config import settings

    flags = {key.removeprefix("collector_"): on for key, on in turned.items() if on is not None}
    # Who names peers wants them tried.
    turned_on = {"network": True} if section.peers and not disable_defaults else {}
    names = available.chosen(turned_on | section.collectors | flags, not disable_defaults)
    running = registry.build(settings(section), names)
    if textfile is not None:
        _write(running, textfile, interval, once)
    else:
        _serve(running, section, section.port if port is None else port)


def _flags(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with ``--collector.NAME/--no-collector.NAME`` for each collector's file in place of its **."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    for name, about in available.collectors().items():
        option = typer.Option(
            f"--collector.{name}/--no-collector.{name}",
            help=f"{about.summary} ({'on' if about.default else 'off'} by default)",
            show_default=False,
        )
        key = f"collector_{name}"
        annotation = Annotated[bool | None, option]
        own.append(
            inspect.Parameter(
                key, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation
            )
        )
        command.__annotations__[key] = annotation
    command.__annotations__.pop("turned")
    command.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return command


app.callback(invoke_without_command=True, epilog=_EPILOG)(_flags(exporter))


def _section(path: Path | None, given: dict[str, tuple[object, str]]) -> Exporter:
    from exporters.config import ConfigError, load

    try:
        return load(path, given)
    except ConfigError as error:
        raise _usage(str(error)) from None


def _setting(text: str) -> tuple[str, object, str]:
    """``timeout=5`` as key, value (read as YAML) and where it was given."""
    import yaml

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise _usage(f"--set {text}: give KEY=VALUE, like timeout=5")
    try:
        return key.removeprefix("exporter."), yaml.safe_load(value), f"--set {text}"
    except (yaml.YAMLError, ValueError, RecursionError):
        raise _usage(f"--set {text}: {value!r} is no YAML value") from None


def _serve(running: Registry, section: Exporter, port: int) -> None:
    from exporters.http import ExporterServer, Token

    host = section.host
    try:
        token = Token(Path(section.token_file)) if section.token_file else None
    except (OSError, ValueError) as error:
        raise _usage(
            f"--token-file {section.token_file}: {getattr(error, 'strerror', None) or error}"
        ) from None
    try:
        server = ExporterServer(host, port, running, token)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        typer.echo(f"can't listen on {host}:{port}: {why}; choose another with --host and --port", err=True)
        raise typer.Exit(1) from None
    # Blocked before any thread starts, and taken by sigwait: a handler runs in the main thread only, and a signal
    # that the kernel gives to another thread does not wake a main thread that waits for a lock.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    address = f"[{host}]" if ":" in host else host
    typer.echo(
        f"exporter: http://{address}:{server.port}/metrics ({', '.join(running.names) or 'no collector'})"
    )
    sys.stdout.flush()
    signal.sigwait(ends)
    # Nothing is waited for: every thread is a daemon, and a scrape that is cut is simply tried again.
    server.close()


def _write(running: Registry, target: str, interval: float, once: bool) -> None:
    from exporters import exposition
    from exporters.textfile import keep_written, write

    def page() -> bytes:
        return exposition.text(running.scrape())

    path = Path(target)
    if target != "-" and (os.path.isdir(path) or not os.path.isdir(path.parent)):
        raise _usage(f"--textfile {target}: name a file in a folder that is there")
    if target != "-" and path.suffix != ".prom":
        typer.echo(f"--textfile {target}: node_exporter reads only files that end with .prom", err=True)
    if once:
        try:
            if target == "-":
                sys.stdout.buffer.write(page())
                sys.stdout.buffer.flush()
            else:
                write(path, page())
        except OSError as error:
            typer.echo(f"--textfile {target}: can't be written: {error.strerror or error}", err=True)
            raise typer.Exit(1) from None
        return
    if target == "-":
        raise _usage("--textfile -: goes with --once")
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda *_: end.set())
    typer.echo(f"exporter: {path} every {interval:g} s ({', '.join(running.names) or 'no collector'})")
    sys.stdout.flush()
    keep_written(path, page, interval, end)


def _usage(problem: str) -> typer.Exit:
    typer.echo(f"{problem}\nsee `exaserve exporter --help`", err=True)
    return typer.Exit(2)
