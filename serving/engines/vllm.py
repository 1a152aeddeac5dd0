"""The command that starts one real vLLM replica, on CPU or on NVIDIA GPUs.

Which environment it runs in is built by ``install.py``, the default model by ``model.py``; starting and
watching the process belong to ``serving/launch``. Written for vLLM 0.32.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import psutil

from serving.config import Config

from . import Launch, model
from .install import engine_folder, has_nvidia_gpu, visible_gpus

_UNIT = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
#: Architectures whose KV cache is keys and values of every layer for every token, nothing else.
_PLAIN_ATTENTION = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"}
_CPU_KV_BLOCK = 128  # tokens; the CPU backend's block size
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def command(config: Config, index: int, port: int) -> Launch:
    """How to start replica ``index`` (0, 1, …) on ``port``. Nothing is built or downloaded here.

    Raises ValueError, naming the key and the cure, for what this machine or the model can't do.
    """
    gpu = has_nvidia_gpu()
    folder = model.model_folder() if config.model.path == "default" else Path(config.model.path)
    dtype = config.model.precision if gpu else cpu_precision(config.model.precision)
    _refuse_impossible(config, index, folder, dtype, gpu)
    cores = [] if gpu else cores_of(index, config.fleet.replicas_per_node, sorted(os.sched_getaffinity(0)))
    engine = config.engine
    argv = [
        *_pinned(cores),
        str(engine_folder(gpu) / "bin" / "vllm"),
        "serve",
        str(folder),
        "--served-model-name",
        config.model.name,
        "--host",
        config.fleet.host,
        "--port",
        str(port),
        "--dtype",
        dtype,
        "--max-model-len",
        str(config.model.max_model_len),
        "--kv-cache-memory-bytes",
        engine.kv_cache_memory,
        "--max-num-seqs",
        str(engine.max_num_seqs),
        "--max-num-batched-tokens",
        str(engine.max_num_batched_tokens),
        # /load counts only with this; a scrape and a probe every second would fill the log.
        "--enable-server-load-tracking",
        "--disable-access-log-for-endpoints",
        "/health,/metrics,/metrics/,/load,/version",
    ]
    if gpu:
        argv += ["--tensor-parallel-size", str(engine.tensor_parallel_size)]
        argv += ["--pipeline-parallel-size", str(engine.pipeline_parallel_size)]
    else:
        # torch.compile needs a C++ compiler and minutes on CPU; eager is ready at once.
        argv.append("--enforce-eager")
    return Launch([*argv, *engine.args], _environment(config, index, cores, gpu))


def cpu_precision(precision: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """``precision`` with ``auto`` resolved for this machine's CPU.

    oneDNN multiplies bfloat16 matrices from AVX-512 on (on Arm, with the bf16 extension). Below that vLLM
    falls back to torch's own loop: on an AVX2 machine a prompt of 90 tokens took 1.2 s in bfloat16, 0.3 s in
    float32, and 16 users got 24 tokens/s instead of 84. float32 needs twice the memory.
    """
    if precision != "auto":
        return precision
    return "bfloat16" if _multiplies_bfloat16(cpuinfo) else "float32"


def _multiplies_bfloat16(cpuinfo: Path) -> bool:
    wanted = {"avx512bw", "amx_bf16"} if platform.machine() in ("x86_64", "AMD64") else {"bf16"}
    try:
        with cpuinfo.open() as f:
            for line in f:
                if line.lower().startswith(("flags", "features")):
                    return bool(wanted & set(line.split()))
    except OSError:
        pass
    return False


def cores_of(index: int, replicas: int, cores: list[int]) -> list[int]:
    """The cores of replica ``index``: an equal share of ``cores``, or one in turn if there are too few.

    Neighbouring numbers, which on usual machines lie on one NUMA node.
    """
    share = len(cores) // replicas
    if share == 0:
        return [cores[index % len(cores)]]
    start = index % replicas * share
    return cores[start : start + share]


def _pinned(cores: list[int]) -> list[str]:
    taskset = shutil.which("taskset")
    # Unpinned, every CPU replica binds its worker to core 0. VLLM_CPU_OMP_THREADS_BIND moves the worker only:
    # two replicas on two cores were ready in 36 s that way instead of 30 s, at 119 tokens/s instead of 134.
    return [taskset, "-c", ",".join(map(str, cores))] if cores and taskset else []


def _environment(config: Config, index: int, cores: list[int], gpu: bool) -> dict[str, str]:
    env = {
        "HF_HUB_OFFLINE": "1",  # the model is a local folder
        "VLLM_NO_USAGE_STATS": "1",
        "PROMETHEUS_DISABLE_CREATED_SERIES": "true",
    }
    if config.network.nccl_socket_ifname:
        env["NCCL_SOCKET_IFNAME"] = config.network.nccl_socket_ifname
    if config.network.nccl_ib_hca:
        env["NCCL_IB_HCA"] = config.network.nccl_ib_hca
    if gpu:
        first = index * _gpus_per_replica(config)
        env["CUDA_VISIBLE_DEVICES"] = ",".join(visible_gpus()[first : first + _gpus_per_replica(config)])
    else:
        # The worker then lives in the engine's process (3 processes a replica instead of 4, 0.4 GB less),
        # where vLLM leaves the number of threads to OpenMP.
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        env["OMP_NUM_THREADS"] = str(len(cores))
        if shutil.which("taskset") is None:
            env["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
    return env | config.engine.env


def _gpus_per_replica(config: Config) -> int:
    return config.engine.tensor_parallel_size * config.engine.pipeline_parallel_size


def _refuse_impossible(config: Config, index: int, folder: Path, dtype: str, gpu: bool) -> None:
    engine = config.engine
    if gpu:
        each, here = _gpus_per_replica(config), len(visible_gpus())
        if (index + 1) * each > here:
            raise ValueError(
                f"engine.tensor_parallel_size × engine.pipeline_parallel_size is {each} GPUs a replica, so "
                f"replica-{index} needs {(index + 1) * each}, and {here} are here: lower them, or set "
                f"fleet.replicas_per_node to {here // each}"
            )
    else:
        for key in ("tensor_parallel_size", "pipeline_parallel_size"):
            if getattr(engine, key) != 1:
                raise ValueError(
                    f"engine.{key} is {getattr(engine, key)}, but this machine has no GPU: set it to 1"
                )
        wanted = _size(engine.kv_cache_memory) * config.fleet.replicas_per_node
        memory = psutil.virtual_memory().total
        if wanted > memory:
            raise ValueError(
                f"engine.kv_cache_memory is {engine.kv_cache_memory} for each of {config.fleet.replicas_per_node} "
                f"replicas, and this machine has {memory / 2**30:.0f} GiB: lower it"
            )
    _refuse_against_model(config, _model_config(folder), dtype)


def _model_config(folder: Path) -> dict[str, Any]:
    """The model's config.json; empty if the default model is still to be built."""
    try:
        read = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        if folder == model.model_folder():
            return {}
        raise ValueError(
            f"model.path is {folder}, which has no config.json: give a folder in Hugging Face's layout, or "
            "`default`"
        ) from None
    except (OSError, ValueError) as e:
        raise ValueError(f"model.path: {folder / 'config.json'} can't be read ({e}): repair it") from None
    return read if isinstance(read, dict) else {}


