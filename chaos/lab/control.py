"""The control node's part: per region a router with its Prometheus and Alertmanager, run by ``exaserve up``.

It is the machine itself, in its own namespaces: no fault of a node, a link or a storage reaches it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from chaos.lab.state import EXPORTER_PORT, MARK, State

#: What ``--profile tuned`` sets for a fleet that must notice a silent replica within three seconds, and whose users
#: get their first token within 2.5 s or a refusal: what waits in engines and in the router may take no longer. The
#: defaults suit replicas that are busy for seconds at a time, and users who would rather wait.
TUNED = {
    "health_check_interval": 1.5,
    "probe_timeout": 2.0,
    "degraded_after": 1.0,
    "silence_timeout": 2.0,
    "load_interval": 0.5,
    "max_queue_depth": 4,
    "admission": {"max_wait": 1.0},
}


#: The region's configuration as its user would write it, in the region's folder. Not exaserve.yaml: that one there is
#: what `exaserve up` hands to the router, and writes over.
CONFIG = "control.yaml"

#: Of it too: a replica has at most its batch (``engine.max_num_seqs``, 16) and what a quarter of it takes to leave. The
#: router counts these itself, at once; reports of an engine's queue come twice a second, and whole waves pass between.
TUNED_POOLS = {"default": {"max_in_flight": 20}}


def start(state: State, region: State, settings: list[str]) -> subprocess.Popen[bytes]:
    """Start a region's ``exaserve up --detach``; the process ends when all of it is ready, or with status 1.

    settings: ``KEY=VALUE`` for its ``--set``. What it says is in ``up.log`` in the region's folder.
    """
    run = Path(region["run"])
    run.mkdir(parents=True, exist_ok=True)
    addresses = {n["name"]: n for n in state["nodes"]}
    nodes = [addresses[name] for name in region["nodes"]]
    lines = [f"{r['name']}={r['url']}\n" for node in nodes for r in node["replicas"]]
    (run / "replicas.txt").write_text("".join(lines))
    router, admin = urlsplit(region["router"]), urlsplit(region["admin"])
    config: dict[str, Any] = {
        "fleet": {"replicas_file": "replicas.txt"},
        "router": {
            "host": router.hostname,
            "port": router.port,
            "admin_host": admin.hostname,
            "admin_port": admin.port,
            "audit": {"enabled": True, "folder": "audit"},
            **(TUNED if state["profile"] == "tuned" else {}),
        },
        "pools": TUNED_POOLS if state["profile"] == "tuned" else {},
        "monitoring": {
            "prometheus_port": urlsplit(region["prometheus"]).port,
            "alertmanager_port": urlsplit(region["alertmanager"]).port,
            "exporters": [f"{node['address']}:{EXPORTER_PORT}" for node in nodes],
        },
    }
    (run / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False))
    argv = [sys.executable, "-m", "serving.cli", "up", "--parts", "router,monitoring", "--detach"]
    argv += ["--config", str(run / CONFIG), *(f"--set={setting}" for setting in settings)]
    with (run / "up.log").open("wb") as log:
        return subprocess.Popen(
            argv,
            env={**os.environ, MARK: state["folder"], "EXASERVE_RUN": str(run)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )


def last_words(region: State, lines: int = 8) -> str:
    """The end of what the region's ``exaserve up`` said."""
    path = Path(region["run"]) / "up.log"
    said = path.read_text(errors="replace").splitlines()[-lines:] if path.exists() else []
    return "\n".join(f"  | {line}" for line in said)


def running(region: State) -> dict[str, str]:
    """Base URLs of the region's parts that ``exaserve up`` started, by name; empty if it wrote nothing."""
    try:
        return dict(json.loads((Path(region["run"]) / "stack.json").read_bytes())["addresses"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def fleet(region: State) -> dict[str, dict[str, Any]]:
    """Replicas by name as the region's router sees them; empty if it does not answer within 2 s."""
    try:
        with urllib.request.urlopen(f"{region['admin']}/fleet", timeout=2) as answer:  # noqa: S310 - http, ours
            return {r["name"]: r for r in json.load(answer)["replicas"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
