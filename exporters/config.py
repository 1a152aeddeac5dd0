"""The section ``exporter`` of ``exaserve.yaml``: its keys, their ranges, and errors that name the key and the cure.

A leaf that ``serving/config.py`` imports for the whole file; ``exaserve exporter --config`` reads the section here
and lets options of the command line win. What collectors are told of it is ``exporters/settings.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from exporters import available
from exporters.settings import Replica, Settings, check_url, parse_peer, parse_replica

#: More than this in one configuration file is a mistake.
_MAX_BYTES = 2**20

Seconds = Annotated[float, Field(gt=0, le=3600, description="seconds")]
FilePath = Annotated[str, Field(min_length=1, max_length=4096)]


class Exporter(BaseModel):
    """What the exporter serves, where it looks, and what it is to watch."""

    # Strict: YAML already has types, and `port: yes` must not become port 1.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    host: Annotated[str, Field(pattern=r"^[0-9A-Za-z.:_-]{1,255}$", description="address to listen on")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Field(ge=1, le=65535, description="port to listen on")] = 9420
    token_file: FilePath | None = Field(
        None, description="file with the bearer token that a scrape must show; null: none is asked for"
    )
    collectors: dict[str, bool] = Field(
        default_factory=dict,
        description="name: false turns a collector off, true one on that is off by default",
    )
    limits: dict[str, Seconds] = Field(
        default_factory=dict, description="seconds that a collector may take, by its name"
    )
    sysfs: FilePath = Field("/sys", description="where the kernel's sysfs is mounted")
    procfs: FilePath = Field("/proc", description="where the kernel's procfs is mounted")
    replicas: list[str] = Field(
        default_factory=list, description="NAME=URL of replicas to read, beside those of exaserve up"
    )
    discover: str | None = Field(None, description="URL of a Prometheus HTTP service discovery of replicas")
    timeout: Annotated[float, Field(ge=0.1, le=60)] = Field(
        3.0, description="seconds that one replica's page may take"
    )
    run_folder: FilePath | None = Field(
        None, description="where exaserve up keeps the process ids of replicas"
    )
    node_exporter_names: bool = Field(
        False, description="give what node_exporter has under its names too, for panels that ask for them"
    )
    mounts: list[FilePath] = Field(
        default_factory=list, max_length=64, description="folders whose storage is measured"
    )
    storage_interval: Annotated[float, Field(ge=15, le=3600)] = Field(
        15.0, description="seconds between two probes of a mount"
    )
    storage_stuck_after: Seconds = Field(
        10.0, description="seconds after which a probe that has not come back means stuck"
    )
    storage_read_limit: Seconds = Field(0.002, description="seconds above which a read is slow")
    peers: list[str] = Field(
        default_factory=list, max_length=256, description="host:port that connections are tried to"
    )
    peer_interval: Annotated[float, Field(ge=15, le=3600)] = Field(
        15.0, description="seconds between two connections to a peer"
    )
    router: str | None = Field(None, description="metrics page of the router whose intents are watched")
    intent_reference: FilePath | None = Field(
        None, description="file of exaserve intent reference save to compare intents with"
    )
    numa_maps_bytes: int = Field(
        16 * 2**30,
        ge=0,
        le=2**50,
        description="bytes of resident memory of a process above which its numa_maps are not read",
    )
    numa_maps_interval: Annotated[float, Field(ge=300, le=86_400)] = Field(
        300.0, description="seconds between two readings of a process's numa_maps"
    )
    intent_window: Annotated[float, Field(ge=60, le=86_400)] = Field(
        1800.0, description="seconds of requests that are compared with it"
    )


#: Keys whose value is a path, relative to the configuration file's folder.
PATHS = ("token_file", "run_folder", "intent_reference")


class ConfigError(Exception):
    """The section can't be used. ``errors``: one line each, every one of them cured by the user."""

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors = list(errors)
        super().__init__("\n".join(self.errors))


def problems(section: Exporter) -> Iterator[tuple[str, str]]:
    """What pydantic can't see: key and what to do."""
    for key in ("collectors", "limits"):
        wrong = available.unknown(getattr(section, key))
        if wrong:
            yield key, wrong
    for key in ("sysfs", "procfs", "mounts"):
        value = getattr(section, key)
        for folder in [value] if isinstance(value, str) else value:
            if not folder.startswith("/") or "\0" in folder:
                yield key, f"{folder!r} is no absolute path; write it like /models"
    for key in PATHS:
        if "\0" in (getattr(section, key) or ""):
            yield key, "a path can't hold a NUL"
    for peer in section.peers:
        try:
            parse_peer(peer)
        except ValueError as error:
            yield "peers", str(error)
    for key in ("discover", "router"):
        if getattr(section, key) is not None:
            try:
                check_url(getattr(section, key))
            except ValueError as error:
                yield key, str(error)
    try:
        names = [r.name for r in map(parse_replica, section.replicas)]
    except ValueError as error:
        yield "replicas", str(error)
        return
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice:
        yield "replicas", f"{twice} is named twice; give each its own name: NAME=URL"


