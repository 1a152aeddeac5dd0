"""What the router was started with, read again when it changes: configuration, tenants, certificates, tokens.

Everything is checked whole before any of it is used. A file that is refused leaves what runs as it is, and says why.
Which replicas there are is ``serving/fleet/discovery``'s; handing the result to the workers is ``master.py``'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from serving.config import Config, Router, load
from serving.config_errors import ConfigError
from serving.config_router import DEFAULT_POOL
from serving.router import tenants_file
from serving.router.tenants import unknown_pools
from serving.router.tls import ServerTLS, TLSError, bearer, replica_context

POLL_SECONDS = 1.0
#: Keys of the router's section that only a new process takes; a reload leaves them as they run and says so.
RESTART_KEYS = (
    "host", "port", "admin_host", "admin_port", "workers", "unix_socket", "admin_token_file", "tls", "audit", "tracing",
    "intent",
)  # fmt: skip
_SHOWN_CHANGES = 20

Version = tuple[int, int, int] | None
Adjust = Callable[[Config], Config]


@dataclass(frozen=True)
class Source:
    """Where the configuration comes from.

    path: exaserve.yaml, None for the defaults. given: keys of the router's section that options set over it.
    """

    path: Path | None = None
    given: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Config:
        """Checked whole, with the files that it names. Raises ConfigError."""
        config = load(self.path) if self.path is not None else Config()
        if self.given:
            try:
                router = Router(**(config.router.model_dump() | dict(self.given)))
            except ValidationError as error:
                raise ConfigError(_option(e) for e in error.errors()) from None
            config = config.model_copy(update={"router": router})
        errors = list(_bad_files(config))
        if errors:
            raise ConfigError(errors)
        return config


def _option(error: Any) -> str:
    return f"--{'-'.join(str(x) for x in error['loc'])}: {error['msg']}".replace("_", "-")


def _bad_files(config: Config) -> Iterator[str]:
    """What is wrong with the files that the configuration names."""
    router = config.router
    if config.tenants.file is not None:
        try:
            yield from unknown_pools(
                tenants_file.read(Path(config.tenants.file)), config.pools or {DEFAULT_POOL: None}
            )
        except ConfigError as error:
            yield from error.errors
    tls, replica = router.tls, router.replica_tls
    if tls.certificate is not None and tls.key is not None:
        try:
            ServerTLS(Path(tls.certificate), Path(tls.key), _path(tls.client_ca))
        except TLSError as error:
            yield f"router.tls: {error}"
    try:
        replica_context(_path(replica.ca), _path(replica.certificate), _path(replica.key))
    except TLSError as error:
        yield f"router.replica_tls: {error}"
    for key in ("replica_token_file", "admin_token_file"):
        file = getattr(router, key)
        if file is not None:
            try:
                bearer(Path(file))
            except TLSError as error:
                yield f"router.{key}: {error}"


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


@dataclass(frozen=True)
class Change:
    """What a reload brought. config: the new one, or None if the file did not change."""

    config: Config | None
    tenants: bool
    access: bool
    lines: list[str]

    def __bool__(self) -> bool:
        return self.config is not None or self.tenants or self.access


class Reloader:
    """Watches the files of a running configuration. ``adjust`` is applied to each that is read.

    successful: whether the last reading was taken; since: Unix time at which what runs was taken.
    """

    def __init__(self, source: Source, config: Config, adjust: Adjust = lambda config: config) -> None:
        self.source = source
        self._adjust = adjust
        self.config = config
        self.successful = True
        self.since = time.time()
        self._seen = {kind: _versions(paths) for kind, paths in self._files().items()}

    def _files(self) -> dict[str, list[Path]]:
        r = self.config.router
        access = (
            r.tls.certificate, r.tls.key, r.tls.client_ca, r.replica_tls.ca, r.replica_tls.certificate,
            r.replica_tls.key, r.replica_token_file,
        )  # fmt: skip
        return {
            "config": [self.source.path] if self.source.path is not None else [],
            "tenants": [Path(self.config.tenants.file)] if self.config.tenants.file is not None else [],
            "access": [Path(p) for p in access if p is not None],
        }

    def poll(self, forced: bool = False) -> Change | None:
        """Read what has changed since the last call (``forced``: all of it).

        None if nothing did. Takes milliseconds to read, longer with thousands of tenants: call it in a thread.
        Raises ConfigError if something is refused; it is not read again before it changes.
        """
        now = {kind: _versions(paths) for kind, paths in self._files().items()}
        changed = {kind for kind in now if forced or now[kind] != self._seen[kind]}
        if not changed:
            return None
        self._seen = now
        try:
            new = self._adjust(self.source.load())
        except ConfigError:
            self.successful = False
            raise
        lines, config = _settle(self.config, new)
        same = config.router == self.config.router and config.pools == self.config.pools
        change = Change(
            None if same else config,
            "tenants" in changed and bool(now["tenants"]),
            "access" in changed and bool(now["access"]),
            lines,
        )
        self.config = config
        self.successful, self.since = True, time.time()
        if not same:
            self._seen |= {
                kind: _versions(paths) for kind, paths in self._files().items() if kind == "access"
            }
        return change


def _settle(old: Config, new: Config) -> tuple[list[str], Config]:
    """What is said of the change, and the configuration that runs after it."""
    kept = {key: getattr(old.router, key) for key in RESTART_KEYS}
    later = [f"router.{key}" for key in RESTART_KEYS if getattr(new.router, key) != kept[key]]
    if new.tenants.file != old.tenants.file:
        later.append("tenants.file")
    router = new.router.model_copy(update=kept)
    config = new.model_copy(update={"router": router, "tenants": old.tenants})
    before, after = (dict(_flat(c.model_dump(include={"router", "pools"}))) for c in (old, config))
    changes = [
        f"{key}: {before.get(key)} -> {after.get(key)}"
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    ]
    lines = changes[:_SHOWN_CHANGES]
    if len(changes) > len(lines):
        lines.append(f"and {len(changes) - len(lines)} more")
    if later:
        lines.append(f"not taken before a restart: {', '.join(later)}")
    return lines, config


def _flat(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{at}.{key}" if at else str(key))
    else:
        yield at, value


def _versions(paths: Iterable[Path]) -> list[Version]:
    return [_version(path) for path in paths]


def _version(path: Path) -> Version:
    """Time, inode and size: a file that was written or replaced has another. None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
