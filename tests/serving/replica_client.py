"""Starts a replica's process for a test, and reads what it says: streams, key structure, metric families."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

MODEL = "smollm2-135m"
LABELS = '{engine="0",model_name="smollm2-135m"}'
Shape = Any


@contextmanager
def simulated(*arguments: str) -> Iterator[tuple[httpx.Client, subprocess.Popen[str]]]:
    """A simulated replica on a free port, ended afterwards."""
    command = [sys.executable, "-m", "serving.engines.simulated", "--port", "0", "--model", MODEL, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        # Kept shorter than the replica keeps them, or a request may meet its goodbye.
        limits = httpx.Limits(keepalive_expiry=2)
        with httpx.Client(base_url=address, timeout=60, limits=limits) as client:
            yield client, process
    finally:
        process.kill()
        process.wait()


@contextmanager
def started(argv: list[str], env: dict[str, str], url: str, log: Any) -> Iterator[httpx.Client]:
    """A replica that answers /health within four minutes, ended (SIGTERM) afterwards."""
    process = subprocess.Popen(argv, env=os.environ | env, stdout=log, stderr=subprocess.STDOUT)
    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            deadline = time.monotonic() + 240
            while True:
                assert process.poll() is None, f"the replica ended with {process.returncode}"
                assert time.monotonic() < deadline, "the replica did not become ready"
                try:
                    if client.get("/health").status_code == 200:
                        break
                except httpx.TransportError:
                    time.sleep(0.2)
            yield client
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def chat(text: str = "What is the capital of France?", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def events(raw: str) -> list[Any]:
    """The events of a stream: JSON values, and the string ``[DONE]``. Raises ValueError for anything else."""
    found = []
    for block in raw.split("\n\n"):
        if not block:
            continue
        if not block.startswith("data: "):
            raise ValueError(f"no event: {block!r}")
        found.append(block[6:] if block[6:] == "[DONE]" else json.loads(block[6:]))
    return found


def shape(value: Any) -> Shape:
    """Keys in their order, all the way down; of a list its first item, of anything else nothing."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()} and [
            (key, shape(item)) for key, item in value.items()
        ]
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "[DONE]" if value == "[DONE]" else None


def stream_shape(found: list[Any]) -> list[Shape]:
    """The shapes of a stream's events, runs of the same one taken together."""
    shapes: list[Shape] = []
    for event in found:
        if not shapes or shapes[-1] != shape(event):
            shapes.append(shape(event))
    return shapes


def families(page: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Metric families of a page: name -> (type, label names without ``le`` and ``quantile``)."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    name = ""
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            found[name] = (kind, frozenset())
        elif line and not line.startswith("#"):
            labels = set(re.findall(r'(\w+)="', line)) - {"le", "quantile"}
            found[name] = (found[name][0], found[name][1] | labels)
    return found


def samples(page: str) -> dict[str, float]:
    """Every sample of a page by its name and labels as written."""
    pairs = (line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def metric(client: httpx.Client, name: str, labels: str = LABELS) -> float:
    return samples(client.get("/metrics").text)[f"vllm:{name}{labels}"]


def wait_for(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline, "it did not happen within 60 s"
        time.sleep(0.02)


def in_background(client: httpx.Client, count: int, **more: Any) -> list[threading.Thread]:
    def ask(i: int) -> None:
        with contextlib.suppress(httpx.TransportError):  # the replica may be ended under it
            httpx.post(f"{client.base_url}/v1/chat/completions", json=chat(f"number {i}", **more), timeout=60)

    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    return threads
