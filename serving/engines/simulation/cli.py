"""``exaserve simulate-replicas``: many simulated replicas in one process, and profiles for them.

Only the command line; the work is in ``replicas.py`` and ``measure.py``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from .profile import Profile

_HELP = """Replicas without a model, for scale and for faults: one process, a port each.

They speak vLLM's OpenAI server, queue, batch, fill their KV cache, hit their prefix cache and show it all under
vLLM's metric names, in the time that a profile says.

\b
  exaserve simulate-replicas --count 384 --port 20000 --list replicas.txt
  exaserve simulate-replicas --count 3 --json        # free ports, told as JSON
  exaserve router --replica sim-0=http://127.0.0.1:20000 …
  curl -d '{"kind":"freeze","seconds":30}' http://127.0.0.1:19999/replicas/sim-1/fault   # with --control-port 19999
  curl -d '{"kind":"fast_503","probability":0.5}' http://127.0.0.1:20000/_sim/fault

\b
Faults: none, slow {factor}, error {status, probability}, too_many_requests {retry_after, probability},
fast_503 {probability}, stuck (takes requests, answers none), freeze (answers nothing at all), refuse (port
closed), reset_idle {after}, leak {mib_per_second, limit_mib}, die_mid_stream and reset {after_tokens,
probability}; each with {seconds}.
At /replicas/NAME/fault NAME may be a pattern: sim-1*.

\b
A profile is a YAML file with units in its keys; `exaserve simulate-replicas profile` measures one from a
running vLLM. Bundled: cpu-smollm2-135m-float32 (measured) and gpu-8b-not-measured (plausible, NOT measured)."""

app = typer.Typer(help=_HELP, add_completion=False, invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def simulate(
    context: typer.Context,
    count: Annotated[int, typer.Option(min=1, max=16_384, help="Replicas.")] = 2,
    profile: Annotated[
        str, typer.Option(help="What they are like: a bundled profile's name or a YAML file.")
    ] = "cpu-smollm2-135m-float32",
    host: Annotated[str, typer.Option(help="Address that they listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of sim-0, the others follow; 0: free ones.")
    ] = 0,
    control_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of /replicas, on 127.0.0.1; 0: a free one.")
    ] = 0,
    model: Annotated[
        str | None, typer.Option(help="The name that clients ask for [default: the profile's].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of answers and jitter.")] = 0,
    list_: Annotated[
        Path | None, typer.Option("--list", help="Write name=URL lines into this file once all are up.")
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Say where they are as one line of JSON, nothing else.")
    ] = False,
) -> None:
    if context.invoked_subcommand is not None:
        return
    from .profile import ProfileError, load

    if port and port + count - 1 > 65_535:
        _end(f"--port {port} leaves no room for {count} replicas: ports end at 65535", 2)
    try:
        loaded = load(profile)
    except ProfileError as error:
        _end(f"--profile: {error}", 2)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(loaded, count, host, port, control_port, model, seed, list_, json_))


async def _serve(
    profile: Profile,
    count: int,
    host: str,
    port: int,
    control_port: int,
    model: str | None,
    seed: int,
    list_: Path | None,
    json_: bool,
) -> None:
    from . import replicas
    from .control import Control
    from .server import Shared

    began = time.monotonic()
    shared = Shared(profile, model or profile.model, seed, faults=True)
    counter = sys.stderr.isatty() and not json_

    def progress(started: int) -> None:
        if counter:
            sys.stderr.write(f"\r{started} of {count} replicas" + ("\n" if started == count else ""))

    try:
        running = await replicas.start(shared, count, host, port, progress)
        control = Control(running, shared.connections)
        try:
            listener = await asyncio.get_running_loop().create_server(
                control.protocol, "127.0.0.1", control_port
            )
        except OSError as error:
            raise replicas.CannotStart(
                f"can't listen on 127.0.0.1:{control_port}: {error.strerror or error}; give another --control-port"
            ) from None
        if list_ is not None:
            try:
                replicas.write_list(list_, running)
            except OSError as error:
                raise replicas.CannotStart(f"--list {list_}: {error.strerror or error}") from None
    except replicas.CannotStart as error:
        _end(str(error), 1)
    address = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    if json_:
        found = {
            "control": address,
            "model": shared.model,
            "replicas": [{"name": r.name, "url": r.url} for r in running],
        }
        typer.echo(json.dumps(found))
    else:
        typer.echo(f"profile: {replicas.told(profile)}")
        shown = running if count <= 8 else [*running[:3], running[-1]]
        for replica in shown:
            typer.echo(f"{'…  ' if count > 8 and replica is running[-1] else ''}{replica.name}={replica.url}")
        typer.echo(
            f"{count} replicas of {shared.model} up in {time.monotonic() - began:.1f} s; control: {address}/replicas; "
            "Ctrl-C ends them"
        )
    await replicas.until_told_to_end()
    listener.close()
    await replicas.stop(running, shared)


@app.command("profile")
def measure_profile(
    url: Annotated[str, typer.Option(help="A running vLLM, with nobody else asking it.")],
    out: Annotated[Path, typer.Option(help="The YAML file to write.")],
    model: Annotated[str | None, typer.Option(help="Model name [default: the first of /v1/models].")] = None,
    max_num_seqs: Annotated[
        int, typer.Option(min=1, max=4096, help="The engine's --max-num-seqs; it does not tell.")
    ] = 16,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=16, max=2**20, help="The engine's --max-num-batched-tokens; it does not tell.")
    ] = 256,
    description: Annotated[str, typer.Option(help="What it is: model, precision, machine.")] = "",
    seconds: Annotated[float, typer.Option(min=5, max=600, help="About how long to measure.")] = 60.0,
) -> None:
    """Measure a profile from a running vLLM: prefill at several lengths, decode at several batch sizes.

    Take an idle replica on an idle machine; what disturbs it gets into the numbers.

    \b
    exaserve simulate-replicas profile --url http://127.0.0.1:8100 --out mine.yaml
    exaserve simulate-replicas --profile mine.yaml
    """
    from .measure import CannotMeasure, measure
    from .profile import dump

    def progress(text: str) -> None:
        typer.echo(text, err=True)

    try:
        found = asyncio.run(
            measure(url, model, max_num_seqs, max_num_batched_tokens, description, seconds, progress)
        )
        out.write_text(dump(found))
    except CannotMeasure as error:
        _end(str(error), 1)
    except OSError as error:
        _end(f"--out {out}: {error.strerror or error}", 1)
    typer.echo(f"{out} written")


def _end(message: str, status: int) -> None:
    typer.echo(f"exaserve simulate-replicas: {message}", err=True)
    raise typer.Exit(status)
