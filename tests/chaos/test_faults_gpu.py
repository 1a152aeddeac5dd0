"""A GPU that is lost, as a real exporter tells it: in, proven, out, nothing left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos import ask, inject, nvml
from chaos.fault import Refused, Target
from chaos.faults import gpu_lost
from tests.chaos.framework import Here, eventually, records
from tests.chaos.simulated import ROOT
from tests.conftest import free_ports

_UP = "exaserve_gpu_up"


def exporter(**env: str) -> tuple[subprocess.Popen[bytes], str]:
    port = free_ports()
    argv = [
        sys.executable,
        "-m",
        "serving.cli",
        "exporter",
        f"--port={port}",
        "--collector.disable-defaults",
        "--collector.gpu",
    ]
    process = subprocess.Popen(argv, cwd=ROOT, env={**os.environ, **env}, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/metrics"
    assert eventually(lambda: ask.status(url, 10.0)[0] == 200)
    return process, url


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nvml") / "control.json"


@pytest.fixture(scope="module")
def page(control: Path) -> Iterator[str]:
    """The metrics page of an exporter with two GPUs that do not exist."""
    process, url = exporter(
        EXASERVE_NVML="chaos.nvml", EXASERVE_NVML_CONTROL=str(control), EXASERVE_NVML_GPUS="2"
    )
    yield url
    process.terminate()
    process.wait(60)


def test_the_exporter_tells_a_gpu_as_lost_and_the_other_as_before(
    page: str, control: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_ours(monkeypatch, control)
    assert eventually(lambda: [ask.series(page, _UP, gpu=g) for g in "01"] == [1, 1])
    with inject.held("gpu_lost", "here", Here(), 60, {"gpu": 1}) as (injection,):
        assert injection.proof is not None
        assert injection.proof.measured == "the exporter says exaserve_gpu_up 0, reason lost"
        assert eventually(lambda: [ask.series(page, _UP, gpu=g) for g in "01"] == [1, 0])
    assert eventually(lambda: [ask.series(page, _UP, gpu=g) for g in "01"] == [1, 1])
    assert not control.exists()
    assert records(own_home) == []


def test_a_gpu_that_is_not_there_is_refused(
    page: str, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_ours(monkeypatch, control)
    with pytest.raises(Refused, match="tells of no GPU 2: there is neither a GPU nor a simulated one"):
        inject.start("gpu_lost", "here", Here(), 60, {"gpu": 2})


def test_an_exporter_that_reads_the_driver_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    process, _ = exporter()
    try:
        found = gpu_lost._exporters
        monkeypatch.setattr(
            gpu_lost, "_exporters", lambda t: [e for e in found(t) if e[0].pid == process.pid]
        )
        with pytest.raises(Refused, match=r"reads the driver itself; start it with EXASERVE_NVML=chaos.nvml"):
            inject.start("gpu_lost", "here", Here(), 60)
        monkeypatch.setattr(gpu_lost, "_exporters", lambda t: [])
        with pytest.raises(Refused, match="no exporter runs on here"):
            inject.start("gpu_lost", "here", Here(), 60)
    finally:
        process.terminate()
        process.wait(60)


def test_it_lasts_its_duration_although_other_targets_were_put_in_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = tmp_path / "control"
    monkeypatch.setenv("EXASERVE_NVML_CONTROL", str(control))
    monkeypatch.setattr(gpu_lost, "_page", lambda target: ("", str(control)))
    (step,) = gpu_lost.Reading().plan(Target("here", Here()), gpu_lost.LostParameters(gpu=1), 0.2).do
    time.sleep(0.3)  # the others' turn
    control.write_text(step["text"])
    assert nvml.lost() == {1}


def only_ours(monkeypatch: pytest.MonkeyPatch, control: Path) -> None:
    """Other tests' exporters on this machine are not looked at."""
    found = gpu_lost._exporters
    ours = str(control)
    monkeypatch.setattr(
        gpu_lost, "_exporters", lambda t: [e for e in found(t) if e[1].get("EXASERVE_NVML_CONTROL") == ours]
    )


def test_without_its_file_the_drivers_functions_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EXASERVE_NVML_GPUS", raising=False)
    monkeypatch.setenv("EXASERVE_NVML_CONTROL", str(tmp_path / "control"))
    import pynvml

    assert nvml.nvmlInit is pynvml.nvmlInit
    assert nvml.NVML_TEMPERATURE_GPU == pynvml.NVML_TEMPERATURE_GPU
    assert nvml.lost() == set()
    (tmp_path / "control").write_text('{"lost": [0], "until": 1}')
    assert nvml.lost() == set(), "its time is over"
    (tmp_path / "control").write_text("{")
    assert nvml.lost() == set()
    (tmp_path / "control").write_text('{"lost": [0], "until": 1e12}')
    assert nvml.lost() == {0}
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        nvml.nvmlDeviceGetHandleByIndex(0)
