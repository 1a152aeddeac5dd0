"""``exaserve plan``: options, messages and exit statuses. The work is in the modules beside this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NoReturn

import typer

#: Tokens of a request and requests at once where nothing is said: a chat with some history, a modest batch.
_TOKENS, _REQUESTS = 8192, 32
#: vLLM's --max-num-batched-tokens where nothing is said (0.32, online serving).
_STEP = 8192


def plan(
    model: Annotated[
        str | None,
        typer.Option(metavar="FOLDER|CONFIG|NAME", help="With a config.json; or a bundled shape's name."),
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="Like H100-80G; --list shows them.")] = None,
    gpu_count_per_node: Annotated[int, typer.Option(min=1, max=1024, help="GPUs of a node.")] = 8,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Nodes that a cluster has [default: enough].")
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="Of weights: auto (as the checkpoint), float32, bfloat16, float16, fp8, int8, int4, mxfp4."
        ),
    ] = "auto",
    kv_dtype: Annotated[
        str, typer.Option(help="Of the KV cache: auto, float32, bfloat16, float16, fp8.")
    ] = "auto",
    context: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000_000, help=f"Tokens of a request [default: the model's, at most {_TOKENS}]."
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Requests at once on a replica.")
    ] = _REQUESTS,
    tp: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Tensor-parallel GPUs [default: fewest].")
    ] = None,
    pp: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Pipeline stages [default: fewest].")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, max=2**24, help=f"As given to vLLM [default: {_STEP}, the context if that is less]."
        ),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(min=1, max=65_536, help="Tokens of a KV block [default: vLLM's: 16, on CPU 128]."),
    ] = None,
    kv_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="What vLLM is given with --kv-cache-memory-bytes, like 256M."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of a GPU, instead of the table's, like 94G.")
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Folder of a load test's run, for --rate.")] = None,
    run_replicas: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Replicas in that run [default: those that it saw]."),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second that the fleet has to take.")] = None,
    slo: Annotated[
        str, typer.Option(metavar="ttft=1s,…", help="Objectives [default: those of the run].")
    ] = "",
    attainment: Annotated[float, typer.Option(min=0.01, max=1, help="Share that has to meet them.")] = 0.99,
    headroom: Annotated[
        float, typer.Option(min=1, max=10, help="More than was measured, as a factor.")
    ] = 1.25,
    spare: Annotated[int, typer.Option(min=0, max=1000, help="Replicas that may be down.")] = 1,
    explain: Annotated[bool, typer.Option("--explain", help="Each number with its formula.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="JSON, with all formulas.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Bundled shapes and GPUs.")] = False,
) -> None:
    """How many GPUs a model needs, how they are divided, how many replicas a rate takes. Starts nothing.

    \b
      exaserve plan --list
      exaserve plan --model llama-3.1-70b --gpu H100-80G --context 8192 --concurrency 64 --explain
      exaserve plan --model /models/mine --gpu L40S-48G --precision int4 --json
      exaserve plan --model deepseek-v3 --gpu H200-141G --gpu-count-per-node 8 --nodes 16
      exaserve plan --model smollm2-135m --gpu CPU --precision float32 --kv-memory 256M --context 1024
      exaserve plan --model llama-3.1-8b --gpu H100-80G --run RUN --rate 40 --slo ttft=1s,tpot=50ms

    \b
    Memory: 1.3 × (weights + activations + CUDA graphs + framework + NCCL + KV cache of the requests at once).
    Ladder: L0 several replicas share a GPU, L1 one GPU, L2 tensor parallel in a node, L3 pipeline parallel across
    nodes, L4 replicas on several nodes, L5 several clusters; each with the reason why the one below is not enough.
    Keys of config.json that are not known are named; an architecture that is not known is refused, never guessed.

    \b
    Exit status: 0 there is a plan, 1 it does not fit as asked (--tp, --pp, --kv-memory, --nodes), 2 wrong usage, or
    nothing can be said.
    """
    from . import ladder, measured, show
    from . import memory as accounts
    from . import shape as shapes
    from .number import PlanError, size

    if list_:
        _list()
        return
    if model is None or gpu is None:
        _end(f"give --{'model' if model is None else 'gpu'}; --list shows what there is")
    if (run is None) != (rate is None):
        _end("--run and --rate belong together: what was measured, and what is wanted")
    if rate is not None and not 0 < rate < 1e9:
        _end(f"--rate {rate:g}: requests a second above 0")
    try:
        shape = shapes.load(model)
        on = accounts.gpu(gpu, memory)
        if on.cpu and kv_memory is None and memory is None:
            _end("--gpu CPU: give --kv-memory as vLLM gets it, or --memory of the machine")
        longest = shape.positions or 2**40
        tokens = context or min(longest, _TOKENS)
        if tokens > longest:
            _end(f"--context {tokens}: the model ends at {longest} (max_position_embeddings)")
        asked = accounts.Asked(
            precision,
            kv_dtype,
            tokens,
            concurrency,
            max_num_batched_tokens or min(_STEP, tokens),
            block_size or on.block,
            size(kv_memory, "--kv-memory") if kv_memory else None,
        )
        found = ladder.replica(shape, on, asked, gpu_count_per_node, tp, pp)
        rates = None
        if run is not None and rate is not None:
            objectives = measured.parse_slo(slo)
            rates = measured.from_run(run, rate, objectives, attainment, run_replicas, headroom, spare)
        fleet = ladder.fleet(found, int(rates.replicas.value) if rates else None, nodes)
    except PlanError as error:
        _end(str(error))
    notes = []
    if shape.unknown:
        notes.append(f"not known here, taken as without effect on memory: {', '.join(shape.unknown)}")
    if context is None:
        notes.append(f"--context {tokens:,} was assumed")
    kv = accounts.kv_dtype(shape, asked)
    made = show.Plan(shape, on, asked, gpu_count_per_node, kv, found, fleet, rates, tuple(notes))
    if json_:
        typer.echo(json.dumps(show.plain(made)))
    else:
        from rich.console import Console

        show.show(made, Console(), explain)
    raise typer.Exit(0 if found.account.fits and all(s.enough is not False for s in fleet[:1]) else 1)


def _list() -> None:
    from . import memory, shape, weights

    typer.echo("shapes (public models' config.json; --model also takes a folder or a file):")
    for name in shape.bundled():
        made = shape.load(name)
        typer.echo(
            f"  {name:20} {made.architecture:22} {weights.parameters(made) / 1e9:8.2f} billion parameters"
        )
    typer.echo("GPUs (GiB, GB/s of memory, GB/s between GPUs of a node):")
    for name, gpu in memory.gpus().items():
        if not gpu.cpu:
            told = f"{gpu.memory / 2**30:7.1f} {gpu.bandwidth / 1e9:6.0f} {gpu.link / 1e9:5.0f}"
            typer.echo(f"  {name:20} {told}")
    typer.echo("  CPU                  with --kv-memory or --memory")


def _end(message: str) -> NoReturn:
    typer.echo(f"{message}\nsee `exaserve plan --help`", err=True)
    raise typer.Exit(2)
