"""``exaserve chaos manifests`` and ``exaserve chaos check``: for a day on a real cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NoReturn

import typer


def add(app: typer.Typer) -> None:
    """Put the commands into ``exaserve chaos``."""
    app.command("manifests")(manifests)
    app.command("check")(check)


def _end(command: str, message: str, code: int) -> NoReturn:
    typer.echo(f"exaserve chaos {command}: {message}", err=True)
    raise typer.Exit(code)


def manifests(
    experiment: Annotated[
        list[str] | None, typer.Argument(help="Names (exaserve chaos experiments) or files.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for them; without: to the screen."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every experiment.")] = False,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Of the fleet.")] = "exaserve",
    replica_label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of the replicas' pods; repeatable.")
    ] = None,
    router_label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of the router's pods; repeatable.")
    ] = None,
    prometheus_label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of Prometheus' pods; repeatable.")
    ] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH", help="Where a storage is mounted in the engine's container; repeatable."
        ),
    ] = None,
    container: Annotated[str, typer.Option(help="The engine's container.")] = "engine",
    port: Annotated[int, typer.Option(min=1, max=65535, help="At which the engine serves.")] = 8000,
    cores: Annotated[int, typer.Option(min=1, max=8192, help="Of a machine.")] = 8,
    percent: Annotated[
        int, typer.Option(min=0, max=100, help="Of the pods that are hit; 0: one pod.", show_default=True)
    ] = 0,
) -> None:
    """Write experiments' faults as Chaos Mesh manifests for Kubernetes.

    \b
      exaserve chaos manifests replica-crash link-lossy -n serving
      exaserve chaos manifests --all -o gameday/ --replica-label app=vllm --volume shared=/mnt/models

    In a folder: one file an experiment, rbac.yaml (an account that may do these and nothing else), and missing.md: the
    faults that Chaos Mesh can't do, with what to do in their place. How a manifest differs from the fault elsewhere is in
    its annotation exaserve/differs. Load, probes and judgement stay with exaserve. How such a day goes:
    exaserve runbook GameDay.

    Exit status: 0 at least one manifest was made, 1 none, 2 wrong usage.
    """
    import re

    from chaos.fault import ActivityFailed
    from chaos.gameday import manifests as making
    from chaos.gameday import mesh
    from chaos.run import plan

    if bool(experiment) == all_:
        _end("manifests", "name experiments, or give --all; exaserve chaos experiments lists them", 2)
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", namespace):
        _end("manifests", f"--namespace {namespace!r} is no name of a namespace", 2)
    base = mesh.Cluster()
    labels = dict(base.labels)
    for part, words in (
        ("replica", replica_label),
        ("router", router_label),
        ("prometheus", prometheus_label),
    ):
        if words:
            labels[part] = _pairs(f"--{part}-label", words)
    volumes = base.volumes | _pairs("--volume", volume or [])
    cluster = mesh.Cluster(namespace, labels, volumes, container, port, cores)
    try:
        chosen = [plan.read(name) for name in (plan.names() if all_ else experiment or [])]
        if output is not None:
            missing = making.write(output, chosen, cluster, percent)
            made = [e.name for e in chosen if (output / f"{e.name}.yaml").exists()]
        else:
            found = [making.of(e, cluster, percent) for e in chosen]
            documents = [m for one, _ in found for m in one]
            missing, made = [m for _, without in found for m in without], [m["kind"] for m in documents]
            if documents:
                typer.echo(making.text(documents), nl=False)
    except (plan.PlanError, ActivityFailed) as error:
        _end("manifests", str(error), 2)
    except OSError as error:
        _end("manifests", f"--output {error.filename or output}: {error.strerror}", 2)
    for one in missing:
        typer.echo(f"no manifest for {one.fault} of {one.experiment}: {one.why}", err=True)
    if output is not None and made:
        typer.echo(f"{len(made)} of {len(chosen)} experiments are in {output}, with rbac.yaml")
    raise typer.Exit(0 if made else 1)


def check(
    place: Annotated[
        str, typer.Option("--place", metavar="FILE", help="An inventory file (*.yaml), or a lab.")
    ],
    with_faults: Annotated[
        bool, typer.Option("--faults", help="Also ask every fault whether it is possible on each node.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Before a game day: is every node reached, with the rights, programs, devices and clocks that faults need?

    \b
      exaserve chaos check --place inventory.yaml
      exaserve chaos check --place inventory.yaml --faults

    Nothing is changed anywhere. The inventory's format: chaos/gameday/inventory.example.yaml. Exit status: 0 the day can
    begin (warnings name faults that are not possible), 1 something is wrong, 2 wrong usage.
    """
    from dataclasses import asdict

    from chaos import places
    from chaos.fault import ActivityFailed
    from chaos.gameday import check as checking

    try:
        there = places.open(place)
    except ActivityFailed as error:
        _end("check", f"--place: {error}", 2)
    lines = checking.check(there, with_faults)
    if json_:
        typer.echo(json.dumps([asdict(line) for line in lines], indent=1))
    else:
        width = max(len(line.node) for line in lines)
        for line in lines:
            typer.echo(f"{line.state:8} {line.node:<{width}}  {line.what}: {line.text}")
    wrong = sum(line.state == "wrong" for line in lines)
    if not json_:
        typer.echo(f"{wrong} things are wrong: the day can't begin" if wrong else "the day can begin")
    raise typer.Exit(1 if wrong else 0)


def _pairs(option: str, words: list[str]) -> dict[str, str]:
    found = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not (key and sign and value):
            _end("manifests", f"{option} {word!r}: KEY=VALUE is wanted", 2)
        found[key] = value
    return found
