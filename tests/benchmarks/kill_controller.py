"""Kill the controller of faults at random moments: how long until the system is as it was before.

``python -m tests.benchmarks.kill_controller`` (as root, some minutes) builds a lab of two simulated nodes. For each of
ten faults it starts ``exaserve chaos inject`` ten times and sends it SIGKILL at a moment drawn from its whole duration.
Everything that the fault may leave (``tests/chaos/traces.py``) is then compared with what was there before until it is
equal. Allowed: the fault's duration and a second. ``--seed`` draws other moments, ``--json`` keeps every kill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.benchmarks.report import table
from tests.chaos import traces

#: fault -> what is put into it, and its parameters.
FAULTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "replica_freeze": ("replica-0", ()),
    "replica_slow": ("replica-0", ("factor=4",)),
    "replica_error": ("replica-0", ("status=429",)),
    "link_down": ("node-1", ()),
    "link_slow": ("node-1", ()),
    "link_loss": ("node-1", ()),
    "node_isolated": ("node-1", ()),
    "node_cpu": ("node-1", ()),
    "storage_slow": ("node-1/shared", ()),
    "storage_io_error": ("node-1/shared", ()),
}
SLACK = 1.0  # seconds beyond the duration, by which all must be as before
_LOOK = 0.1  # seconds between looks
_PROGRAM = str(Path(sys.executable).parent / "exaserve")


@dataclass
class Kill:
    """moment: seconds after the command's start. state: of the undo record then ("" none). recovered: seconds after the
    kill until all was as before; None if it was not within the limit, and then left says what was not. error: the
    command had ended by itself before."""

    fault: str
    moment: float
    state: str
    recovered: float | None
    left: tuple[str, ...] = ()
    error: str = ""


def settle(home: Path, seconds: float = 5.0) -> None:
    """Wait for the dead-man of a controller that was killed as it started it: it writes its record, and takes it away.

    One that was killed as it wrote has left half a record, for which nothing was done. recover takes that away, at some
    moment of ours: so here, before anything is compared.
    """
    end = time.monotonic() + seconds
    folder = home / "chaos" / "undo"
    while any(folder.glob("*.json")) and time.monotonic() < end:
        time.sleep(0.05)
    for half in folder.glob(".*.json.*"):
        half.unlink(missing_ok=True)


def kill(name: str, home: Path, fault: str, duration: float, moment: float) -> Kill:
    """Start a fault, kill its controller at the moment, wait until all is as before."""
    target, parameters = FAULTS[fault]
    settle(home)
    before = traces.everything(name, home)
    argv = [_PROGRAM, "chaos", "inject", fault, "--target", target, "--duration", f"{duration:g}"]
    argv += ["--place", f"lab:{name}", *(w for p in parameters for w in ("-p", p))]
    env = {**os.environ, "EXASERVE_HOME": str(home), "EXASERVE_RUN": ""}
    with tempfile.TemporaryFile("w+") as said:
        command = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        )
        time.sleep(moment)
        ended = command.poll()
        state = _state(home)
        command.kill()
        killed = time.monotonic()
        command.wait()
        said.seek(0)
        error = said.read().strip()[-300:] if ended not in (None, 0) else ""
    while True:
        at = time.monotonic()
        now = traces.here(name, home)
        if all(before[k] == v for k, v in now.items()):
            now = traces.everything(name, home)
            if now == before:
                return Kill(fault, moment, state, max(0.0, at - killed), error=error)
        if at - killed > duration + SLACK + 10.0:
            return Kill(fault, moment, state, None, tuple(traces.differences(before, now)), error)
        time.sleep(_LOOK)


def kills(
    name: str,
    home: Path,
    faults: Iterable[str],
    count: int,
    duration: float,
    seed: int,
    say: Callable[[str], None],
) -> list[Kill]:
    """So many kills of each fault, at moments that the seed decides."""
    done: list[Kill] = []
    for fault in faults:
        draw = random.Random(f"{seed}:{fault}")
        for _ in range(count):
            done.append(kill(name, home, fault, duration, draw.uniform(0.0, duration)))
            last = done[-1]
            took = "NOT AS BEFORE" if last.recovered is None else f"as before {last.recovered:.2f} s later"
            say(
                f"{len(done):4}  {fault:18} killed at {last.moment:5.2f} s ({last.state or 'no record yet'}): {took}"
            )
            for line in last.left:
                say(f"        {line}")
            if last.error:
                say(f"        {last.error}")
    return done


def in_time(one: Kill, duration: float) -> bool:
    return one.recovered is not None and not one.error and one.recovered <= duration + SLACK


def summary(done: list[Kill], duration: float) -> str:
    """The table."""
    rows = []
    for fault in dict.fromkeys(k.fault for k in done):
        those = [k for k in done if k.fault == fault]
        states = Counter(k.state or "no record" for k in those)
        times = [k.recovered for k in those if k.recovered is not None]
        good = sum(in_time(k, duration) for k in those)
        rows.append(
            [
                fault,
                str(len(those)),
                ", ".join(f"{n} {word}" for word, n in sorted(states.items())),
                f"{sorted(times)[len(times) // 2]:.2f}" if times else "–",
                f"{max(times):.2f}" if len(times) == len(those) else "never",
                f"{good} of {len(those)}",
            ]
        )
    head = [
        "fault",
        "kills",
        "undo record at the kill",
        "median s",
        "worst s",
        f"within {duration + SLACK:g} s",
    ]
    return table(head, rows)


def _state(home: Path) -> str:
    for path in (home / "chaos" / "undo").glob("*.json"):
        try:
            return str(json.loads(path.read_bytes())["state"])
        except (OSError, ValueError, KeyError):
            continue
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--kills", type=int, default=10, help="of each fault")
    parser.add_argument("--duration", type=float, default=6.0, help="of each fault, seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--name", default="kc", help="of the lab, which is built and taken down")
    parser.add_argument("--json", type=Path, help="file for every single kill")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="exaserve-kill-") as folder:
        home = Path(folder)
        env = {**os.environ, "EXASERVE_HOME": folder, "EXASERVE_RUN": ""}
        os.environ.update(env)
        lab = [_PROGRAM, "lab"]
        try:
            up = ["up", "--nodes", "2", "--name", args.name, "--set", "monitoring.enabled=false"]
            subprocess.run([*lab, *up], env=env, check=True)
            done = kills(
                args.name,
                home,
                args.faults,
                args.kills,
                args.duration,
                args.seed,
                lambda text: print(text, flush=True),
            )
        finally:
            subprocess.run([*lab, "down", "--name", args.name], env=env, check=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(k) for k in done], indent=1))
    print(summary(done, args.duration))
    return 0 if all(in_time(k, args.duration) for k in done) else 1


if __name__ == "__main__":
    sys.exit(main())
