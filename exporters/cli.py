"""``exaserve exporter``: the command line of the exporter. The work is in registry, http and collectors."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from typing import Annotated

import typer

# Plain help: boxes would break the examples into lines that can't be copied.
app = typer.Typer(add_completion=False, rich_markup_mode=None, subcommand_metavar="")

_EPILOG = """
\b
Examples:
  exaserve exporter --replica http://127.0.0.1:8100 --replica http://127.0.0.1:8101
  exaserve exporter --replica gpu-1=http://gpu-1:8000 --host 0.0.0.0
  exaserve exporter --discover http://127.0.0.1:8001/sd    (the replicas that the router knows)

\b
See what it exports:
  curl 127.0.0.1:9420/metrics
In prometheus.yml, for the rules and the board that `exaserve dashboards build` writes:
  - job_name: exaserve-exporter
    static_configs: [{targets: ["127.0.0.1:9420"]}]
"""


@app.callback(invoke_without_command=True, epilog=_EPILOG)
def exporter(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = 9420,
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
        float, typer.Option(min=0.1, max=60, help="Seconds that one replica's page may take.")
    ] = 3.0,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log every request.")] = False,
) -> None:
    """Serve numbers about this node and its replicas to Prometheus, until Ctrl-C or SIGTERM.

    For each replica: KV cache blocks (total, used, size), requests running and waiting, preemptions, and whether
    its metrics page could be read. The replicas may be anybody's: any vLLM server will do. What can't be read is
    absent, never 0, and one that hangs costs the others nothing.
    """
    from exporters import registry
    from exporters.http import ExporterServer
    from exporters.settings import Settings, check_url, parse_replica

    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    # httpx and asyncio log every request and connection, which says nothing about the exporter.
    for name in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        replicas = tuple(parse_replica(text) for text in replica or ())
    except ValueError as error:
        raise _usage(f"--replica: {error}") from None
    names = [r.name for r in replicas]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise _usage(f"--replica: {twice} is named twice; give each its own name: --replica NAME=URL")
    try:
        discover = check_url(discover) if discover else None
    except ValueError as error:
        raise _usage(f"--discover: {error}") from None

    settings = Settings(replicas, discover, timeout)
    try:
        server = ExporterServer(host, port, registry.build(settings))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        typer.echo(f"can't listen on {host}:{port}: {why}; choose another with --host and --port", err=True)
        raise typer.Exit(1) from None
    # Blocked before any thread starts, and taken by sigwait: a handler runs in the main thread only, and a signal
    # that the kernel gives to another thread does not wake a main thread that waits for a lock.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    typer.echo(
        f"exporter: http://{host}:{server.server_port}/metrics ({', '.join(names) or discover or 'no replica'})"
    )
    sys.stdout.flush()
    signal.sigwait(ends)
    # Nothing is waited for: every thread is a daemon, and a scrape that is cut is simply tried again.
    server.socket.close()


def _usage(problem: str) -> typer.Exit:
    typer.echo(f"{problem}\nsee `exaserve exporter --help`", err=True)
    return typer.Exit(2)
