"""The faults as a table: kinds, engines, and whether each works at a place. For the command line and the README."""

from __future__ import annotations

import time
from typing import Any

from chaos import fault as faults
from chaos import recover, undo
from chaos.fault import ActivityFailed, Engine, Fault
from chaos.place import Place


def rows(place: Place | None) -> list[dict[str, Any]]:
    """One row a fault, by kind and name: ``{"name", "kind", "summary", "engines": [{"name", "how", "missing"}]}``.

    missing: None where the engine works at this place (as far as can be told without a target), or unasked (no place).
    """
    found = sorted(
        (faults.load(n) for n in faults.names()), key=lambda f: (faults.KINDS.index(f.kind), f.name)
    )
    return [
        {
            "name": f.name,
            "kind": f.kind,
            "summary": f.summary,
            "engines": [
                {
                    "name": e.name,
                    "how": e.how,
                    "missing": _missing(place, f, e) if place else None,
                }
                for e in f.engines
            ],
        }
        for f in found
    ]


def _missing(place: Place, f: Fault, engine: Engine) -> str | None:
    """Why it can't work there whatever the target, as a sentence; a place that can't be asked has that as its why."""
    try:
        return _lacks(place, f) or engine.missing(place)
    except ActivityFailed as error:
        return str(error)


def _lacks(place: Place, f: Fault) -> str | None:
    """What the place itself has not, that a fault of this kind needs."""
    if f.kind == "replica":
        return None if place.replicas() else "there is no replica"
    if f.kind == "traffic":
        known = place.addresses.get("router")
        return None if known else "it is not known where the router is (--router URL)"
    if f.kind in ("node", "link", "storage") and all(node.control for node in place.nodes()):
        return f"{place.name} has no node but the control node, which is left alone (a lab has: --place lab)"
    return None


def table(found: list[dict[str, Any]]) -> list[str]:
    """Lines for a terminal."""
    lines, kind = [], ""
    width = max((len(r["name"]) for r in found), default=0)
    for row in found:
        if row["kind"] != kind:
            kind = row["kind"]
            lines.append(f"{kind}:")
        lines.append(f"  {row['name']:<{width}}  {row['summary']}")
        for engine in row["engines"]:
            works = "works here" if engine["missing"] is None else f"not here: {engine['missing']}"
            lines.append(f"  {'':<{width}}    {engine['name']}: {works}")
    return lines


def markdown() -> str:
    """The table of ``chaos/README.md``: faults and engines, without a place."""
    lines = ["| kind | fault | what happens | engines, the first that can |", "|---|---|---|---|"]
    for row in rows(None):
        engines = ", ".join(e["name"] for e in row["engines"])
        lines.append(f"| {row['kind']} | `{row['name']}` | {row['summary']} | {engines} |")
    return "\n".join(lines) + "\n"


def description(name: str, place: Place) -> list[str]:
    """Lines for a terminal. Raises Refused for a name that is no fault."""
    f = faults.load(name)
    lines = [
        f"{f.name} ({f.kind}): {f.summary}",
        "",
        *_parameters(f),
        "",
        "engines, the first that can is taken:",
    ]
    for engine in f.engines:
        why = _missing(place, f, engine)
        lines.append(f"  {engine.name}: {engine.how}")
        lines.append(f"    {'works here' if why is None else f'not here: {why}'}")
    over = "over once it is proven" if f.momentary else f"held for its duration, at most {f.max_duration:g} s"
    return [*lines, "", over]


def _parameters(f: Fault) -> list[str]:
    fields = f.parameters.model_json_schema().get("properties", {})
    if not fields:
        return ["no parameters"]
    lines = ["parameters (-p KEY=VALUE):"]
    for name, field in fields.items():
        bounds = [f"{sign} {field[key]:g}" for key, sign in _BOUNDS.items() if key in field]
        bounds += [" | ".join(map(str, field["enum"]))] if "enum" in field else []
        default = f"default {field['default']}" if "default" in field else "has to be given"
        lines.append(f"  {name}: {field.get('description', '')} ({', '.join([*bounds, default])})")
    return lines


_BOUNDS = {"minimum": ">=", "maximum": "<=", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}


def active() -> list[dict[str, Any]]:
    """Every undo record: ``{"id", "fault", "target", "state", "left", "path"}``; left: seconds, None if unknown.

    state: ``in``, ``going in``, ``going out``, ``left behind`` (nobody holds it any more), ``damaged``.
    """
    found = []
    for path, record in recover.records():
        if isinstance(record, str):
            row = {
                "id": path.stem,
                "fault": "",
                "target": "",
                "state": "damaged",
                "left": None,
                "why": record,
            }
        else:
            left = record["until"] - time.time() if record.get("until") else None
            row = {k: record[k] for k in ("id", "fault", "target")} | {"state": _state(record), "left": left}
            row["why"] = "; ".join(record.get("problems") or [])
        found.append(row | {"path": str(path)})
    return found


def _state(record: dict[str, Any]) -> str:
    if not undo.held(record):
        return "left behind"
    return {"planned": "going in", "in": "in"}.get(record["state"], "going out")


def active_text(row: dict[str, Any]) -> str:
    """One line for a terminal."""
    if row["state"] == "damaged":
        return f"damaged record {row['path']}: {row['why']}"
    left = f", {row['left']:.0f} s left" if row["left"] and row["left"] > 0 and row["state"] == "in" else ""
    cure = " (exaserve chaos recover)" if row["state"] == "left behind" else ""
    why = f": {row['why']}" if row["why"] else ""
    return f"{row['fault']} on {row['target']}: {row['state']}{left}{why}{cure}"
