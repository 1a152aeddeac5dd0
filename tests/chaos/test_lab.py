"""``exaserve lab`` as a user has it: nodes that are apart, that break, come back, and go without a trace."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chaos import identity, places, recover
from chaos.engines import fuse
from chaos.fault import Refused
from chaos.lab import build, cli, faults, mounts, network, state, storage, teardown, view
from tests.chaos.framework import eventually, kill_both
from tests.conftest import exaserve

pytestmark = pytest.mark.xdist_group("lab")  # one worker sets up what they share

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None,
    reason="a lab needs root, ip and nsenter",
)


class Lab:
    """A lab of the tests' own, by its name and its home."""

    def __init__(self, home: Path) -> None:
        self.name, self.home = f"t{secrets.token_hex(2)}", home
        self.env = {"EXASERVE_HOME": str(home), "EXASERVE_RUN": ""}

    def __call__(self, *arguments: str, status: int = 0) -> str:
        """Output of ``exaserve lab``; checks its exit status."""
        at = arguments.index("--") if "--" in arguments else len(arguments)
        words = [*arguments[:at], "--name", self.name, *arguments[at:]]
        done = exaserve("lab", *words, env=self.env, timeout=240)
        assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def status(self) -> dict[str, Any]:
        """What `lab status --json` says, without the cost of a command."""
        return view.status(json.loads((self.folder / "lab.json").read_bytes()))

    def node(self, name: str) -> dict[str, Any]:
        return next(n for n in self.status()["nodes"] if n["name"] == name)

    def on(self, node: str, *command: str) -> str:
        """Output of a command on the node, as `lab shell` gives it."""
        argv = ["nsenter", "-t", str(self.node(node)["init"]), "-n", "-m", "-p", "-u", "--", *command]
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    def ready(self) -> bool:
        """Whether the router sends requests to every replica; one that was silent on a busy machine is back soon."""
        replicas = [r for n in self.status()["nodes"] for r in n["replicas"]]
        return all(r["pid"] and r["state"] == "ready" for r in replicas)

    def until(self, true: Callable[[], object], seconds: float = 60.0) -> None:
        """A part that is just restarting refuses a connection; it gets the time, too, and is shown if it stays away."""
        end, said = time.monotonic() + seconds, ""
        while True:
            try:
                if true():
                    return
            except OSError as error:
                said = f"{error}\n"
            assert time.monotonic() < end, said + self("status")
            time.sleep(0.2)

    @property
    def folder(self) -> Path:
        return self.home / "lab" / self.name

    @property
    def left(self) -> list[str]:
        """Everything of it that can be found on the machine."""
        found = subprocess.run(  # in another process: its home is another than ours
            [
                sys.executable,
                "-c",
                f"from chaos.lab import teardown; print(*teardown.leftovers({self.name!r}), sep='\\n')",
            ],
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            check=True,
        )
        return [
            *filter(None, found.stdout.split("\n")),
            *([str(self.folder)] if self.folder.exists() else []),
        ]


def others() -> tuple[list[str], list[str]]:
    """Interfaces and nftables tables of the machine that are no lab's."""
    links = json.loads(subprocess.check_output(["ip", "-json", "link"]))
    tables = subprocess.check_output(["nft", "list", "tables"], text=True) if shutil.which("nft") else ""
    return (
        sorted(
            f"{link['ifname']} {link['operstate']}" for link in links if not link["ifname"].startswith("exal")
        ),
        sorted(line for line in tables.splitlines() if " exal_" not in line),
    )


