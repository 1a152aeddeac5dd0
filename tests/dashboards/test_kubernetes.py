"""``exaserve dashboards build --format kubernetes|provisioning``: same rules and boards, in what others read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from dashboards import build, kubernetes, provisioning, scraping
from dashboards.cli import app
from dashboards.sources import SOURCES

#: The C parser takes a tenth of the time.
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
#: The operator's types Duration and NonEmptyDuration.
DURATION = re.compile(
    r"(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)"
)

each_source = pytest.mark.parametrize("source", SOURCES)
needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)"
)


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["build", *args])
    return result.exit_code, result.output


@cache
def built(source: str) -> dict[str, str]:
    return build.files(source=source)


@cache
def parsed(source: str, options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    given = {key: dict(value) if isinstance(value, tuple) else value for key, value in options}
    texts = kubernetes.files(built(source), source, kubernetes.Options(**given))
    return {path: yaml.load(text, Loader) for path, text in texts.items()}


def manifests(source: str, **options: Any) -> dict[str, Any]:
    return dict(parsed(source, tuple(options.items())))


def of_kind(kind: str, objects: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in objects.values() if each["kind"] == kind]


@each_source
def test_each_rule_file_is_one_prometheusrule_with_the_same_groups(source: str) -> None:
    texts = built(source)
    want = [yaml.load(text, Loader) for path, text in texts.items() if path.startswith("rules/")]
    got = [each["spec"] for each in of_kind("PrometheusRule", manifests(source))]
    assert sorted(got, key=str) == sorted(want, key=str)


@needs_promtool
def test_promtool_takes_what_the_operator_will_write_of_every_rule(tmp_path: Path) -> None:
    for each in of_kind("PrometheusRule", manifests("exaserve")):
        (tmp_path / f"{each['metadata']['name']}.yaml").write_text(yaml.safe_dump(each["spec"]))
    check = subprocess.run(
        ["promtool", "check", "rules", *sorted(tmp_path.glob("*.yaml"))], capture_output=True, text=True
    )
    assert (check.returncode, check.stderr) == (0, "")


def test_durations_of_rules_are_such_as_the_operator_takes() -> None:
    for each in of_kind("PrometheusRule", manifests("exaserve")):
        for group in each["spec"]["groups"]:
            rules = [group, *group["rules"]]
            for text in [r[key] for r in rules for key in ("interval", "for", "keep_firing_for") if key in r]:
                assert text
                assert DURATION.fullmatch(text), text


@each_source
def test_each_board_is_one_configmap_with_the_same_json_that_the_sidecar_finds(source: str) -> None:
    texts = built(source)
    boards = {
        f"exaserve-{path.removesuffix('.json')}.json": json.loads(text)
        for path, text in texts.items()
        if path.endswith(".json")
    }
    got: dict[str, Any] = {}
    for each in of_kind("ConfigMap", manifests(source)):
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "ExaServe"}
        assert sum(len(text.encode()) for text in each["data"].values()) < kubernetes.MAX_CONFIGMAP
        got |= {name: json.loads(text) for name, text in each["data"].items()}
    assert got == boards


@each_source
def test_objects_have_names_that_kubernetes_takes_each_once_and_the_given_namespace_and_labels(
    source: str,
) -> None:
    objects = manifests(source, namespace="watch", labels=(("release", "prom"),))
    del objects["kustomization.yaml"]
    names = [(each["kind"], each["metadata"]["name"]) for each in objects.values()]
    assert len(set(names)) == len(names)
    for each in objects.values():
        assert DNS.fullmatch(each["metadata"]["name"])
        assert each["metadata"]["namespace"] == "watch"
        assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "exaserve"
        wanted = None if each["kind"] == "ConfigMap" else "prom"
        assert each["metadata"]["labels"].get("release") == wanted


@each_source
def test_kustomization_names_every_other_file(source: str) -> None:
    objects = manifests(source)
    assert objects.pop("kustomization.yaml")["resources"] == sorted(objects)


def test_scrape_objects_give_the_job_names_that_rules_ask_for() -> None:
    text = "".join(built("exaserve").values())
    asked = set(re.findall(r'job=\\?"([^"\\]+)\\?"', text))
    assert asked <= {job.name for job in scraping.JOBS["exaserve"]}
    for source in SOURCES:
        objects = manifests(source)
        monitors = [each for path, each in objects.items() if path.startswith("monitors/")]
        jobs = []
        for each in monitors:
            spec = each["spec"]
            (endpoint,) = spec.get("endpoints") or spec.get("podMetricsEndpoints") or [spec]
            jobs += [r["replacement"] for r in endpoint["relabelings"] if r["targetLabel"] == "job"]
        assert jobs == [job.name for job in scraping.JOBS[source]]


def test_the_exporters_monitor_finds_the_pods_of_the_daemonset() -> None:
    """Both are made here, so that they must meet: labels and the port's name."""
    file = Path(build.__file__).parents[1] / "exporters" / "deploy" / "daemonset.yaml"
    (daemonset,) = (each for each in yaml.safe_load_all(file.read_text()) if each["kind"] == "DaemonSet")
    (monitor,) = (
        each
        for each in of_kind("PodMonitor", manifests("exaserve"))
        if "exporter" in each["metadata"]["name"]
    )
    template = daemonset["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ports = [port["name"] for port in template["spec"]["containers"][0]["ports"]]
    assert [each["port"] for each in monitor["spec"]["podMetricsEndpoints"]] == ports


def test_a_board_or_rule_file_too_large_for_one_object_is_refused_by_name() -> None:
    options = kubernetes.Options()
    with pytest.raises(ValueError, match=r"big\.json has 1048576 bytes; a ConfigMap takes less"):
        kubernetes.files({"big.json": "x" * kubernetes.MAX_CONFIGMAP}, "vllm", options)
    with pytest.raises(ValueError, match=r"rules/big\.yaml has 524288 bytes; a PrometheusRule takes less"):
        kubernetes.files({"rules/big.yaml": "x" * kubernetes.MAX_RULES}, "vllm", options)


def test_the_command_writes_manifests_and_check_agrees(tmp_path: Path) -> None:
    given = ["--format", "kubernetes", "--out", str(tmp_path), "--label", "release=prom", "--label", "a/b=c"]
    assert run(*given)[0] == 0
    rule = yaml.safe_load((tmp_path / "rules" / "kv.yaml").read_text())
    assert rule["metadata"]["labels"] == {
        "app.kubernetes.io/part-of": "exaserve",
        "release": "prom",
        "a/b": "c",
    }
    assert run(*given, "--check")[0] == 0
    assert run(*given[:-2], "--check")[0] == 1


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--label", "release"], "--label: release: give KEY=VALUE"),
        (["--label", "a b=c"], "no label of Kubernetes: a b=c"),
        (["--namespace", "Not_A_Name"], "no name of a namespace: 'Not_A_Name'"),
    ],
)
def test_what_kubernetes_would_refuse_ends_with_2(tmp_path: Path, more: list[str], problem: str) -> None:
    code, output = run("--format", "kubernetes", "--out", str(tmp_path), *more)
    assert (code, output.startswith(problem)) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_another_format_needs_a_folder_of_its_own() -> None:
    code, output = run("--format", "kubernetes")
    assert (code, "--format needs --out DIR" in output) == (2, True)


