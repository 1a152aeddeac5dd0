"""The router's configuration file is replaced by a broken one: the running configuration has to stay in force.

The file is the one that the router's process was started with. The undo record holds the old text; if somebody mends the
file meanwhile, theirs is left.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import Field

from chaos import ask, steps
from chaos.fault import Engine, Fault, Parameters, Plan, Proof, Refused, Target

_METRIC = "exaserve_router_config_last_reload_successful"
_TEXTS = {
    "syntax": "router: [this is no YAML that anybody could read\n",
    "value": "router:\n  port: not-a-port\n",
    "cut": None,
}


class BrokenParameters(Parameters):
    how: Literal["syntax", "value", "cut"] = Field(
        "syntax",
        description="syntax: no YAML; value: YAML with a value that is not allowed; cut: its first half only",
    )


class Replaced(Engine):
    """The file written anew, whole, as an editor or a deployment does."""

    name = "file"
    how = "replaces the file that the router was started with; puts the old text back"
    prove_within = 20.0

    def refusal(self, target: Target, p: Any) -> str | None:
        try:
            path = _file(target)
            text = _text(path)
        except (Refused, OSError, UnicodeDecodeError) as error:
            return str(error)
        if not target.place.addresses.get("admin"):
            return "the router's admin address is not known, so it can't be told whether it noticed"
        if p.how == "cut" and len(text) < 200:
            return f"{path} is too short to be cut into something broken"
        return None

    def plan(self, target: Target, p: Any, duration: float) -> Plan:
        path = _file(target)
        old = _text(path)
        broken = _TEXTS[p.how]
        if broken is None:  # in the middle of a key, so that what is left can't be a smaller good file
            broken = old[: len(old) // 2] + "\n: ["
        mode = path.stat().st_mode & 0o777
        return Plan(
            [steps.write(str(path), broken, mode)],
            [steps.write(str(path), old, mode, only_if=broken)],
            claims=(f"file:{path}",),
        )

    def prove(self, target: Target, p: Any, before: Any) -> Proof:
        admin = target.place.addresses["admin"]
        good = ask.series(f"{admin}/metrics", _METRIC)
        return Proof(good == 0, f"the router says {_METRIC} {good if good is None else f'{good:g}'}", good)


def _text(path: Path) -> str:
    """With its line ends as they are, so that what is put back is what was there. Raises OSError, UnicodeDecodeError."""
    return path.read_bytes().decode()


def _file(target: Target) -> Path:
    """The file of the router's ``--config``, as seen from where the router was started. Raises Refused."""
    who = target.part.identity if target.part is not None else None
    try:
        router = psutil.Process(who["pid"]) if who else None
        line, folder = (router.cmdline(), router.cwd()) if router else ([], "")
    except psutil.Error:
        line, folder = [], ""
    for word, following in zip(line, [*line[1:], ""], strict=True):
        name = word.partition("=")[2] if word.startswith("--config=") else following
        if word == "--config" or word.startswith("--config="):
            return Path(folder, name).resolve()  # what a link stands for is written, the link stays
    raise Refused("the router was started without a configuration file, so there is none to break")


FAULT = Fault(
    name="configuration_broken",
    kind="control",
    summary="the router's configuration file is broken; the configuration that runs has to stay",
    engines=(Replaced(),),
    parameters=BrokenParameters,
    targets=("router",),
)
