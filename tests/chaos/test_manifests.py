"""Chaos Mesh manifests of the experiments, held against the fields that v1alpha1 has; nothing is applied here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaos import fault as faults
from chaos.gameday import manifests, mesh
from chaos.run import plan
from tests.conftest import exaserve

#: Chaos Mesh 2, api/v1alpha1/*_types.go: fields of each spec beside selector, mode, value and duration; required first.
FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "PodChaos": ({"action"}, {"containerNames", "gracePeriod"}),
    "NetworkChaos": (
        {"action"},
        {"direction", "target", "loss", "delay", "bandwidth", "externalTargets", "device", "targetDevice"},
    ),
    "StressChaos": (set(), {"containerNames", "stressors", "stressngStressors"}),
    "IOChaos": (
        {"action", "volumePath"},
        {"path", "percent", "methods", "delay", "errno", "mistake", "attr", "containerNames"},
    ),
    "TimeChaos": ({"timeOffset"}, {"clockIds", "containerNames"}),
    "DNSChaos": ({"action"}, {"patterns", "containerNames"}),
    "HTTPChaos": (
        {"target", "port"},
        {
            "path",
            "method",
            "code",
            "request_headers",
            "response_headers",
            "abort",
            "delay",
            "replace",
            "patch",
        },
    ),
}
ACTIONS = {
    "PodChaos": {"pod-kill", "pod-failure", "container-kill"},
    "NetworkChaos": {"netem", "delay", "loss", "duplicate", "corrupt", "partition", "bandwidth"},
    "IOChaos": {"latency", "fault", "attrOverride", "mistake"},
    "DNSChaos": {"error", "random"},
}
#: What goes with an action.
NEEDS = {
    "delay": "delay",
    "loss": "loss",
    "bandwidth": "bandwidth",
    "latency": "delay",
    "fault": "errno",
    "mistake": "mistake",
}
METHODS = {
    *(
        "LOOKUP",
        "FORGET",
        "GETATTR",
        "SETATTR",
        "READLINK",
        "MKNOD",
        "MKDIR",
        "UNLINK",
        "RMDIR",
        "SYMLINK",
        "RENAME",
    ),
    *(
        "LINK",
        "OPEN",
        "READ",
        "WRITE",
        "FLUSH",
        "RELEASE",
        "FSYNC",
        "OPENDIR",
        "READDIR",
        "RELEASEDIR",
        "FSYNCDIR",
    ),
    *(
        "STATFS",
        "SETXATTR",
        "GETXATTR",
        "LISTXATTR",
        "REMOVEXATTR",
        "ACCESS",
        "CREATE",
        "GETLK",
        "SETLK",
        "SETLKW",
        "BMAP",
    ),
    "TRUNCATE",
}
PARAMETERS = {"dns_change": {"host": "node-1.example"}}


def problems(manifest: dict[str, Any]) -> list[str]:
    """What Chaos Mesh would refuse."""
    spec, kind = manifest["spec"], manifest["kind"]
    required, optional = FIELDS[kind]
    found = []
    if manifest["apiVersion"] != "chaos-mesh.org/v1alpha1":
        found.append("apiVersion")
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", manifest["metadata"]["name"]):
        found.append("name")
    keys = set(spec) - {"selector", "mode", "value", "duration"}
    found += [f"{key} is missing" for key in required - keys]
    found += [f"{key} is no field of {kind}" for key in keys - required - optional]
    if spec["mode"] not in ("one", "fixed-percent") or (spec["mode"] == "fixed-percent") != ("value" in spec):
        found.append("mode and value")
    if not spec["selector"]["namespaces"] or not spec["selector"]["labelSelectors"]:
        found.append("a selector that selects everything")
    if "duration" in spec and not re.fullmatch(r"\d+(\.\d+)?s", spec["duration"]):
        found.append("duration")
    momentary = spec.get("action") in ("pod-kill", "container-kill")
    if momentary == ("duration" in spec):
        found.append("a duration of what is momentary, or none of what lasts")
    action = spec.get("action")
    if kind in ACTIONS and action not in ACTIONS[kind]:
        found.append(f"action {action}")
    if NEEDS.get(action) and NEEDS[action] not in spec:
        found.append(f"{NEEDS[action]} is missing for {action}")
    if action == "container-kill" and not spec.get("containerNames"):
        found.append("containerNames")
    if kind == "NetworkChaos" and spec.get("direction") in ("from", "both") and "target" not in spec:
        found.append("a direction without a target")
    if kind == "StressChaos" and not (spec.get("stressors") or spec.get("stressngStressors")):
        found.append("no stressor")
    found += [f"method {m}" for m in spec.get("methods", []) if m not in METHODS]
    return found


def chaos_of(name: str, **parameters: Any) -> mesh.Answer:
    fault = faults.load(name)
    p = fault.parse(PARAMETERS.get(name, {}) | parameters).model_dump()
    return mesh.answer(name, mesh.Cluster(), p, 60.0)


def test_every_fault_is_answered_for() -> None:
    assert mesh.known() == faults.names()


@pytest.mark.parametrize("name", faults.names())
def test_a_fault_is_a_valid_manifest_or_says_what_to_do_in_its_place(name: str) -> None:
    answer = chaos_of(name)
    if isinstance(answer, mesh.NoCounterpart):
        assert len(answer.why) > 20
        return
    spec = {"mode": "one", "selector": mesh.selector(mesh.Cluster(), answer.part), **answer.spec}
    spec |= {"duration": "60s"} if answer.held else {}
    whole = {"apiVersion": manifests.API, "kind": answer.kind, "metadata": {"name": "x"}, "spec": spec}
    assert problems(whole) == []
    assert answer.kind in manifests.RESOURCES


@pytest.mark.parametrize(
    ("name", "parameters", "expected"),
    [
        ("link_loss", {"percent": 12.5, "direction": "in"}, {"loss": {"loss": "12.5", "correlation": "0"}, "direction": "from"}),
        ("link_slow", {"milliseconds": 80}, {"delay": {"latency": "80ms", "jitter": "0ms", "correlation": "0"}}),
        ("link_capped", {"megabits": 100}, {"bandwidth": {"rate": "12500000bps", "limit": 625000, "buffer": 65536}}),
        ("link_one_way", {"direction": "out"}, {"action": "partition", "direction": "to"}),
        ("node_cpu", {"busy": 0.5}, {"stressors": {"cpu": {"workers": 8, "load": 50}}}),
        ("node_memory", {"mib": 512}, {"stressors": {"memory": {"workers": 1, "size": "512MiB"}}}),
        ("node_clock", {"seconds": -30}, {"timeOffset": "-30s"}),
        ("replica_error", {"status": 429}, {"replace": {"code": 429, "headers": {"retry-after": "1"}}}),
        ("storage_slow", {"latency": 0.3, "share": 0.5}, {"delay": "300ms", "percent": 50, "volumePath": "/models"}),
        ("storage_io_error", {"error": "EIO"}, {"action": "fault", "errno": 5, "methods": ["READ"]}),
        ("storage_full", {}, {"action": "fault", "errno": 28}),
        ("storage_stuck", {}, {"action": "latency", "delay": "60s"}),
        ("replica_crash", {}, {"action": "container-kill", "containerNames": ["engine"]}),
    ],
)  # fmt: skip
def test_parameters_keep_their_meaning(
    name: str, parameters: dict[str, Any], expected: dict[str, Any]
) -> None:
    answer = chaos_of(name, **parameters)
    assert isinstance(answer, mesh.Chaos)
    assert {key: answer.spec.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("storage_slow", {"bytes_per_second": 1000}),
        ("replica_error", {"probability": 0.5}),
        ("replica_freeze", {}),
    ],
)
def test_what_it_cannot_do_is_not_guessed(name: str, parameters: dict[str, Any]) -> None:
    assert isinstance(chaos_of(name, **parameters), mesh.NoCounterpart)


def test_all_experiments_make_a_folder_that_is_valid_and_complete(tmp_path: Path) -> None:
    experiments = [plan.read(name) for name in plan.names()]
    missing = manifests.write(tmp_path, experiments, mesh.Cluster(namespace="serving"))
    files = {p.stem for p in tmp_path.glob("*.yaml")} - {"rbac"}
    assert files | {m.experiment for m in missing} == set(plan.names())
    made = [m for name in files for m in yaml.safe_load_all((tmp_path / f"{name}.yaml").read_text())]
    assert [problem for m in made for problem in problems(m)] == []
    assert {m["metadata"]["namespace"] for m in made} == {"serving"}
    account, role, binding = yaml.safe_load_all((tmp_path / "rbac.yaml").read_text())
    assert set(role["rules"][1]["resources"]) == {manifests.RESOURCES[m["kind"]] for m in made}
    assert [rule["apiGroups"] for rule in role["rules"]] == [[""], ["chaos-mesh.org"]]
    assert role["rules"][0]["verbs"] == ["get", "list", "watch"]
    assert (role["kind"], binding["roleRef"]["name"]) == ("Role", role["metadata"]["name"])
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]
    told = (tmp_path / "missing.md").read_text()
    assert all(m.fault in told for m in missing)


def test_the_command_takes_labels_and_a_share_of_the_pods() -> None:
    done = exaserve(
        *(
            "chaos",
            "manifests",
            "replica-crash",
            "-n",
            "serving",
            "--replica-label",
            "app=vllm",
            "--percent",
            "25",
        ),
        *("--container", "vllm"),
    )
    assert done.returncode == 0, done.stderr
    (made,) = yaml.safe_load_all(done.stdout)
    assert made["spec"] == {
        "mode": "fixed-percent",
        "value": "25",
        "selector": {"namespaces": ["serving"], "labelSelectors": {"app": "vllm"}},
        "action": "container-kill",
        "containerNames": ["vllm"],
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name experiments, or give --all"),
        (("link-lossi",), "did you mean link-lossy"),
        (("--all", "-n", "Not_A_Name"), "no name of a namespace"),
        (("--all", "--replica-label", "app"), "KEY=VALUE is wanted"),
    ],
)
def test_wrong_usage_says_the_cure(arguments: tuple[str, ...], said: str) -> None:
    done = exaserve("chaos", "manifests", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_experiment_without_a_counterpart_makes_nothing_and_says_why() -> None:
    done = exaserve("chaos", "manifests", "replica-freeze")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Chaos Mesh stops no process" in done.stderr


def test_the_example_inventory_is_one() -> None:
    from chaos import places

    path = Path(__file__).parents[2] / "chaos" / "gameday" / "inventory.example.yaml"
    place = places.open(str(path))
    assert json.dumps(place.addresses)
    inventory = place._inventory  # type: ignore[attr-defined]
    assert [(n.name, n.control) for n in inventory.nodes] == [
        ("head", True),
        ("node-1", False),
        ("node-2", False),
    ]
