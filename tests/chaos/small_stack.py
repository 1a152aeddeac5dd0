"""Two simulated replicas behind a real router with two workers: what faults of traffic and control act on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from chaos import ask, identity
from chaos.place import Part
from tests.chaos.framework import Here, eventually
from tests.chaos.simulated import ROOT, Simulated, simulated
from tests.conftest import free_ports


@dataclass
class SmallStack:
    replicas: list[Simulated]
    router: subprocess.Popen[bytes]
    url: str
    admin: str
    config: Path

    def place(self) -> Here:
        parts = {"router": Part("router", self.url, identity.of(self.router.pid))}
        replicas = {f"replica-{i}": (r.url, r.pid) for i, r in enumerate(self.replicas)}
        return Here(replicas, parts=parts, router=self.url, admin=self.admin)

    def metric(self, name: str) -> float:
        return ask.series(f"{self.admin}/metrics", name) or 0.0


@contextmanager
def small_stack(folder: Path, env: dict[str, str] | None = None) -> Iterator[SmallStack]:
    """Up and ready; ended with the block."""
    config = folder / "exaserve.yaml"
    config.write_text("# the router's own\nrouter:\n  workers: 2\n  drain_timeout: 1\n")
    with ExitStack() as open_:
        replicas = [open_.enter_context(simulated("--faults")) for _ in range(2)]
        port = free_ports(2)
        admin = port + 1
        argv = [sys.executable, "-m", "serving.cli", "router", f"--config={config}", f"--port={port}"]
        argv += [f"--admin-port={admin}", *(f"--replica=replica-{i}={r.url}" for i, r in enumerate(replicas))]
        router = subprocess.Popen(
            argv, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=subprocess.DEVNULL
        )
        try:
            stack = SmallStack(
                replicas, router, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}", config
            )
            assert eventually(lambda: ask.status(f"{stack.admin}/readyz")[0] == 200)
            yield stack
        finally:
            router.terminate()
            try:
                router.wait(30)
            except subprocess.TimeoutExpired:
                router.kill()
                router.wait()
