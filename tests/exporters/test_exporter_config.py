"""The section exporter of exaserve.yaml: options win, and every error names its place, the key and the cure."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from exporters import available
from exporters.config import ConfigError, Exporter, load, settings
from exporters.settings import Replica, Settings

NAMES = ", ".join(available.collectors())


def file(folder: Path, text: str) -> Path:
    path = folder / "exaserve.yaml"
    path.write_text(text)
    return path


def test_no_file_and_no_options_are_the_defaults() -> None:
    section = load(None, {})
    assert section == Exporter()
    assert settings(section) == Settings()


def test_every_setting_can_be_set_by_a_key_of_its_name() -> None:
    """So that a collector's new setting isn't forgotten here."""
    assert {f.name for f in fields(Settings)} <= set(Exporter.model_fields)


def test_each_key_reaches_the_collectors(tmp_path: Path) -> None:
    text = """
router: {port: nonsense, that: is not read here}
exporter:
  sysfs: /host/sys
  procfs: /host/proc
  replicas: ["a=gpu-1:8000"]
  discover: http://r:8001/sd
  timeout: 1
  run_folder: run
  mounts: [/models]
  peers: ["gpu-2:9420", "[::1]:9420"]
  node_exporter_names: true
  router: http://r:8001
  intent_reference: intents.json
  intent_window: 600
  limits: {engine: 2}
