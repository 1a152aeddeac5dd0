"""``exaserve router``: the router alone, in front of replicas that run already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def router(
    replica: Annotated[
        list[str] | None,
        typer.Option(help="A replica: URL or NAME=URL. Give it once per replica.", show_default=False),
    ] = None,
    replicas_file: Annotated[
        Path | None, typer.Option(help="File that lists them; read again when it changes.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address that clients reach.")] = None,
    port: Annotated[int | None, typer.Option(help="Port that clients reach [default: 8000].")] = None,
    admin_host: Annotated[str | None, typer.Option(help="Address of the admin API.")] = None,
    admin_port: Annotated[int | None, typer.Option(help="Port of the admin API [default: 8001].")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that share the port [default: 1].")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="exaserve.yaml; its router, pools and tenants sections are used. Read again when it changes."
        ),
    ] = None,
) -> None:
    """Put one OpenAI-compatible address in front of replicas that run already.

    No configuration file is needed. The admin API has /livez /readyz /metrics /fleet /workers and /sd (for
    Prometheus' http_sd_configs). SIGHUP reads all files again; SIGTERM finishes open answers, a second one does not.

    Example: exaserve router --replica http://gpu-1:8000 --replica b=http://gpu-2:8000 --port 8000
    """
    from serving.config_errors import ConfigError
    from serving.router.process import CannotStart, run
    from serving.router.reload import Source

    options: dict[str, Any] = {"host": host, "port": port, "admin_host": admin_host, "admin_port": admin_port}
    options["workers"] = workers
    source = Source(config, {key: value for key, value in options.items() if value is not None})
    try:
        run(source, _members(replica or [], replicas_file))
    except (ConfigError, ValueError) as e:
        typer.echo(f"exaserve router: {e}", err=True)
        raise typer.Exit(2) from None
    except CannotStart as e:
        typer.echo(f"exaserve router: {e}", err=True)
        raise typer.Exit(1) from None


def _members(texts: list[str], path: Path | None) -> Any:
    """Raises ValueError that says what is wrong with them."""
    from serving.fleet.discovery import static
    from serving.router.members import Members

    if path is None:
        return Members(static.parse_all(texts))
    if texts:
        raise ValueError("--replica and --replicas-file exclude each other")
    from serving.fleet.discovery.file import ReplicaFile

    file = ReplicaFile(path)
    found = file.changed()
    if found is None:
        raise ValueError(file.error)
    return Members(found, file)
