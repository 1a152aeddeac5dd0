"""One process's part in a load test: the run it plays, its sender, and the way its records take to the run's folder.

The process that *holds* the run (the only one, or the master) opens the folder and makes the summary. Workers get the
run from it before their users spawn, and send it what they recorded each second by locust's own messages, so it works
over several machines::

    exaserve_hello    worker → holder    I am here (its answer is the Run, if one is on)
    exaserve_run      holder → workers   the Run
    exaserve_batch    worker → holder    records as lines, a sample of the process
    exaserve_finish   holder → workers   the time is up: let open requests end, then stop
    exaserve_done     worker → holder    that was the last batch

Not here: the events of locust that call this (``_plugin``), what the holder does with it (``_holder``).
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

import gevent
import msgspec
from locust.argument_parser import default_args_dict
from locust.runners import MasterRunner, WorkerRunner

from loadtest._lib import _clock, _hooks, _options
from loadtest._lib._client_watch import Watch
from loadtest._lib._holder import Holder
from loadtest._lib._http import Address
from loadtest._lib._record import Record
from loadtest._lib._run import Run
from loadtest._lib._sender import Sender, Settings

#: Beyond the time that open requests get to end, for the workers' last batches.
_PATIENCE = 10.0
_loads: dict[int, Load] = {}
_encode = msgspec.json.Encoder().encode


def attach(environment: Any) -> None:
    _loads[id(environment)] = Load(environment)


def found(environment: Any) -> Load | None:
    return _loads.get(id(environment))


def of(environment: Any) -> Load:
    """Raises RuntimeError where locust's ``init`` has not been."""
    load = found(environment)
    if load is None:
        raise RuntimeError("the load test has not been set up: run it with the locust command")
    return load


def problem(environment: Any) -> str | None:
    """What is wrong with the options, in one line, or None."""
    options = environment.parsed_options
    if options.worker:  # the master has checked them
        return None
    if options.headless:
        host = environment.host or next((c.host for c in environment.user_classes if c.host), None)
        if not host:
            return "no address; give one with -H http://127.0.0.1:8000"
        try:
            Address(host)
        except ValueError as error:
            return f"-H: {error}"
    return next(filter(None, (check(options) for check in (_options.problem, *_hooks.on_check))), None)


