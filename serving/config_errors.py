"""What is wrong with a configuration, in words: where, which key, what it must be, how to cure it.

The keys and their ranges are in ``serving/config.py``; this only words what pydantic found.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from serving.yamlfile import KeyPath

#: Values that the design has and the code has not: key -> values.
VALUES_NOT_BUILT = {
    "fleet.launcher": ("ray", "slurm", "kubernetes"),
}
#: Keys that the design has and the code has not: key -> what there is today.
KEYS_NOT_BUILT = {
    "aliases": "one name, model.name",
    "model.lora": "the model as it is",
    "engine.data_parallel_size": "more replicas (fleet.replicas_per_node)",
    "engine.kv_offload": "KV blocks stay in the replica's memory",
    "fleet.nodes": "the node that exaserve up runs on",
    "fleet.autoscaling": "a fixed number, fleet.replicas_per_node",
    "fleet.discovery": "replicas that exaserve up starts, or exaserve router --replica URL",
    "router.api_keys": "tenants.file (exaserve tenants key)",
}


class ConfigError(Exception):
    """The configuration can't be used. ``errors``: one line each, every one of them cured by the user."""

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors = list(errors)
        super().__init__("\n".join(self.errors))


@dataclass(frozen=True)
class Places:
    """Where a key was given: file and line, or the command-line option that set it."""

    source: str
    lines: Mapping[KeyPath, int]
    options: Mapping[KeyPath, str]

    def of(self, path: KeyPath) -> str:
        """``exaserve.yaml:12``; the line of the nearest section above where the key itself was not given."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.options:
                return self.options[path[:end]]
            if path[:end] in self.lines:
                return f"{self.source}:{self.lines[path[:end]]}"
        return self.source

    def line(self, path: KeyPath) -> int:
        """For sorting: the line of the key or of what is around it, 0 if there is none."""
        return next(
            (self.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.lines), 0
        )


def word(found: Mapping[str, Any], model: type[BaseModel], places: Places) -> str:
    """One line for one of pydantic's errors (an item of ``ValidationError.errors()``)."""
    path: KeyPath = tuple(part for part in found["loc"] if part != "[key]")
    key = ".".join(map(str, path)) or "the whole file"
    return f"{places.of(path)}: {key}: {_problem(found, path, key, model)}"


def _problem(found: Mapping[str, Any], path: KeyPath, key: str, model: type[BaseModel]) -> str:
    if found["type"] == "extra_forbidden":
        return _unknown(path, key, model)
    if found["type"] == "missing":
        return "must be given"
    field = _field(model, path)
    given = found["input"]
    if found["type"] == "literal_error":
        allowed = _expected(found)
        if given in VALUES_NOT_BUILT.get(key, ()):
            return f"{given} is not built yet; today: {' or '.join(allowed)}"
        return f"must be {' or '.join(allowed)}, not {_shown(given)}{_nearest(given, allowed)}"
    said = f"{_must(found, field)}, not {_shown(given)}"
    return said + _cure(field)


def _must(found: Mapping[str, Any], field: FieldInfo | None) -> str:
    kind, ctx = found["type"], found.get("ctx", {})
    simple = {
        "int_type": "must be a whole number",
        "float_type": "must be a number",
        "string_type": "must be text (put it in quotes)",
        "bool_type": "must be true or false",
        "list_type": "must be a list",
        "dict_type": "must be a mapping (name: value)",
        "model_type": "must be a section (keys below it, indented)",
        "string_too_short": "must not be empty",
        "finite_number": "must be a finite number",
    }
    if kind in simple:
        return simple[kind]
    if kind == "greater_than":
        return f"must be above {_number(ctx['gt'])}"
    if kind == "greater_than_equal":
        return f"must be at least {_number(ctx['ge'])}"
    if kind == "less_than":
        return f"must be below {_number(ctx['lt'])}"
    if kind == "less_than_equal":
        return f"must be at most {_number(ctx['le'])}"
    if kind == "string_pattern_mismatch":
        return f"has a form that is not allowed here ({ctx['pattern']})"
    return f"{found['msg'][0].lower()}{found['msg'][1:]}"


def _unknown(path: KeyPath, key: str, model: type[BaseModel]) -> str:
    if key in KEYS_NOT_BUILT:
        return f"not built yet; today: {KEYS_NOT_BUILT[key]}. Remove the key"
    parent = _section(model, path[:-1])
    known = list(parent.model_fields) if parent else []
    elsewhere = [name for name in _all_keys(model) if name.rsplit(".", 1)[-1] == path[-1]]
    if elsewhere:
        return f"unknown key here; did you mean {elsewhere[0]}?"
    near = _nearest(path[-1], known)
    return f"unknown key{near}" if near else f"unknown key; known here: {', '.join(known)}"


def _cure(field: FieldInfo | None) -> str:
    if field is None or field.is_required():
        return ""
    default = field.get_default(call_default_factory=True)
    meaning = f" ({field.description})" if field.description else ""
    if isinstance(default, BaseModel) or (isinstance(default, dict) and default):
        return f"; leave it out for the defaults{meaning}"
    return f"; default {'none' if default is None else default}{meaning}"


def _nearest(given: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(given), list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _expected(found: Mapping[str, Any]) -> list[str]:
    """pydantic says `'a', 'b' or 'c'`."""
    return [part.strip(" '") for part in found["ctx"]["expected"].replace(" or ", ",").split(",")]


def _section(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The section at ``path``; names of a mapping of sections (``pools.NAME``) are passed over."""
    parts = iter(path)
    for part in parts:
        field = model.model_fields.get(str(part))
        below = field.annotation if field else None
        if get_origin(below) is dict:
            below = get_args(below)[1]
            next(parts, None)
        if not (isinstance(below, type) and issubclass(below, BaseModel)):
            return None
        model = below
    return model


def _field(model: type[BaseModel], path: KeyPath) -> FieldInfo | None:
    """The field that ``path`` is in: for an item of a list, the list."""
    for end in range(len(path), 0, -1):
        parent = _section(model, path[: end - 1])
        if parent and str(path[end - 1]) in parent.model_fields:
            return parent.model_fields[str(path[end - 1])]
    return None


def _all_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, field in model.model_fields.items():
        names.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names += _all_keys(field.annotation, f"{prefix}{name}.")
    return names


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shown(value: object) -> str:
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
