"""``exaserve doctor``: its command line. The work is in ``run``, ``gather``, ``compare`` and ``table``."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

import typer

if TYPE_CHECKING:
    from exporters.doctor.check import Check, Limits, Node
    from exporters.doctor.result import NodeResult

# Plain help: boxes would break the examples into lines that can't be copied.
app = typer.Typer(add_completion=False, rich_markup_mode=None, subcommand_metavar="")

_EPILOG = """
\b
One node:
  exaserve doctor                            everything; a second, 12 s where something hangs
  exaserve doctor --quiet                    only what needs somebody
  exaserve doctor --only storage --mount /scratch --only mtu
  exaserve doctor --numa-map numa.json       which CPUs, memory, GPUs and NICs are near to each other
  exaserve doctor --list                     the checks

\b
Many nodes: each is asked, then they are compared (driver, CUDA, NCCL, vLLM, Python, kernel, MTU, link rate, …):
  exaserve doctor --nodes nodes.txt          through ssh; a host a line, options of ssh after it, # comments
  exaserve doctor --nodes nodes.txt --remote-command '/opt/exaserve/bin/exaserve doctor --json'
  exaserve doctor --from-exporters http://gpu-001:9420,http://gpu-002:9420     (or a file, a URL a line)
  srun -N 256 sh -c 'exaserve doctor --json > results/$(hostname).json' ; exaserve doctor --from-json results/