class Load:
    """run: of this process, None between runs. worker: its number, -1 for a master."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.run: Run | None = None
        self.open_loop = False
        self._sender: Sender | None = None
        self._lines: list[bytes] = []
        self._watch: Watch | None = None
        runner = environment.runner
        self._is_worker = isinstance(runner, WorkerRunner)
        self._is_master = isinstance(runner, MasterRunner)
        self.holder = None if self._is_worker else Holder(environment)
        if self._is_worker:
            runner.register_message("exaserve_run", self._given)
            runner.register_message("exaserve_finish", self._finish, concurrent=True)
            # Not the master's worker_connect: that comes before these messages can be taken.
            runner.send_message("exaserve_hello")
        else:
            assert self.holder is not None
            runner.register_message("exaserve_batch", self.holder.take)
            runner.register_message("exaserve_done", self.holder.done)
            runner.register_message("exaserve_hello", self._joined)

    @property
    def worker(self) -> int:
        return -1 if self._is_master else max(0, self.environment.runner.worker_index)

    def sender(self) -> Sender:
        if self._sender is None:
            raise RuntimeError("no run is on")
        return self._sender

    # -- begin

    def begin(self) -> None:
        """locust's test_start, in every process."""
        if self._is_worker:
            return  # it has begun with the run's message, which came before
        assert self.holder is not None
        run = self.holder.begin()
        if run is not None:
            self._play(run)
            if self._is_master and self.run is not None:
                self._give(None)

    def _joined(self, msg: Any, **_: Any) -> None:
        if self.run is not None:
            self._give(msg.node_id)

    def _give(self, client_id: str | None) -> None:
        """Send the run to a worker, or to all, with the options that are not locust's own."""
        options = self.environment.parsed_options
        own = default_args_dict()
        data = {
            "run": _encode(self.run),
            "options": {k: v for k, v in vars(options).items() if k not in own and _plain(v)},
            "api_key": _options.api_key(options),
        }
        self.environment.runner.send_message("exaserve_run", data, client_id=client_id)

    def _given(self, environment: Any, msg: Any) -> None:
        run = msgspec.json.decode(msg.data["run"], type=Run)
        if self.run is None or self.run.name != run.name:
            vars(environment.parsed_options).update(msg.data["options"])
            environment.parsed_options.api_key = msg.data["api_key"] or ""
            environment.parsed_options.api_key_file = ""
            self._play(run)

    def _play(self, run: Run) -> None:
        options = self.environment.parsed_options
        self.run = run
        self.open_loop = bool(run.arrivals.get("kind", "closed") != "closed")
        self._lines = []
        settings = Settings(
            host=run.host,
            model=run.model,
            limit=options.request_timeout,
            api_key=_options.api_key(options),
            worker=self.worker,
        )
        self._sender = Sender(settings, run, self.environment)
        self._sender.listeners.append(self._keep)
        try:
            for hook in _hooks.on_begin:
                hook(self.environment, run)
        except ValueError as error:
            self.run = None
            if self.holder is not None:
                self.holder.abandon(run)
            self.give_up(2, str(error))
            return
        self.open_loop = bool(run.arrivals.get("kind", "closed") != "closed")
        name = "master" if self._is_master else str(self.worker)
        # locust's stop() asks for its caller by inspect.stack(), which reads sources for 0.4 s the first time; streams that
        # are open then would show it as a gap.
        inspect.stack()
        self._watch = Watch(
            name, None if self._is_master else self._sender, self.environment.runner, self._ship
        )
        self._watch.start()

    def give_up(self, code: int, why: str) -> None:
        """End what cannot begin, with one line that says why."""
        logging.error("load test: %s", why)
        if self.environment.parsed_options.headless:
            self.environment.process_exit_code = code
        runner = self.environment.runner
        gevent.spawn(runner.quit if self.environment.parsed_options.headless else runner.stop)

    # -- while it lasts

    def _keep(self, record: Record) -> None:
        self._lines.append(_encode(record))

    def _ship(self, sample: dict[str, Any]) -> None:
        lines, self._lines = self._lines, []
        data = {"worker": self.worker, "lines": b"\n".join([*lines, b""]) if lines else b"", "sample": sample}
        runner = self.environment.runner
        if self._is_master:
            assert self.holder is not None
            self.holder.taken(data)
        else:
            runner.send_message("exaserve_batch", data)

    # -- end

    def stopping(self) -> None:
        """locust's test_stopping: nothing new is sent from now on; a master waits for its workers' last batches.

        Its own quit would give up on them after half a second.
        """
        if self.run is None:
            return
        if self.run.stopping is None:
            self.run.stopping = _clock.now()
        waiting = len(self._sender.in_flight) if self._sender is not None else 0
        if self._is_master or (waiting and not self._is_worker):
            logging.info(
                "load test: the time is up; open requests%s get %g s to end (-s)",
                "" if self._is_master else f" ({waiting})",
                self.environment.stop_timeout,
            )
        if self._is_master and self.holder is not None:
            self.environment.runner.send_message("exaserve_finish", None)
            self.holder.wait_for_workers(self.environment.stop_timeout + _PATIENCE)

    def _finish(self, **_: Any) -> None:
        self.environment.runner.stop()

    def end(self) -> None:
        """locust's test_stop: users and their requests are gone."""
        if self.run is None or self._sender is None:
            return
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        self._sender.close()
        if self._is_worker:
            self.environment.runner.send_message("exaserve_done", {"worker": self.worker})
        else:
            assert self.holder is not None
            self.holder.end(self.run)
        self.run = None

    def quitting(self) -> None:
        """locust's quitting, which comes before the end of a run that a signal ends."""
        if self.run is not None and not self._is_worker:
            self.environment.runner.quit() if self._is_master else self.environment.runner.stop()
        if self.holder is not None:
            self.holder.set_exit_code()


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)
