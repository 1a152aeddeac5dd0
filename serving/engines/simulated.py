"""A simulated vLLM replica: no model, ready in a fraction of a second, for scale and for faults.

``python -m serving.engines.simulated --port 8100 --model NAME``. Speaks vLLM's OpenAI server (chat and text
completions, plain and streamed, embeddings), queues, batches, fills and runs out of KV blocks, and shows all
of that under vLLM's own metric names. Held to a real replica by ``tests/serving/test_engines_real.py``. Its
parts are in ``simulation/``. Many of them in one process: ``exaserve simulate-replicas``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from . import Launch

if TYPE_CHECKING:
    from serving.config import Config

    from .simulation.profile import Profile

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
# What a token of SmolLM2-135M takes in bfloat16: 30 layers, keys and values, 3 heads of 64, 2 bytes.
_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2
_BLOCK_SIZE = 16


class _Parser(argparse.ArgumentParser):
    """Raises ValueError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:  # uvloop would take it modulo 65536
        raise argparse.ArgumentTypeError(f"must be from 0 to 65535, not {value}")
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value


def _parser() -> _Parser:
    parser = _Parser(prog="python -m serving.engines.simulated", description="A simulated vLLM replica.")
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=_port, required=True, help="0 for any free one")
    add("--model", default="smollm2-135m", help="the name that clients ask for")
    add("--tokens-per-second", type=_rate, default=50.0, help="of one request (default 50)")
    add("--prefill-tokens-per-second", type=_rate, default=5000.0, help="of the replica (default 5000)")
    add("--max-num-seqs", type=_positive, default=16, help="requests in one batch; the others wait")
    add("--max-num-batched-tokens", type=_positive, default=2048, help="tokens of one engine step")
    add("--max-model-len", type=_positive, default=1024, help="tokens of prompt and answer together")
    add("--kv-blocks", type=_positive, default=728, help="KV cache blocks; one is never used, as in vLLM")
    add("--block-size", type=_positive, default=_BLOCK_SIZE, help="tokens of one KV block")
    add("--seed", type=int, default=0, help="the same seed and prompt give the same answer")
    add("--faults", action="store_true", help="take faults over POST /_sim/fault, from this machine only")
    return parser


def command(config: Config, index: int, port: int) -> Launch:
    """How to start simulated replica ``index`` on ``port``. engine.args go to this module's command line.

    Raises ValueError, naming the key and the cure, for what it would refuse.
    """
    engine = config.engine
    text = engine.kv_cache_memory
    memory = int(text[:-1]) * _UNITS[text[-1]] if text[-1] in _UNITS else int(text)
    blocks = memory // (_BYTES_PER_TOKEN * _BLOCK_SIZE)
    needed = -(-config.model.max_model_len // _BLOCK_SIZE) + 1
    if blocks < needed:
        least = -(-needed * _BYTES_PER_TOKEN * _BLOCK_SIZE // 2**20)
        raise ValueError(
            f"engine.kv_cache_memory is {text}, but one request of model.max_model_len "
            f"({config.model.max_model_len} tokens) needs {least}M: raise it, or lower model.max_model_len"
        )
    arguments = [
        *("--host", config.fleet.host, "--port", str(port), "--model", config.model.name),
        *("--max-model-len", str(config.model.max_model_len), "--max-num-seqs", str(engine.max_num_seqs)),
        *("--max-num-batched-tokens", str(engine.max_num_batched_tokens), "--kv-blocks", str(blocks)),
        *engine.args,
    ]
    try:
        _parser().parse_args(arguments)
    except ValueError as e:
        raise ValueError(
            f"engine.args: {e}; with engine.kind simulated they go to `python -m serving.engines.simulated`, "
            "see its --help"
        ) from None
    return Launch([sys.executable, "-m", "serving.engines.simulated", *arguments], dict(engine.env))


def _profile(options: argparse.Namespace) -> Profile:
    """The replica that the options describe. Raises ProfileError."""
    from .simulation.profile import simple

    names = ("model", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_blocks", "block_size")
    return simple(
        options.tokens_per_second,
        options.prefill_tokens_per_second,
        **{name: getattr(options, name) for name in names},
    )


async def _serve(options: argparse.Namespace, profile: Profile) -> int:
    from .simulation import replicas
    from .simulation.server import Shared

    shared = Shared(profile, options.model, options.seed, options.faults)
    try:
        [replica] = await replicas.start(shared, 1, options.host, options.port)
    except replicas.CannotStart as e:
        print(e, file=sys.stderr)
        return 1
    print(f"simulated replica of {options.model} on {replica.url}", flush=True)
    await replicas.until_told_to_end()
    await replicas.stop([replica], shared)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Exit status 0, 1 if it can't listen, 2 for bad arguments."""
    from .simulation.profile import ProfileError

    try:
        options = _parser().parse_args(arguments)
        profile = _profile(options)
    except ValueError as e:
        print(f"{e}; see --help", file=sys.stderr)
        return 2
    except ProfileError as e:
        print(f"--{str(e).replace('kv_blocks', 'kv-blocks', 1)}", file=sys.stderr)
        return 2
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(options, profile))


if __name__ == "__main__":
    raise SystemExit(main())
