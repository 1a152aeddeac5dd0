"""Boards and rules as objects of Kubernetes: for the Prometheus operator, and for the sidecar of Grafana's chart.

One object a file, and a kustomization.yaml over all. A PrometheusRule has the text of its rule file, so that what
promtool has checked is what the operator gets. Files for machines are made in ``provisioning.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

import yaml

from dashboards.provisioning import FOLDER
from dashboards.scraping import INTERVAL, JOBS, TIMEOUT, Job

#: The API server refuses a ConfigMap of more; the operator puts rules into one, at half of that each.
MAX_CONFIGMAP, MAX_RULES = 1 << 20, 1 << 19
#: Label by which the sidecar of Grafana's chart finds dashboards (its default).
SIDECAR = ("grafana_dashboard", "1")

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True, slots=True)
class Options:
    """namespace: of every object. labels: further labels of rules and monitors, for the operator's selectors
    (``release: …`` with the usual chart). Raises ValueError where Kubernetes would refuse them.
    """

    namespace: str = "monitoring"
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.namespace) > 63 or not _NAME.fullmatch(self.namespace):
            raise ValueError(f"no name of a namespace: {self.namespace!r}")
        for key, value in self.labels.items():
            if not (_LABEL_KEY.fullmatch(key) and _LABEL_VALUE.fullmatch(value)):
                raise ValueError(f"no label of Kubernetes: {key}={value}")


def files(texts: Mapping[str, str], source: str, options: Options) -> dict[str, str]:
    """One manifest a file of ``texts`` (``build.files``), the monitors of ``source``, kustomization.yaml.

    Raises ValueError if a board or a rule file is too large for one object, KeyError for an unknown source.
    """
    manifests: dict[str, str] = {}
    for path, text in texts.items():
        if path.startswith("rules/"):
            name = _name(path.removeprefix("rules/").removesuffix(".yaml"))
            manifests[f"rules/{name}.yaml"] = _rule(name, path, text, options)
        elif path.endswith(".json"):
            name = _name(path.removesuffix(".json"))
            manifests[f"dashboards/{name}.yaml"] = _dashboard(name, path, text, options)
    for job in JOBS[source]:
        manifests[f"monitors/{job.name}.yaml"] = _monitor(job, options)
    return {"kustomization.yaml": _kustomization(manifests), **manifests}


def _rule(name: str, path: str, text: str, options: Options) -> str:
    if len(text.encode()) >= MAX_RULES:
        raise ValueError(
            f"{path} has {len(text.encode())} bytes; a PrometheusRule takes less than {MAX_RULES}"
        )
    head, groups = _apart(text)
    top = _object("monitoring.coreos.com/v1", "PrometheusRule", name, options, options.labels)
    return f"{head}{_yaml(top)}spec:\n{indent(groups, '  ')}"


def _dashboard(name: str, path: str, text: str, options: Options) -> str:
    if len(text.encode()) >= MAX_CONFIGMAP - 4096:  # its metadata counts too
        raise ValueError(
            f"{path} has {len(text.encode())} bytes; a ConfigMap takes less than {MAX_CONFIGMAP}"
        )
    key, value = SIDECAR
    top = _object("v1", "ConfigMap", f"dashboard-{name}", options, {key: value})
    # The sidecar puts it into this folder where it is told to: sidecar.dashboards.folderAnnotation.
    top["metadata"]["annotations"] = {"grafana_folder": FOLDER}
    lines = indent(text, "    ")
    return f"{_yaml(top)}data:\n  exaserve-{name}.json: |\n{lines}" + ("" if lines.endswith("\n") else "\n")


def _monitor(job: Job, options: Options) -> str:
    """The object that makes the operator scrape ``job`` under its name."""
    here = {"targetLabel": "job", "replacement": job.name}
    name = job.name if job.name.startswith("exaserve") else f"exaserve-{job.name}"
    if job.sd:
        top = _object("monitoring.coreos.com/v1alpha1", "ScrapeConfig", name, options, options.labels)
        host, _, port = job.targets[0].partition(":")
        url = f"http://exaserve-{host}.{options.namespace}.svc:{port}{job.sd}"
        found = [{"url": url, "refreshInterval": INTERVAL}]
        spec: dict[str, Any] = {"httpSDConfigs": found, "scrapeInterval": INTERVAL, "scrapeTimeout": TIMEOUT}
        return f"# {job.says}\n{_yaml(top | {'spec': spec | {'relabelings': [here]}})}"
    instance = "__meta_kubernetes_pod_node_name" if job.node else "__meta_kubernetes_pod_name"
    endpoint = {
        "port": job.port,
        "interval": INTERVAL,
        "scrapeTimeout": TIMEOUT,
        "relabelings": [here, {"sourceLabels": [instance], "targetLabel": "instance"}],
    }
    kind, endpoints = (
        ("ServiceMonitor", "endpoints") if job.service else ("PodMonitor", "podMetricsEndpoints")
    )
    top = _object("monitoring.coreos.com/v1", kind, name, options, options.labels)
    spec = {"namespaceSelector": {"any": True}, "selector": {"matchLabels": dict(job.pods)}}
    return f"# {job.says}\n{_yaml(top | {'spec': spec | {endpoints: [endpoint]}})}"


def _kustomization(manifests: Mapping[str, str]) -> str:
    head = (
        "# kubectl apply --server-side -k .\n"
        "# Server-side: the annotation that a plain apply leaves on each object is too small for a large board.\n"
    )
    resources = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return head + _yaml(resources | {"resources": sorted(manifests)})


def _object(
    version: str, kind: str, name: str, options: Options, labels: Mapping[str, str]
) -> dict[str, Any]:
    full = name if name.startswith("exaserve") else f"exaserve-{name}"
    metadata = {"name": full, "namespace": options.namespace}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": metadata | {"labels": {"app.kubernetes.io/part-of": "exaserve", **labels}},
    }


def _name(stem: str) -> str:
    """A file's name as Kubernetes takes it."""
    name = stem.replace("_", "-")
    if not _NAME.fullmatch(name):
        raise ValueError(f"no object can have the name of {stem}")
    return name


def _apart(text: str) -> tuple[str, str]:
    """Comments at the head of a file, and the rest of it."""
    lines = text.splitlines(keepends=True)
    count = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "".join(lines[:count]), "".join(lines[count:])


def _yaml(data: object) -> str:
    return yaml.safe_dump(data, sort_keys=False, width=1000)
