"""exporters/README.md and the files of exporters/deploy: true to the code, and taken by the programs they are for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import promql_parser
import pytest
import yaml

from exporters import available, docs
from exporters.catalog import CATALOG
from exporters.config import Exporter, load

FOLDER = Path(docs.README).parent
DEPLOY = FOLDER / "deploy"


def test_the_tables_are_what_the_code_says() -> None:
    assert docs.README.read_text() == docs.written(docs.README.read_text()), "run: python -m exporters.docs"


def test_check_says_whether_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "README.md"
    copy.write_text(docs.README.read_text())
    monkeypatch.setattr(docs, "README", copy)
    assert docs.main(["--check"]) == 0
    copy.write_text(copy.read_text().replace("`exaserve_engine_up`", "`exaserve_engine_down`"))
    assert docs.main(["--check"]) == 1
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    assert docs.main(["--nonsense"]) == 2


def test_every_metric_setting_and_collector_is_there_once() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", docs.README.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted([*CATALOG, *available.collectors(), *Exporter.model_fields])


def queries() -> list[str]:
    """Each query of the README's promql blocks: an indented line goes on the one before."""
    blocks = re.findall(r"^```promql\n(.*?)^```", docs.README.read_text(), re.MULTILINE | re.DOTALL)
    text = re.sub(r"^#.*\n", "", "".join(blocks), flags=re.MULTILINE)
    return re.sub(r"\n[ ]+", " ", text).strip().splitlines()


@pytest.mark.parametrize("query", queries())
def test_every_query_parses_and_asks_only_for_what_there_is(query: str) -> None:
    promql_parser.parse(query)
    assert set(re.findall(r"\bexaserve_\w+", query)) <= CATALOG.keys()


def test_there_is_a_query_for_each_golden_signal() -> None:
    asked = " ".join(queries())
    for name in (
        "kv_utilisation",
        "transmit_wait",
        "kv_transfer_seconds",
        "intent_drift_distance",
        "stalled",
    ):
        assert name in asked


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)")
def test_promtool_takes_the_scrape_configuration() -> None:
    check = subprocess.run(
        ["promtool", "check", "config", DEPLOY / "prometheus.yml"], capture_output=True, text=True
    )
    assert check.returncode == 0, check.stderr
    jobs = {
        job["job_name"] for job in yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    }
    assert jobs == {"exaserve-exporter", "exaserve-router", "exaserve-replica"}


def command(words: list[str], config: Path) -> subprocess.CompletedProcess[str]:
    """``exaserve`` with these words and this configuration file, one page on its output."""
    at = words.index("--config") + 1
    argv = [
        *words[words.index("exporter") : at],
        str(config),
        *words[at + 1 :],
        "--collector.disable-defaults",
    ]
    argv += ["--textfile", "-", "--once"]
    return subprocess.run(
        [sys.executable, "-m", "serving.cli", *argv], capture_output=True, text=True, timeout=120
    )


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "exaserve-exporter.service"
    text = (DEPLOY / "exaserve-exporter.service").read_text()
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
    check = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", unit],
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = [line for line in check.stderr.splitlines() if unit.name in line]
    assert (check.returncode, said) == (0, [])


def test_the_units_command_is_one(tmp_path: Path) -> None:
    line = re.search(r"^ExecStart=(.*)$", (DEPLOY / "exaserve-exporter.service").read_text(), re.MULTILINE)
    assert line
    (tmp_path / "empty.yaml").write_text("")
    ended = command(line[1].split(), tmp_path / "empty.yaml")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_daemonset_runs_a_command_that_is_one_with_a_configuration_that_is_taken(tmp_path: Path) -> None:
    _, config, daemonset = yaml.safe_load_all((DEPLOY / "daemonset.yaml").read_text())
    file = tmp_path / "exaserve.yaml"
    file.write_text(config["data"]["exaserve.yaml"])
    section = load(file, {})
    assert (section.sysfs, section.procfs) == ("/host/sys", "/host/proc")
    pod = daemonset["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ended = command(container["args"], file)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert container["ports"][0]["containerPort"] == section.port
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {m["mountPath"]: m for m in container["volumeMounts"]}
    assert {m["readOnly"] for m in mounts.values()} == {True}
    assert {section.sysfs, section.procfs} <= mounts.keys()
    assert {m["name"] for m in mounts.values()} == {v["name"] for v in pod["volumes"]}
    assert (
        daemonset["spec"]["selector"]["matchLabels"].items()
        <= daemonset["spec"]["template"]["metadata"]["labels"].items()
    )