def read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two simulated nodes. Whoever breaks something puts it right."""
    made, before = Lab(tmp_path_factory.mktemp("lab")), others()
    try:
        said = made("up", "--nodes", "2", "--set", "monitoring.scrape_interval=1.0")
        assert f"lab '{made.name}' is up after" in said
        yield made
    finally:
        made("down")
    assert made.left == []
    assert others() == before


@needs_root
def test_each_node_has_its_own_network_processes_and_name(lab: Lab) -> None:
    for node in lab.status()["nodes"]:
        assert lab.on(node["name"], "hostname") == node["name"]
        links = json.loads(lab.on(node["name"], "ip", "-json", "address"))
        assert [link["ifname"] for link in links] == ["lo", "exal0"]
        assert node["address"] in [a["local"] for a in links[1]["addr_info"]]
        assert lab.on(node["name"], "ls", "/sys/class/net").split() == ["exal0", "lo"]
        commands = lab.on(node["name"], "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert commands.count("serving.engines.simulated") == 1
        assert "serving.cli router" not in commands


@needs_root
def test_storage_is_seen_from_the_node_and_from_here_and_local_disks_are_apart(lab: Lab) -> None:
    places = {n: lab.folder / n for n in ("node-1", "node-2")}
    lab.on(
        "node-1",
        "sh",
        "-c",
        f"echo one > {places['node-1']}/local/mine; echo all > {places['node-1']}/shared/ours",
    )
    assert (places["node-1"] / "local" / "mine").read_text() == "one\n"
    assert not (places["node-2"] / "local" / "mine").exists()
    assert lab.on("node-2", "cat", f"{places['node-2']}/shared/ours") == "all"
    assert (lab.folder / "shared" / "ours").read_text() == "all\n"
    kinds = {m.path: m.fstype for m in mounts.below(str(lab.folder))}
    assert [kinds[str(p / "local")] for p in places.values()] == ["tmpfs", "tmpfs"]


@needs_root
def test_replicas_start_from_the_model_that_the_node_copied_from_shared_storage(lab: Lab) -> None:
    cache = lab.folder / "node-1" / "local" / "models" / "simulated"
    assert (cache / "model.safetensors").stat().st_size == 4 * 2**20
    assert (cache / "model.safetensors").read_bytes() == (
        lab.folder / "shared" / "models" / "simulated" / "model.safetensors"
    ).read_bytes()


@needs_root
def test_the_router_answers_from_every_node_and_prometheus_sees_all(lab: Lab) -> None:
    region = lab.status()["regions"][0]
    body = json.dumps({"model": "smollm2-135m", "prompt": "hello", "max_tokens": 2}).encode()
    answered = set()

    def one(prompt: str) -> bool:
        asked = urllib.request.Request(
            f"{region['router']}/v1/completions",
            body.replace(b"hello", prompt.encode()),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            answered.add(answer.headers["x-exaserve-replica"])
        return True

    for i in range(30):
        lab.until(partial(one, f"hello {i}"))
    assert answered == {"replica-0", "replica-1"}
    if region["prometheus"] is None:
        pytest.skip("Prometheus is not installed")
    seen: dict[str, list[str]] = {}

    def all_up() -> bool:
        found = read(f"{region['prometheus']}/api/v1/query?query=up==1")["data"]["result"]
        seen.clear()
        for series in found:
            seen.setdefault(series["metric"]["job"], []).append(series["metric"]["instance"])
        jobs = {"exaserve-replica": 2, "exaserve-exporter": 2, "exaserve-router": 1}
        return all(len(seen.get(job, [])) == count for job, count in jobs.items())

    lab.until(all_up)
    addresses = [n["address"] for n in lab.status()["nodes"]]
    assert sorted(seen["exaserve-replica"]) == [f"{a}:8100" for a in addresses]
    assert sorted(seen["exaserve-exporter"]) == [f"{a}:9420" for a in addresses]


@needs_root
def test_status_and_shell_show_what_there_is(lab: Lab) -> None:
    (pid,) = [r["pid"] for r in lab.node("node-1")["replicas"]]
    address = lab.node("node-1")["address"]
    row = ["node-1", "ready", address, "replica-0", "ready", str(pid)]
    lab.until(lambda: lab("status").splitlines()[1].split()[:6] == row)
    assert {n["name"] for n in json.loads(lab("status", "--json"))["nodes"]} == {"node-1", "node-2"}
    assert lab("shell", "node-2", "--", "sh", "-c", "hostname; pwd").split() == ["node-2", os.getcwd()]


@needs_root
def test_up_again_leaves_it_as_it_is(lab: Lab) -> None:
    before = [n["init"] for n in lab.status()["nodes"]]
    assert lab("up", "--nodes", "4").startswith(
        f"lab '{lab.name}' is up already; exaserve lab status shows it"
    )
    assert [n["init"] for n in lab.status()["nodes"]] == before


@needs_root
def test_a_replica_that_crashes_is_started_again_by_its_node(lab: Lab) -> None:
    lab.until(lab.ready)
    (before,) = lab.node("node-1")["replicas"]
    os.kill(before["pid"], signal.SIGKILL)

    def back() -> bool:
        (now,) = lab.node("node-1")["replicas"]
        return bool(now["restarts"] == before["restarts"] + 1 and now["pid"] and now["state"] == "ready")

    lab.until(back)
    assert lab.node("node-2")["replicas"][0]["restarts"] == 0


@needs_root
def test_a_killed_node_is_gone_whole_and_comes_back_with_its_address_and_storage(lab: Lab) -> None:
    lab.until(lab.ready)
    before = lab.node("node-2")
    (lab.folder / "node-2" / "local" / "kept").write_text("kept")
    os.kill(before["init"], signal.SIGKILL)
    daemon = storage.daemon(f"{lab.folder}/node-2/shared")
    if daemon is not None:
        os.kill(daemon, signal.SIGKILL)
    lab.until(lambda: lab.node("node-2")["state"] == "down")
    lab.until(lambda: identity.of(before["replicas"][0]["pid"]) is None)
    assert "down: node-2; exaserve lab node start NODE brings one back" in lab("up")
    assert "node-2 is down; exaserve lab node start node-2" in lab("shell", "node-2", "--", "true", status=1)
    assert "node-2 is ready after" in lab("node", "start", "node-2")
    assert lab("node", "start", "node-2") == "node-2 is up\n"
    after = lab.node("node-2")
    assert after["address"] == before["address"]
    assert after["init"] != before["init"]
    assert lab.on("node-2", "cat", f"{lab.folder}/node-2/local/kept") == "kept"
    assert lab.on("node-2", "ls", f"{lab.folder}/node-2/shared/models") == "simulated"
    lab.until(lambda: lab.node("node-2")["replicas"][0]["state"] == "ready")


@needs_root
@pytest.mark.parametrize("command", [("up",), ("node", "start", "node-1")])
def test_shared_storage_whose_process_died_is_mounted_anew_in_a_lab_that_is_up(
    command: tuple[str, ...], lab: Lab
) -> None:
    shared = f"{lab.folder}/node-1/shared"
    before = storage.daemon(shared)
    if before is None:
        pytest.skip("shared storage is no FUSE mount here")
    os.kill(before, signal.SIGKILL)
    lab.until(lambda: identity.of(before) is None)
    init = lab.node("node-1")["init"]
    assert "node-1: the process of its shared storage was gone; mounting that anew" in lab(*command)
    assert storage.daemon(shared) not in (None, before)
    assert lab.on("node-1", "ls", f"{shared}/models") == "simulated"
    assert lab.node("node-1")["init"] == init
    assert "anew" not in lab(*command)


@needs_root
def test_as_a_place_it_tells_nodes_replicas_and_parts(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in lab.env.items():
        monkeypatch.setenv(key, value)
    lab.until(lab.ready)
    place, status = places.open(f"lab:{lab.name}"), lab.status()
    one, two, control = place.nodes()
    assert (one.name, one.device, one.control_device) == ("node-1", "exal0", f"exal-{lab.name}-1")
    assert one.read(["hostname"]).stdout == "node-1\n"
    assert one.mounts == {name: f"{lab.folder}/node-1/{name}" for name in ("local", "shared")}
    assert (two.address, two.replicas, two.control) == (status["nodes"][1]["address"], ["replica-1"], False)
    assert (control.control, control.prefix, control.address) == (
        True,
        [],
        one.address.rsplit(".", 1)[0] + ".254",
    )
    assert [(r.name, r.node, r.in_rotation) for r in place.replicas()] == [
        ("replica-0", "node-1", True),
        ("replica-1", "node-2", True),
    ]
    (replica, _) = place.replicas()
    assert [p["pid"] for p in place.processes(replica)] == [replica.pid]
    assert b"serving.engines.simulated" in Path(f"/proc/{replica.pid}/cmdline").read_bytes()
    router = place.parts()["router"]
    assert router.url == place.addresses["router"] == status["regions"][0]["router"]
    assert identity.alive(router.identity)
    with pytest.raises(Refused, match="has no region 'region-2'"):
        places.open(f"lab:{lab.name}/region-2")
    with pytest.raises(Refused, match="lab 'nolab' is not up"):
        places.open("lab:nolab")


@needs_root
def test_what_is_mounted_and_unmounted_here_is_so_on_the_node(lab: Lab) -> None:
    path = f"{lab.folder}/node-1/local"
    (Path(path) / "more").mkdir(exist_ok=True)
    mounts.mount("exal-more", f"{path}/more", "tmpfs", data="size=1m")
    try:
        assert f" {path}/more " in lab.on("node-1", "cat", "/proc/self/mountinfo")
    finally:
        mounts.detach(f"{path}/more")
    assert f" {path}/more " not in lab.on("node-1", "cat", "/proc/self/mountinfo")


@needs_root
def test_mistakes_are_told_with_their_cure(lab: Lab, tmp_path: Path) -> None:
    assert "no node 'node-9'; there are: node-1, node-2" in lab("shell", "node-9", status=2)
    assert "only 2 nodes (--nodes)" in lab("up", "--nodes", "2", "--real", "3", status=2)
    assert "give KEY=VALUE" in lab("up", "--set", "nonsense", status=2)
    other = Lab(tmp_path)
    assert f"lab '{other.name}' is not up" in other("status", status=1)
    assert other("down") == f"there is no lab '{other.name}' (looked in {other.folder})\n"
    other.name = lab.name
    assert f"a lab '{lab.name}' of another home is up ({lab.folder})" in other("up", status=2)
    other("down")  # leaves the other home's alone
    assert [n["state"] for n in lab.status()["nodes"]] == ["ready", "ready"]
    other.name = "Much-Too-Long"
    assert "--name: 'Much-Too-Long' must be" in other("up", status=2)


@needs_root
def test_down_removes_what_is_frozen_damaged_stuck_and_unknown(tmp_path: Path) -> None:
    lab, before = Lab(tmp_path), others()
    lab("up", "--nodes", "1")
    try:
        node = lab.node("node-1")
        os.kill(node["replicas"][0]["pid"], signal.SIGSTOP)
        shared = lab.folder / "node-1" / "shared"
        (Path(storage.control_folder(str(shared))) / "stuck.json").write_text(
            '{"rules": [{"fault": "hang"}]}'
        )
        if storage.daemon(str(shared)):
            lab.until(lambda: fuse.state(str(shared)).get("files", {}).get("stuck.json") == "ok")
        reading = [
            "nsenter",
            "-t",
            str(node["init"]),
            "-m",
            "-p",
            "--",
            "cat",
            f"{shared}/models/simulated/config.json",
        ]
        stuck = subprocess.Popen(reading, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.2)
        os.kill(node["init"], signal.SIGKILL)
        mounts.mount("exal-more", f"{lab.folder}/node-1/local", "tmpfs", data="size=1m")
        (lab.folder / "lab.json").write_text('{"version": 1, "nodes": 3}')
        group = Path("/sys/fs/cgroup/pids") / f"exal-{lab.name}-test"
        if group.parent.is_dir():
            group.mkdir()
        assert "there is left of it: process" in lab("status", status=1)
    finally:
        said = lab("down")
    assert said.startswith(f"lab '{lab.name}' is gone after")
    assert lab.left == []
    stuck.wait(60)
    assert lab("down").startswith("there is no lab")
    assert others() == before


def injected(lab: Lab, fault: str) -> subprocess.Popen[str]:
    """``exaserve chaos inject`` on node-1, once the fault is in."""
    words = ["inject", fault, "--target", "node-1", "--duration", "60", "--allow-last"]
    process = subprocess.Popen(
        [sys.executable, "-m", "serving.cli", "chaos", *words, "--place", f"lab:{lab.name}"],
        env={**os.environ, **lab.env},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert "is in node-1" in process.stdout.readline()
    return process


def undo_records(lab: Lab) -> list[Path]:
    return list((lab.home / "chaos" / "undo").glob("*.json"))


@needs_root
@pytest.mark.parametrize("fault", ["node_cpu", "node_killed"])
def test_down_takes_out_the_faults_that_are_in_and_says_so(fault: str, tmp_path: Path) -> None:
    """Also the one whose undo is a command that changes the lab, as `down` does."""
    lab = Lab(tmp_path)
    lab("up", "--nodes", "1", "--set", "monitoring.enabled=false")
    try:
        inject = injected(lab, fault)
    finally:
        said = lab("down").splitlines()
    assert said[0] == f"{fault} on node-1 was in and is taken out"
    assert said[1].startswith(f"lab '{lab.name}' is gone after")
    assert lab.left == []
    assert inject.wait(60) == 0
    assert inject.stdout is not None
    inject.stdout.close()
    assert undo_records(lab) == []


@needs_root
def test_up_over_a_lab_that_went_down_with_its_machine_takes_its_faults_out(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab("up", "--nodes", "1", "--set", "monitoring.enabled=false")
    try:
        inject = injected(lab, "node_killed")
        (record,) = undo_records(lab)
        kill_both(inject, json.loads(record.read_bytes())["deadman"])
        for pid in teardown.processes(str(lab.folder)):
            with suppress(ProcessLookupError):  # it went with one before it
                os.kill(pid, signal.SIGKILL)
        assert undo_records(lab) == [record]
        said = lab("up", "--nodes", "1", "--set", "monitoring.enabled=false")
        assert said.startswith("node_killed on node-1 was in and is taken out\n")
        assert undo_records(lab) == []
        assert lab.node("node-1")["state"] == "ready"
    finally:
        lab("down")
    assert lab.left == []


class Taken:
    """An undo record of the lab ``some`` that says when it is carried out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out: list[Path] = []
        record = {"place": "lab:some/region-1", "fault": "node_cpu", "target": "node-1"}
        monkeypatch.setattr(recover, "records", lambda: iter([(Path("one"), record)]))
        monkeypatch.setattr(recover, "one", lambda path: self.out.append(path) or [])


