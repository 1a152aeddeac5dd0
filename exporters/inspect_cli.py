"""``exaserve inspect``: the command line. What is gathered and what it means is in ``exporters/inspection/``."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from exporters.inspection.advice import Finding
    from exporters.inspection.gather import Process

app = typer.Typer(add_completion=False, rich_markup_mode=None, subcommand_metavar="")

_EPILOG = """
\b
Examples:
  exaserve inspect replica-0
  sudo exaserve inspect 12345 --native
  exaserve inspect replica-0 --json > inspect.json

\b
Stacks need the right to trace the process: root, or its own user where kernel.yama.ptrace_scope is 0; in a container
the capability SYS_PTRACE. Everything else needs less. The process stops for some milliseconds while its stacks are
read; values of variables are not read.
"""

#: Places of threads that are shown of each process.
_PLACES = 8


@app.callback(
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={"allow_interspersed_args": True},  # options may follow the process
)
def inspect(
    target: Annotated[
        str, typer.Argument(metavar="PID|REPLICA", help="A process, or a replica by its name.")
    ],
    timeout: Annotated[float, typer.Option(min=1, max=300, help="Seconds that it may take.")] = 15.0,
    native: Annotated[
        bool, typer.Option("--native", help="With the frames of C libraries; slower, and needs more rights.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
    procfs: Annotated[
        Path, typer.Option("--path.procfs", metavar="DIR", help="Where proc is mounted.", hidden=True)
    ] = Path("/proc"),
) -> None:
    """Show what a process and its children are doing now, and what to look at next."""
    from exporters.doctor.config import run_folder
    from exporters.doctor.files import printable
    from exporters.inspection.advice import advice
    from exporters.inspection.gather import gather, pids_of
    from exporters.settings import Settings

    settings = Settings(procfs=procfs, run_folder=run_folder(os.environ))
    try:
        pids = pids_of(settings, target)
    except LookupError as error:
        typer.echo(error.args[0], err=True)
        raise typer.Exit(1) from None
    processes = gather(settings, pids, timeout, native)
    if not processes:
        typer.echo(f"{target} has ended", err=True)
        raise typer.Exit(1)
    findings = advice(processes)
    if json_:
        told = {"processes": [asdict(p) for p in processes], "findings": [asdict(f) for f in findings]}
        typer.echo(json.dumps(told, indent=1))
    else:
        # Names are the processes' own: they must not move the cursor of whoever looks.
        typer.echo("\n".join(printable(line) for line in _text(processes, findings)))
    if all(p.problem for p in processes):
        raise typer.Exit(1)


def _text(processes: list[Process], findings: list[Finding]) -> list[str]:
    lines: list[str] = []
    for p in processes:
        lines.append(
            f"{p.pid} {p.command}: {_size(p.resident)} resident, {_size(p.private)} its own,"
            f" {_size(p.gpu_memory)} on GPUs, {_or(p.threads_total)} threads,"
            f" {_or(p.fds)} of {_or(p.fd_limit)} files"
        )
        if p.problem:
            lines.append(f"  {p.problem}")
        places = Counter((t.what, t.at, t.busy) for t in p.threads)
        examples = {(t.what, t.at, t.busy): t for t in reversed(p.threads)}
        # Busy ones first, then those that wait for something rarer than work.
        order = sorted(places, key=lambda key: (not key[2], examples[key].idle, -places[key]))
        for key in order[:_PLACES]:
            thread, count = examples[key], places[key]
            name = thread.name or str(thread.tid)
            who = name if count == 1 else f"{name} and {count - 1} more"
            does = f"{key[0]}, {thread.cpu:.0%} CPU" if thread.busy else f"waits: {key[0]}"
            if not thread.busy and key[0] == "running":
                does = "running"
            lines.append(f"  {who:<28} {does:<24} {key[1]}{'  [GIL]' if thread.holds_gil else ''}")
        if len(order) > _PLACES:
            lines.append(f"  … {sum(places[k] for k in order[_PLACES:])} more threads; --json shows all")
    lines.append("")
    if not findings:
        lines.append("Nothing stands out.")
    for f in findings:
        lines += [f"{f.pid}: {f.seen}", f"  -> {f.look}"]
    return lines


def _size(size: int | None) -> str:
    if size is None:
        return "?"
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _or(value: int | None) -> str:
    return "?" if value is None else str(value)