def load(path: Path | None, given: Mapping[str, tuple[object, str]]) -> Exporter:
    """The section of the file (None: the defaults) with ``given`` over it: key -> value and the option's name.

    Lists and mappings that are given are put before those of the file, not in their place: a flag adds to them.
    Raises ConfigError with every error found: ``exaserve.yaml:12: exporter.port: …`` or ``--port: …``.
    """
    data, lines = _read(path) if path else ({}, {})
    for key, (value, _) in given.items():
        there = data.get(key)
        if isinstance(value, list) and isinstance(there, list):
            data[key] = [*value, *_others(key, value, there)]
        elif isinstance(value, dict) and isinstance(there, dict):
            data[key] = there | value
        else:
            data[key] = value

    def say(key: str, problem: str) -> str:
        if key in given:
            return f"{given[key][1]}: {problem}"
        line = lines.get(key) or lines.get("")
        return f"{path}{f':{line}' if line else ''}: exporter{f'.{key}' if key else ''}: {problem}"

    try:
        section = Exporter.model_validate(data)
    except ValidationError as error:
        raise ConfigError(
            say(str(e["loc"][0]) if e["loc"] else "", _word(e)) for e in error.errors(include_url=False)
        ) from None
    errors = [say(key, problem) for key, problem in problems(section)]
    if errors:
        raise ConfigError(errors)
    # A path on the command line is relative to where one stands, one in the file to the file.
    here = {key: Path() if key in given else path.parent if path else Path() for key in PATHS}
    return section.model_copy(
        update={
            key: str((folder / os.path.expanduser(value)).absolute())
            for key, folder in here.items()
            if (value := getattr(section, key)) is not None
        }
    )


def settings(section: Exporter) -> Settings:
    """What collectors are told: each setting is the key of its name, text become path where it is one."""

    def path(value: str | None) -> Path | None:
        return Path(value) if value else None

    other: dict[str, Any] = {
        "replicas": tuple(parse_replica(text) for text in section.replicas),
        "discover": check_url(section.discover) if section.discover else None,
        "router": _metrics_page(section.router) if section.router else None,
        "sysfs": Path(section.sysfs),
        "procfs": Path(section.procfs),
        "run_folder": path(section.run_folder),
        "intent_reference": path(section.intent_reference),
        "mounts": tuple(section.mounts),
        "peers": tuple(section.peers),
    }
    plain = {f.name: getattr(section, f.name) for f in fields(Settings) if f.name not in other}
    return Settings(**other, **plain)


def _metrics_page(url: str) -> str:
    url = check_url(url)
    return url if url.endswith("/metrics") else f"{url}/metrics"


def _others(key: str, given: list[Any], there: list[Any]) -> list[Any]:
    """What the file has beside what is given: a replica that a flag names again is the flag's."""
    if key != "replicas":
        return [item for item in there if item not in given]
    names = {_name(text) for text in given}
    return [text for text in there if _name(text) not in names]


def _name(text: Any) -> Any:
    try:
        replica: Replica = parse_replica(text)
    except (ValueError, TypeError, AttributeError):
        return text
    return replica.name


def _read(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The section as plain data, and the line of each of its keys ("" for the section itself)."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise ConfigError([f"{path}: is longer than {_MAX_BYTES} bytes"])
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        whole = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError([f"{path}: can't be read: {error.strerror}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError([f"{where}: is no YAML: {getattr(error, 'problem', None) or error}"]) from None
    if whole is None:
        return {}, {}
    if not isinstance(whole, dict):
        raise ConfigError([f"{path}:1: must be sections (exporter: …), not a {type(whole).__name__}"])
    section = whole.get("exporter")
    if section is None:  # missing, or all of its keys are commented out: the defaults
        return {}, {}
    lines: dict[str, int] = {}
    for key, value in tree.value if isinstance(tree, yaml.MappingNode) else ():
        if key.value == "exporter":
            lines[""] = key.start_mark.line + 1
            if isinstance(value, yaml.MappingNode):
                lines |= {k.value: k.start_mark.line + 1 for k, _ in value.value if isinstance(k.value, str)}
    if not isinstance(section, dict):
        raise ConfigError(
            [f"{path}:{lines.get('', 1)}: exporter: must be a section (keys below it, indented)"]
        )
    return {str(key): value for key, value in section.items()}, lines


def _word(found: Any) -> str:
    if found["type"] == "extra_forbidden":
        import difflib

        close = difflib.get_close_matches(str(found["loc"][0]), Exporter.model_fields, n=1, cutoff=0.6)
        return (
            f"unknown key; did you mean {close[0]}?"
            if close
            else (f"unknown key; known here: {', '.join(Exporter.model_fields)}")
        )
    inner = ".".join(map(str, found["loc"][1:]))
    message = found["msg"][0].lower() + found["msg"][1:]
    return f"{f'{inner}: ' if inner else ''}{message}, not {str(found['input'])[:60]!r}"
