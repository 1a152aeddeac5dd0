"""Building a lab: what it needs of the machine, everything in order, and waiting until all of it serves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from chaos import identity
from chaos.lab import control, network, node, state, storage, teardown
from chaos.lab.state import LabError, State

Say = Callable[[str], None]
#: Seconds until a replica must serve: a simulated one, and a real one, which loads a model on few cores.
_SIMULATED_SECONDS, _REAL_SECONDS = 120.0, 900.0
_SERVING = ("ready", "degraded")


def problems() -> list[str]:
    """What this machine lacks for a lab, each with its cure; empty if nothing."""
    found = []
    if not sys.platform.startswith("linux"):
        return ["a lab is made of Linux namespaces; run it on Linux"]
    if os.geteuid() != 0:
        found.append("a lab makes interfaces and namespaces, which only root may: sudo -E exaserve lab up")
    missing = [program for program in ("ip", "nsenter") if shutil.which(program) is None]
    if missing:
        found.append(
            f"{' and '.join(missing)} not found: serving/tools.sh lab, or sudo apt-get install iproute2 util-linux"
        )
    found += [
        f"this kernel has no {what} namespaces (/proc/self/ns/{file})"
        for what, file in (("network", "net"), ("mount", "mnt"), ("process", "pid"), ("host-name", "uts"))
        if not Path(f"/proc/self/ns/{file}").exists()
    ]
    return found


def hints() -> list[str]:
    """What a lab goes on without, each with its cure."""
    found = []
    if shutil.which("prometheus") is None or not any(
        shutil.which(name) for name in ("prometheus-alertmanager", "alertmanager")
    ):
        found.append(
            "without Prometheus or Alertmanager experiments have no steady state: serving/tools.sh lab, "
            "or sudo apt-get install prometheus prometheus-alertmanager"
        )
    if shutil.which("nft") is None:
        found.append("without nft most link faults are not possible: serving/tools.sh lab (package nftables)")
    return found


def is_up(found: State | None) -> bool:
    """Whether that lab is there: its own bridge and a control node that runs."""
    if found is None or found["phase"] != "ready" or network.owner(found["name"]) != found["folder"]:
        return False
    return bool(teardown.processes(found["folder"]))


def being_built(found: State) -> bool:
    """Whether a command that builds that lab lives."""
    return found["phase"] == "building" and identity.alive(found.get("builder"))


def up(
    name: str,
    say: Say,
    nodes: int = 4,
    replicas: int = 1,
    real: int = 0,
    regions: int = 1,
    profile: str = "tuned",
    settings: list[str] | None = None,
) -> State:
    """Build a lab and wait until every replica serves. One that is up is left as it is.

    Whatever was left of an earlier one of that name is removed first. If it can't be built, or on Ctrl-C or
    SIGTERM, everything is removed again. Raises LabError, KeyboardInterrupt.
    """
    lacking = problems()
    if lacking:
        raise LabError("\n".join(lacking))
    if teardown.is_foreign(name):
        raise LabError(
            f"a lab {name!r} of another home is up ({network.owner(name)}); give this one another --name",
            True,
        )
    left = teardown.remove(name)
    if left:
        say(f"removed what was left of an earlier lab {name!r}: {', '.join(left)}")
    for hint in hints():
        say(f"  {hint}")
    begin = time.monotonic()
    _interruptible()
    try:
        model = _real_model(say) if real else None
        plan = state.plan(name, nodes, replicas, real, regions, profile, network.networks())
        state.write(plan)
        say(
            f"building lab {name!r}: {nodes} node{'s' if nodes > 1 else ''} on {plan['bridge']} ({plan['subnet']})"
        )
        network.make_bridge(plan)
        starts = {r["name"]: control.start(plan, r, settings or []) for r in plan["regions"]}
        storage.make(plan)
        if model is not None:
            say(f"  copying {model.name} onto the lab's shared storage")
            storage.copy_model(plan, model)
        storage.ensure(plan, plan["nodes"], say)
        for entry in plan["nodes"]:
            node.start(plan, entry, say)
        say(
            f"  {time.monotonic() - begin:6.1f} s  network, storage and nodes are there; waiting for what runs on them"
        )
        _wait(plan, starts, say, begin)
        for region in plan["regions"]:
            there = control.running(region)
            region.update({part: there.get(part) for part in ("prometheus", "alertmanager")})
        plan |= {"phase": "ready", "builder": None}
        state.write(plan)
    except BaseException as error:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        say(
            "it was not built; removing what was made"
            if not isinstance(error, KeyboardInterrupt)
            else "stopping"
        )
        teardown.remove(name)
        raise
    say(f"lab {name!r} is up after {time.monotonic() - begin:.1f} s")
    return plan


def wait_node(entry: State) -> bool:
    """Wait until the node's stack is ready. False if it is not within the time that a start may take."""
    limit = _REAL_SECONDS if entry["engine"] == "vllm" else _SIMULATED_SECONDS
    end = time.monotonic() + limit
    while node.phase(entry) != "ready":
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _interruptible() -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def _real_model(say: Say) -> Path:
    """The default model's folder, after engine and model are built if they were not. Raises LabError."""
    said = ""
    for module in ("serving.engines.install", "serving.engines.model"):
        with subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    said = line.strip()
                    say(f"  {said}")
            except BaseException:
                process.terminate()
                raise
        if process.returncode:
            raise LabError("real replicas can't be had here (see above); without --real they are simulated")
    return Path(said.rpartition(", in ")[2])


def _wait(plan: State, starts: dict[str, subprocess.Popen[bytes]], say: Say, begin: float) -> None:
    """Until every part of every node and region is ready. Raises LabError."""
    limit = _REAL_SECONDS if any(n["engine"] == "vllm" for n in plan["nodes"]) else _SIMULATED_SECONDS
    ready: set[str] = set()

    def note(name: str, more: str = "") -> None:
        if name not in ready:
            ready.add(name)
            say(f"  {time.monotonic() - begin:6.1f} s  {name} is ready{more}")

    while True:
        for region in plan["regions"]:
            start = starts[region["name"]]
            if start.poll() not in (None, 0):
                raise LabError(f"router and monitoring did not start:\n{control.last_words(region)}")
            fleet = control.fleet(region) if start.poll() == 0 else {}
            if start.poll() == 0:
                note(region["name"], f": router at {region['router']}")
            for entry in plan["nodes"]:
                if entry["region"] != region["name"] or entry["name"] in ready:
                    continue
                names = [r["name"] for r in entry["replicas"]]
                serving = all(fleet.get(n, {}).get("state") in _SERVING for n in names)
                phase = node.phase(entry)
                if phase == "down":
                    raise LabError(f"{entry['name']} went down:\n{node.last_words(entry)}")
                if serving and phase == "ready":
                    note(entry["name"], f": {', '.join(names)} ({entry['engine']}) at {entry['address']}")
        if len(ready) == len(plan["regions"]) + len(plan["nodes"]):
            return
        if time.monotonic() - begin > limit:
            late = [n for n in plan["nodes"] if n["name"] not in ready]
            said = "".join(f"\n{n['name']}:\n{node.last_words(n)}" for n in late)
            raise LabError(f"not ready after {limit:.0f} s{said}")
        time.sleep(0.2)
