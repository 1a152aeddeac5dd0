"""``exaserve dashboards build``: what is committed is what the code writes, and --check names what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from dashboards import build
from dashboards.cli import app
from dashboards.sources import SOURCES


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["build", *args])
    return result.exit_code, result.output


def test_what_is_committed_is_what_the_code_writes() -> None:
    assert build.differing(build.GENERATED, build.committed()) == []


def test_every_board_and_rule_file_of_the_folders_is_built_under_its_name() -> None:
    folder, built = Path(build.__file__).parent, build.files()
    for kind, pattern in (("boards", "{}.json"), ("rules", "rules/{}.yaml")):
        for path in (folder / kind).glob("[!_]*.py"):
            assert pattern.format(path.stem) in built
    modules = {p.stem for kind in ("boards", "rules") for p in (folder / kind).glob("[!_]*.py")}
    assert {Path(name).stem for name in built} == modules


@pytest.mark.parametrize("source", SOURCES)
def test_build_writes_all_files_and_check_then_agrees(tmp_path: Path, source: str) -> None:
    code, output = run("--out", str(tmp_path), "--source", source)
    assert code == 0
    written = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert written == set(build.files(source=source))
    assert output.count("wrote ") == len(written)
    assert run("--out", str(tmp_path), "--source", source, "--check")[0] == 0


def test_boards_and_rules_of_the_router_are_only_where_there_is_one() -> None:
    router = {f"{b}.json" for b in build.ROUTER_BOARDS} | {f"rules/{r}.yaml" for r in build.ROUTER_RULES}
    router.add("rules/usage.yaml")  # of tenants
    assert set(build.files()) - set(build.files(source="vllm")) == router
    assert set(build.files(source="ray")) == set(build.files(source="vllm"))


def test_committed_files_are_every_sources_in_its_folder() -> None:
    folders = {name.rpartition("rules/")[0].rpartition("/")[0] for name in build.committed()}
    assert folders >= {"", "vllm", "ray"}
    assert build.committed()["ray/rules/engine.yaml"] == build.files(source="ray")["rules/engine.yaml"]


def test_service_levels_of_the_file_are_in_the_rules(tmp_path: Path) -> None:
    config = tmp_path / "exaserve.yaml"
    config.write_text("slos: {mine: {kind: ttft, objective: 0.9, threshold: 7.5, window: 7}}\n")
    code, output = run("--out", str(tmp_path / "o"), "--config", str(config))
    assert (code, output.splitlines()[0]) == (
        2,
        f"--config: {config}: slos.mine.threshold: 7.5 is no edge of the histogram's buckets, so what is within it"
        " can't be counted; the nearest is 5",
    )
    assert run("--out", str(tmp_path / "o"), "--config", str(config), "--source", "vllm")[0] == 0
    rules = (tmp_path / "o" / "rules" / "slo.yaml").read_text()
    assert r'le=~"7\\.5"' in rules
    assert "vector(0.9)" in rules
    assert "slo: availability" not in rules


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--source", "tgi", "--out", "o"), "--source: 'tgi' is none of exaserve, vllm, ray"),
        (("--source", "vllm"), "--source, --config, --runbooks, --grafana and --interval need --out DIR"),
        (("--out", "o", "--config", "/nowhere.yaml"), "--config: /nowhere.yaml: No such file or directory"),
        (("--out", "o", "--config", "/"), "--config: /: Is a directory"),
        (("--out", "o", "--label", "release=x"), "--label goes with --format kubernetes"),
        (
            ("--out", "o", "--format", "provisioning", "--prometheus", "host:9090"),
            "--prometheus: 'host:9090' is no address; give one like http://prometheus:9090",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_line(given: tuple[str, ...], said: str) -> None:
    code, output = run(*given)
    assert (code, output.startswith(said), output.endswith("see `exaserve dashboards build --help`\n")) == (
        2,
        True,
        True,
    )


def test_a_file_that_is_no_exaserve_yaml_is_not_taken_for_one_without_service_levels(tmp_path: Path) -> None:
    config = tmp_path / "list.yaml"
    config.write_text("- slos\n")
    code, output = run("--out", str(tmp_path / "o"), "--config", str(config))
    assert (code, output.splitlines()[0]) == (
        2,
        f"--config: {config}: holds no keys, so it is no exaserve.yaml",
    )


def test_check_names_files_that_differ_are_missing_or_left_over_and_writes_nothing(tmp_path: Path) -> None:
    run("--out", str(tmp_path))
    (tmp_path / "fleet.json").write_text("{}")
    (tmp_path / "rules" / "kv.yaml").unlink()
    (tmp_path / "old.json").write_text("{}")
    code, output = run("--out", str(tmp_path), "--check")
    assert code == 1
    named = [line for line in output.splitlines() if line.startswith("differs: ")]
    assert named == [
        f"differs: {tmp_path}/fleet.json",
        f"differs: {tmp_path}/old.json (nothing writes it)",
        f"differs: {tmp_path}/rules/kv.yaml",
    ]
    assert (tmp_path / "fleet.json").read_text() == "{}"


def test_other_bases_for_links_differ_from_the_default(tmp_path: Path) -> None:
    base = ["--out", str(tmp_path), "--runbooks", "https://wiki.example/"]
    run(*base)
    assert run(*base, "--check")[0] == 0
    assert run("--out", str(tmp_path), "--check")[0] == 1


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_cannot_be_written_ends_with_1_and_no_traceback(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    code, output = run("--out", str(tmp_path / place))
    assert (code, output.startswith("can't write into")) == (1, True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "5s"),
        (("--interval", "30s"), "30s"),
        (("--format", "provisioning"), "15s"),
    ],
)
def test_rules_are_evaluated_as_often_as_asked_but_those_with_an_interval_of_their_own(
    tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    assert run("--out", str(tmp_path), *options)[0] == 0
    users, slo = (yaml.safe_load((tmp_path / "rules" / f"{n}.yaml").read_text()) for n in ("users", "slo"))
    assert (users["groups"][0]["interval"], slo["groups"][0]["interval"]) == (expected, "30s")


def test_an_interval_that_is_no_time_is_refused(tmp_path: Path) -> None:
    code, said = run("--out", str(tmp_path), "--interval", "often")
    assert (code, "write it like 15s or 1m" in said) == (2, True)
