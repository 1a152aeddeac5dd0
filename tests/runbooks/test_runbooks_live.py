"""Commands of runbooks, run as they are written while the fault is there: their output names the cause.

A simulated stack with Prometheus; the default ports in the commands are replaced by the stack's own, nothing else is.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import exaserve, stack_config, start
from tests.runbooks.as_written import diagnosis, run
from tests.runbooks.runbook_text import RUNBOOKS, command_lines

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(360),
    pytest.mark.skipif(
        not shutil.which("prometheus"), reason="prometheus is not installed (Debian: prometheus)"
    ),
]

#: Small enough that two long requests fill a replica; a replica that ended stays away while it is looked at.
SECTIONS: dict[str, Any] = {
    "engine": {"kind": "simulated", "kv_cache_memory": "64M", "max_num_batched_tokens": 2048},
    "fleet": {"restart_backoff": 60.0},
    # Who reads nothing stays for as long as this machine takes for looking at it.
    "router": {"request_timeout": 1.0, "send_timeout": 300.0, "audit": {"enabled": True}},
    "monitoring": {"scrape_interval": 1.0},
}
QUOTE, REJECTED = "'", "exaserve_router_rejected_requests_total"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
HELLO = {
    "messages": [{"role": "user", "content": "Hello"}],
    "stream": True,
    "max_tokens": 900,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("runbooks")
    env = {"EXASERVE_HOME": str(folder)}
    try:
        yield start(stack_config(folder, **SECTIONS), env)
    finally:
        assert exaserve("down", env=env).returncode == 0


def wait_for(what: str, probe: Callable[[], Any], seconds: float = 90) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := probe():
            return value
        time.sleep(0.25)
    pytest.fail(f"waited {seconds:.0f} s for {what}")


def values(output: str) -> dict[str, float]:
    """Value by replica (or by reason) of what ``promtool query instant`` printed."""
    rows = re.findall(r'(?:replica|reason)="([^"]+)".*\} => (\S+) @', output)
    return {name: float(value) for name, value in rows}


def connected(stack: Any) -> socket.socket:
    """A connection to the router that holds little of what is not read."""
    host, port = stack.router.removeprefix("http://").split(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect((host, int(port)))
    return client


@contextlib.contextmanager
def long_requests(stack: Any, number: int) -> Iterator[None]:
    """Streams with long prompts, no two alike, asked again as they end, until the block ends."""
    done = threading.Event()

    def ask(index: int) -> None:
        prompt = {"role": "user", "content": f"{index} " + "sea " * 600}
        while not done.is_set():
            with contextlib.suppress(httpx.HTTPError), httpx.Client(timeout=120) as client:
                body = {**HELLO, "messages": [prompt], "max_tokens": 300}
                with client.stream("POST", f"{stack.router}/v1/chat/completions", json=body) as answer:
                    for _ in answer.iter_lines():
                        if done.is_set():
                            return
            done.wait(0.1)

    threads = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join(10)


def test_slow_clients_are_found_by_their_runbook(stack: Any) -> None:
    """One client stops in the middle of its request, another reads nothing of its answer."""
    lines = command_lines(RUNBOOKS["SlowClients"].read_text(), "Diagnosis")
    query = next(line for line in lines if "client_stalled" in line)
    sockets = next(line for line in lines if line.startswith("ss "))
    wait_for("a first sample", lambda: run(stack, f"{query.split(QUOTE)[0]} '{REJECTED}'").strip())
    with connected(stack) as half, connected(stack) as deaf:
        half.sendall(HEAD % 100 + b"{")
        body = json.dumps(HELLO).encode()
        deaf.sendall(HEAD % len(body) + body)
        assert half.recv(12) == b"HTTP/1.1 408"
        wait_for("the refusal in Prometheus", lambda: values(run(stack, query)).get("request_timeout"))
        address = ":".join(map(str, deaf.getsockname()))

        def waits(output: str) -> list[bool]:
            rows = [row.split() for row in output.splitlines()[1:]]
            return [int(row[1]) > 0 for row in rows if row[3] == address]

        wait_for("bytes that are not read", lambda: waits(run(stack, sockets)) == [True])
        said = diagnosis(stack, "SlowClients")
        assert waits(said[sockets]) == [True]
    assert values(said[query]).keys() == {"request_timeout"}


def test_kv_pressure_is_found_by_its_runbook(stack: Any) -> None:
    lines = command_lines(RUNBOOKS["ExaServeKVPressure"].read_text(), "Diagnosis")
    assert "replica:exaserve_kv_block_utilisation:ratio" in lines[0]
    with long_requests(stack, 8):
        used = wait_for(
            "a full KV cache", lambda: {r: v for r, v in values(run(stack, lines[0])).items() if v > 0.5}
        )
        said = diagnosis(stack, "ExaServeKVPressure")
    assert set(used) <= {"replica-0", "replica-1"}
    assert set(values(said[lines[0]])) == {"replica-0", "replica-1"}
    ratio = re.search(r"\} => (\S+) @", said[lines[1]])
    assert ratio
    assert float(ratio[1]) > 0
    assert '"state":"ready"' in said["curl -s 127.0.0.1:8001/fleet"]


def test_a_replica_that_is_down_is_found_by_its_runbook(stack: Any) -> None:
    fleet = "curl -s 127.0.0.1:8001/fleet"
    os.kill(stack.pids["replica-0"], signal.SIGKILL)
    wait_for("the router to notice", lambda: states(run(stack, fleet))["replica-0"] == "down")
    said = diagnosis(stack, "ExaServeReplicaDown")
    assert states(said[fleet]) == {"replica-0": "down", "replica-1": "ready"}
    reasons = {r["name"]: r["reason"] for r in json.loads(said[fleet])["replicas"]}
    assert "refused" in reasons["replica-0"]
    assert said["curl -s -o /dev/null -w '%{http_code}\\n' 127.0.0.1:8001/readyz"] == "200\n"
    row = next(line for line in said["exaserve status"].splitlines() if line.startswith("replica-0"))
    assert (row.split()[1], row.split()[-1]) == ("restarting", "1")


def states(fleet: str) -> dict[str, str]:
    """State by replica of what ``/fleet`` says."""
    return {r["name"]: r["state"] for r in json.loads(fleet)["replicas"]}
