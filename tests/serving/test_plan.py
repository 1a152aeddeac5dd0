"""``exaserve plan``: the account, the ladder, replicas from a run, and wrong usage. Blocks of the real engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner, Result

from serving.engines import vllm
from serving.plan import ladder, measured, memory, shape
from serving.plan.cli import plan
from serving.plan.number import PlanError
from tests.conftest import exaserve


def asked(*arguments: str) -> Result:
    """The command in this process."""
    app = typer.Typer(rich_markup_mode=None)
    app.command("plan")(plan)
    return CliRunner().invoke(app, arguments)


def planned(*arguments: str) -> dict[str, Any]:
    done = asked(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def wish(**changes: Any) -> memory.Asked:
    made = {
        "precision": "auto", "kv_precision": "auto", "tokens": 8192, "requests": 32, "step": 8192, "block": 16,
        "kv_memory": None,
    }  # fmt: skip
    return memory.Asked(**(made | changes))


def level(name: str, gpu: str, per_node: int = 8, **changes: Any) -> ladder.Replica:
    return ladder.replica(shape.load(name), memory.gpu(gpu, None), wish(**changes), per_node)


def test_needed_is_the_sum_with_a_third_more() -> None:
    found = memory.account(shape.load("llama-3.1-8b"), memory.gpu("H100-80G", None), wish(requests=4))
    parts = {p.name: p.value for p in found.parts}
    assert parts["MLP"] == 32 * 3 * 4096 * 14_336 * 2
    assert parts["activations"] == 8192 * (4 * 4096 + 3 * 14_336) * 2 + 2 * 4 * 128_256 * 4
    assert found.wanted.value == 4 * 2**30
    assert found.needed.value == pytest.approx(1.3 * (sum(parts.values()) + 4 * 2**30))
    assert found.room.value == pytest.approx(81_559 * 2**20 / 1.3 - sum(parts.values()))
    assert found.blocks is not None
    assert found.blocks.value == found.room.value // (16 * 131_072)


@pytest.mark.parametrize(
    ("name", "gpu", "expected", "gpus"),
    [
        ("smollm2-135m", "L4-24G", "L0", 1),
        ("llama-3.1-8b", "H100-80G", "L1", 1),
        ("llama-3.1-70b", "H100-80G", "L2", 4),
        ("llama-3.1-405b", "H100-80G", "L3", 16),
    ],
)
def test_a_model_climbs_as_far_as_it_has_to(name: str, gpu: str, expected: str, gpus: int) -> None:
    found = level(name, gpu, requests=16)
    assert (found.level, found.account.gpus) == (expected, gpus)
    assert found.account.fits
    assert [s.level for s in found.steps] == ["L0", "L1", "L2", "L3"][: int(expected[1]) + 1]
    assert [s.enough for s in found.steps] == [False] * int(expected[1]) + [True]


def test_the_reason_why_a_step_is_not_enough_has_its_numbers() -> None:
    steps = {s.level: s.reason for s in level("llama-3.1-405b", "H100-80G").steps}
    assert re.fullmatch(r"not enough: 1,\d{3}\.\d GiB needed a GPU, 79\.6 GiB there", steps["L1"])
    assert steps["L2"].startswith("8 of 8 GPUs of a node: not enough: ")
    assert steps["L3"].startswith("8 GPUs × 2 stages: room for ")


def test_gpus_without_nvlink_are_told() -> None:
    assert "no NVLink" in level("llama-3.1-8b", "L4-24G").steps[-1].reason


def test_nodes_are_whole_and_a_cluster_may_be_too_small() -> None:
    found = level("llama-3.1-70b", "H100-80G", requests=16)
    assert (found.per_node, ladder.nodes_for(found, 5)) == (2.0, 3)
    steps = ladder.fleet(found, 40, 8)
    assert [(s.level, s.enough) for s in steps] == [("L4", False), ("L5", True)]
    assert steps[1].reason == "20 nodes, a cluster has 8: 3 clusters"
    wide = level("llama-3.1-405b", "H100-80G")
    assert ladder.nodes_for(wide, 3) == 6


def a_run(folder: Path, **changes: Any) -> Path:
    everything: dict[str, Any] = {
        "offered": 6000, "completed": 6000, "good": 6000, "rate": 20.0, "attainment": 0.995,
        "input_tokens": 600_000, "output_tokens": 1_200_000,
        "latency": {"ttft": {"p50": 0.1, "p99": 0.8, "p999": 1.5}, "tpot": {"p50": 0.02, "p99": 0.05}},
    }  # fmt: skip
    told = {
        "version": 1,
        "void": False,
        "void_reasons": [],
        "all": everything | changes,
        "replicas": {"a": {}, "b": {}},
    }
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(told))
    (folder / "run.json").write_text(json.dumps({"arrivals": {"kind": "closed"}}))
    return folder


def test_replicas_for_a_rate_follow_from_a_run(tmp_path: Path) -> None:
    """20/s from two replicas: 10/s each; 100/s × 1.25 ÷ 10 = 12.5 -> 13, and a spare one."""
    found = measured.from_run(a_run(tmp_path), 100, {}, 0.99, None, 1.25, 1)
    assert (found.per_replica.value, found.replicas.value) == (10.0, 14)
    assert found.tokens == "100 tokens in, 200 out, mean"
    assert found.notes[0].startswith("the run was a closed loop")
    assert found.notes[1].startswith("assumed: 14 replicas do 7 times what 2 did")
    assert measured.from_run(tmp_path, 100, {"ttft": 0.8}, 0.99, 4, 1.0, 0).replicas.value == 20


@pytest.mark.parametrize(
    ("changes", "slo", "attainment", "said"),
    [
        ({"attainment": 0.9}, "", 0.99, "90.00 % of requests were good, 99 % are asked for"),
        ({}, "ttft=700ms", 0.99, "--slo ttft=0.7s: in the run P99 was 0.8 s"),
        ({}, "e2e=9s", 0.99, "--slo e2e: the run has no p99 of it"),
        ({}, "ttft=1s", 0.9999, "quantiles of a run end at 0.999"),
        ({"completed": 0, "rate": 0}, "", 0.99, "not one request completed"),
        ({"completed": 5000}, "ttft=1s", 0.99, "83.33 % of requests completed"),
        # Failed requests are in no quantile: half a per cent of them leaves half a per cent to be slow.
        ({"completed": 5970}, "ttft=1s", 0.99, "in the run P999 was 1.5 s"),
        # Each of two objectives may be missed by other requests.
        ({}, "ttft=1s,tpot=1s", 0.99, "in the run P999 was 1.5 s"),
        ({"rate": float("nan")}, "", 0.99, "not one request completed"),
        ({"rate": "fast"}, "", 0.99, "summary.json can't be read (ValueError"),
        ({"attainment": "good"}, "", 0.99, "summary.json can't be read (ValueError"),
        ({"latency": {"ttft": [1]}}, "ttft=1s", 0.99, "summary.json can't be read (AttributeError"),
        ({"completed": float("inf")}, "", 0.99, "summary.json can't be read (OverflowError"),
    ],
)
def test_a_run_that_can_not_answer_says_why(
    tmp_path: Path, changes: dict[str, Any], slo: str, attainment: float, said: str
) -> None:
    with pytest.raises(PlanError) as refused:
        measured.from_run(a_run(tmp_path, **changes), 10, measured.parse_slo(slo), attainment, None, 1.25, 1)
    assert said in str(refused.value)


def test_the_answer_in_json_has_every_formula(tmp_path: Path) -> None:
    run = str(a_run(tmp_path / "run"))
    told = planned(
        "--model", "llama-3.1-70b", "--gpu", "h100-80g", "--concurrency", "16", "--run", run, "--rate", "100"
    )
    assert told["replica"]["level"] == "L2"
    assert (told["replica"]["tensor_parallel"], told["replica"]["per_node"]) == (4, 2)
    assert (told["fleet"]["replicas"]["value"], told["fleet"]["nodes"]) == (14, 7)
    assert told["memory"]["kv_token"] == {
        "name": "KV cache of a token",
        "value": 80 * 2 * 2 * 128 * 2,
        "how": "80 layers × 2 (K, V) × 8 KV heads × 128 × 2 B; on one of 4 × 1 GPUs 40,960 × 2 B",
    }
    assert all(p["how"] for p in told["memory"]["parts"])


def test_keys_that_are_not_known_are_told_with_the_plan(tmp_path: Path) -> None:
    read = json.loads((shape.MODELS / "llama-3.1-8b.json").read_text()) | {"novel_cache_rank": 4}
    (tmp_path / "config.json").write_text(json.dumps(read))
    told = planned("--model", str(tmp_path), "--gpu", "H100-80G")
    assert told["model"]["unknown_keys"] == ["novel_cache_rank"]
    assert told["notes"][0] == "not known here, taken as without effect on memory: novel_cache_rank"


def test_the_page_explains_and_lists(tmp_path: Path) -> None:
    done = asked("--model", "llama-3.1-8b", "--gpu", "H100-80G", "--explain")
    assert "32 layers × 2 (K, V) × 8 KV heads" in done.stdout
    assert "L1: 1 GPU a replica" in done.stdout
    listed = exaserve("plan", "--list")
    assert "deepseek-v3" in listed.stdout
    assert "H100-80G" in listed.stdout


def test_what_does_not_fit_as_asked_ends_with_status_1() -> None:
    assert asked("--model", "llama-3.1-70b", "--gpu", "H100-80G", "--tp", "1").exit_code == 1
    small = ("--model", "smollm2-135m", "--gpu", "CPU", "--kv-memory", "1M", "--context", "1024")
    assert asked(*small).exit_code == 1


BOTH = ("--model", "llama-3.1-8b", "--gpu", "H100-80G")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give --model; --list shows"),
        (("--model", "llama-3.1-8b"), "give --gpu"),
        (
            ("--model", "nothing", "--gpu", "H100-80G"),
            "--model nothing: no such folder, config.json or bundled shape",
        ),
        (("--model", "llama-3.1-8b", "--gpu", "H100"), "--gpu H100: did you mean H100-80G or H100-PCIE-80G"),
        (("--model", "llama-3.1-8b", "--gpu", "CPU"), "--gpu CPU: give --kv-memory"),
        ((*BOTH, "--context", "200000"), "--context 200000: the model ends at 131072"),
        ((*BOTH, "--tp", "3"), "--tp 3: the 32 attention heads can be divided by 1, 2, 4, 8, 16, 32"),
        ((*BOTH, "--tp", "16"), "--tp 16: a node has 8 GPUs"),
        ((*BOTH, "--pp", "64"), "--pp 64: the model has 32 layers"),
        ((*BOTH, "--precision", "int3"), "--precision int3: auto, float32"),
        ((*BOTH, "--kv-dtype", "int4"), "--kv-dtype int4: auto, float32"),
        ((*BOTH, "--kv-memory", "lots"), "--kv-memory lots: a size like 256M"),
        ((*BOTH, "--rate", "5"), "--run and --rate belong together"),
        ((*BOTH, "--rate", "5", "--run", "nowhere"), "--run nowhere: no summary.json in it"),
        ((*BOTH, "--concurrency", "100000", "--context", "131072"), "have no room on any number of H100-80G"),
    ],
)
def test_wrong_usage_names_the_option_and_the_cure(arguments: tuple[str, ...], said: str) -> None:
    done = asked(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "see `exaserve plan --help`" in done.stderr


@pytest.mark.real
def test_the_blocks_of_the_running_engine_are_those_of_the_plan(real_stack: Any) -> None:
    replicas = httpx.get(f"{real_stack.admin}/fleet").json()["replicas"]
    page = httpx.get(f"{replicas[0]['url']}/metrics").text
    info = dict(
        re.findall(r'(\w+)="([^"]*)"', next(x for x in page.splitlines() if "cache_config_info{" in x))
    )
    told = json.loads(
        asked(
            "--model", str(vllm.model.model_folder()), "--gpu", "CPU", "--precision", vllm.cpu_precision("auto"),
            "--context", "1024", "--concurrency", "1", "--kv-memory", info["kv_cache_memory_bytes"], "--json",
        ).stdout
    )  # fmt: skip
    assert told["asked"]["block"] == int(info["block_size"])
    assert told["memory"]["blocks"]["value"] == int(info["num_gpu_blocks"])
