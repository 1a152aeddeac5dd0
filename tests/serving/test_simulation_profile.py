"""Profiles of simulated replicas: reading, writing, the tables' lines; measuring one of a replica that is known."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from serving.engines.simulation.measure import CannotMeasure, measure
from serving.engines.simulation.profile import Profile, ProfileError, Times, bundled, dump, load, simple

from .replica_client import simulated

LEAST = "decode_step_ms: {1: 10}\nprefill_step_ms: {1: 10, 101: 20}\n"


def written(folder: Path, text: str) -> str:
    path = folder / "profile.yaml"
    path.write_text(text)
    return str(path)


def test_bundled_profiles_say_whether_they_were_measured() -> None:
    found = bundled()
    assert set(found) == {"cpu-smollm2-135m-float32", "gpu-8b-not-measured"}
    assert found["cpu-smollm2-135m-float32"].measured
    assert not found["gpu-8b-not-measured"].measured


def test_between_the_points_lies_a_line_and_beyond_them_the_last_goes_on(tmp_path: Path) -> None:
    text = "base_step_ms: 5\nmax_num_seqs: 8\nmax_num_batched_tokens: 201\n"
    text += "decode_step_ms: {1: 10, 3: 14, 5: 20}\nprefill_step_ms: {1: 10, 101: 20}\n"
    times = Times(load(written(tmp_path, text)))
    assert [round(x * 1e3, 6) for x in times.decode] == [5, 10, 12, 14, 17, 20, 23, 26, 29]
    assert [round(times.prefill[p] * 1e3, 6) for p in (0, 1, 51, 101, 201)] == [0, 5, 10, 15, 25]


def test_a_simple_replica_has_one_rate_for_answers_and_one_for_prompts() -> None:
    times = Times(simple(50, 5000))
    assert [round(x * 1e3, 6) for x in times.decode[:3]] == [0, 20, 20]
    assert [round(x * 1e3, 6) for x in (times.prefill[1], times.prefill[2048])] == [0.2, 409.6]


def test_what_is_written_reads_back_the_same(tmp_path: Path) -> None:
    profile = Profile(
        description='with "quotes" # and a sign',
        decode_step_ms={1: 8.5, 16: 20.0},
        prefill_step_ms={1: 8.25, 256: 90.0},
        jitter=0.05,
        prefix_caching=False,
    )
    assert load(written(tmp_path, dump(profile))) == profile


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expected `object`"),
        ("decode_step_ms: {1: 10}\n", "missing required field `prefill_step_ms`"),
        (LEAST + "block: 3\n", r":3: .*unknown field `block`"),
        (LEAST + "jitter: 3\n", r":3: .*<= 1.*jitter"),
        (LEAST + "max_num_seqs: many\n", r":3: .*Expected `int`.*max_num_seqs"),
        ("decode_step_ms: {1: fast}\nprefill_step_ms: {1: 10}\n", r":1: .*Expected `float`.*decode_step_ms"),
        ("decode_step_ms: {}\nprefill_step_ms: {1: 10}\n", r":1: .*length >= 1"),
        (LEAST + "base_step_ms: 11\n", r":3: base_step_ms is 11, .*only 10"),
        (LEAST + "kv_blocks: 10\n", r":3: kv_blocks: 10 .*at least 65 are needed"),
        (
            "decode_step_ms: {1: 0}\nprefill_step_ms: {1: 10}\n",
            r":1: decode_step_ms: a step that takes no time",
        ),
        ("a: [\n", r":2: not YAML"),
        ("a" * 70_000, "larger than 65536 bytes"),
    ],
)
def test_a_bad_profile_is_told_by_line_and_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        load(written(tmp_path, text))


def test_a_profile_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(
        ProfileError, match=r"no profile nope: bundled ones are cpu-smollm2-135m-float32, gpu"
    ):
        load("nope")
    with pytest.raises(ProfileError, match="No such file"):
        load(str(tmp_path / "nope.yaml"))
    with pytest.raises(ProfileError, match="Is a directory"):
        load(str(tmp_path))


def test_a_measured_profile_is_that_of_the_replica() -> None:
    """Limits exactly; times can only come out longer, by as much as this machine is busy.

    Unless it stands still while answers come: those of that moment then are there all at once, and it is measured again.
    """
    given = ("--tokens-per-second", "100", "--prefill-tokens-per-second", "10000", "--max-num-seqs", "4")
    said: list[str] = []
    with simulated(*given, "--max-num-batched-tokens", "128") as (client, _):
        for _ in range(4):
            found = asyncio.run(measure(str(client.base_url), None, 4, 128, "a test", 5.0, said.append))
            if min(found.decode_step_ms.values()) >= 9.5:
                break
    assert (found.model, found.max_model_len, found.kv_blocks, found.block_size) == (
        "smollm2-135m",
        1024,
        728,
        16,
    )
    assert (found.max_num_seqs, found.max_num_batched_tokens, found.description) == (4, 128, "a test")
    assert set(found.decode_step_ms) == {1, 2, 4}
    assert all(ms >= 9.5 for ms in found.decode_step_ms.values())
    assert found.prefill_step_ms[128] >= 12
    assert any("prefill, 128 tokens" in line for line in said)


def test_what_is_no_vllm_is_not_measured() -> None:
    with pytest.raises(CannotMeasure, match=r"Connect call failed|refused"):
        asyncio.run(measure("http://127.0.0.1:9", None, 4, 128))
    with pytest.raises(CannotMeasure, match="is no http:// or https:// address"):
        asyncio.run(measure("127.0.0.1:9", None, 4, 128))