@pytest.mark.parametrize(
    ("owner", "taken"), [(None, True), ("", True), ("mine", True), ("/another/home/lab/some", False)]
)
def test_faults_in_another_homes_lab_of_that_name_are_left_alone(
    owner: str | None, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, said = Taken(monkeypatch), []
    mine = str(state.folder("some"))
    monkeypatch.setattr(network, "owner", lambda name: mine if owner == "mine" else owner)
    faults.take_out("some", said.append)
    assert record.out == ([Path("one")] if taken else [])
    assert said == (["node_cpu on node-1 was in and is taken out"] if taken else [])


@pytest.mark.parametrize("command", ["up", "down"])
def test_inside_of_a_lab_neither_faults_nor_the_state_are_touched(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Taken(monkeypatch)
    state.write({**state.plan("some", 1, 1, 0, 1, "tuned", []), "phase": "ready"})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(build, "problems", list)
    monkeypatch.setattr(network, "owner", lambda name: None)
    monkeypatch.setenv(state.MARK, "/somewhere")
    done = CliRunner().invoke(cli.app, [command, "--name", "some"])
    assert (done.exit_code, "a shell inside of a lab" in done.output) == (1, True)
    found = state.read("some")
    assert found is not None
    assert (found["phase"], record.out) == ("ready", [])


def test_a_lab_is_marked_as_ending_on_a_full_disk_too(monkeypatch: pytest.MonkeyPatch) -> None:
    state.write({**state.plan("some", 1, 1, 0, 1, "tuned", []), "phase": "ready"})
    state.mark_ending("some")
    found = state.read("some")
    assert found is not None
    assert found["phase"] == "ending"

    def full(what: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(state, "write", full)
    state.mark_ending("some")
    assert state.read("some") is None


@needs_root
@pytest.mark.parametrize("seconds", [0.8, 2.0])
def test_down_removes_a_lab_whose_building_was_killed(seconds: float, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    argv = [sys.executable, "-m", "serving.cli", "lab", "up", "--nodes", "2", "--name", lab.name]
    building = subprocess.Popen(
        argv, env={**os.environ, **lab.env}, stdout=subprocess.DEVNULL, start_new_session=True
    )
    time.sleep(seconds)
    building.kill()
    building.wait()
    lab("down")
    assert lab.left == []
    assert lab("down").startswith("there is no lab")


@needs_root
def test_down_while_it_is_built_stops_that(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    argv = [sys.executable, "-m", "serving.cli", "lab", "up", "--nodes", "2", "--name", lab.name]
    building = subprocess.Popen(argv, env={**os.environ, **lab.env}, stdout=subprocess.PIPE, text=True)
    try:
        assert eventually((lab.folder / "node-2" / "init.log").exists)
        building.send_signal(signal.SIGSTOP)  # or it might be up before `down` looks
        said = lab("down")
        assert f"lab '{lab.name}' is just being built; stopping that" in said
        assert building.wait(60) == 130
    finally:
        building.kill()
        building.wait()
        lab("down")
    assert lab.left == []


def test_a_plan_divides_nodes_ports_and_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path))
    monkeypatch.delenv("EXASERVE_RUN", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5, 6, 7})
    plan = state.plan("some", 4, 2, 2, 2, "tuned", [])
    assert [(n["region"], n["engine"], n["cpus"]) for n in plan["nodes"]] == [
        ("region-1", "vllm", [4, 5]),
        ("region-1", "vllm", [6, 7]),
        ("region-2", "simulated", []),
        ("region-2", "simulated", []),
    ]
    assert [r["name"] for n in plan["nodes"] for r in n["replicas"]] == [f"replica-{i}" for i in range(8)]
    assert [r["nodes"] for r in plan["regions"]] == [["node-1", "node-2"], ["node-3", "node-4"]]
    urls = [r[part] for r in plan["regions"] for part in ("router", "admin", "prometheus", "alertmanager")]
    assert len({url.rsplit(":")[-1] for url in urls}) == 8
    taken = plan["subnet"]
    assert state.plan("some", 1, 1, 0, 1, "tuned", [taken])["subnet"] != taken
    assert state.plan("some", 1, 1, 0, 1, "tuned", ["default"])["subnet"] == taken


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "name": "some"}'])
def test_a_state_file_that_is_damaged_is_none(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXASERVE_RUN", str(tmp_path))
    (tmp_path / "lab" / "some").mkdir(parents=True)
    (tmp_path / "lab" / "some" / "lab.json").write_text(text)
    assert state.read("some") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda lab: lab["nodes"][0].pop("init"),
        lambda lab: lab["nodes"][0].update(init={"pid": "x"}),
        lambda lab: lab["nodes"][0].update(replicas=[{}]),
        lambda lab: lab.update(nodes="abc"),
        lambda lab: lab.update(nodes=[]),
        lambda lab: lab.update(regions=[1]),
        lambda lab: lab.update(builder=7),
        lambda lab: lab.update(folder="/"),
    ],
)
def test_a_state_file_without_one_of_its_parts_is_none(
    damage: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXASERVE_RUN", str(tmp_path))
    whole = state.plan("some", 2, 1, 0, 1, "tuned", [])
    state.write(whole)
    assert state.read("some") == whole
    damage(whole)
    Path(tmp_path / "lab" / "some" / "lab.json").write_text(json.dumps(whole))
    assert state.read("some") is None


def test_without_ip_everything_else_of_a_lab_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXASERVE_RUN", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = tmp_path / "lab" / "some"
    folder.mkdir(parents=True)
    with pytest.raises(state.LabError, match="not gone altogether: interfaces: ip not found"):
        teardown.remove("some")
    assert not folder.exists()


def test_a_network_program_that_does_not_end_is_named_and_the_rest_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXASERVE_RUN", str(tmp_path))

    def hangs(argv: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(argv, 20)

    monkeypatch.setattr(network.subprocess, "run", hangs)
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/sbin/{program}")
    folder = tmp_path / "lab" / "some"
    folder.mkdir(parents=True)
    with pytest.raises(state.LabError, match=r"interfaces: ip -json link: no end within 20 s; .*try again"):
        teardown.remove("some")
    assert not folder.exists()
    folder.mkdir()
    monkeypatch.setattr(network, "owner", lambda name: None)
    monkeypatch.setattr(network, "of", lambda name: [])
    with pytest.raises(state.LabError, match="altogether: nftables tables: nft list tables: no end within"):
        teardown.remove("some")
    assert not folder.exists()


def test_a_mount_that_cannot_be_detached_is_named_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [mounts.Mount("/lab/some/shared", "fuse.exaserve", "x")]
    monkeypatch.setattr(mounts, "below", lambda folder: there)
    monkeypatch.setattr(mounts, "detach", lambda path: False)
    monkeypatch.setattr(teardown, "_SECONDS", 0.1)
    with pytest.raises(state.LabError, match="/lab/some/shared is still mounted after"):
        teardown._unmount_all("/lab/some")


def test_control_groups_that_vanish_meanwhile_keep_nothing_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "everything", lambda: [mounts.Mount(str(tmp_path), "cgroup2", "cgroup")])
    top = tmp_path / "exal-some-1"
    (top / "in" / "deeper").mkdir(parents=True)
    (top / "freezer.state").mkdir()  # written to, it is as a group that has just gone: OSError
    groups = teardown._walk_groups("some")
    assert next(groups) == top
    assert next(groups) in top.iterdir()  # which comes first is the file system's to say
    shutil.rmtree(top / "in")
    assert top / "in" / "deeper" not in list(groups)
    process = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(
        teardown, "processes", lambda place: [process.pid] if identity.of(process.pid) else []
    )
    try:
        assert teardown._end_all("/lab/some", [top]) == 1
    finally:
        process.kill()
        process.wait()


def test_what_a_lab_lacks_is_told_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda program: None)
    assert build.problems() == [
        "a lab makes interfaces and namespaces, which only root may: sudo -E exaserve lab up",
        "ip and nsenter not found: serving/tools.sh lab, or sudo apt-get install iproute2 util-linux",
    ]


def test_inside_of_a_lab_nothing_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(state.MARK, "/somewhere")
    with pytest.raises(state.LabError, match="a shell inside of a lab"):
        teardown.remove("some")


def test_an_interface_that_goes_with_its_nodes_network_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[str] = []

    def ip(*arguments: str, node: int | None = None) -> str:
        if "delete" in arguments:
            raise state.LabError("ip link delete dev exal-a-1: RTNETLINK answers: No such device")
        return json.dumps([{"ifname": name} for name in there])

    monkeypatch.setattr(network, "ip", ip)
    network.remove(["exal-a-1"])
    there.append("exal-a-1")
    with pytest.raises(state.LabError, match="No such device"):
        network.remove(["exal-a-1"])
