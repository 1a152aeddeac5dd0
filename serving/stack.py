"""``exaserve up`` and ``exaserve down``: the whole stack in the foreground or detached.

Watching the parts is ``serving/supervisor.py``; what each part is, ``serving/parts.py``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType

from serving import monitoring, ports, record
from serving.config import PARTS, Config
from serving.config_errors import ConfigError
from serving.launch.local import dies_with_us, identity
from serving.parts import Part, parts, write_effective
from serving.reread import Reread
from serving.screen import Screen
from serving.supervisor import TICK, Say, StartError, Supervisor

QUESTION = "What is the capital of France?"
_DOWN_SECONDS = 75.0  # router 30 + replicas 15 + monitoring 10, and something to spare


class StackError(Exception):
    """The stack can't be started or ended; the message is for the user."""


class Stop:
    """Counts Ctrl-C, SIGTERM and SIGHUP. Until ``raising`` is taken away each one raises KeyboardInterrupt."""

    def __init__(self, detached: bool) -> None:
        self.count = 0
        self.raising = True
        self._detached = detached
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._come)

    def _come(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self._detached:
            return  # there is no terminal to lose
        self.count += 1
        if self.raising:
            raise KeyboardInterrupt


def up(
    config: Config,
    source: str,
    detached: bool = False,
    load: Callable[[], Config] | None = None,
    which: Collection[str] = PARTS,
) -> int:
    """Run the stack until Ctrl-C or SIGTERM. Exit status: 0 ended or already up, 130 stopped before it was up.

    detached: this process was started by ``detach``; it lets go of its output once the stack is up.
    load: reads the configuration again, for when ``source`` (a file) changes.
    which: the parts that run on this machine, as in ``serving/parts.py``.
    Raises ConfigError, StackError.
    """
    lock = record.lock()
    for _ in range(3):  # `exaserve status` holds it for an instant to see whether anybody else does
        if lock is None:
            time.sleep(0.05)
            lock = record.lock()
    if lock is None:
        print(already_up())
        return 0
    stop = Stop(detached)
    screen = Screen()
    rec: record.Record | None = None
    try:
        for name in _clean_stale():
            screen.say(f"{name} was left over from a stack that was killed; ended it")
        me = identity(os.getpid())
        if me is None:
            raise StackError("/proc is not readable; exaserve up needs it")
        rec = record.Record(me, time.time(), config=source)
        rec.write()
        supervisor = _prepare(config, rec, screen.say, which)
        stop.raising = False
        reread = Reread(
            config,
            Path(source) if load is not None and Path(source).is_file() else None,
            load or (lambda: config),
            lambda new: write_effective(new, record.run_folder()),
            screen.say,
        )
        return _run(config, supervisor, stop, screen, detached, reread, which)
    except KeyboardInterrupt:
        screen.say("stopped before anything was started")
        return 130
    except OSError as error:
        raise StackError(f"{error.filename or record.run_folder()}: {error.strerror or error}") from None
    finally:
        if rec is not None:
            record.close(rec)


def _prepare(config: Config, rec: record.Record, say: Say, which: Collection[str]) -> Supervisor:
    """Everything that can go wrong before anything starts."""
    taken = ports.problems(config, which)
    if taken:
        raise StackError("\n".join([*taken, "nothing was started"]))
    run = record.run_folder()
    # What this machine can't run is refused before the engine is built, which takes minutes.
    _parts(config, run, which)
    if config.engine.kind == "vllm" and "replicas" in which:
        _engine(config, say)
    all_parts = _parts(config, run, which)
    admin = monitoring.admin_url(config, which)
    services = {p.name: p.address for p in all_parts if p.kind == "service"}
    router = {"router": services.pop("router"), "admin": str(admin)} if "router" in which else {}
    rec.addresses = router | services
    rec.phase = "starting"
    fleet_url = f"{admin}/fleet" if admin else None
    return Supervisor(all_parts, rec, config.fleet, fleet_url, say, remote_router="router" not in which)


def _parts(config: Config, run: Path, which: Collection[str]) -> list[Part]:
    try:
        found = parts(config, run, which)
        if not found:  # monitoring alone where neither of its programs is installed
            raise ValueError(f"nothing to start: {monitoring.missing()}")
        return found
    except ValueError as error:
        raise ConfigError([str(error)]) from None


def _engine(config: Config, say: Say) -> None:
    from serving.engines.building import BuildError
    from serving.engines.install import ensure_engine
    from serving.engines.model import ensure_default_model

    try:
        ensure_engine(say)
        if config.model.path == "default":
            ensure_default_model(say)
    except BuildError as error:
        raise StackError(str(error)) from None


def _run(
    config: Config,
    supervisor: Supervisor,
    stop: Stop,
    screen: Screen,
    detached: bool,
    reread: Reread,
    which: Collection[str],
) -> int:
    begin, say, names = time.monotonic(), screen.say, [r.part.name for r in supervisor.running]
    n = sum(r.part.kind == "replica" for r in supervisor.running)
    replicas = [f"{n} {config.engine.kind} replica{'s' if n > 1 else ''} of {config.model.name}"] if n else []
    say(f"starting {', '.join([*replicas, *names[n:]])}")
    lacking = monitoring.missing()
    if lacking and config.monitoring.enabled and "monitoring" in which:
        say(f"  {lacking}")
    failed: StartError | None = None
    first = 0  # how often it was asked to end before it says that it does: once more is meant as that
    try:
        _until(supervisor, stop, supervisor.all_ready)
        if not stop.count:
            say(f"everything is ready after {time.monotonic() - begin:.1f} s")
            _welcome(config, supervisor, stop, say, detached)
        if not stop.count:
            supervisor.up = True
            supervisor.record.phase = "ready"
            supervisor.save()
            if detached:
                screen.detach()
            _until(supervisor, stop, reread.look)
        first = stop.count
        say("ending: router, replicas, the rest" + ("" if detached else " (Ctrl-C again kills at once)"))
    except StartError as error:
        failed, first = error, stop.count
        say("the start failed; ending what was started")
    finally:
        supervisor.stop(lambda: stop.count > max(1, first))
    left = supervisor.left()
    problems = ([str(failed)] if failed else []) + ([str(record.NotEnded(left))] if left else [])
    if problems:
        raise StackError("\n".join(problems))
    say("everything has ended")
    return 0 if supervisor.up else 130


def _until(supervisor: Supervisor, stop: Stop, done: Callable[[], bool | None]) -> None:
    while not stop.count:
        supervisor.tick()
        if done():
            return
        time.sleep(TICK)


def _welcome(config: Config, supervisor: Supervisor, stop: Stop, say: Say, detached: bool) -> None:
    """Addresses, one question with its answer, and how to go on."""
    addresses = supervisor.record.addresses
    says = {
        "router": "the one address for clients (OpenAI API)",
        "admin": "/fleet /metrics /readyz /sd",
        "exporter": "/metrics",
    }
    say("")
    for r in supervisor.running:
        if r.part.kind == "replica":
            say(f"  {r.part.name:<14}{r.part.address}")
    for name, url in addresses.items():
        say(f"  {name:<14}{url:<26}{says.get(name, '')}".rstrip())
    if "router" not in addresses or not any(r.part.kind == "replica" for r in supervisor.running):
        return  # nobody here to ask, or nobody who answers
    say("")
    say(f"  Q: {QUESTION}")
    # A process of its own, so that the parts are watched while it waits.
    question = subprocess.Popen(
        [sys.executable, "-m", "serving.cli", "ask", QUESTION, "--url", addresses["router"], "--indent"],
        stdin=subprocess.DEVNULL,
        preexec_fn=dies_with_us(),
    )
    try:
        _until(supervisor, stop, lambda: question.poll() is not None)
    finally:
        if question.poll() is None:
            question.kill()
        question.wait()
    if stop.count:
        return
    if question.returncode:
        say("  the question failed; see: exaserve logs router")
    say("")
    for line in _go_on(config, addresses, detached):
        say(line)


def _go_on(config: Config, addresses: dict[str, str], detached: bool) -> list[str]:
    router = addresses["router"]
    body = json.dumps({"model": config.model.name, "messages": [{"role": "user", "content": "Hello"}]})
    lines = [
        f"Go on (with ExaServe's commands on the PATH: . {Path(sys.executable).parent / 'activate'}):",
        f"  ask        curl {router}/v1/chat/completions -H 'content-type: application/json' -d '{body}'",
        f'  in Python  openai.OpenAI(base_url="{router}/v1", api_key="unused")',
        f"  load it    locust -f loadtest/chat.py --headless -u 8 -t 60s -H {router}",
        "  break it   exaserve chaos run replica-crash",
    ]
    if "prometheus" in addresses:
        lines.append(
            f"  see it     {addresses['prometheus']}/alerts; Grafana: import dashboards/generated/*.json"
        )
    lines.append("  look       exaserve status; exaserve logs replica-0 -f")
    return [*lines, "  end        exaserve down" + ("" if detached else ", or Ctrl-C here")]


def detach(arguments: list[str]) -> int:
    """Start ``exaserve up`` in its own session and show what it says until it is up. Its exit status, or 0.

    Ctrl-C (or SIGTERM) until then ends it.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "serving.cli", "up", *arguments, "--supervise"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert child.stdout is not None

    def forward(number: int, frame: FrameType | None) -> None:
        child.send_signal(signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    while chunk := child.stdout.read1(65536):  # type: ignore[attr-defined]
        sys.stdout.buffer.write(chunk)
        sys.stdout.flush()
    found = record.read()
    if found and found.phase == "ready" and found.supervisor.pid == child.pid and child.poll() is None:
        child.returncode = 0  # it stays; nobody waits for it
        return 0
    return child.wait()


def already_up() -> str:
    """Who holds the stack's lock, in words."""
    found = record.read()
    if found is None:
        return "another exaserve up is just starting here; see: exaserve status"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.started))
    if found.phase != "ready":
        return f"the stack is {found.phase} since {since} (pid {found.supervisor.pid}); see: exaserve status"
    return (
        f"the stack is up since {since} (pid {found.supervisor.pid}) at {found.addresses.get('router')}; "
        "exaserve status shows it, exaserve down ends it"
    )


