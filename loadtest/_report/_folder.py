"""A run's folder: where it is, what is in it, and what can be said where parts are missing or damaged."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from loadtest._lib import _run

REQUESTS, CLIENT, RUN, SUMMARY, FLEET = (
    "requests.jsonl",
    "client.jsonl",
    "run.json",
    "summary.json",
    "fleet.json",
)
LAST = "last"
#: The verdict of a run without an end, whatever it was up to then.
UNFINISHED = "unfinished"


#: Unix seconds until the year 3000; seconds of a run.
_Moment = Annotated[float, msgspec.Meta(ge=0, le=32_503_680_000)] | None
_Objects = dict[str, dict[str, Any]]


class _RunKeys(msgspec.Struct):
    """Of what type the keys of run.json are that a report counts with or looks into; all may be missing."""

    started: _Moment = None
    warmup_until: _Moment = None
    stopping: _Moment = None
    ended: _Moment = None
    slo: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    warmup: dict[str, Any] | None = None
    arrivals: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    versions: dict[str, Any] | None = None
    machine: dict[str, Any] | None = None
    lost_workers: list[Any] | None = None


class _SummaryKeys(msgspec.Struct):
    """The same of summary.json."""

    started: _Moment = None
    ended: _Moment = None
    measured_seconds: _Moment = None
    void_reasons: list[Any] | None = None
    warmup: dict[str, Any] | None = None
    slo: dict[str, Any] | None = None
    client: dict[str, Any] | None = None
    all: dict[str, Any] | None = None
    profiles: _Objects | None = None
    intents: _Objects | None = None
    pools: _Objects | None = None
    replicas: _Objects | None = None


class RunError(Exception):
    """Why there is nothing to report of a run, for people; one line that says what to do."""


@dataclass(slots=True)
class Folder:
    """path: absolute. run: run.json. summary: of every number. notes: what a reader must know of its state."""

    path: Path
    run: dict[str, Any]
    summary: dict[str, Any]
    fleet: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.run.get("name") or self.summary.get("run") or self.path.name)


def find(text: str) -> Path:
    """The folder of a run: given itself, by its name in ``$EXASERVE_HOME/loadtest``, or ``last``. Raises RunError."""
    home = _run.home()
    if text == LAST:
        there = [path.parent for path in home.glob(f"*/{RUN}")]
        if not there:
            raise RunError(f"there is no run in {home}; `locust -f loadtest/ -H URL` makes one")
        return max(there, key=lambda path: (path / RUN).stat().st_mtime).absolute()
    for path in (Path(text).expanduser(), home / text):
        if path.is_dir():
            return path.absolute()
    if Path(text).is_file():
        raise RunError(f"{text} is a file; a run is the folder in which {REQUESTS} lies")
    names = sorted(path.parent.name for path in home.glob(f"*/{RUN}"))
    hint = f"the newest there: {', '.join(names[-3:])}" if names else "there is none yet"
    raise RunError(f"{text} is neither a folder nor a run in {home} ({hint})")


def load(path: Path) -> Folder:
    """What the folder holds, the summary made anew where it has none. Raises RunError."""
    if not (path / RUN).exists() and not (path / REQUESTS).exists():
        raise RunError(f"{path} is no run of a load test: it has neither {RUN} nor {REQUESTS}")
    notes: list[str] = []
    run = _object(path / RUN, notes)
    if run is None:
        raise RunError(f"{path / RUN} is missing or damaged; without it nobody knows what was run")
    _typed(path / RUN, run, _RunKeys)
    summary = _object(path / SUMMARY, notes)
    if summary is not None:
        _typed(path / SUMMARY, summary, _SummaryKeys)
    if summary is None or not isinstance(summary.get("all"), dict):
        summary = _made(path)
        if run.get("ended"):
            notes.append(f"It had no usable {SUMMARY}; it was made anew from its requests.")
        else:
            summary["verdict"] = UNFINISHED
            notes.append(
                "The run did not end by itself (it was killed, or still goes on): its numbers are those of the requests"
                " that were written down, and what was in flight is not among them."
            )
    fleet = _object(path / FLEET, notes) if (path / FLEET).exists() else None
    return Folder(path, run, summary, fleet, notes)


def _typed(file: Path, read: dict[str, Any], keys: type[msgspec.Struct]) -> None:
    """Raises RunError that names the key which can't be what it is."""
    try:
        msgspec.convert(read, keys)
    except msgspec.ValidationError as error:
        raise RunError(f"{file} is damaged or was written by something else: {error}") from None


def _made(path: Path) -> dict[str, Any]:
    from loadtest._lib import _summary

    try:
        summary: dict[str, Any] = _summary.make(path)
    except OSError as error:
        name = Path(error.filename or path).name
        raise RunError(
            f"{path}: {name}: {error.strerror or error}; without it the run can't be summed up"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} can't be summed up: {type(error).__name__}: {error}") from None
    return summary


def _object(file: Path, notes: list[str]) -> dict[str, Any] | None:
    """A file's JSON object; None where it is not there or is damaged, the latter with a note."""
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{file} can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        notes.append(f"{file.name} is damaged and was left out.")
        return None
    version = read.get("version", 1)
    if version != 1:
        raise RunError(f"{file} is of version {version}; this exaserve reads version 1")
    return read
