"""``exaserve router``: the router alone, in front of replicas that run already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def router(
    replica: Annotated[
        list[str],
        typer.Option(help="A replica: URL or NAME=URL. Give it once per replica.", show_default=False),
    ],
    host: Annotated[str | None, typer.Option(help="Address that clients reach.")] = None,
    port: Annotated[int | None, typer.Option(help="Port that clients reach [default: 8000].")] = None,
    admin_host: Annotated[str | None, typer.Option(help="Address of the admin API.")] = None,
    admin_port: Annotated[int | None, typer.Option(help="Port of the admin API [default: 8001].")] = None,
    config: Annotated[
        Path | None, typer.Option(help="exaserve.yaml; only its router section is used.")
    ] = None,
) -> None:
    """Put one OpenAI-compatible address in front of replicas that run already.

    No configuration file is needed. The admin API has /livez /readyz /metrics /fleet and /sd (for Prometheus'
    http_sd_configs).

    Example: exaserve router --replica http://gpu-1:8000 --replica b=http://gpu-2:8000 --port 8000
    """
    from pydantic import ValidationError

    from serving.config import Router
    from serving.config_errors import ConfigError
    from serving.fleet.discovery import static
    from serving.router.process import CannotStart, run

    given: dict[str, Any] = {"host": host, "port": port, "admin_host": admin_host, "admin_port": admin_port}
    try:
        settings = _settings(config)
        values = settings.model_dump() | {k: v for k, v in given.items() if v is not None}
        run(Router(**values), static.parse_all(replica))
    except ValidationError as e:
        for error in e.errors():
            typer.echo(
                f"--{'-'.join(str(x) for x in error['loc'])}: {error['msg']}".replace("_", "-"), err=True
            )
        raise typer.Exit(2) from None
    except (ConfigError, ValueError) as e:
        typer.echo(f"exaserve router: {e}", err=True)
        raise typer.Exit(2) from None
    except CannotStart as e:
        typer.echo(f"exaserve router: {e}", err=True)
        raise typer.Exit(1) from None


def _settings(path: Path | None) -> Any:
    from serving.config import Router, load

    return load(path).router if path is not None else Router()
