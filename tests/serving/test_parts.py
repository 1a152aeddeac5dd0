"""What each part of the stack is started with."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from exporters.config import Exporter, load
from serving.config import load as load_config
from serving.monitoring import own_rules, prometheus_config, rules_folder
from serving.parts import parts, write_effective


def exporter_argv(folder: Path, text: str) -> list[str]:
    file = folder / "exaserve.yaml"
    file.write_text("engine: {kind: simulated}\n" + text)
    run = folder / "run"
    run.mkdir()
    (part,) = [p for p in parts(load_config(file), run) if p.name == "exporter"]
    argv = list(part.launch().argv)
    return argv[argv.index("exporter") + 1 :]


def test_the_exporter_gets_its_section_and_what_it_leaves_open_is_this_stacks(tmp_path: Path) -> None:
    argv = exporter_argv(
        tmp_path, "exporter: {port: 9421, mounts: [/models], intent_reference: intents.json}\n"
    )
    run = tmp_path / "run"
    assert argv == [
        f"--config={run / 'exaserve.yaml'}",
        "--replica=replica-0=http://127.0.0.1:8100",
        "--replica=replica-1=http://127.0.0.1:8101",
        f"--run-folder={run}",
        "--router=http://127.0.0.1:8001/metrics",
        "--discover=http://127.0.0.1:8001/sd",
    ]
    section = load(run / "exaserve.yaml", {})
    assert section == Exporter(port=9421, mounts=["/models"], intent_reference=str(tmp_path / "intents.json"))


def test_what_the_section_says_is_not_overridden(tmp_path: Path) -> None:
    argv = exporter_argv(
        tmp_path,
        "exporter: {run_folder: /r, router: http://r:1, discover: http://d:2, replicas: ['x=http://x:3']}\n",
    )
    assert [a.partition("=")[0] for a in argv] == ["--config", "--replica", "--replica"]


def test_prometheus_shows_the_exporters_token(tmp_path: Path) -> None:
    file = tmp_path / "exaserve.yaml"
    jobs = []
    for text in ("", "exporter: {token_file: token}\n"):
        file.write_text(text)
        scrapes = yaml.safe_load(prometheus_config(load_config(file)))["scrape_configs"]
        jobs += [job for job in scrapes if job["job_name"] == "exaserve-exporter"]
    assert [job.get("authorization") for job in jobs] == [None, {"credentials_file": str(tmp_path / "token")}]


def test_prometheus_keeps_the_files_service_levels_and_the_packaged_rules_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "exaserve.yaml"
    file.write_text("router: {port: 8005}\n")
    assert own_rules(load_config(file), tmp_path) == rules_folder()
    file.write_text("slos: {mine: {kind: availability, objective: 0.9}}\n")
    config, run = load_config(file), tmp_path / "run"
    run.mkdir()
    write_effective(config, run)
    rules = own_rules(config, run)
    assert rules == run / "boards" / "rules"
    packaged = rules_folder()
    assert packaged is not None
    assert {p.name for p in rules.iterdir()} == {p.name for p in packaged.glob("*.yaml")}
    assert "slo: mine" in (rules / "slo.yaml").read_text()
    assert "slo: ttft" not in (rules / "slo.yaml").read_text()
    assert yaml.safe_load(prometheus_config(config, rules))["rule_files"] == [f"{rules}/*.yaml"]


def test_rules_that_cannot_be_built_say_why(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("slos: {mine: {kind: availability, objective: 0.9}}\n")
    with pytest.raises(OSError, match="rules for slos can't be built: --config: "):
        own_rules(load_config(file), tmp_path / "no run folder")
