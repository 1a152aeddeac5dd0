"""What a simulated replica is like: its limits and how long its steps take, read from a YAML file.

Bundled ones lie in ``profiles/``; ``measure.py`` makes one from a running engine. What the numbers do is in
``scheduler.py``. A step that computes p prompt tokens beside n decoding requests takes

    decode_step_ms[n] + (prefill_step_ms[p] - base_step_ms)

(just the prefill step if nobody decodes), and a little more for long contexts; between the points of the
tables lies a straight line, beyond them the last one goes on.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec

_FOLDER = Path(__file__).parent / "profiles"
_MAX_BYTES = 64 * 1024
Count = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Microseconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Table = Annotated[
    dict[Annotated[int, msgspec.Meta(ge=1)], Milliseconds], msgspec.Meta(min_length=1, max_length=64)
]


class ProfileError(Exception):
    """The profile can't be used; the message names file, line where it is known, key and cure."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of replica.

    measured: on what, with what; empty says that nobody measured it.
    max_num_seqs: requests in one batch. max_num_batched_tokens: tokens of one step (a longer prompt is computed
    in pieces). kv_blocks: in all; as in vLLM one of them is never used. block_size: tokens a block.
    request_ms, request_token_us: from a request's last byte until the engine can take it (HTTP, tokeniser,
    the way between processes), and the same for every prompt token.
    decode_step_ms: decoding requests -> a step with no prompt in it. prefill_step_ms: prompt tokens -> a step
    with nobody decoding. base_step_ms: the share of either that a step with both has only once.
    decode_context_us: for every token in the decoding requests' KV cache. prefill_context_us: for every
    thousand pairs of a prompt token and a token before its piece of the prompt.
    jitter: standard deviation of a step's time as a share of it.
    """

    description: str = ""
    measured: str = ""
    model: str = "smollm2-135m"
    max_model_len: Count = 1024
    max_num_seqs: Count = 16
    max_num_batched_tokens: Count = 2048
    kv_blocks: Count = 728
    block_size: Count = 16
    prefix_caching: bool = True
    request_ms: Milliseconds = 0.0
    request_token_us: Microseconds = 0.0
    base_step_ms: Milliseconds = 0.0
    decode_step_ms: Table
    decode_context_us: Microseconds = 0.0
    prefill_step_ms: Table
    prefill_context_us: Microseconds = 0.0
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0

    def check(self) -> None:
        """Raises ProfileError for what no engine could be."""
        needed = -(-self.max_model_len // self.block_size) + 1
        if self.kv_blocks < needed:
            raise ProfileError(
                f"kv_blocks: {self.kv_blocks} KV blocks of {self.block_size} tokens can't hold one request of "
                f"{self.max_model_len} tokens; at least {needed} are needed"
            )
        for name in ("decode_step_ms", "prefill_step_ms"):
            least = min(getattr(self, name).values())
            if self.base_step_ms > least:
                raise ProfileError(
                    f"base_step_ms is {self.base_step_ms:g}, but a step of {name} takes only {least:g}: it is the part "
                    "that both kinds of step contain, so lower it"
                )
            if max(getattr(self, name).values()) <= 0:
                raise ProfileError(f"{name}: a step that takes no time; give at least one above 0")


class Times:
    """A profile's tables in seconds, ready to be added up; shared by all replicas of the profile.

    decode[n], n from 0 to max_num_seqs: a step in which n requests decode; decode[0] is what a step with none
    has in common with it. prefill[p], p from 0 to max_num_batched_tokens: what p prompt tokens add.
    """

    __slots__ = (
        "decode",
        "decode_context",
        "jitter",
        "prefill",
        "prefill_context",
        "request",
        "request_token",
    )

    def __init__(self, profile: Profile) -> None:
        base = profile.base_step_ms / 1e3
        self.decode = [base, *_line(profile.decode_step_ms, profile.max_num_seqs, None)]
        steps = _line(profile.prefill_step_ms, profile.max_num_batched_tokens, profile.base_step_ms)
        self.prefill = [0.0, *(max(0.0, step - base) for step in steps)]
        self.decode_context = profile.decode_context_us / 1e6
        self.prefill_context = profile.prefill_context_us / 1e9
        self.request = profile.request_ms / 1e3
        self.request_token = profile.request_token_us / 1e6
        self.jitter = profile.jitter


def _line(table: dict[int, float], last: int, zero: float | None) -> list[float]:
    """Seconds at 1 … ``last`` from milliseconds at some points. zero: the value at 0; None: as at the first point."""
    points = sorted(table.items())
    if points[0][0] > 1 or zero is not None:
        points.insert(0, (0, points[0][1] if zero is None else zero))
    if len(points) == 1:
        points.append((points[0][0] + 1, points[0][1]))
    found = []
    places = [x for x, _ in points]
    for x in range(1, last + 1):
        i = min(max(bisect_left(places, x), 1), len(points) - 1)
        (x0, y0), (x1, y1) = points[i - 1], points[i]
        found.append(max(0.0, y0 + (y1 - y0) * (x - x0) / (x1 - x0)) / 1e3)
    return found


def bundled() -> dict[str, Profile]:
    """The profiles that come with ExaServe, by name."""
    return {path.stem: load(str(path)) for path in sorted(_FOLDER.glob("*.yaml"))}


def load(name: str) -> Profile:
    """A profile by the name of a bundled one or by its file. Raises ProfileError."""
    path = _FOLDER / f"{name}.yaml" if re.fullmatch(r"[a-z0-9-]+", name) else Path(name)
    if not path.is_file() and path.parent == _FOLDER:
        there = ", ".join(sorted(p.stem for p in _FOLDER.glob("*.yaml")))
        if not (path := Path(name)).is_file():
            raise ProfileError(f"no profile {name}: bundled ones are {there}; or give a file")
    data, lines = _read(path)
    try:
        profile = msgspec.convert(data, Profile)
        profile.check()
    except (msgspec.ValidationError, ProfileError) as error:
        said = str(error)
        key = _key(said)
        raise ProfileError(f"{path}{f':{lines[key]}' if key in lines else ''}: {said}") from None
    return profile


def _read(path: Path) -> tuple[Any, dict[str, int]]:
    """The file's data and the line (from 1) of each key at its top. Raises ProfileError.

    ``serving/yamlfile.py`` is for configurations, whose keys are text; here tables have numbers for keys.
    """
    import yaml

    try:
        with path.open("rb") as f:
            text = f.read(_MAX_BYTES + 1).decode()
        if len(text) > _MAX_BYTES:
            raise ProfileError(f"{path}: larger than {_MAX_BYTES} bytes; that is no profile")
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        lines = {str(key.value): key.start_mark.line + 1 for key, _ in pairs}
        return loader.construct_document(node) if node else None, lines
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ProfileError(f"{path}: not UTF-8 text") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        said = getattr(error, "problem", None) or type(error).__name__
        raise ProfileError(f"{path}{f':{mark.line + 1}' if mark else ''}: not YAML: {said}") from None


def _key(message: str) -> str:
    """The key that an error message is about."""
    for pattern in (r"\$\.(\w+)", r"unknown field `([^`]+)`", r"^(\w+)"):
        if found := re.search(pattern, message):
            return found[1]
    return ""


def simple(tokens_per_second: float, prefill_tokens_per_second: float, **more: Any) -> Profile:
    """A replica whose requests decode at one rate however many there are, and whose prompts take what they take
    at another. Raises ProfileError."""
    profile = Profile(
        decode_step_ms={1: 1e3 / tokens_per_second},
        prefill_step_ms={1: 1e3 / prefill_tokens_per_second},
        description="by --tokens-per-second and --prefill-tokens-per-second",
        **more,
    )
    profile.check()
    return profile


def dump(profile: Profile) -> str:
    """The profile as a commented YAML file that ``load`` reads back to the same."""
    notes = {
        "measured": "on what; empty: not measured",
        "max_model_len": "tokens of prompt and answer together",
        "max_num_seqs": "requests in one batch",
        "max_num_batched_tokens": "tokens of one step; a longer prompt is computed in pieces",
        "kv_blocks": "one of them is never used, as in vLLM",
        "block_size": "tokens",
        "request_ms": "front-end: from the request's last byte until the engine can take it",
        "request_token_us": "and for every prompt token",
        "base_step_ms": "what a step that decodes and prefills has only once",
        "decode_step_ms": "requests that decode: a step without a prompt",
        "decode_context_us": "more for every token in the decoding requests' KV cache",
        "prefill_step_ms": "prompt tokens: a step in which nobody decodes",
        "prefill_context_us": "more for every thousand pairs of a prompt token and one before its piece",
        "jitter": "standard deviation of a step, as a share of it",
    }
    lines = ["# A replica for `exaserve simulate-replicas --profile`. ms: milliseconds, us: microseconds."]
    for name in Profile.__struct_fields__:
        value = getattr(profile, name)
        note = f"  # {notes[name]}" if name in notes else ""
        if isinstance(value, dict):
            lines += [f"{name}:{note}", *(f"  {key}: {_number(ms)}" for key, ms in sorted(value.items()))]
        elif isinstance(value, str):
            lines.append(f"{name}: {msgspec.json.encode(value).decode()}{note}")
        else:
            lines.append(f"{name}: {_number(value)}{note}")
    return "\n".join(lines) + "\n"


def _number(value: float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) or math.isinf(value) else str(float(f"{value:.5g}"))


def increasing(table: dict[int, float]) -> dict[int, float]:
    """``table`` with no value below the one before: what noise turned round when it was measured."""
    found = dict(sorted(table.items()))
    for before, after in pairwise(list(found)):
        found[after] = max(found[after], found[before])
    return found
