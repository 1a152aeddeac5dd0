"""Prometheus and Alertmanager of the stack: which configuration they are started with."""

from __future__ import annotations

from pathlib import Path

from serving import monitoring
from serving.config import load


def test_alertmanager_shows_alerts_only_unless_a_configuration_is_named(tmp_path: Path) -> None:
    argv = monitoring.alertmanager_argv(load(None), "alertmanager", tmp_path)
    assert argv[1] == f"--config.file={tmp_path / 'alertmanager.yml'}"
    assert (tmp_path / "alertmanager.yml").read_text() == monitoring.alertmanager_config()


def test_a_named_configuration_is_used_as_it_is_and_found_beside_exaserve_yaml(tmp_path: Path) -> None:
    (tmp_path / "exaserve.yaml").write_text("monitoring: {alertmanager_config: told.yml}\n")
    argv = monitoring.alertmanager_argv(load(tmp_path / "exaserve.yaml"), "alertmanager", tmp_path / "run")
    assert argv[1] == f"--config.file={tmp_path / 'told.yml'}"
    assert not (tmp_path / "run").exists()