@each_source
def test_provisioning_points_grafana_and_prometheus_to_where_the_files_lie(
    tmp_path: Path, source: str
) -> None:
    given = ["--format", "provisioning", "--out", str(tmp_path), "--source", source]
    assert run(*given, "--prometheus", "http://prom:9090")[0] == 0
    provider = yaml.safe_load((tmp_path / provisioning.PROVIDER_FILE).read_text())["providers"][0]
    assert sorted(Path(provider["options"]["path"]).glob("*.json")) == sorted(tmp_path.glob("*.json"))
    datasource = yaml.safe_load((tmp_path / provisioning.DATASOURCE_FILE).read_text())["datasources"][0]
    config = yaml.safe_load((tmp_path / provisioning.PROMETHEUS_FILE).read_text())
    assert datasource["url"] == "http://prom:9090"
    assert datasource["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    assert config["rule_files"] == [f"{tmp_path}/rules/*.yaml"]
    assert [job["job_name"] for job in config["scrape_configs"]] == [j.name for j in scraping.JOBS[source]]


@needs_promtool
def test_promtool_takes_the_written_prometheus_yml_with_all_rules(tmp_path: Path) -> None:
    run("--format", "provisioning", "--out", str(tmp_path))
    check = subprocess.run(
        ["promtool", "check", "config", tmp_path / provisioning.PROMETHEUS_FILE],
        capture_output=True,
        text=True,
    )
    files = len(list((tmp_path / "rules").glob("*.yaml")))
    assert (check.returncode, f"{files} rule files found" in check.stdout) == (0, True)


def test_a_dollar_in_a_folders_name_is_no_variable_for_grafana(tmp_path: Path) -> None:
    out = tmp_path / "a$HOME"
    run("--format", "provisioning", "--out", str(out))
    provider = yaml.safe_load((out / provisioning.PROVIDER_FILE).read_text())["providers"][0]
    assert provider["options"]["path"] == f"{tmp_path}/a$$HOME"