"""
    found = settings(load(file(tmp_path, text), {}))
    assert found == Settings(
        replicas=(Replica("a", "http://gpu-1:8000/metrics"),),
        discover="http://r:8001/sd",
        timeout=1.0,
        sysfs=Path("/host/sys"),
        procfs=Path("/host/proc"),
        run_folder=tmp_path / "run",
        mounts=("/models",),
        peers=("gpu-2:9420", "[::1]:9420"),
        node_exporter_names=True,
        router="http://r:8001/metrics",
        intent_reference=tmp_path / "intents.json",
        limits={"engine": 2.0},
        intent_window=600.0,
    )


def test_an_option_wins_and_what_is_a_list_is_added_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file(
        tmp_path,
        "exporter: {port: 1, token_file: t, mounts: [/a, /b], replicas: ['a=x:1', 'b=x:2'], limits: {engine: 1}}\n",
    )
    monkeypatch.chdir("/")
    section = load(
        path,
        {
            "port": (2, "--port"),
            "intent_reference": ("here", "--intent-reference"),
            "mounts": (["/c", "/b"], "--mount"),
            "replicas": (["b=y:2"], "--replica"),
        },
    )
    assert (section.port, section.mounts, section.replicas) == (2, ["/c", "/b", "/a"], ["b=y:2", "a=x:1"])
    assert (section.token_file, section.intent_reference) == (str(tmp_path / "t"), "/here")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("exporter:\n  prt: 1\n", "{path}:2: exporter.prt: unknown key; did you mean port?"),
        ("exporter:\n  foo: 1\n", "{path}:2: exporter.foo: unknown key; known here: host, port, "),
        (
            "exporter:\n\n  port: yes\n",
            "{path}:3: exporter.port: input should be a valid integer, not 'True'",
        ),
        (
            "exporter:\n  port: 0\n",
            "{path}:2: exporter.port: input should be greater than or equal to 1, not '0'",
        ),
        ("exporter: 3\n", "{path}:1: exporter: must be a section"),
        ("- 1\n", "{path}:1: must be sections (exporter: …), not a list"),
        ("exporter: {a: b: c}\n", "{path}:1: is no YAML: "),
        (
            "exporter: {limits: {engine: .nan}}\n",
            "{path}:1: exporter.limits: engine: input should be a finite number",
        ),
        ("exporter:\n  mounts: [models]\n", "{path}:2: exporter.mounts: 'models' is no absolute path"),
        ("exporter:\n  sysfs: sys\n", "{path}:2: exporter.sysfs: 'sys' is no absolute path"),
        (
            "exporter:\n  peers: [gpu-2]\n",
            "{path}:2: exporter.peers: 'gpu-2' is no peer; write it like node-7:22",
        ),
        ("exporter:\n  peers: ['a:70000']\n", "{path}:2: exporter.peers: 'a:70000' is no peer"),
        (
            "exporter:\n  router: ftp://x\n",
            "{path}:2: exporter.router: 'ftp://x' is not the address of a server",
        ),
        ("exporter:\n  replicas: ['a=x:1', 'a=x:2']\n", "{path}:2: exporter.replicas: a is named twice"),
        ("exporter:\n  replicas: ['a b=x:1']\n", "{path}:2: exporter.replicas: 'a b' can't name a replica"),
        (
            "exporter:\n  collectors: {engin: false}\n",
            f"{{path}}:2: exporter.collectors: there is no collector engin; did you mean engine? collectors: {NAMES}",
        ),
        (
            "exporter:\n  limits: {zzz: 1}\n",
            "{path}:2: exporter.limits: there is no collector zzz; collectors: ",
        ),
        (
            "exporter:\n  collectors: {engine: 1}\n",
            "{path}:2: exporter.collectors: engine: input should be a valid",
        ),
    ],
)
def test_an_error_names_file_line_key_and_cure(tmp_path: Path, text: str, says: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert len(caught.value.errors) == 1
    assert caught.value.errors[0].startswith(says.format(path=path))


def test_a_peer_that_the_collector_would_not_take_is_refused_before_it_starts(tmp_path: Path) -> None:
    for peer in ("http://x:80", "fd00::7:22", "x:0"):
        with pytest.raises(ConfigError, match=r":2: exporter\.peers: .* is no peer; write it like"):
            load(file(tmp_path, f"exporter:\n  peers: ['{peer}']\n"), {})
    assert load(file(tmp_path, "exporter:\n  peers: ['[fd00::7]:22']\n"), {}).peers == ["[fd00::7]:22"]


def test_odd_files_are_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exporter: must be a section"):
        load(file(tmp_path, "x: &a {exporter: 5}\n<<: *a\n"), {})
    with pytest.raises(ConfigError, match=r"exporter\.run_folder: a path can't hold a NUL"):
        load(file(tmp_path, 'exporter:\n  run_folder: "a\\0b"\n'), {})
    # A user that is not there has no home: the path is taken as it stands.
    found = load(file(tmp_path, "exporter:\n  token_file: ~nobody-of-this-name/t\n"), {})
    assert found.token_file == str(tmp_path / "~nobody-of-this-name/t")
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfexporter:\n  port: 9421\n")
    assert load(tmp_path / "bom.yaml", {}).port == 9421


def test_an_options_error_names_the_option() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"peers": (["x"], "--peer"), "prt": (1, "--set prt=1")})
    assert [e.partition(";")[0] for e in caught.value.errors] == ["--set prt=1: unknown key"]
    with pytest.raises(ConfigError, match=r"^--peer: 'x' is no peer"):
        load(None, {"peers": (["x"], "--peer")})


@pytest.mark.parametrize("text", ["", "# nothing\n", "exporter:\n", "router: {}\n"])
def test_a_file_without_the_section_is_the_defaults(tmp_path: Path, text: str) -> None:
    assert load(file(tmp_path, text), {}) == Exporter()


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        load(tmp_path / "missing.yaml", {})
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is no YAML"):
        load(tmp_path / "binary.yaml", {})
    (tmp_path / "long.yaml").write_text("#" * 2**21)
    with pytest.raises(ConfigError, match="longer than"):
        load(tmp_path / "long.yaml", {})
    (tmp_path / "deep.yaml").write_text("[" * 100_000)
    with pytest.raises(ConfigError):
        load(tmp_path / "deep.yaml", {})


def test_the_section_of_the_commented_default_is_read_here_as_there() -> None:
    path = Path(__file__).parents[2] / "exaserve.yaml"
    assert load(path, {}) == Exporter.model_validate(yaml.safe_load(path.read_text())["exporter"])
