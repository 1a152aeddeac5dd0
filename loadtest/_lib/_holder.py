"""The process that holds a run: makes it, keeps what all processes recorded, and closes it with a verdict.

Not here: the messages between processes (``_load``), what the summary says (``_summary``).
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable
from io import BufferedWriter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import gevent
import msgspec

from loadtest._lib import _clock, _hooks, _options, _run, _summary, _verdict
from loadtest._lib._http import Address, Broken, Connection, Reply
from loadtest._lib._limits import Limits
from loadtest._lib._objectives import Objectives
from loadtest._lib._record import Record
from loadtest._lib._run import Run

_SECRET = ("api_key", "prometheus")
T = TypeVar("T")
_records = msgspec.json.Decoder(Record)


class Holder:
    """One a process that is no worker; plays one run after the other."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._files: dict[str, BufferedWriter] = {}
        self._temporary: TemporaryDirectory[str] | None = None
        self._waiting: set[int] = set()
        self._heard: set[int] = set()  # workers that play this run, whose last records have not come yet
        self._run: Run | None = None
        self._exit_code = _verdict.NO_REQUESTS  # until a run has ended

    # -- begin

    def begin(self) -> Run | None:
        """The new run, with its folder; None if it can't begin, and then locust has been told to end."""
        options = self._environment.parsed_options
        try:
            run = self._made(options)
        except _Refused as refused:
            self._give_up(refused.code, str(refused))
            return None
        self._run = run
        self._exit_code = _verdict.VOID  # where it can't be summed up
        self._waiting, self._heard = set(), self._connected()
        if not options.seed:
            logging.info("load test: prompts of seed %s (--seed %s sends them again)", run.seed, run.seed)
        if self._temporary is None:
            logging.info("load test: run %s, kept in %s", run.name, run.folder)
        return run

    def _made(self, options: Any) -> Run:
        environment, runner = self._environment, self._environment.runner
        host = environment.host or next((c.host for c in environment.user_classes if c.host), None)
        if not host:
            raise _Refused(2, "no address; give one with -H http://127.0.0.1:8000")
        _asked("-H", Address, host)
        key = _asked("--api-key-file", lambda _: _options.api_key(options), "")
        objectives = _asked("--slo", Objectives.parse, options.slo)
        limits = _asked("--client-limits", Limits.parse, options.client_limits)
        seed = _asked("--seed", _options.seed, options.seed)
        gpus = _asked("--gpus", _options.gpus, options.gpus)
        name = _asked("--run-name", _options.name, options.run_name)
        warmup = _asked("--warmup", _options.warmup, options.warmup)
        attainment = _asked("--slo-attainment", _options.share, options.slo_attainment)
        _asked("--request-timeout", _options.timeout, options.request_timeout)
        model, length = self._model(host, key, options)
        names = [getattr(c, "profile_name", c.__name__) for c in environment.user_classes]
        profile = names[0] if len(names) == 1 else "mixed"
        name = Path(options.run_folder).name if options.run_folder else name or _run.new_name(profile)
        run = Run(
            name=name,
            profile=profile,
            host=host,
            model=model,
            max_model_len=length,
            seed=random.SystemRandom().getrandbits(31) if seed is None else seed,
            started=_clock.now(),
            slo=objectives.as_dict(),
            attainment=attainment,
            limits=limits.as_dict(),
            baseline=options.baseline,
            gpus=gpus,
            workers=getattr(runner, "worker_count", 1) or 1,
            settings={k: v for k, v in sorted(vars(options).items()) if k not in _SECRET and _plain(v)},
            versions=_run.versions(),
            machine=_run.machine(),
        )
        run.warmup = _warmup(warmup, options, runner)
        run.warmup_until = run.started + run.warmup["seconds"]
        folder = Path(options.run_folder) if options.run_folder else _run.home() / name
        if options.no_save:
            self._temporary = TemporaryDirectory(prefix="exaserve-loadtest-")
            folder = Path(self._temporary.name)
        self._open(run, folder)
        return run

    def _open(self, run: Run, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / "run.json").exists():
                raise _Refused(2, f"{folder}: there is a run in it already; name a new one")
            run.folder = str(folder.absolute())
            for name in ("requests.jsonl", "client.jsonl"):
                self._files[name] = (folder / name).open("wb")
            run.save()
        except OSError as error:
            raise _Refused(
                2, f"{error.filename or folder}: {error.strerror}; --run-folder names another"
            ) from None

    def _model(self, host: str, key: str | None, options: Any) -> tuple[str, int | None]:
        """Name and context of the model; of the first one, where none is asked for."""
        try:
            models = _models(host, key)
        except LookupError as error:
            if options.model:
                return options.model, None
            raise _Refused(_verdict.NO_REQUESTS, f"{host}: {error}; --model NAME skips this") from None
        model = options.model or models[0]["id"]
        entry = next((m for m in models if m.get("id") == model), {})
        length = entry.get("max_model_len")
        return str(model), length if isinstance(length, int) else None

    def _give_up(self, code: int, why: str) -> None:
        logging.error("load test: %s", why)
        if self._environment.parsed_options.headless:
            self._environment.process_exit_code = code
        runner = self._environment.runner
        gevent.spawn(runner.quit if self._environment.parsed_options.headless else runner.stop)

    def abandon(self, run: Run) -> None:
        """Forget a run that was refused after its folder was made, with the folder: nothing was asked in it."""
        self._close()
        self._run = None
        for name in ("run.json", "requests.jsonl", "client.jsonl"):
            (Path(run.folder) / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody else's files are in it
            Path(run.folder).rmdir()
        self._forget_temporary()

    # -- while it lasts

    def take(self, environment: Any, msg: Any) -> None:
        self.taken(msg.data)

    def taken(self, data: dict[str, Any]) -> None:
        """A batch of one process."""
        if self._run is None:
            return
        lines, sample = data["lines"], data["sample"]
        self._heard.add(data["worker"])
        if lines:
            self._write("requests.jsonl", lines)
            records = [_records.decode(line) for line in lines.splitlines()]
            _hooks.call(_hooks.on_records, data["worker"], lines, records)
        self._write("client.jsonl", msgspec.json.encode(sample) + b"\n")
        _hooks.call(_hooks.on_client, sample)

    def _write(self, name: str, data: bytes) -> None:
        file = self._files.get(name)
        if file is None:
            return
        try:
            file.write(data)
            file.flush()
        except OSError as error:
            logging.error(
                "load test: %s: %s; nothing more is kept of this run, and it is void", name, error.strerror
            )
            if self._run is not None:
                self._run.incomplete = True
            self._close()

    def done(self, environment: Any, msg: Any) -> None:
        self._waiting.discard(msg.data["worker"])
        self._heard.discard(msg.data["worker"])

    def wait_for_workers(self, limit: float) -> None:
        """Until each worker has sent its last batch or is gone, or ``limit`` seconds are over.

        Those that were killed in the middle of the run are not connected any more, but were heard of.
        """
        self._waiting = self._connected() | {worker for worker in self._heard if worker >= 0}
        with gevent.Timeout(limit, False):
            while self._waiting:
                gone = self._waiting - self._connected()
                self._waiting -= gone
                self._lose(gone)
                gevent.sleep(0.05)
        self._lose(self._waiting)

    def _connected(self) -> set[int]:
        """Numbers of a master's workers."""
        runner = self._environment.runner
        clients = getattr(runner, "clients", None)  # none, where this is the only process
        there = clients.all if clients is not None else ()
        return {runner.get_worker_index(client.id) for client in there if client.state != "missing"}

    def _lose(self, workers: set[int]) -> None:
        if self._run is not None and workers:
            self._run.lost_workers = sorted({*self._run.lost_workers, *workers})

    # -- end

    def end(self, run: Run) -> None:
        run.ended = _clock.now()
        self._close()
        summary = None
        try:
            run.save()
            summary = _summary.write(Path(run.folder))
        except (OSError, ValueError) as error:
            logging.error("load test: no summary of %s: %s", run.folder, error)
        if summary is not None:
            self._exit_code = summary["exit_code"]
            level = logging.INFO if self._exit_code == _verdict.PASSED else logging.ERROR
            for line in _verdict.lines(summary):
                logging.log(level, "load test: %s", line)
            _hooks.call(_hooks.on_end, self._environment, run, summary)
        self._run = None
        self._forget_temporary()

    def _forget_temporary(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _close(self) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()
        self._files = {}

    def set_exit_code(self) -> None:
        """Of a headless run, unless something else has set it."""
        environment = self._environment
        if environment.parsed_options.headless and environment.process_exit_code is None:
            environment.process_exit_code = self._exit_code


class _Refused(Exception):
    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def _asked(option: str, read: Callable[[str], T], text: str) -> T:
    """What the option says; locust's web page sends its text unchecked."""
    try:
        return read(text)
    except ValueError as error:
        raise _Refused(_verdict.USAGE, str(error) if option in str(error) else f"{option}: {error}") from None


def _warmup(given: float | None, options: Any, runner: Any) -> dict[str, Any]:
    """What the run's first part is that does not count, in seconds and in words."""
    if given is not None:
        return {"seconds": given, "rule": f"--warmup {given:g}"}
    users, rate = runner.target_user_count or 0, float(getattr(options, "spawn_rate", None) or 1)
    ramp = users / rate if runner.environment.shape_class is None else 0.0
    run_time = float(options.run_time or 0)
    if not run_time:
        return {"seconds": ramp + 10.0, "rule": f"auto: {ramp:g} s until all users were there, and 10 s"}
    tenth = min(30.0, run_time / 10)
    seconds = min(ramp + tenth, run_time / 2)
    return {
        "seconds": seconds,
        "rule": f"auto: {ramp:g} s until all users were there and {tenth:g} s, at most half of {run_time:g} s",
    }


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _models(host: str, key: str | None) -> list[dict[str, Any]]:
    """Entries of ``/v1/models``, one at least. Raises LookupError that says what is wrong."""
    address = Address(host)
    body: list[bytes] = []

    def collect(data: bytes, _: float) -> bool:
        body.append(data)
        return sum(map(len, body)) > 1 << 20

    reply = Reply(lambda _: collect)
    lines = [
        f"GET {address.path}/v1/models HTTP/1.1",
        f"Host: {address.authority}",
        "User-Agent: exaserve-loadtest",
    ]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    try:
        with gevent.Timeout(10, TimeoutError("no answer for 10 s")):
            connection = Connection(address)
            try:
                connection.ask("\r\n".join([*lines, "", ""]).encode("latin-1"), b"", reply)
            finally:
                connection.close()
    except (Broken, TimeoutError) as error:
        raise LookupError(f"/v1/models can't be read: {error}") from None
    if reply.status != 200:
        raise LookupError(f"/v1/models answered {reply.status}")
    try:
        models = msgspec.json.decode(b"".join(body))["data"]
        if not str(models[0]["id"]):
            raise KeyError
    except (msgspec.DecodeError, KeyError, IndexError, TypeError, UnicodeDecodeError):
        raise LookupError("/v1/models names no model") from None
    return [m for m in models if isinstance(m, dict)]
