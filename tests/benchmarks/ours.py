"""ExaServe's router as a benchmark starts it: with everything on, or bare; and proof of what was really on.

A configuration file is written for each. A section that this version does not know is left out and named, so that
the same benchmark runs before and after a part is built; ``evidence`` asks the running router, since a key that is
accepted says nothing about what it does.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from serving.config import load
from serving.config_errors import ConfigError
from tests.benchmarks.peers import Builder, Proxy, Start, answers, free_port, most_connections

TENANTS = 8
KEYS = [f"sk-bench-{i}-{hashlib.sha256(b'bench%d' % i).hexdigest()[:32]}" for i in range(TENANTS)]
PLENTY = 1_000_000_000


def _auth(config: dict[str, Any], folder: Path, _: str) -> None:
    tenants = [
        {
            "name": f"tenant-{i}",
            "keys": [hashlib.sha256(key.encode()).hexdigest()],
            "requests_per_minute": PLENTY,
            "tokens_per_minute": PLENTY,
            "max_in_flight": 100_000,
            "max_tokens": 100_000,
        }
        for i, key in enumerate(KEYS)
    ]
    file = folder / "tenants.yaml"
    file.write_text(yaml.safe_dump({"tenants": tenants}))
    file.chmod(0o600)
    config["tenants"] = {"file": str(file)}


def _admission(config: dict[str, Any], _: Path, __: str) -> None:
    config["router"]["admission"] = {"max_waiting": 256, "max_wait": 5.0}


def _pools(config: dict[str, Any], _: Path, __: str) -> None:
    config["pools"] = {
        "long": {
            "match": {"min_input_tokens": 6000},
            "max_in_flight": 8,
            "priority": 1,
            "fallback": "default",
        },
        "medical": {"match": {"intents": ["medical"]}},
        "batch": {"match": {"headers": {"x-batch": "yes"}}, "priority": 2},
        "default": {},
    }


def _intent(config: dict[str, Any], _: Path, __: str) -> None:
    config["router"]["intent"] = {"enabled": True}


def _audit(config: dict[str, Any], folder: Path, _: str) -> None:
    config["router"]["audit"] = {"enabled": True, "folder": str(folder / "audit")}


def _traces(config: dict[str, Any], _: Path, sink: str) -> None:
    config["router"]["tracing"] = {"endpoint": f"{sink}/v1/traces", "sample": 0.01}


def _ejection(config: dict[str, Any], _: Path, __: str) -> None:
    config["router"]["ejection"] = {"enabled": True}


#: What "everything on" means: name -> what it adds to the configuration.
FEATURES: dict[str, Callable[[dict[str, Any], Path, str], None]] = {
    "auth": _auth,
    "admission": _admission,
    "intent": _intent,  # before pools, one of which asks for it
    "pools": _pools,
    "audit": _audit,
    "traces 1 %": _traces,
    "ejection": _ejection,
}


def everything_on(config: dict[str, Any], folder: Path, sink: str) -> dict[str, str]:
    """Adds every feature to ``config``, files into ``folder``, spans to ``sink``. Feature -> "on" or why not."""
    said = {}
    for name, add in FEATURES.items():
        tried = json.loads(json.dumps(config))
        add(tried, folder, sink)
        if problem := refused(tried, folder):
            said[name] = f"not in this version ({problem})"
        else:
            config.clear()
            config.update(tried)
            said[name] = "on"
    return said


def refused(config: dict[str, Any], folder: Path) -> str:
    """Why this version does not take the configuration; "" if it does."""
    file = folder / "tried.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    try:
        load(file)
    except ConfigError as error:
        return error.errors[0].partition(": ")[2][:80]
    return ""


def _base() -> dict[str, Any]:
    return {"router": {"max_connections": most_connections(), "max_queue_depth": 100_000}}


def _start(config: dict[str, Any], port: int, urls: Sequence[str], folder: Path) -> Start:
    file, admin = folder / "exaserve.yaml", free_port()
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    argv = [sys.executable, "-m", "serving.router", "--config", str(file), "--port", str(port)]
    argv += ["--admin-port", str(admin)]
    argv += [word for i, u in enumerate(urls) for word in ("--replica", f"r{i}={u}")]
    return Start(argv, {}, [], admin, folder)


def everything(port: int, urls: Sequence[str], folder: Path) -> Start:
    """Auth, admission, pools, intent, metrics, audit, traces of 1 %, the default policy."""
    config = _base()
    said = everything_on(config, folder, urls[0])
    start = _start(config, port, urls, folder)
    start.said = said
    if said["auth"] == "on":
        start.keys = KEYS
    return start


def bare(port: int, urls: Sequence[str], folder: Path) -> Start:
    """Only what can't be switched off: metrics, health, admission's limits."""
    config = _base()
    for key, value in (("ejection", {"enabled": False}), ("strategy", "round_robin")):
        tried = {"router": config["router"] | {key: value}}
        if not refused(tried, folder):
            config = tried
    return _start(config, port, urls, folder)


OURS: dict[str, Builder] = {"exaserve": everything, "exaserve-bare": bare}


# --- the running router ---


def admin(proxy: Proxy, path: str) -> str:
    """A page of the admin API."""
    with urllib.request.urlopen(f"http://127.0.0.1:{proxy.start.admin_port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def ready(proxy: Proxy) -> None:
    """Waits until every replica is ready and the client port answers."""
    end, states = time.monotonic() + 60, ["no answer"]
    while time.monotonic() < end:
        if proxy.process.poll() is not None:
            raise RuntimeError(f"{proxy.name} ended with {proxy.process.returncode}: {proxy.tail()}")
        with suppress(OSError, ValueError, KeyError):
            states = [r["state"] for r in json.loads(admin(proxy, "/fleet"))["replicas"]]
            if all(s == "ready" for s in states):
                answers(proxy)  # the workers listen, too
                return
        time.sleep(0.1)
    used = sum(total for total, _ in proxy.cpu().values())
    raise RuntimeError(
        f"{proxy.name}: replicas are {sorted(set(states))} after 60 s ({used:.1f} s of CPU used): {proxy.tail()}"
    )


def in_flight(proxy: Proxy) -> int:
    return sum(int(r["in_flight"]) for r in json.loads(admin(proxy, "/fleet"))["replicas"])


def evidence(proxy: Proxy, traces: int) -> dict[str, str]:
    """Feature -> what shows that it was at work, for those that can be seen from outside.

    Ask after a load: ``traces`` is how many POSTs of spans the sink has got.
    """
    said = dict(proxy.start.said)
    seen = {
        "auth": _status_without_key(proxy) == 401,
        "audit": _audit_bytes(proxy) > 0,
        "traces 1 %": traces > 0,
        "intent": 'intent="' in admin(proxy, "/metrics"),
        "pools": 'pool="' in admin(proxy, "/metrics"),
    }
    said["compiled"] = (
        "on" if "exaserve_router_compiled_workers 1" in admin(proxy, "/metrics") else "plain Python"
    )
    for name, was_seen in seen.items():
        if said.get(name) == "on" and not was_seen:
            said[name] = "configured, but nothing of it was seen"
    return said


def _status_without_key(proxy: Proxy) -> int:
    url = f"http://127.0.0.1:{proxy.port}/v1/models"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _audit_bytes(proxy: Proxy) -> int:
    folder = (proxy.start.folder or Path()) / "audit"
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) if folder.is_dir() else 0
