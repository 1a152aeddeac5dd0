"""Running stacks for the tests: a simulated one, and a real one that all tests share.

Each has its own folder for run files and logs and its own free ports, so that it meets neither a stack that
somebody uses on this machine nor another test.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml

# Tests side by side (pytest-xdist) come with a width of 80; programs that they start would break their lines.
os.environ.pop("COLUMNS", None)

# A machine that stands still for a moment fails no example: neither for its time nor for that of drawing it. All else
# is as hypothesis has it, which on CI draws the same each time.
hypothesis.settings.register_profile(
    "unhurried",
    deadline=None,
    suppress_health_check={*hypothesis.settings().suppress_health_check, hypothesis.HealthCheck.too_slow},
)
hypothesis.settings.load_profile("unhurried")

# Started in the background of a script, or under nohup, this process ignores them, and so would all that it starts.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _usual)


def free_ports(count: int = 1) -> int:
    """The first of ``count`` neighbouring ports on which nobody listens, below those given to clients.

    Never the same twice in a row: whoever got them may not listen yet. Workers side by side (pytest-xdist) have
    shares of their own for the same reason.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = 12_000 // workers
    for _ in range(share):
        place = next(_places) % share
        ports = [20_000 + share * worker + place + i for i in range(count)]
        if place + count <= share and all(map(_free, ports)):
            for _ in ports[1:]:
                next(_places)
            return ports[0]
    raise RuntimeError(f"no {count} neighbouring free ports")


# Another start for each process: a second run of the tests on this machine looks elsewhere. Not of ``random``, which
# hypothesis seeds.
_places = itertools.count(random.SystemRandom().randrange(12_000))


@contextmanager
def closed_port() -> Iterator[int]:
    """A port where nobody listens, and nobody can begin to: it is bound meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def _free(port: int) -> bool:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def exaserve(
    *arguments: str, env: dict[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "serving.cli", *arguments],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def stack_config(folder: Path, **sections: dict[str, Any]) -> Path:
    """A configuration on free ports, written into ``folder``; ``sections`` go over it."""
    replicas = int(sections.get("fleet", {}).get("replicas_per_node", 2))
    first = free_ports(5 + replicas)
    config: dict[str, dict[str, Any]] = {
        "fleet": {"replicas_per_node": replicas, "first_port": first + 5},
        "router": {"port": first, "admin_port": first + 1},
        "exporter": {"port": first + 2},
        "monitoring": {"prometheus_port": first + 3, "alertmanager_port": first + 4},
    }
    for name, keys in sections.items():
        config.setdefault(name, {}).update(keys)
    path = folder / "exaserve.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@dataclass
class Stack:
    """A running stack: base URLs (empty where the part is missing) and how to reach its supervisor."""

    router: str
    admin: str
    exporter: str
    prometheus: str
    alertmanager: str
    config: Path
    env: dict[str, str]
    output: str

    def status(self) -> dict[str, Any]:
        """``exaserve status --json``."""
        return dict(json.loads(exaserve("status", "--json", env=self.env).stdout))

    @property
    def pids(self) -> dict[str, int]:
        """Process of each part, and of ``supervisor``."""
        return {p["part"]: p["pid"] for p in self.status()["parts"]}


def start(config: Path, env: dict[str, str], *arguments: str, timeout: float = 120) -> Stack:
    """``exaserve up --detach``; whoever starts it ends it with ``exaserve("down", env=env)``."""
    done = exaserve("up", "--detach", "--config", str(config), *arguments, env=env, timeout=timeout)
    if done.returncode:
        pytest.fail(f"exaserve up ended with status {done.returncode}:\n{done.stdout}\n{done.stderr}")
    addresses = json.loads(exaserve("status", "--json", env=env).stdout)["addresses"]
    names = ("router", "admin", "exporter", "prometheus", "alertmanager")
    return Stack(*(addresses.get(n, "") for n in names), config, env, done.stdout)


def _running(folder: Path, env: dict[str, str], timeout: float, **sections: Any) -> Iterator[Stack]:
    try:
        yield start(stack_config(folder, **sections), env, timeout=timeout)
    finally:
        ended = exaserve("down", env=env)
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture(scope="session")
def simulated_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two simulated replicas, router and exporter. Shared: leave it as it was."""
    folder = tmp_path_factory.mktemp("simulated")
    env = {"EXASERVE_HOME": str(folder)}
    yield from _running(folder, env, 120, engine={"kind": "simulated"}, monitoring={"enabled": False})


@pytest.fixture(scope="session")
def real_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two real vLLM replicas with everything around them; engine and model are those of $EXASERVE_HOME.

    Shared: whoever breaks something waits until it has healed.
    """
    folder = tmp_path_factory.mktemp("real")
    yield from _running(folder, {"EXASERVE_RUN": str(folder / "run")}, 1800)


@pytest.fixture
def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens."""
    return free_ports()
