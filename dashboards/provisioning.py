"""Boards and rules where Grafana and Prometheus run on machines: the files that tell both where the others lie.

Grafana reads ``grafana/provisioning`` (name it in ``[paths] provisioning``, or copy it over Grafana's own folder);
``prometheus.yml`` is whole, so that ``promtool check config`` takes it, and its targets are examples to replace.
Kubernetes' objects are made in ``kubernetes.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dashboards.scraping import INTERVAL, JOBS, TIMEOUT, Job

#: Grafana's folder and the name of its dashboard provider.
FOLDER = "ExaServe"
#: A uid of our own, so that a second run meets the data source of the first.
DATASOURCE = "exaserve-prometheus"

PROVIDER_FILE = "grafana/provisioning/dashboards/exaserve.yaml"
DATASOURCE_FILE = "grafana/provisioning/datasources/exaserve.yaml"
PROMETHEUS_FILE = "prometheus.yml"


def files(texts: Mapping[str, str], out: Path, source: str, prometheus: str) -> dict[str, str]:
    """``texts`` (``build.files``) and the files that name them.

    out: absolute folder in which all of them will lie where Grafana and Prometheus read them: the files name it.
    prometheus: address under which Grafana reaches Prometheus. Raises KeyError for an unknown source.
    """
    return {
        **texts,
        PROVIDER_FILE: _provider(out),
        DATASOURCE_FILE: _datasource(prometheus),
        PROMETHEUS_FILE: _prometheus(out, source),
    }


def _provider(boards: Path) -> str:
    head = (
        "# Grafana: dashboards of this folder, read anew every 30 s. Changes made in Grafana are not kept.\n"
    )
    provider = {
        "name": "exaserve",
        "folder": FOLDER,
        "type": "file",
        "disableDeletion": False,
        "allowUiUpdates": False,
        "updateIntervalSeconds": 30,
        "options": {"path": _literal(str(boards))},
    }
    return head + _yaml({"apiVersion": 1, "providers": [provider]})


def _datasource(url: str) -> str:
    head = (
        "# Grafana: the Prometheus that has the rules. timeInterval is its scrape_interval: $__rate_interval of the\n"
        "# boards follows from it. Where there is such a data source already, leave this file out.\n"
    )
    datasource = {
        "name": "ExaServe Prometheus",
        "uid": DATASOURCE,
        "type": "prometheus",
        "access": "proxy",
        "url": _literal(url),
        "editable": False,
        "jsonData": {"httpMethod": "POST", "timeInterval": INTERVAL, "manageAlerts": False},
    }
    return head + _yaml({"apiVersion": 1, "datasources": [datasource]})


def _prometheus(out: Path, source: str) -> str:
    head = (
        "# Prometheus: rules and scrape jobs of ExaServe's boards. Replace the targets; where there is a\n"
        "# prometheus.yml already, take rule_files and the jobs. Job names are what the rules ask for.\n"
    )
    intervals = {"scrape_interval": INTERVAL, "scrape_timeout": TIMEOUT, "evaluation_interval": INTERVAL}
    alertmanagers = [{"static_configs": [{"targets": ["alertmanager:9093"]}]}]
    top = _yaml({"global": intervals}) + _yaml({"rule_files": [str(out / "rules" / "*.yaml")]})
    jobs = "".join(f"  # {job.says}\n{_indented(_yaml([_job(job)]))}" for job in JOBS[source])
    return f"{head}{top}{_yaml({'alerting': {'alertmanagers': alertmanagers}})}scrape_configs:\n{jobs}"


def _job(job: Job) -> dict[str, Any]:
    if job.sd:
        found = [{"url": f"http://{job.targets[0]}{job.sd}", "refresh_interval": INTERVAL}]
        return {"job_name": job.name, "http_sd_configs": found}
    return {"job_name": job.name, "static_configs": [{"targets": list(job.targets)}]}


def _literal(text: str) -> str:
    """As it stands: Grafana puts environment variables in for ``$NAME`` in these files."""
    return text.replace("$", "$$")


def _yaml(data: object) -> str:
    return yaml.safe_dump(data, sort_keys=False, width=1000)


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())
