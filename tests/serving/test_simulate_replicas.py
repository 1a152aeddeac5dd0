"""``exaserve simulate-replicas``: many replicas in one process, their list, their control port, their end."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from .replica_client import chat, wait_for

COMMAND = [sys.executable, "-m", "serving.cli", "simulate-replicas"]


@contextmanager
def running(*arguments: str) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    """What it says with --json, and its process."""
    process = subprocess.Popen([*COMMAND, *arguments, "--json"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline()), process
    finally:
        process.kill()
        process.wait()


def run(*arguments: str, limit: int | None = None) -> tuple[int, str]:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit or 0, limit or 0))

    done = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lower if limit else None,
    )
    return done.returncode, done.stderr


def test_a_thousand_replicas_answer_each_under_its_name(tmp_path: Path) -> None:
    listed = tmp_path / "replicas.txt"
    with running("--count", "1000", "--list", str(listed), "--profile", "gpu-8b-not-measured") as (
        said,
        process,
    ):
        replicas = said["replicas"]
        assert [r["name"] for r in replicas] == [f"sim-{i}" for i in range(1000)]
        assert listed.read_text().splitlines() == [f"{r['name']}={r['url']}" for r in replicas]
        for i in (0, 999):
            answer = httpx.post(
                f"{replicas[i]['url']}/v1/completions", json={"prompt": "a", "max_tokens": 2}, timeout=60
            )
            assert (answer.status_code, answer.json()["model"]) == (200, "simulated-8b")
            page = httpx.get(f"{replicas[i]['url']}/metrics", timeout=60).text
            assert 'vllm:generation_tokens_total{engine="0",model_name="simulated-8b"} 2.0' in page
        assert "generation_tokens_total{" in httpx.get(f"{replicas[1]['url']}/metrics", timeout=60).text
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_the_control_port_lists_replicas_and_sets_faults_by_pattern() -> None:
    with running("--count", "12") as (said, _), httpx.Client(base_url=said["control"], timeout=60) as control:
        url = {r["name"]: r["url"] for r in said["replicas"]}
        set_ = control.post("/replicas/sim-1*/fault", json={"kind": "refuse"})
        assert sorted(set_.json()["replicas"]) == ["sim-1", "sim-10", "sim-11"]
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url['sim-11']}/health", timeout=60)
        assert httpx.get(f"{url['sim-2']}/health", timeout=60).status_code == 200
        states = {r["name"]: r["fault"]["kind"] for r in control.get("/replicas").json()["replicas"]}
        assert [name for name, kind in states.items() if kind == "refuse"] == ["sim-1", "sim-10", "sim-11"]
        control.post("/replicas/sim-1*/fault", json={"kind": "none"})

        def back() -> bool:
            try:
                return httpx.get(f"{url['sim-11']}/health", timeout=60).status_code == 200
            except httpx.TransportError:
                return False

        wait_for(back)
        assert control.get("/replicas/sim-1/fault").json() == {
            "replicas": {"sim-1": {"fault": {"kind": "none"}}}
        }


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/replicas/nope/fault", {"kind": "stuck"}, 404, "no replica is called nope"),
        ("/replicas/*/fault", {"kind": "melt"}, 400, "kind must be one of none, slow"),
        (
            "/replicas/*/fault",
            {"kind": "reset", "probability": 2},
            400,
            "probability must be a number from 0 to 1",
        ),
        ("/fleet", {}, 404, "GET and POST /replicas/NAME/fault"),
        ("/replicas", {}, 405, "takes GET"),
    ],
)
def test_the_control_port_refuses_what_it_does_not_know(
    two: dict[str, Any], path: str, body: Any, status: int, said: str
) -> None:
    answer = httpx.post(f"{two['control']}{path}", json=body, timeout=60)
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def two() -> Iterator[dict[str, Any]]:
    with running("--count", "2", "--profile", "gpu-8b-not-measured") as (said, _):
        yield said


def test_replicas_share_nothing_but_their_process(two: dict[str, Any]) -> None:
    first, second = (r["url"] for r in two["replicas"])
    ask = chat("word " * 100, max_tokens=1, model="simulated-8b")
    for url in (first, first, second):
        assert httpx.post(f"{url}/v1/chat/completions", json=ask, timeout=60).status_code == 200
    pages = [httpx.get(f"{url}/metrics", timeout=60).text for url in (first, second)]
    label = '{engine="0",model_name="simulated-8b"}'
    hits = [float(p.split(f"vllm:prefix_cache_hits_total{label} ")[1].split()[0]) for p in pages]
    assert hits[0] > 100
    assert hits[1] == 0


def test_an_answer_goes_on_while_another_replica_is_frozen(two: dict[str, Any]) -> None:
    httpx.post(f"{two['control']}/replicas/sim-0/fault", json={"kind": "freeze"}, timeout=60)
    url = two["replicas"][1]["url"]
    answer = httpx.post(
        f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 20, "ignore_eos": True}, timeout=60
    )
    assert answer.json()["usage"]["completion_tokens"] == 20
    httpx.post(f"{two['control']}/replicas/sim-0/fault", json={"kind": "none"}, timeout=60)
    assert httpx.get(f"{two['replicas'][0]['url']}/health", timeout=60).status_code == 200


def test_too_few_open_files_are_told_with_the_limit_to_set() -> None:
    status, said = run("--count", "300", limit=400)
    assert (status, "`ulimit -n 664`" in said) == (1, True)
    assert "Traceback" not in said


def test_what_can_not_be_is_told_in_a_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for option in ("--port", "--control-port"):
            status, said = run("--count", "1", option, str(port))
            assert (status, f"can't listen on 127.0.0.1:{port}" in said) == (1, True)
    cases = (
        (("--profile", "nope"), 2, "bundled ones are"),
        (("--port", "65000", "--count", "1000"), 2, "ports end at 65535"),
        (("--list", str(tmp_path / "no" / "list")), 1, "No such file"),
        (("profile", "--url", "http://127.0.0.1:9", "--out", str(tmp_path / "x")), 1, "127.0.0.1:9"),
    )
    for arguments, expected, text in cases:
        status, said = run(*arguments)
        assert (status, text in said, "Traceback" in said) == (expected, True, False)