def _refuse_against_model(config: Config, read: dict[str, Any], dtype: str) -> None:
    if not read or "--hf-overrides" in config.engine.args:
        return
    engine, length = config.engine, config.model.max_model_len
    longest = read.get("max_position_embeddings")
    if isinstance(longest, int) and length > longest and not read.get("rope_scaling"):
        raise ValueError(
            f"model.max_model_len is {length}, but the model ends at {longest}: set at most {longest}"
        )
    heads, layers = read.get("num_attention_heads"), read.get("num_hidden_layers")
    if isinstance(heads, int) and heads % engine.tensor_parallel_size:
        raise ValueError(
            f"engine.tensor_parallel_size is {engine.tensor_parallel_size}, but the model's {heads} attention heads "
            "can't be shared out evenly among so many: set a divisor of them"
        )
    if isinstance(layers, int) and engine.pipeline_parallel_size > layers:
        raise ValueError(
            f"engine.pipeline_parallel_size is {engine.pipeline_parallel_size}, but the model has {layers} layers: "
            "set at most that"
        )
    needed = kv_bytes(read, length, dtype) // _gpus_per_replica(config)
    if needed > _size(engine.kv_cache_memory):
        raise ValueError(
            f"engine.kv_cache_memory is {engine.kv_cache_memory}, but one request of model.max_model_len ({length} "
            f"tokens) needs {-(-needed // 2**20)}M: raise it, or lower model.max_model_len"
        )


def kv_bytes(read: dict[str, Any], tokens: int, dtype: str) -> int:
    """Bytes of KV cache of one request of ``tokens``, by the model's config.json; 0 where that can't be told."""
    known = set(read.get("architectures") or ()) <= _PLAIN_ATTENTION
    try:
        layers, heads = int(read["num_hidden_layers"]), int(read["num_attention_heads"])
        kv_heads = int(read.get("num_key_value_heads") or heads)
        size = int(read.get("head_dim") or int(read["hidden_size"]) // heads)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return 0
    if not known or read.get("sliding_window"):
        return 0
    rounded = -(-tokens // _CPU_KV_BLOCK) * _CPU_KV_BLOCK
    return 2 * layers * kv_heads * size * _BYTES.get(dtype, 2) * rounded


def _size(text: str) -> int:
    """Bytes of ``256M`` and the like; upper-case units are powers of 1024, as vLLM reads them."""
    unit = _UNIT.get(text[-1])
    try:
        return int(text[:-1]) * unit if unit else int(text)
    except ValueError:
        raise ValueError(f"engine.kv_cache_memory is {text!r}: write a size like 256M or 4G") from None
