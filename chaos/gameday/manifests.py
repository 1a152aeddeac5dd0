"""Chaos Mesh manifests of experiments, with the rights that whoever applies them needs.

An experiment's load, probes and judgement stay what they are; only its fault is put in by Chaos Mesh. Each manifest says
in annotations which experiment and fault it is, and how it differs from what the fault does elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from chaos import fault as faults
from chaos.gameday import mesh
from chaos.run.plan import Experiment

API = "chaos-mesh.org/v1alpha1"
#: Plural of each kind, as RBAC names resources.
RESOURCES = {
    "PodChaos": "podchaos",
    "NetworkChaos": "networkchaos",
    "StressChaos": "stresschaos",
    "IOChaos": "iochaos",
    "TimeChaos": "timechaos",
    "DNSChaos": "dnschaos",
    "HTTPChaos": "httpchaos",
}
ACCOUNT = "exaserve-gameday"


@dataclass(frozen=True)
class Missing:
    """A fault of an experiment that has no manifest, and why."""

    experiment: str
    fault: str
    why: str


def of(
    experiment: Experiment, cluster: mesh.Cluster, percent: int = 0
) -> tuple[list[dict[str, Any]], list[Missing]]:
    """Its manifests, and its faults that have none. percent: of the pods that are hit; 0: one pod.

    Raises fault.Refused for a fault or parameter that is none.
    """
    made: list[dict[str, Any]] = []
    missing: list[Missing] = []
    values = _configuration(experiment)
    for i, given in enumerate(experiment.injections()):
        arguments = {key: _resolve(value, values) for key, value in given.items()}
        fault = faults.load(str(arguments["fault"]))
        p = fault.parse(arguments.get("parameters") or {}).model_dump()
        seconds = fault.check_duration(float(arguments["duration"]))
        target = str(arguments.get("target", ""))
        answer = mesh.answer(fault.name, cluster, p, seconds, target.partition("/")[2] or "shared")
        if isinstance(answer, mesh.NoCounterpart):
            missing.append(Missing(experiment.name, fault.name, answer.why))
            continue
        share = re.fullmatch(r"(\d+)%", target)
        name = experiment.name if i == 0 else f"{experiment.name}-{i + 1}"
        hit = percent or (int(share.group(1)) if share else 0)
        made.append(_manifest(name, experiment, fault.name, answer, cluster, seconds, hit))
    return made, missing


def rbac(kinds: Iterable[str], cluster: mesh.Cluster) -> list[dict[str, Any]]:
    """A service account that may make, see and end experiments of these kinds in that namespace, and nothing else."""
    meta = {"name": ACCOUNT, "namespace": cluster.namespace}
    resources = sorted(RESOURCES[kind] for kind in set(kinds))
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {
            "apiGroups": ["chaos-mesh.org"],
            "resources": resources,
            "verbs": ["get", "list", "watch", "create", "patch", "update", "delete"],
        },
    ]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": dict(meta)},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": dict(meta),
            "rules": rules,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": dict(meta),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": cluster.namespace}],
        },
    ]


def write(
    folder: Path, experiments: list[Experiment], cluster: mesh.Cluster, percent: int = 0
) -> list[Missing]:
    """One file an experiment, ``rbac.yaml``, and ``missing.md``; returns what is in the last. Raises OSError, Refused."""
    found = [(experiment, *of(experiment, cluster, percent)) for experiment in experiments]
    folder.mkdir(parents=True, exist_ok=True)
    kinds: set[str] = set()
    missing: list[Missing] = []
    for experiment, made, without in found:
        missing += without
        if made:
            kinds |= {m["kind"] for m in made}
            (folder / f"{experiment.name}.yaml").write_text(text(made), encoding="utf-8")
    if kinds:
        (folder / "rbac.yaml").write_text(text(rbac(kinds, cluster)), encoding="utf-8")
    if missing:
        lines = ["# Experiments without a manifest", "", "| experiment | fault | why |", "|---|---|---|"]
        lines += [f"| {m.experiment} | {m.fault} | {m.why} |" for m in missing]
        (folder / "missing.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return missing


def text(manifests: list[dict[str, Any]]) -> str:
    """As one YAML file."""
    return yaml.safe_dump_all(manifests, sort_keys=False, explicit_start=True, width=110)


def _manifest(
    name: str,
    experiment: Experiment,
    fault: str,
    chaos: mesh.Chaos,
    cluster: mesh.Cluster,
    seconds: float,
    percent: int,
) -> dict[str, Any]:
    notes = {
        "exaserve/experiment": experiment.name,
        "exaserve/fault": fault,
        "exaserve/runbook": experiment.plan.runbook,
    }
    if chaos.differs:
        notes["exaserve/differs"] = chaos.differs
    how = {"mode": "fixed-percent", "value": str(percent)} if percent else {"mode": "one"}
    spec: dict[str, Any] = {**how, "selector": mesh.selector(cluster, chaos.part), **chaos.spec}
    if chaos.held:
        spec["duration"] = f"{seconds:g}s"
    return {
        "apiVersion": API,
        "kind": chaos.kind,
        "metadata": {"name": f"exaserve-{name}", "namespace": cluster.namespace, "annotations": notes},
        "spec": spec,
    }


def _configuration(experiment: Experiment) -> dict[str, Any]:
    """The defaults of what the experiment takes from the environment."""
    found = {}
    for key, value in (experiment.content.get("configuration") or {}).items():
        found[key] = value.get("default") if isinstance(value, dict) and value.get("type") == "env" else value
    return found


def _resolve(value: Any, values: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {k: _resolve(v, values) for k, v in value.items()}
    if isinstance(value, str):
        whole = re.fullmatch(r"\$\{(\w+)\}", value)
        if whole and whole.group(1) in values:
            return values[whole.group(1)]
        return re.sub(r"\$\{(\w+)\}", lambda m: str(values.get(m.group(1), m.group(0))), value)
    return value
