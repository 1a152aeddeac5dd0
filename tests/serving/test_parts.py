"""What each part of the stack is started with."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import yaml

from exporters.config import Exporter, load
from serving.config import PARTS
from serving.config import load as load_config
from serving.monitoring import own_rules, prometheus_config, rules_folder
from serving.parts import choose, parts, write_effective
from serving.ports import problems


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


def started(folder: Path, text: str, which: str) -> dict[str, list[str]]:
    """The commands of the parts that run here, by name."""
    file = folder / "exaserve.yaml"
    file.write_text("engine: {kind: simulated}\n" + text)
    run = folder / "run"
    run.mkdir(exist_ok=True)
    return {p.name: list(p.launch().argv) for p in parts(load_config(file), run, choose(which))}


def test_a_machine_with_replicas_alone_names_them_by_number_and_tells_nothing_of_other_machines(
    tmp_path: Path,
) -> None:
    text = "fleet: {first_replica: 8, first_port: 9000, host: 0.0.0.0, router: 'http://10.0.0.9:8001'}\n"
    argv = started(tmp_path, text, "replicas,exporter")
    assert list(argv) == ["replica-8", "replica-9", "exporter"]
    exporter = argv["exporter"][argv["exporter"].index("exporter") + 1 :]
    assert exporter == [
        f"--config={tmp_path / 'run' / 'exaserve.yaml'}",
        "--replica=replica-8=http://127.0.0.1:9000",
        "--replica=replica-9=http://127.0.0.1:9001",
        f"--run-folder={tmp_path / 'run'}",
    ]


def test_a_machine_with_the_router_alone_takes_replicas_from_the_file(tmp_path: Path) -> None:
    argv = started(tmp_path, "fleet: {replicas_file: them.txt}\n", "router")
    assert list(argv) == ["router"]
    named = [word for word in argv["router"] if word.startswith("--replica")]
    assert named == [f"--replicas-file={tmp_path / 'them.txt'}"]


def test_prometheus_scrapes_the_exporters_of_other_machines_and_its_own_only_where_one_runs(
    tmp_path: Path,
) -> None:
    file = tmp_path / "exaserve.yaml"
    file.write_text("fleet: {router: 'http://r:1/'}\nmonitoring: {exporters: ['a:9420', 'b:9420']}\n")
    found = {}
    for which in (("monitoring",), PARTS):
        scrapes = yaml.safe_load(prometheus_config(load_config(file), own=which))["scrape_configs"]
        jobs = {job["job_name"]: job for job in scrapes}
        found[len(which)] = [
            jobs[name]["static_configs"][0]["targets"] for name in ("exaserve-router", "exaserve-exporter")
        ] + [jobs["exaserve-replica"]["http_sd_configs"][0]["url"]]
    assert found[1] == [["r:1"], ["a:9420", "b:9420"], "http://r:1/sd"]
    assert found[4] == [
        ["127.0.0.1:8001"],
        ["127.0.0.1:9420", "a:9420", "b:9420"],
        "http://127.0.0.1:8001/sd",
    ]


@pytest.mark.parametrize(
    ("which", "problem"),
    [
        ("router,exporter", "fleet.replicas_file must name the file"),
        ("replicas,monitoring", "fleet.router must be the router's admin API"),
        ("replica", "'replica': name some of replicas, router, exporter, monitoring"),
        (" , ", "name some of"),
    ],
)
def test_parts_that_cannot_find_each_other_are_refused(tmp_path: Path, which: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        started(tmp_path, "", which)


def test_ports_of_parts_that_run_elsewhere_may_be_taken_here(tmp_path: Path, free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        file = tmp_path / "exaserve.yaml"
        file.write_text(f"router: {{admin_port: {free_port}}}\n")
        config = load_config(file)
        assert problems(config, ["replicas"]) == []
        (problem,) = problems(config, ["router"])
    assert problem.startswith(f"port {free_port} (router.admin_port) is held by")


def test_a_model_with_a_cache_is_copied_before_the_replica_starts(tmp_path: Path) -> None:
    text = "model: {path: models/mine, cache: disk}\nfleet: {replicas_per_node: 1}\n"
    (argv,) = [a for name, a in started(tmp_path, text, "replicas").items() if name == "replica-0"]
    assert argv[1:6] == [
        "-m",
        "serving.engines.weights",
        str(tmp_path / "models" / "mine"),
        str(tmp_path / "disk"),
        "--",
    ]
    assert argv[7:9] == ["-m", "serving.engines.simulated"]
