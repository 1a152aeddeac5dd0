"""Prometheus and Alertmanager beside the stack: where they are, their configuration, how they are started.

The rules themselves come from ``dashboards``. Both run with Debian's or any newer release.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from serving.config import PARTS, Config
from serving.home import home, write_whole
from serving.ports import reach

#: Two days at 5 s keep well below this; the size bound holds if somebody scrapes faster.
_RETENTION = ("--storage.tsdb.retention.time=2d", "--storage.tsdb.retention.size=512MB")
_LISTEN = "127.0.0.1"


def admin_url(config: Config, own: Collection[str] = PARTS) -> str | None:
    """The router's admin API: its own where the router is one of the parts here, else ``fleet.router``."""
    if "router" in own:
        return f"http://{reach(config.router.admin_host)}:{config.router.admin_port}"
    return config.fleet.router.rstrip("/") if config.fleet.router else None


def prometheus_binary() -> str | None:
    return shutil.which("prometheus")


def alertmanager_binary() -> str | None:
    """Debian calls it prometheus-alertmanager, its makers alertmanager."""
    return shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")


def missing() -> str | None:
    """One line that says which of the two is missing and how to get it; None if both are here."""
    packages = []
    if prometheus_binary() is None:
        packages.append("prometheus")
    if alertmanager_binary() is None:
        packages.append("prometheus-alertmanager")
    if not packages:
        return None
    return (
        f"{' and '.join(packages)} not found, going on without; to get them: make tools, "
        f"or sudo apt-get install {' '.join(packages)}"
    )


def rules_folder() -> Path | None:
    """``dashboards/generated/rules``, found without importing ``dashboards``; None if it is not installed."""
    spec = importlib.util.find_spec("dashboards")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "generated" / "rules"
        if folder.is_dir():
            return folder
    return None


def own_rules(config: Config, run: Path) -> Path | None:
    """The rules with the configuration's service levels, built into ``run``; the packaged ones for the defaults.

    A child builds them from the effective configuration in ``run``: dashboards is a folder of its own. Raises
    OSError if it can't.
    """
    packaged = rules_folder()
    if packaged is None or config.slos == Config().slos:
        return packaged
    out = run / "boards"
    argv = [sys.executable, "-m", "dashboards", "build", f"--out={out}", f"--config={run / 'exaserve.yaml'}"]
    built = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if built.returncode != 0:
        raise OSError(f"rules for slos can't be built: {built.stderr.strip()}")
    return out / "rules"


def prometheus_config(config: Config, rules: Path | None = None, own: Collection[str] = PARTS) -> str:
    """prometheus.yml of the stack. rules: folder of rule files. own: the parts that run here."""
    router = urlsplit(admin_url(config, own) or "").netloc
    ports = config.monitoring
    exporters = [f"{reach(config.exporter.host)}:{config.exporter.port}"] if "exporter" in own else []
    interval = _duration(ports.scrape_interval)

    def job(name: str, *addresses: str) -> dict[str, object]:
        return {"job_name": name, "static_configs": [{"targets": list(addresses)}]}

    exporter = job("exaserve-exporter", *exporters, *ports.exporters)
    if config.exporter.token_file:
        exporter["authorization"] = {"credentials_file": config.exporter.token_file}
    replicas = {
        "job_name": "exaserve-replica",
        "http_sd_configs": [{"url": f"http://{router}/sd", "refresh_interval": "5s"}],
    }
    # A load test of this machine (--metrics-port) and an experiment write their addresses there while they run.
    passing = [
        {
            "job_name": f"exaserve-{what}",
            "file_sd_configs": [
                {"files": [str(home() / what / "targets" / "*.json")], "refresh_interval": "5s"}
            ],
        }
        for what in ("loadtest", "chaos")
    ]
    return yaml.safe_dump(
        {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": _duration(min(ports.scrape_interval, 10)),
                "evaluation_interval": interval,
            },
            "rule_files": [str(rules / "*.yaml")] if rules else [],
            "alerting": {
                "alertmanagers": [{"static_configs": [{"targets": [f"{_LISTEN}:{ports.alertmanager_port}"]}]}]
            },
            "scrape_configs": [
                job("exaserve-router", router),
                replicas,
                exporter,
                *passing,
                job("prometheus", f"{_LISTEN}:{ports.prometheus_port}"),
                job("alertmanager", f"{_LISTEN}:{ports.alertmanager_port}"),
            ],
        },
        sort_keys=False,
    )


def alertmanager_config() -> str:
    """alertmanager.yml of the stack: alerts are shown and sent nowhere.

    Short waits, so that an alert is seen when it fires; on call, name a file of ``exaserve alerts config`` in
    ``monitoring.alertmanager_config``.
    """
    return yaml.safe_dump(
        {
            "route": {
                "receiver": "shown-only",
                "group_by": ["alertname", "replica", "model"],
                "group_wait": "1s",
                "group_interval": "5s",
                "repeat_interval": "4h",
            },
            "receivers": [{"name": "shown-only"}],
        },
        sort_keys=False,
    )


def prometheus_argv(config: Config, binary: str, run: Path, own: Collection[str] = PARTS) -> list[str]:
    """How to start Prometheus; writes its configuration and rules into ``run``. Raises OSError."""
    file = run / "prometheus.yml"
    write_whole(file, prometheus_config(config, own_rules(config, run), own))
    return [
        binary,
        f"--config.file={file}",
        f"--storage.tsdb.path={run / 'prometheus'}",
        *_RETENTION,
        f"--web.listen-address={_LISTEN}:{config.monitoring.prometheus_port}",
        "--log.level=warn",
    ]


def alertmanager_argv(config: Config, binary: str, run: Path) -> list[str]:
    """How to start Alertmanager, without its cluster port; writes its configuration into ``run``, unless it has one."""
    file = Path(config.monitoring.alertmanager_config or run / "alertmanager.yml")
    if config.monitoring.alertmanager_config is None:
        write_whole(file, alertmanager_config())
    return [
        binary,
        f"--config.file={file}",
        f"--storage.path={run / 'alertmanager'}",
        "--data.retention=48h",
        "--cluster.listen-address=",
        f"--web.listen-address={_LISTEN}:{config.monitoring.alertmanager_port}",
        "--log.level=warn",
    ]


def _duration(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"