def down(say: Say) -> None:
    """End the stack: its supervisor in order, or, if that does not work, everything that is recorded.

    Raises StackError if something can't be ended.
    """
    begin = time.monotonic()
    left = _clean()
    if left is not None:
        say(
            f"nothing is up; ended what was left over: {', '.join(left)}"
            if left
            else f"nothing is up (looked in {record.run_folder()})"
        )
        return
    found = record.read()
    while found is None and record.is_up() and time.monotonic() - begin < 3:
        time.sleep(0.1)
        found = record.read()
    if found is None:
        raise StackError(f"{record.path()} can't be read, so who runs the stack is not known")
    say(f"ending the stack (pid {found.supervisor.pid})")
    found.supervisor.signal(signal.SIGTERM)
    found.supervisor.signal(signal.SIGCONT)
    if not record.wait_gone([found.supervisor], _DOWN_SECONDS):
        say(f"it did not end within {_DOWN_SECONDS:.0f} s; killing it and its parts")
        found.supervisor.signal(signal.SIGKILL)
        if not record.wait_gone([found.supervisor], 5):
            itself = record.PartRecord("exaserve up", "", identity=found.supervisor)
            raise StackError(str(record.NotEnded([itself])))
    if _clean() is None:
        raise StackError("another exaserve up has started meanwhile; see: exaserve status")
    say(f"everything has ended, after {time.monotonic() - begin:.1f} s")


def _clean() -> list[str] | None:
    """Clean up after a supervisor that is gone, holding its lock: what another ``up`` has just started is not stale.

    Names of what was killed; None if a supervisor lives. Raises StackError if something does not end.
    """
    if not record.lock_path().exists():  # nothing ever ran here, and nothing is made for it
        return _clean_stale()
    lock = record.lock()
    if lock is None:
        return None
    try:
        return _clean_stale()
    finally:
        os.close(lock)


def _clean_stale() -> list[str]:
    try:
        return record.clean_stale()
    except record.NotEnded as error:
        raise StackError(str(error)) from None
