"""One node: started, brought back after it was killed, and what runs on it told in this machine's process ids."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from chaos import identity
from chaos.lab import network, storage
from chaos.lab.state import EXPORTER_PORT, MARK, REPLICA_PORT, LabError, State, write

_NAMESPACES = ("-n", "-m", "-p", "-u")


def up(node: State) -> bool:
    """Whether the node's process 1 lives."""
    return identity.alive(node["init"])


def prefix(node: State) -> list[str]:
    """The argv that runs a command on the node when it stands before it."""
    return ["nsenter", "-t", str(node["init"]["pid"] if node["init"] else 0), *_NAMESPACES, "--"]


def start(state: State, node: State, say: Callable[[str], None]) -> bool:
    """Start the node, with its storage, network and stack; False if it is up already. Writes the state.

    Returns as soon as the stack is being started. Raises LabError, OSError.
    """
    if up(node):
        return False
    storage.ensure(state, [node], say)
    _configure(state, node)
    run = Path(node["run"])
    (run / "stack.json").unlink(missing_ok=True)  # process ids of a life before
    scratch = run.parent / "sys"
    scratch.mkdir(exist_ok=True)
    with (run.parent / "init.log").open("ab") as log:
        init = subprocess.Popen(
            [sys.executable, "-m", "chaos.lab.init"],
            env=_environment(state, node),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd="/",
        )
    assert init.stdin is not None
    assert init.stdout is not None
    with init.stdin, init.stdout:
        said = init.stdout.readline().strip()
        init.wait()
        who = identity.of(int(said)) if said.isdigit() else None
        if who is None:
            raise LabError(f"{node['name']} could not be started: {said or 'its process 1 ended at once'}")
        node["init"] = who
        for entry in state["nodes"]:
            if entry["name"] == node["name"]:
                entry["init"] = who
        write(state)
        network.attach(state, node, who["pid"])
        told = {
            "hostname": node["name"],
            "cpus": node["cpus"],
            "argv": _stack(node),
            "env": _environment(state, node),
            "log": str(run.parent / "stack.log"),
            "scratch": str(scratch),
        }
        init.stdin.write(json.dumps(told) + "\n")
    return True


def phase(node: State) -> str:
    """Where the node's stack is: ``down``, ``starting`` or ``ready``."""
    if not up(node):
        return "down"
    return "ready" if stack(node).get("phase") == "ready" else "starting"


def stack(node: State) -> dict[str, Any]:
    """What the node's ``exaserve up`` wrote down last; empty if it wrote nothing yet."""
    try:
        found = json.loads((Path(node["run"]) / "stack.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def parts(node: State) -> dict[str, int | None]:
    """Processes of the node's parts by name, as this machine counts them; None for one that does not run."""
    inside: dict[str, int | None] = {}
    for part in stack(node).get("parts", []):
        inside[part["name"]] = (part.get("identity") or {}).get("pid")
    here = pids(node) if any(inside.values()) else {}
    return {name: here.get(pid) if pid else None for name, pid in inside.items()}


def pids(node: State) -> dict[int, int]:
    """Every process of the node: its pid on the node -> its pid here. Empty while it is down."""
    if not up(node):
        return {}
    try:
        space = os.readlink(f"/proc/{node['init']['pid']}/ns/pid")
    except OSError:
        return {}
    found = {}
    for pid in identity.pids():
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") != space:
                continue
            status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        except OSError:
            continue
        line = next((text for text in status.splitlines() if text.startswith("NSpid:")), "")
        if len(line.split()) > 2:
            found[int(line.split()[-1])] = pid
    return found


def last_words(node: State, lines: int = 8) -> str:
    """The end of what the node's process 1 and stack said."""
    said: list[str] = []
    for name in ("init.log", "stack.log"):
        path = Path(node["run"]).parent / name
        if path.exists():
            said += path.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join(f"  | {line}" for line in said)


def _stack(node: State) -> list[str]:
    config = str(Path(node["run"]).parent / "exaserve.yaml")
    argv = [sys.executable, "-m", "serving.cli", "up", "--parts", "replicas,exporter", "--config", config]
    return [*argv, "--supervise"]


def _environment(state: State, node: State) -> dict[str, str]:
    # Its exporter asks the driver through chaos/nvml.py, so that the fault gpu_lost has something to act on.
    gpus = {"EXASERVE_NVML": "chaos.nvml", "EXASERVE_NVML_CONTROL": str(Path(node["run"]) / "nvml.json")}
    own = {MARK: state["folder"], "EXASERVE_RUN": node["run"], "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **gpus, **own}


def _configure(state: State, node: State) -> None:
    region = next(r for r in state["regions"] if r["name"] == node["region"])
    real = node["engine"] == "vllm"
    shared, local = node["mounts"]["shared"], node["mounts"]["local"]
    models = storage.server(state) / "models"
    model = (
        next((m.name for m in sorted(models.iterdir()) if m.name != "simulated"), "") if real else "simulated"
    )
    admin = region["admin"].removeprefix("http://")
    config = {
        "model": {"path": f"{shared}/models/{model}", "cache": f"{local}/models"},
        "engine": {"kind": node["engine"], "args": [] if real else ["--faults"]},
        "fleet": {
            "replicas_per_node": len(node["replicas"]),
            # Every address of the node: faults of the simulated engine are taken from its own loopback only.
            "host": "0.0.0.0",  # noqa: S104
            "first_port": REPLICA_PORT,
            "first_replica": int(node["replicas"][0]["name"].removeprefix("replica-")),
            "router": region["admin"],
        },
        "exporter": {
            "host": "0.0.0.0",  # noqa: S104
            "port": EXPORTER_PORT,
            "mounts": [local, shared],
            "peers": [admin],
        },
        "monitoring": {"enabled": False},
    }
    Path(node["run"]).mkdir(parents=True, exist_ok=True)
    (Path(node["run"]).parent / "exaserve.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