\b
Verdicts: ok; warn: serves, but slower or at a risk; fail: will not serve right; not here: nothing of this kind on
the machine; unknown: could not be read (root sees more). Below each row that is not ok stands its cure.
Exit code: 0 nothing failed (warnings allowed), 1 something failed or a node gave no result, 2 wrong usage.
"""


@app.callback(invoke_without_command=True, epilog=_EPILOG)
def doctor(
    only: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="Run this check; again for each.")
    ] = None,
    skip: Annotated[list[str] | None, typer.Option(metavar="CHECK", help="Leave this check out.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Name the checks and end.")] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Print JSON, for programs and for --from-json.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only rows that need somebody.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="exaserve.yaml to check against. Default: ./exaserve.yaml if it is there."
        ),
    ] = None,
    mount: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER", help="Also measure the storage of this folder; again for each."),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Also measure the way to this peer; again for each."),
    ] = None,
    numa_map: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the NUMA map (JSON) to this file.")
    ] = None,
    min_link_gbps: Annotated[
        float, typer.Option(metavar="N", min=0, help="Gb/s that a fabric port must have.")
    ] = 35.0,
    max_storage_ms: Annotated[
        float, typer.Option(metavar="N", min=0.001, help="Milliseconds that a small read may take.")
    ] = 2.0,
    time_factor: Annotated[
        float, typer.Option(metavar="N", min=0.1, max=100, help="Multiplies the time limit of each check.")
    ] = 1.0,
    nodes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ask these hosts through ssh and compare them.")
    ] = None,
    remote_command: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="What ssh runs on each host; prints the JSON.")
    ] = None,
    parallel: Annotated[
        int, typer.Option(metavar="N", min=1, max=256, help="Hosts that are asked at the same time.")
    ] = 32,
    timeout: Annotated[
        float,
        typer.Option(metavar="N", min=1, max=3600, help="Seconds for one host, or for one exporter's page."),
    ] = 60.0,
    from_exporters: Annotated[
        str | None,
        typer.Option(metavar="URL,…|FILE", help="Compare nodes by the pages of their exporters."),
    ] = None,
    from_json: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE|FOLDER", help="Compare results that --json wrote; again for each."),
    ] = None,
    sysfs: Annotated[
        Path | None,
        typer.Option(
            "--path.sysfs", metavar="FOLDER", help="Default: exporter.sysfs of exaserve.yaml, or /sys."
        ),
    ] = None,
    procfs: Annotated[
        Path | None,
        typer.Option(
            "--path.procfs", metavar="FOLDER", help="Default: exporter.procfs of exaserve.yaml, or /proc."
        ),
    ] = None,
) -> None:
    """Is this node, or are these nodes, fit to serve? Looks, measures, says what to do. Changes nothing.

    InfiniBand and RoCE ports, MTU, NCCL's interface, GPUs and drivers, versions, NUMA, storage (latency, space, stuck
    mounts), limits, memory settings, clock, ports. Needs neither root nor any of the hardware. A check that hangs is
    cut after its time and costs the others nothing.
    """
    from exporters.doctor import check, gather, run
    from exporters.doctor import config as configuration
    from exporters.settings import Settings

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or a pipe of another encoding shows ? for what it lacks.
            stream.reconfigure(errors="replace")
    checks = run.load()
    for name in [*(only or ()), *(skip or ())]:
        if name not in checks:
            _usage(f"there is no check {name!r}; there are: {', '.join(checks)}")
    if list_:
        width = max(map(len, checks))
        for c in checks.values():
            typer.echo(f"{c.name:<{width}}  {c.help}")
        return
    many = [name for name, given in (
        ("--nodes", nodes), ("--from-exporters", from_exporters), ("--from-json", from_json)
    ) if given is not None and given != []]  # fmt: skip
    if len(many) > 1:
        _usage(f"{' and '.join(many)} don't go together")
    if many and numa_map:
        _usage(f"--numa-map is written by the node itself, not with {many[0]}")
    if many:
        options = [f"--only={name}" for name in only or ()] + [f"--skip={name}" for name in skip or ()]
        options += [f"--mount={name}" for name in mount or ()] + [f"--peer={name}" for name in peer or ()]
        options += [f"--config={config}"] if config else []
        options += [f"--min-link-gbps={min_link_gbps:g}", f"--max-storage-ms={max_storage_ms:g}"]
        options += [f"--time-factor={time_factor:g}"]
        command = remote_command or gather.remote_command(options)
        names = {name for name in checks if (not only or name in only) and name not in (skip or ())}
        limits = check.Limits(min_link_gbps * 1e9, max_storage_ms / 1e3)
        asked = _Asked(nodes, from_exporters, from_json or [], command, timeout, parallel, limits)
        _fleet(asked, names, json_, quiet)
        return
    try:
        data = configuration.read(config)
    except ValueError as error:
        _usage(str(error))
    section = data.get("exporter")
    section = section if isinstance(section, dict) else {}
    settings = Settings(
        sysfs=sysfs or Path(str(section.get("sysfs") or "/sys")),
        procfs=procfs or Path(str(section.get("procfs") or "/proc")),
        run_folder=configuration.run_folder(os.environ),
        mounts=tuple([*_strings(section.get("mounts")), *(mount or ())]),
        peers=tuple([*_strings(section.get("peers")), *(peer or ())]),
    )
    limits = check.Limits(min_link_gbps * 1e9, max_storage_ms / 1e3)
    node = check.Node(settings, data, dict(os.environ), configuration.home(os.environ), limits)
    chosen = [c for name, c in checks.items() if (not only or name in only) and name not in (skip or ())]
    if not chosen:
        _usage("no check is left; --list names them")
    _one(node, chosen, time_factor, numa_map, json_, quiet)


def _one(
    node: Node, chosen: list[Check], factor: float, numa_file: Path | None, as_json: bool, quiet: bool
) -> None:
    from exporters.doctor import run
    from exporters.doctor.config import node_name
    from exporters.doctor.result import NodeResult, to_json
    from exporters.doctor.table import Table

    if numa_file is not None:
        _write_numa_map(numa_file, node)
    result = NodeResult(node_name(), tuple(run.run(chosen, node, factor)), time=time.time())
    if as_json:
        typer.echo(json.dumps(to_json(result)))
    else:
        typer.echo(Table(colour=_colour()).node(result, quiet))
    raise typer.Exit(1 if result.failed else 0)


class _Asked(NamedTuple):
    """Where results of nodes come from: exactly one of the first three is given."""

    nodes: Path | None
    from_exporters: str | None
    from_json: list[Path]
    command: str
    seconds: float
    parallel: int
    limits: Limits


def _fleet(asked: _Asked, names: set[str], as_json: bool, quiet: bool) -> None:
    from dataclasses import asdict, replace

    from exporters.doctor import compare, gather, hosts, pages
    from exporters.doctor.result import to_json
    from exporters.doctor.table import Table

    try:
        if asked.nodes is not None:
            every = hosts.read(asked.nodes)
            results = gather.by_ssh(
                every, asked.command, asked.seconds, asked.parallel, os.environ, _progress
            )
        elif asked.from_exporters is not None:
            results = pages.read(
                pages.addresses(asked.from_exporters), asked.seconds, asked.parallel, asked.limits
            )
        else:
            results = gather.from_files(asked.from_json)
    except ValueError as error:
        _usage(str(error))
    results = [replace(r, findings=tuple(f for f in r.findings if f.check in names)) for r in results]
    compared, troubles = compare.compare(results), compare.troubles(results)
    if as_json:
        answer = {
            "exaserve_doctor_fleet": 1,
            "nodes": [to_json(r) | {"problem": r.problem} for r in results],
            "compared": [asdict(c) for c in compared],
            "troubles": [asdict(t) for t in troubles],
        }
        typer.echo(json.dumps(answer))
    else:
        typer.echo(Table(colour=_colour()).fleet(results, compared, troubles, quiet))
    failed = any(r.failed for r in results) or any(c.verdict == "fail" for c in compared)
    raise typer.Exit(1 if failed else 0)


def _progress(result: NodeResult) -> None:
    """A line a host on standard error where somebody looks."""
    if sys.stderr.isatty():
        typer.echo(f"{result.node}: {result.problem or 'has answered'}", err=True)


def _write_numa_map(file: Path, node: Node) -> None:
    from exporters.doctor.checks.numa import numa_map

    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(numa_map(node), indent=2) + "\n")
        os.replace(temporary, file)
    except OSError as error:
        with contextlib.suppress(OSError):  # a folder that we may not even enter
            temporary.unlink()
        _usage(f"--numa-map: {file}: {error.strerror}")


def _strings(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _usage(problem: str) -> NoReturn:
    typer.echo(f"{problem}\nsee `exaserve doctor --help`", err=True)
    raise typer.Exit(2)
