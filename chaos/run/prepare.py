"""Before a run: the place opened, the environment set for the experiment's configuration, faults tried without doing them."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field
from typing import Any

from chaoslib import substitute
from chaoslib.configuration import load_configuration
from chaoslib.exceptions import ActivityFailed, ChaosException
from chaoslib.experiment import ensure_experiment_is_valid

from chaos import inject, places, steps
from chaos.fault import Refused
from chaos.place import Place
from chaos.run import judge
from chaos.run.plan import Experiment, PlanError


class Unusable(Exception):
    """Wrong usage, or nothing can be done here; the message names the option and the cure. Nothing was done."""


@dataclass
class Options:
    """place: as ``--place``. rate: requests a second, None: the experiment's. target: of its fault, "": the experiment's.

    addresses: of router, admin, prometheus, alertmanager, where the place does not say them.
    """

    place: str = "local"
    repeat: int = 1
    rate: float | None = None
    target: str = ""
    grafana: str = ""
    grafana_token: str = ""
    addresses: dict[str, str] = field(default_factory=dict)
    metrics_port: int = 0
    quiet: bool = False


def describe(experiment: Experiment, options: Options) -> list[str]:
    """What ``run`` would do, as lines; nothing is done. Raises Unusable."""
    place, rate = prepare(experiment, options)
    plan = experiment.plan
    lines = [
        f"{experiment.name}: {experiment.title}",
        f"place {place.name}, {rate:g} requests/s of {plan.load.profile}",
    ]
    for given in _injections(experiment):
        fault, target = str(given.get("fault")), str(given.get("target", "any"))
        try:
            for one, engine, planned in _dry(given, place):
                lines.append(f"{fault} on {one.name} by {engine.name}, for {given.get('duration', 60)} s")
                lines += [f"  do   {steps.text(step)}" for step in planned.do]
                lines += [f"  undo {steps.text(step)}" for step in planned.undo]
        except ActivityFailed as error:
            lines.append(f"{fault} on {target}: refused: {error}")
    lines += [
        f"goal  {judge.Goal(name, allowed, None).text().partition(', ')[2]}: {name}"
        for name, allowed in plan.goals.items()
    ]
    return [*lines, f"runbook {plan.runbook}", "Nothing was done."]


def prepare(experiment: Experiment, options: Options) -> tuple[Place, float]:
    """The place, with its addresses in the environment, where the experiment's configuration looks for them."""
    try:
        ensure_experiment_is_valid(copy.deepcopy(experiment.content))
    except ChaosException as error:
        raise PlanError(f"{experiment.path}: {error}") from None
    try:
        place = places.open(options.place)
        place.addresses |= {name: url.rstrip("/") for name, url in options.addresses.items() if url}
        if not place.addresses.get("admin"):
            place.replicas()  # says what would help
        place.nodes()
    except (ActivityFailed, ImportError) as error:
        raise Unusable(f"--place {options.place}: {error}") from None
    for name in ("router", "admin", "prometheus"):
        if not place.addresses.get(name):
            raise Unusable(f"{place.name} does not say where its {name} is; --{name} URL does")
    for name, url in place.addresses.items():
        os.environ[f"EXASERVE_{name.upper()}"] = url
    rate = options.rate or experiment.plan.load.rate
    os.environ["EXASERVE_PLACE"] = options.place
    os.environ["EXASERVE_RATE"] = f"{rate:g}"
    if options.target:
        os.environ["EXASERVE_TARGET"] = options.target
    return place, rate


def _injections(experiment: Experiment) -> list[dict[str, Any]]:
    configuration = load_configuration(experiment.content.get("configuration") or {})
    return [substitute(copy.deepcopy(given), configuration, {}) for given in experiment.injections()]


def _dry(given: dict[str, Any], place: Place) -> list[Any]:
    return inject.dry_run(
        str(given.get("fault")),
        str(given.get("target", "any")),
        place,
        float(given.get("duration", 60.0)),
        given.get("parameters") or {},
        int(given.get("max_affected", 1)),
        bool(given.get("allow_last", False)),
    )


def check_faults(experiment: Experiment, place: Place) -> None:
    """A fault that can't be done here is told before anything begins; an unwell fleet is for the steady state to tell."""
    try:
        well = all(r.in_rotation for r in place.replicas())
    except ActivityFailed:
        return
    if not well:
        return
    for given in _injections(experiment):
        try:
            _dry(given, place)
        except Refused as error:
            raise Unusable(str(error)) from None
