"""exaserve.yaml: what is accepted, and that every error names key, line and cure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from dashboards.slo import DEFAULT, Slo
from serving.config import Config, load, ports, to_schema
from serving.config_errors import ConfigError

ROOT = Path(__file__).parents[2]


def errors(folder: Path, text: str | bytes) -> list[str]:
    """The errors of a file, without its folder."""
    path = folder / "exaserve.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load(path)
    return [e.replace(f"{folder}/", "") for e in caught.value.errors]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "router:\n  max_queue_depth: 0\n",
            "exaserve.yaml:2: router.max_queue_depth: must be at least 1, not 0; default 32 (requests waiting on a "
            "replica above which it gets no new one)",
            id="below its range",
        ),
        pytest.param(
            "router:\n  kv_cache_watermark: 1.5\n",
            "exaserve.yaml:2: router.kv_cache_watermark: must be at most 1, not 1.5",
            id="above",
        ),
        pytest.param(
            "router:\n\n  port: yes\n", "exaserve.yaml:3: router.port: must be a whole number", id="bool"
        ),
        pytest.param(
            "router: {probe_timeout: .nan}\n",
            "exaserve.yaml:1: router.probe_timeout: must be a finite number",
            id="nan",
        ),
        pytest.param(
            "engine:\n  env:\n    OMP_NUM_THREADS: 1\n",
            "exaserve.yaml:3: engine.env.OMP_NUM_THREADS: must be text (put it in quotes)",
            id="a number in the environment",
        ),
        pytest.param(
            "engine:\n  args:\n  - --a\n  - 3\n",
            "exaserve.yaml:4: engine.args.1: must be text",
            id="list item",
        ),
        pytest.param(
            "router:\n  kv_watermark: 0.9\n",
            "exaserve.yaml:2: router.kv_watermark: unknown key; did you mean kv_cache_watermark?",
            id="unknown key",
        ),
        pytest.param(
            "roter: {}\n", "exaserve.yaml:1: roter: unknown key; did you mean router?", id="section"
        ),
        pytest.param(
            "fleet:\n  admin_port: 8001\n",
            "exaserve.yaml:2: fleet.admin_port: unknown key here; did you mean router.admin_port?",
            id="key of another section",
        ),
        pytest.param(
            "router:\n  strategy: least_wrok\n",
            "exaserve.yaml:2: router.strategy: must be hybrid or least_work or consistent_hash or round_robin or "
            "least_requests or power_of_two, not 'least_wrok'; did you mean least_work?",
            id="a word that is not allowed",
        ),
        pytest.param(
            "fleet:\n  launcher: slurm\n",
            "exaserve.yaml:2: fleet.launcher: slurm is not built yet; today: local",
        ),
        pytest.param(
            "aliases:\n  chat: {}\n",
            "exaserve.yaml:1: aliases: not built yet; today: one name",
            id="section not built",
        ),
        pytest.param(
            "engine:\n  kind: vlm\n",
            "exaserve.yaml:2: engine.kind: must be vllm or simulated, not 'vlm'; did you mean vllm?",
            id="nearest value",
        ),
        pytest.param(
            "slos:\n  a: {kind: availability, objective: 99.9}\n",
            "exaserve.yaml:2: slos.a.objective: must be below 1, not 99.9",
            id="share in per cent",
        ),
        pytest.param(
            "slos:\n  a:\n    kind: availability\n",
            "exaserve.yaml:2: slos.a.objective: must be given",
            id="missing",
        ),
        pytest.param(
            "slos:\n  a:\n    kind: ttft\n    objective: 0.99\n    threshold: 3\n",
            "exaserve.yaml:5: slos.a.threshold: 3 is no edge of the histogram's buckets, so what is within it can't be "
            "counted; the nearest is 2.5",
            id="no bucket edge",
        ),
        pytest.param(
            "slos:\n  a: {kind: e2e, objective: 0.99}\n",
            "exaserve.yaml:2: slos.a.threshold: must be given, in seconds: e2e is judged by it",
            id="no threshold",
        ),
        pytest.param(
            "slos:\n  a: {kind: availability, objective: 0.99, threshold: 1.0}\n",
            "exaserve.yaml:2: slos.a.threshold: availability has none; remove it",
            id="threshold of availability",
        ),
        pytest.param(
            "slos:\n  a: {kind: availability, objective: 0.99, pool: long}\npools: {all: {}}\n",
            "exaserve.yaml:2: slos.a.pool: no pool long; pools: all",
            id="pool that is not there",
        ),
        pytest.param(
            "slos:\n  My-SLO: {kind: availability, objective: 0.99}\n",
            "exaserve.yaml:2: slos.My-SLO: has a form that is not allowed here (^[a-z][a-z0-9_]{0,39}$)",
            id="name that can't be a label",
        ),
        pytest.param(
            "slos:\n  a: {kind: availability, objective: 0.99, windw: 7}\n",
            "exaserve.yaml:2: slos.a.windw: unknown key; did you mean window?",
            id="key below a name",
        ),
        pytest.param("model: 3\n", "exaserve.yaml:1: model: must be a section", id="no section"),
        pytest.param("- 1\n", "exaserve.yaml:1: must be sections", id="a list"),
        pytest.param(
            "router:\n  port: 1\n  port: 2\n",
            "exaserve.yaml:3: router.port is there twice, first in line 2",
            id="duplicate",
        ),
        pytest.param("a: &x 1\nb: *x\n", "exaserve.yaml:2: aliases (*name) are not read", id="alias"),
        pytest.param("router: {\n", "exaserve.yaml:2: not YAML: ", id="broken"),
        pytest.param("a: 1\n---\nb: 2\n", "exaserve.yaml:2: not YAML: ", id="two documents"),
        pytest.param(
            "1: 2\n", "exaserve.yaml:1: keys are text; 1 is not (put it in quotes)", id="number as key"
        ),
        pytest.param("a: !!python/object:os.system x\n", "exaserve.yaml:1: not YAML: ", id="python tag"),
        pytest.param("a: 2026-99-99\n", "exaserve.yaml: a value can't be read: ", id="no such date"),
        pytest.param(b"ok: 1\n\xff\xfe: 2\n", "exaserve.yaml:2: not UTF-8 text", id="not text"),
        pytest.param("a: \x00\n", "exaserve.yaml:1: not YAML: character U+0000 is not allowed", id="nul"),
        pytest.param("[" * 5000, "exaserve.yaml: nested too deeply", id="deep"),
        pytest.param(b"#" * (2**20 + 1), "exaserve.yaml: larger than 1048576 bytes", id="large"),
        pytest.param(
            "router:\n  port: 8001\n",
            "exaserve.yaml:1: router.admin_port: port 8001 is also that of router.port; give one of them another",
            id="ports collide",
        ),
        pytest.param(
            "fleet:\n  replicas_per_node: 3\n  first_port: 9419\n",
            "exaserve.yaml:3: fleet.first_port: port 9420 is also that of exporter.port",
            id="a replica's port collides",
        ),
        pytest.param(
            "exporter:\n  collectors: {engin: false}\n",
            "exaserve.yaml:2: exporter.collectors: there is no collector engin; did you mean engine? collectors: ",
            id="no such collector",
        ),
        pytest.param(
            "exporter:\n  limits: {engine: 0}\n",
            "exaserve.yaml:2: exporter.limits.engine: must be above 0, not 0",
            id="a collector's limit",
        ),
        pytest.param(
            "fleet:\n  first_port: 65535\n",
            "exaserve.yaml:2: fleet.first_port: 2 replicas from here pass port 65535; at most 65534",
            id="past the last port",
        ),
        pytest.param(
            "router:\n  silence_timeout: 10\n",
            "exaserve.yaml:2: router.silence_timeout: must be below two health_check_intervals (10 s)",
            id="silence longer than two probes",
        ),
        pytest.param(
            "fleet:\n  restart_frozen_after: 2\n",
            "exaserve.yaml:2: fleet.restart_frozen_after: must be above router.silence_timeout (4 s)",
        ),
        pytest.param(
            "engine:\n  args: [--port=9]\n",
            "exaserve.yaml:2: engine.args: --port is set by fleet.first_port; set it there",
            id="an argument that we set",
        ),
    ],
)
def test_error_names_place_key_and_cure(tmp_path: Path, text: str | bytes, expected: str) -> None:
    found = errors(tmp_path, text)
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_every_error_is_reported_at_once(tmp_path: Path) -> None:
    text = "router:\n  port: 0\n  nonsense: 1\nmodel:\n  max_model_len: 1\n"
    assert [e.split(":")[1] for e in errors(tmp_path, text)] == ["2", "3", "5"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: can't be read: No such file"):
        load(tmp_path / "nowhere.yaml")


def test_an_option_is_named_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"fleet.replicas_per_node": (0, "--replicas")})
    assert caught.value.errors[0].startswith("--replicas: fleet.replicas_per_node: must be at least 1, not 0")


def test_an_option_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "exaserve.yaml"
    path.write_text("router: {port: 1234, admin_port: 1235}\n")
    config = load(path, {"router.port": (4321, "--port")})
    assert (config.router.port, config.router.admin_port) == (4321, 1235)


@pytest.mark.parametrize("text", ["", "# nothing\n", "router:\n  # port: 1\nmodel: {}\n"])
def test_empty_file_and_sections_mean_the_defaults(tmp_path: Path, text: str) -> None:
    path = tmp_path / "exaserve.yaml"
    path.write_text(text)
    assert load(path) == Config()


@pytest.mark.parametrize("text", ["slos:\n", "slos: {}\n"])
def test_no_service_levels_are_the_defaults_and_given_ones_are_all_there_are(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "exaserve.yaml"
    path.write_text(text)
    assert load(path).slos == DEFAULT
    path.write_text("slos: {mine: {kind: availability, objective: 0.99, pool: default}}\n")
    assert load(path).slos == {"mine": Slo(kind="availability", objective=0.99, pool="default")}


def test_without_a_file_the_one_here_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load() == Config()
    Path("exaserve.yaml").write_text("router: {port: 4000}\n")
    assert load().router.port == 4000


def test_model_path_is_taken_from_the_files_folder(tmp_path: Path) -> None:
    path = tmp_path / "exaserve.yaml"
    path.write_text("model: {path: models/mine}\n")
    assert load(path).model.path == str(tmp_path / "models" / "mine")


def test_the_commented_default_has_every_key_with_its_default() -> None:
    shown = yaml.safe_load((ROOT / "exaserve.yaml").read_text())
    named = shown["slos"]
    assert keys(shown | {"slos": {}}) == sorted(model_keys(Config))
    assert list(named["availability"]) == list(Slo.model_fields), "the first one shows every key"
    assert load(ROOT / "exaserve.yaml") == Config()


def test_the_commented_default_says_something_about_every_key() -> None:
    lines = (ROOT / "exaserve.yaml").read_text().splitlines()
    silent = {
        "replicas_per_node",
        "host",
        "port",
        "admin_host",
        "enabled",
        "prometheus_port",
        "alertmanager_port",
    }
    for line in lines:
        key = line.strip().partition(":")[0]
        if line.startswith("  ") and key not in silent | {"scrape_interval"}:
            assert "#" in line, line


def test_schema_names_every_section() -> None:
    assert set(to_schema()["properties"]) == set(Config.model_fields)


def test_ports_lists_each_part_with_its_key() -> None:
    config = load(None, {"monitoring.enabled": (False, "x"), "fleet.first_port": (7000, "x")})
    assert ports(config) == {
        "router.port": 8000,
        "router.admin_port": 8001,
        "exporter.port": 9420,
        "fleet.first_port": 7000,
        "fleet.first_port + 1": 7001,
    }


def keys(shown: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in shown.items():
        deeper = isinstance(value, dict) and value
        found += keys(value, f"{prefix}{key}.") if deeper else [prefix + key]
    return sorted(found)


def model_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    found = []
    for key, field in model.model_fields.items():
        inner = field.annotation
        section = isinstance(inner, type) and issubclass(inner, BaseModel)
        found += model_keys(inner, f"{prefix}{key}.") if section else [prefix + key]  # type: ignore[arg-type]
    return found


def test_an_option_sets_a_key_at_any_depth_and_leaves_those_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "exaserve.yaml"
    path.write_text("router: {retry: {hedge_after: 3}}\npools: {long: {max_waiting: 7}}\n")
    options = {
        "router.retry.budget": (0.2, "x"),
        "pools.long.max_in_flight": (4, "x"),
    }
    config = load(path, options)
    assert (config.router.retry.budget, config.router.retry.hedge_after) == (0.2, 3)
    assert (config.pools["long"].max_in_flight, config.pools["long"].max_waiting) == (4, 7)
    with pytest.raises(ConfigError, match=r"--set y: router\.retry\.budgets: unknown key"):
        load(path, {"router.retry.budgets": (1, "--set y")})
    with pytest.raises(ConfigError, match=r"--set z: router\.port\.x: router\.port has no keys"):
        load(None, {"router.port": (9000, "--set p"), "router.port.x": (1, "--set z")})
