"""The parts of the stack: how each is started, at which address it is, when it is ready.

Starting, watching and restarting them is ``serving/supervisor.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import yaml

from serving import monitoring
from serving.config import PARTS, Config
from serving.engines import Launch, command
from serving.home import write_whole
from serving.ports import reach


@dataclass(frozen=True)
class Part:
    """One process of the stack.

    kind: ``replica`` is ready when the router says so, ``service`` when ``ready_url`` answers 200.
    launch: makes the command; called at every start.
    address: base URL.
    required: whether the stack is up only with it.
    stop_rank: parts end in this order, those of one rank together; stop_seconds: how long each may take.
    """

    name: str
    kind: Literal["replica", "service"]
    launch: Callable[[], Launch]
    address: str
    ready_url: str = ""
    required: bool = True
    stop_rank: int = 2
    stop_seconds: float = 5.0
    cure: str = ""
    port: int = 0


def parts(config: Config, run: Path, which: Collection[str] = PARTS) -> list[Part]:
    """The parts of the stack in the order in which they are started. Writes their configuration into ``run``.

    which: those of ``PARTS`` that run on this machine.
    Raises OSError if ``run`` can't be written, ValueError if the engine can't run this configuration here, or if
    it does not say where a part is that runs elsewhere.
    """
    _refuse_unknown_places(config, which)
    effective = write_effective(config, run)
    replicas = _replicas(config) if "replicas" in which else []
    return [*replicas, *_services(config, run, effective, replicas, which)]


def choose(text: str) -> list[str]:
    """``replicas,exporter`` as a list of parts. Raises ValueError that says what is wrong."""
    chosen = [word.strip() for word in text.split(",") if word.strip()]
    wrong = next((word for word in chosen if word not in PARTS), None)
    if wrong is not None or not chosen:
        raise ValueError(f"{text!r}: name some of {', '.join(PARTS)}, with commas between them")
    return [part for part in PARTS if part in chosen]


def _refuse_unknown_places(config: Config, which: Collection[str]) -> None:
    if "router" in which and "replicas" not in which and config.fleet.replicas_file is None:
        raise ValueError(
            "fleet.replicas_file must name the file that lists the replicas: the router runs here and they don't "
            "(--parts); a line for each, like replica-0=http://10.0.0.1:8100"
        )
    if "monitoring" in which and "router" not in which and config.fleet.router is None:
        raise ValueError(
            "fleet.router must be the router's admin API, like http://10.0.0.1:8001: Prometheus runs here and the "
            "router does not (--parts)"
        )


def _replicas(config: Config) -> list[Part]:
    host = reach(config.fleet.host)
    replicas = []
    for i in range(config.fleet.replicas_per_node):
        port = config.fleet.first_port + i
        launch = command(config, i, port)
        replicas.append(
            Part(
                f"replica-{config.fleet.first_replica + i}",
                "replica",
                lambda launch=launch: launch,  # type: ignore[misc]
                f"http://{host}:{port}",
                stop_rank=1,
                stop_seconds=15.0,
                cure="often too little memory (engine.kv_cache_memory, fleet.replicas_per_node) or a model.path "
                "that the engine can't load",
                port=port,
            )
        )
    return replicas


def write_effective(config: Config, run: Path) -> Path:
    """The file that the router reads, options of the command line included. Raises OSError."""
    effective = run / "exaserve.yaml"
    write_whole(effective, yaml.safe_dump(config.model_dump(), sort_keys=False))
    return effective


def _services(
    config: Config, run: Path, effective: Path, replicas: list[Part], which: Collection[str]
) -> list[Part]:
    router, exporter, ports = config.router, config.exporter, config.monitoring
    admin = f"http://{reach(router.admin_host)}:{router.admin_port}"
    metrics = f"http://{reach(exporter.host)}:{exporter.port}"
    named = [f"--replica={part.name}={part.address}" for part in replicas]
    file = config.fleet.replicas_file
    members = [f"--replicas-file={file}"] if file else named
    router_argv = _own("router", *members, f"--config={effective}", f"--host={router.host}")
    router_argv += [f"--port={router.port}", f"--admin-host={router.admin_host}"]
    router_argv += [f"--admin-port={router.admin_port}"]
    # The section itself is in the file. What it leaves open is this stack's.
    exporter_argv = _own("exporter", f"--config={effective}", *named)
    exporter_argv += [] if exporter.run_folder else [f"--run-folder={run}"]
    if (
        "router" in which
    ):  # elsewhere its view of the fleet, other machines' replicas included, is not this one's
        exporter_argv += [] if exporter.router else [f"--router={admin}/metrics"]
        exporter_argv += [] if exporter.discover else [f"--discover={admin}/sd"]
    found = [
        Part(
            "router",
            "service",
            lambda: Launch(router_argv),
            f"http://{reach(router.host)}:{router.port}",
            f"{admin}/livez",
            stop_rank=0,
            stop_seconds=router.drain_timeout + 5.0,
            port=router.port,
        ),
        Part("exporter", "service", lambda: Launch(exporter_argv), metrics, metrics, port=exporter.port),
    ]
    found = [part for part in found if part.name in which]
    if not ports.enabled or "monitoring" not in which:
        return found
    prometheus_argv = partial(monitoring.prometheus_argv, own=which)
    for name, binary, argv, port in (
        ("prometheus", monitoring.prometheus_binary(), prometheus_argv, ports.prometheus_port),
        (
            "alertmanager",
            monitoring.alertmanager_binary(),
            monitoring.alertmanager_argv,
            ports.alertmanager_port,
        ),
    ):
        if binary is None:
            continue
        launch = Launch(argv(config, binary, run))
        url = f"http://127.0.0.1:{port}"
        found.append(
            Part(
                name,
                "service",
                lambda launch=launch: launch,  # type: ignore[misc]
                url,
                f"{url}/-/ready",
                required=False,
                stop_seconds=10.0,
                port=port,
            )
        )
    return found


def _own(*arguments: str) -> list[str]:
    """One of our own commands, by this very interpreter."""
    return [sys.executable, "-m", "serving.cli", *arguments]
