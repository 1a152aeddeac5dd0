"""From a fault to on-call's hands: three faults in a running fleet, three alerts at a webhook, their links and runbooks.

    .venv/bin/python -m tests.benchmarks.alerts_end_to_end                 (about ten minutes)
    .venv/bin/python -m tests.benchmarks.alerts_end_to_end --rounds 3

Each round starts a stack of six simulated replicas with Prometheus and Alertmanager, with the configuration of
``exaserve alerts config`` and rules whose links lead to a server of this program, and breaks it:

kv_full: more long requests than the KV cache of all replicas holds. ExaServeKVPressure.
slow: one replica computes six times slower. ExaServeReplicaSlow. (Ejections are off, so that it stays slow.)
killed: one replica's process is killed and does not come back for a while. ExaServeReplicaDown.

An alert has arrived when the webhook's body names it and what was broken. Its links are followed: the runbook is
there, the board has those variables. The runbook's commands are run as they are written; what they say must hold
what ``CAUSES`` looks for. Waits are those of the rules and of Alertmanager (a warning waits a minute for its group).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.benchmarks.on_call import OnCall, on_call
from tests.benchmarks.report import Goal, table
from tests.conftest import Stack, exaserve, stack_config, start
from tests.runbooks.as_written import diagnosis

REPLICAS = 6
SECTIONS: dict[str, Any] = {
    # 182 blocks of 16 tokens: eight requests of kv_full.
    "engine": {"kind": "simulated", "kv_cache_memory": "64M", "args": ["--faults"]},
    # A replica that is killed stays away until its alert has been sent and its runbook has been followed.
    "fleet": {"replicas_per_node": REPLICAS, "restart_backoff": 240.0},
    # A busy machine is none of these faults: what is slow for that is neither ejected nor down.
    "router": {"ejection": {"enabled": False}, "probe_timeout": 30.0, "silence_timeout": 9.0},
    "monitoring": {"scrape_interval": 5.0},
}
#: The longest that an alert may take: its rule's wait, its signal's window, its group's wait, and some more.
PATIENCE = 600.0


# --- the fleet -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def fleet(receiver: OnCall) -> Iterator[Stack]:
    """A running stack that tells ``receiver``."""
    folder = Path(tempfile.mkdtemp(prefix="alerts-"))
    env = {"EXASERVE_HOME": str(folder)}
    told: dict[str, Any] = {
        "receivers": {"on-call": {"webhook": [{"url": f"{receiver.url}/alerts"}]}},
        "routes": dict.fromkeys(("critical", "warning", "info"), "on-call"),
    }
    (folder / "alerting.yaml").write_text(yaml.safe_dump(told))
    _done(
        "alerts", "config", "--file", f"{folder / 'alerting.yaml'}", "--out", f"{folder / 'alertmanager.yml'}"
    )
    links = ("--runbooks", f"{receiver.url}/runbooks", "--grafana", receiver.url)
    _done("dashboards", "build", "--out", f"{folder / 'boards'}", *links)
    sections = SECTIONS | {
        "monitoring": {**SECTIONS["monitoring"], "alertmanager_config": f"{folder / 'alertmanager.yml'}"}
    }
    try:
        stack = start(stack_config(folder, **sections), env)
        config = folder / "run" / "prometheus.yml"
        data = yaml.safe_load(config.read_text()) | {"rule_files": [f"{folder / 'boards'}/rules/*.yaml"]}
        config.write_text(yaml.safe_dump(data))
        os.kill(stack.pids["prometheus"], signal.SIGHUP)
        yield stack
    finally:
        exaserve("down", env=env)
        shutil.rmtree(folder, ignore_errors=True)


def _done(*arguments: str) -> None:
    ended = exaserve(*arguments)
    if ended.returncode:
        raise RuntimeError(f"exaserve {' '.join(arguments)}: {ended.stderr}")


@contextlib.contextmanager
def asking(stack: Stack, users: int, words: int, tokens: int) -> Iterator[None]:
    """Streams of so many prompt words and answer tokens, each user one after the other, until the block ends."""
    ended = threading.Event()

    def ask(number: int) -> None:
        with httpx.Client(timeout=60) as client:
            for n in range(10**9):
                body = {
                    "messages": [{"role": "user", "content": f"{number} {n} " + "sea " * words}],
                    "stream": True,
                    "max_tokens": tokens,
                    "ignore_eos": True,
                }
                with (
                    contextlib.suppress(httpx.HTTPError),
                    client.stream("POST", f"{stack.router}/v1/chat/completions", json=body) as answer,
                ):
                    for _ in answer.iter_lines():
                        if ended.is_set():
                            return
                if ended.wait(0.1):
                    return

    threads = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range(users)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)


def _replicas(stack: Stack) -> dict[str, dict[str, Any]]:
    return {r["name"]: r for r in httpx.get(f"{stack.admin}/fleet").json()["replicas"]}


# --- faults ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def kv_full(stack: Stack) -> Iterator[str]:
    with asking(stack, 10 * REPLICAS, 250, 100):  # a fifth more than fit in at once
        yield ""


@contextlib.contextmanager
def slow(stack: Stack) -> Iterator[str]:
    url = _replicas(stack)["replica-1"]["url"]
    with asking(stack, 8, 20, 32):
        time.sleep(30)  # so that there is something to compare with
        httpx.post(f"{url}/_sim/fault", json={"kind": "slow", "factor": 6}).raise_for_status()
        try:
            yield "replica-1"
        finally:
            httpx.post(f"{url}/_sim/fault", json={"kind": "none"})


@contextlib.contextmanager
def killed(stack: Stack) -> Iterator[str]:
    with asking(stack, 4, 20, 32):
        os.kill(stack.pids["replica-2"], signal.SIGKILL)
        yield "replica-2"


#: The killed one for last: the others need all replicas.
FAULTS: dict[str, tuple[str, Callable[[Stack], contextlib.AbstractContextManager[str]]]] = {
    "kv_full": ("ExaServeKVPressure", kv_full),
    "slow": ("ExaServeReplicaSlow", slow),
    "killed": ("ExaServeReplicaDown", killed),
}


def _values(output: str) -> dict[str, float]:
    """Value by replica of what ``promtool query instant`` printed."""
    return {name: float(v) for name, v in re.findall(r'replica="([^"]+)".*\} => (\S+) @', output)}


def _is_full(said: dict[str, str]) -> bool:
    return any(value > 0.6 for line, out in said.items() if "utilisation" in line for value in _values(out).values())  # fmt: skip


def _is_slow(said: dict[str, str]) -> bool:
    """Some query's answer has replica-1 highest, at twice the median or more."""
    for output in said.values():
        values = _values(output)
        others = sorted(v for name, v in values.items() if name != "replica-1")
        if "replica-1" in values and len(others) >= 2 and values["replica-1"] > 2 * others[len(others) // 2]:
            return True
    return False


def _is_down(said: dict[str, str]) -> bool:
    found = next(out for line, out in said.items() if line.endswith("/fleet"))
    states = {r["name"]: (r["state"], r["reason"]) for r in json.loads(found)["replicas"]}
    return states["replica-2"][0] == "down" and "refused" in (states["replica-2"][1] or "")


CAUSES: dict[str, Callable[[dict[str, str]], bool]] = {
    "kv_full": _is_full,
    "slow": _is_slow,
    "killed": _is_down,
}


# --- the whole -------------------------------------------------------------------------------------------


def one(stack: Stack, receiver: OnCall, fault: str) -> dict[str, Any]:
    """Break it, wait for the alert, follow its links, run its runbook's commands, mend it."""
    name, broken = FAULTS[fault]
    began = time.time()
    row: dict[str, Any] = {"fault": fault, "alert": name}
    with broken(stack) as replica:
        injected = time.time()
        while True:
            came = receiver.alerts(name, began)
            found = [(at, a) for at, a in came if replica in ("", a["labels"].get("replica"))]
            if found:
                break
            if time.time() - injected > PATIENCE:
                return row | {"arrived_s": None, "others": _names(receiver, began)}
            time.sleep(0.5)
        at, alert = found[0]
        fired = _seconds_of(alert["startsAt"])
        row |= {
            "arrived_s": at - injected,
            "fired_s": fired - injected,
            "summary": alert["annotations"]["summary"],
            "links": {
                key: httpx.get(alert["annotations"][key]).status_code
                for key in ("runbook_url", "dashboard_url")
            },
        }
        said = diagnosis(stack, name)
        row |= {"commands": len(said), "cause": CAUSES[fault](said), "said": said}
    return row | {"others": _names(receiver, began)}


def _names(receiver: OnCall, since: float) -> list[str]:
    """Alerts of other names that came meanwhile."""
    return sorted(
        {a["labels"]["alertname"] for at, b in receiver.received for a in b["alerts"] if at > since}
    )


def _seconds_of(stamp: str) -> float:
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", stamp).replace("Z", "+00:00")).timestamp()


def _quiet(stack: Stack) -> None:
    """Wait until no alert that warns is active, three minutes at most."""
    end = time.monotonic() + 180
    while time.monotonic() < end:
        active = httpx.get(f"{stack.alertmanager}/api/v2/alerts", params={"active": "true"}).json()
        if not [a for a in active if a["labels"]["severity"] != "info"]:
            return
        time.sleep(1)


def goals(rows: list[dict[str, Any]]) -> list[Goal]:
    arrived = [r for r in rows if r["arrived_s"] is not None]
    links = [s for r in arrived for s in r["links"].values()]
    return [
        Goal("every fault's alert arrives", f"{len(arrived)} of {len(rows)}", len(arrived) == len(rows)),
        Goal("links lead to a page", f"{links.count(200)} of {len(links)}", links.count(200) == len(links)),
        Goal(
            "the runbook's commands find the cause",
            f"{sum(1 for r in arrived if r['cause'])} of {len(rows)}",
            all(r.get("cause") for r in rows),
        ),
    ]


def markdown(rows: list[dict[str, Any]]) -> str:
    cells = []
    for r in rows:
        got = r["arrived_s"] is not None
        cells.append(
            [
                f"{r['round']}: {r['fault']}",
                r["alert"],
                f"{r['fired_s']:.0f}" if got else "–",
                f"{r['arrived_s']:.0f}" if got else "never",
                "/".join(str(s) for s in r["links"].values()) if got else "–",
                f"{r['commands']}, {'found' if r['cause'] else 'NOT FOUND'}" if got else "–",
                ", ".join(n for n in r["others"] if n not in (r["alert"], "ExaServeWatchdog")) or "–",
            ]
        )
    head = ["fault", "alert", "fired after, s", "arrived after, s", "links", "commands, cause", "came, too"]
    verdicts = [[g.name, g.measured, g.verdict] for g in goals(rows)]
    return "\n\n".join(
        [
            "# From a fault to on-call",
            table(head, cells),
            "\n".join(f"- {r['fault']}: {r['summary']}" for r in rows if r.get("summary")),
            table(["goal", "measured", "verdict"], verdicts),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(FAULTS), metavar="FAULTS", help="some of them")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="of all faults [1]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    a = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with on_call() as receiver:
        for number in range(1, a.rounds + 1):
            with fleet(receiver) as stack:
                for fault in a.only.split(","):
                    _quiet(stack)
                    rows.append(one(stack, receiver, fault) | {"round": number})
                    print(f"  {number}: {fault}: {rows[-1]['arrived_s']}", file=sys.stderr, flush=True)
    print(markdown(rows))
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
