"""The tenants file: its keys, their ranges, and errors that name file, line and cure.

YAML: ``tenants`` (who may ask, with hashed API keys and limits) and ``prices`` (per model and million tokens).
Reading only. Who is who at run time is ``tenants.py``; writing new keys into the file is
``serving/tenants_cli.py``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from serving import yamlfile
from serving.config_base import Section
from serving.config_errors import ConfigError, Places, word
from serving.config_router import Name
from serving.yamlfile import KeyPath

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of an API key, in hex")]
PerMillion = Annotated[float, Field(ge=0, le=1e9, description="price of a million tokens, in any currency")]


class TenantEntry(Section):
    """One tenant. What is left out has no limit."""

    name: Name = Field(description="name in metrics and audit lines")
    keys: list[Digest] = Field(
        default_factory=list, description="SHA-256 of its API keys, in hex (exaserve tenants key makes one)"
    )
    requests_per_minute: int | None = Field(None, ge=1, le=10**9, description="requests admitted a minute")
    tokens_per_minute: int | None = Field(None, ge=1, le=10**12, description="input and output together")
    max_in_flight: int | None = Field(None, ge=1, le=10**6, description="requests open at once")
    max_tokens: int | None = Field(None, ge=1, le=10**9, description="highest max_tokens of a request")
    priority: int | None = Field(None, ge=0, le=9, description="0 is served first; none = the pool's")
    pools: list[Name] | None = Field(None, min_length=1, description="pools that it may use; none = all")


class Price(Section):
    """Of one model."""

    input: PerMillion
    output: PerMillion


class TenantsFile(Section):
    """The whole file."""

    tenants: list[TenantEntry] = Field(default_factory=list)
    prices: dict[str, Price] = Field(default_factory=dict, description="per model and million tokens")


def read(path: Path) -> TenantsFile:
    """The file, checked whole.

    Raises ConfigError with every error found, like ``tenants.yaml:7: tenants.0.max_tokens: must be …``. Takes
    milliseconds per hundred tenants: not on an event loop.
    """
    source = str(path)
    try:
        data, lines = yamlfile.read(path)
    except OSError as error:
        raise ConfigError([f"{source}: can't be read: {error.strerror}"]) from None
    except yamlfile.YamlError as error:
        where = f"{source}:{error.line}" if error.line else source
        raise ConfigError([f"{where}: {error}"]) from None
    return check(data, lines, source)


def check(data: Any, lines: Mapping[KeyPath, int], source: str) -> TenantsFile:
    """As ``read``, from what ``yamlfile`` found."""
    places = Places(source, lines, {})
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError([f"{source}:1: must be tenants: and prices:, not a {type(data).__name__}"])
    # What has all its items commented out reads as null; it means none.
    data = {k: v for k, v in data.items() if v is not None or k not in TenantsFile.model_fields}
    if isinstance(tenants := data.get("tenants"), list):
        data["tenants"] = [
            {k: v for k, v in t.items() if k != "keys" or v is not None} if isinstance(t, dict) else t
            for t in tenants
        ]
    try:
        file = TenantsFile.model_validate(data)
    except ValidationError as error:
        found = sorted(error.errors(), key=lambda e: places.line(e["loc"]))
        raise ConfigError(_word(e, places) for e in found) from None
    errors = list(_conflicts(file, places))
    if errors:
        raise ConfigError(errors)
    return file


def warnings(path: Path) -> list[str]:
    """What is unwise about the file but works: anybody on this machine could give himself a key."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return []
    if mode & stat.S_IWOTH:
        return [f"{path}: everybody on this machine may write it (mode {mode & 0o777:o}); chmod 640 it"]
    return []


def version(path: Path) -> tuple[int, int, int] | None:
    """Differs whenever the file was written again; None if it isn't there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _word(found: Mapping[str, Any], places: Places) -> str:
    """Errors inside a tenant or a price are worded from that section on, so that hints are its own keys."""
    path: KeyPath = tuple(part for part in found["loc"] if part != "[key]")
    if found["type"] == "missing":
        return f"{places.of(path)}: {'.'.join(map(str, path))}: is missing"
    sections: dict[str | int, type[BaseModel]] = {"tenants": TenantEntry, "prices": Price}
    section = sections.get(path[0], TenantsFile)
    if len(path) < 3 or section is TenantsFile:
        return word(found, TenantsFile, places)
    inner = Places(places.source, {p[2:]: n for p, n in places.lines.items() if p[:2] == path[:2]}, {})
    said = word({**found, "loc": path[2:]}, section, inner)
    problem = said.removeprefix(f"{inner.of(path[2:])}: {'.'.join(map(str, path[2:]))}: ")
    return f"{places.of(path)}: {'.'.join(map(str, path))}: {problem}"


def _conflicts(file: TenantsFile, places: Places) -> Iterator[str]:
    """Names and keys that are there twice. A key is shown by the start of its hash only."""
    names: dict[str, KeyPath] = {}
    keys: dict[str, tuple[KeyPath, str]] = {}
    for i, tenant in enumerate(file.tenants):
        path: KeyPath = ("tenants", i, "name")
        if tenant.name in names:
            yield (
                f"{places.of(path)}: tenants.{i}.name: {tenant.name} is there twice, first in line "
                f"{places.line(names[tenant.name])}; give both one entry"
            )
        names.setdefault(tenant.name, path)
        for j, key in enumerate(tenant.keys):
            path = ("tenants", i, "keys", j)
            if key in keys:
                first, owner = keys[key]
                yield (
                    f"{places.of(path)}: tenants.{i}.keys.{j}: {key[:8]}… is also a key of {owner} "
                    f"(line {places.line(first)}); a key belongs to one tenant, once"
                )
            keys.setdefault(key, (path, tenant.name))
